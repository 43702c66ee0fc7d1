//! What a process has sent and received over TCP, as `ss` shows it.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Both ends of a connection: the own address, then the other one.
type Ends = (String, String);

/// Bytes of each connection of a process so far, in both directions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sockets(BTreeMap<Ends, u64>);

impl Sockets {
    /// Those of a process.
    pub(super) async fn of(pid: u32) -> anyhow::Result<Self> {
        let ran = Command::new("ss").args(["-tinpOH"]).output().await.context("failed to run ss (iproute2)")?;
        ensure!(ran.status.success(), "ss failed: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(Self::parse(&String::from_utf8_lossy(&ran.stdout), pid))
    }

    fn parse(text: &str, pid: u32) -> Self {
        let process = format!("pid={pid},");
        let socket = |line: &str| {
            let mut words = line.split_ascii_whitespace().skip(3);
            let ends = (words.next()?.to_owned(), words.next()?.to_owned());
            let bytes = |word: &str| {
                let count = ["bytes_sent:", "bytes_received:"].iter().find_map(|name| word.strip_prefix(name));
                count.and_then(|count| count.parse::<u64>().ok())
            };
            Some((ends, words.filter_map(bytes).sum()))
        };
        Self(text.lines().filter(|line| line.contains(&process)).filter_map(socket).collect())
    }

    /// Bytes since an earlier look, over connections whose own or other address `is` so. A connection that ended since is lost.
    pub(super) fn since(&self, before: &Self, is: impl Fn(&str) -> bool) -> u64 {
        let here = self.0.iter().filter(|((own, other), _)| is(own) || is(other));
        here.map(|(ends, bytes)| bytes.saturating_sub(before.0.get(ends).copied().unwrap_or(0))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
ESTAB 0      0      10.0.0.1:43346 10.0.0.1:8700 users:(("cloudmap-mcs",pid=24,fd=7)) bbr rto:204 bytes_sent:100 bytes_acked:101 bytes_received:900 segs_out:849
ESTAB 0      0      10.0.0.1:43348 10.0.0.1:8700 users:(("cloudmap-mcs",pid=249,fd=8)) bbr bytes_sent:5 bytes_acked:6 bytes_received:7
"#;
    const AFTER: &str = r#"
ESTAB 0      0      10.0.0.1:43346 10.0.0.1:8700 users:(("cloudmap-mcs",pid=24,fd=7)) bbr rto:204 bytes_sent:150 bytes_acked:151 bytes_received:2900 segs_out:849
ESTAB 0      0      [::ffff:10.0.0.1]:7942 [::ffff:10.0.0.1]:50000 users:(("cloudmap-mcs",pid=24,fd=9)) bbr bytes_sent:40 bytes_acked:40 bytes_received:2
SYN-SENT 0   1      10.0.0.1:43350 10.0.0.1:6443 users:(("cloudmap-mcs",pid=24,fd=10)) bbr
"#;

    #[test]
    fn bytes_are_those_of_one_process_by_where_they_went() {
        let (before, after) = (Sockets::parse(BEFORE, 24), Sockets::parse(AFTER, 24));
        assert_eq!((before.0.len(), after.0.len()), (1, 3));
        assert_eq!(after.since(&before, |end| end.ends_with(":8700")), 50 + 2000);
        assert_eq!(after.since(&before, |end| end.ends_with(":7942")), 42, "a new connection counts as a whole");
        assert_eq!(after.since(&before, |_| true), 2092);
        assert_eq!(Sockets::parse(AFTER, 2), Sockets::default());
    }
}
