//! What the kernel knows of a process.

use anyhow::Context as _;

/// Resident memory of a process in bytes.
pub(super) fn resident_memory(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmRSS")
}

/// The most resident memory that a process ever had, in bytes.
pub(super) fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmHWM")
}

fn memory(pid: u32, which: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}: has it ended?"))?;
    bytes(&status, which).with_context(|| format!("{path} has no {which}: is it a zombie?"))
}

fn bytes(status: &str, which: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Sends a signal to a process, such as `KILL`.
pub(super) async fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    let status = tokio::process::Command::new("kill").args(["-s", signal, &pid.to_string()]).status().await?;
    anyhow::ensure!(status.success(), "failed to send SIG{signal} to process {pid}: has it ended?");
    Ok(())
}

/// Processor time that a process has used so far, in seconds.
pub(super) fn processor_time(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}: has it ended?"))?;
    processor_seconds(&stat).with_context(|| format!("{path} has no processor times"))
}

/// `utime` and `stime` of proc_pid_stat(5), in ticks of 10 ms. The name before them may contain anything.
fn processor_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_in_kibibytes() {
        let status = "Name:\tx\nVmHWM:\t   99 kB\nVmRSS:\t   34512 kB\nThreads:\t3\n";
        assert_eq!(bytes(status, "VmRSS"), Some(34512 * 1024));
        assert_eq!(bytes(status, "VmHWM"), Some(99 * 1024));
        assert_eq!(bytes("Name:\tx\nState:\tZ (zombie)\n", "VmRSS"), None);
    }

    #[test]
    fn processor_time_is_that_of_user_and_kernel() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 5000 0 3 0 250 50 0 0 20 0 9 0 1000 0 0";
        assert_eq!(processor_seconds(stat), Some(3.0));
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let now = resident_memory(std::process::id()).unwrap();
        assert!(now > 100_000 && peak_memory(std::process::id()).unwrap() >= now);
        assert!(processor_time(std::process::id()).unwrap() >= 0.0);
    }
}
