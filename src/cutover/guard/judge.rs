//! How a guard judges what it observed.

use std::{collections::BTreeMap, net::SocketAddr};

use super::{Judgement, outside::Failure};

/// So often in a row something has to be wrong before the traffic goes back.
pub(super) const ROW: u32 = 3;

/// What one look found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// What DNS or the discovery plane do not show. They may lag, so this is never a failure.
    pub(super) unseen: Option<String>,
    /// How each pod answered.
    pub(super) pods: BTreeMap<SocketAddr, Result<(), Failure>>,
    /// Whether the value of the query is above its maximum; `None` without a query.
    pub(super) above: Option<Result<bool, String>>,
}

/// How often in a row something was wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    pods: BTreeMap<SocketAddr, u32>,
    above: u32,
}

impl Rows {
    /// Takes what a look found, and judges.
    pub(super) fn judge(&mut self, reading: &Reading) -> Judgement {
        let Reading { unseen, pods, above } = reading;
        let wrong = pods.iter().filter_map(|(at, answer)| Some((*at, answer.err()?.as_str())));
        self.pods = wrong.clone().map(|(at, _)| (at, self.pods.get(&at).copied().unwrap_or_default() + 1)).collect();
        self.above = match above {
            Some(Ok(true)) => self.above + 1,
            // Without a value, the last reading stays.
            Some(Err(_)) => self.above,
            Some(Ok(false)) | None => 0,
        };
        let long = |at: &SocketAddr| self.pods.get(at).is_some_and(|row| *row >= ROW);
        if let Some((at, why)) = wrong.clone().find(|(at, _)| long(at)) {
            return Judgement::Failed(format!("the pod at {at} failed {ROW} probes in a row: {why}"));
        }
        if self.above >= ROW {
            return Judgement::Failed(format!("the value of the query was above its maximum {ROW} times in a row"));
        }
        let doubt = wrong.map(|(at, why)| format!("the pod at {at} failed a probe: {why}")).next();
        let doubt = doubt.or_else(|| match above {
            Some(Ok(true)) => Some("the value of the query is above its maximum".to_owned()),
            Some(Err(why)) => Some(format!("Prometheus: {why}")),
            Some(Ok(false)) | None => None,
        });
        let doubt = doubt.or_else(|| unseen.clone());
        let doubt = doubt.or_else(|| {
            let none = "there is no pod to probe: a guard probes ready pods that the Service selects, on a TCP port of the \
                        Service at its pods (targetPort); spec.guard.port, if it is set, has to be such a number";
            pods.is_empty().then(|| none.to_owned())
        });
        doubt.map_or(Judgement::Passed, Judgement::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pod: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, pod], 80))
    }

    fn reading(pods: &[(u8, bool)], above: Option<Result<bool, String>>) -> Reading {
        let answer = |good: bool| if good { Ok(()) } else { Err(Failure::Refused) };
        Reading { unseen: None, pods: pods.iter().map(|(pod, good)| (at(*pod), answer(*good))).collect(), above }
    }

    /// The judgement after each reading: `+` passed, `?` unknown, `-` failed.
    fn said(readings: &[Reading]) -> String {
        let mut rows = Rows::default();
        let sign = |judgement| match judgement {
            Judgement::Passed => '+',
            Judgement::Unknown(_) => '?',
            Judgement::Failed(_) => '-',
        };
        readings.iter().map(|reading| sign(rows.judge(reading))).collect()
    }

    #[test]
    fn what_is_wrong_three_times_in_a_row_is_a_failure_and_less_holds() {
        let good = reading(&[(1, true), (2, true)], None);
        let bad = reading(&[(1, true), (2, false)], None);
        let other = reading(&[(1, false), (2, true)], None);
        assert_eq!(said(&[good.clone(), bad.clone(), bad.clone(), good.clone()]), "+??+");
        assert_eq!(said(&[bad.clone(), bad.clone(), bad.clone()]), "??-");
        assert_eq!(said(&[bad.clone(), bad.clone(), other, bad.clone()]), "????", "not the same pod");
        // A pod that is gone, such as one of a rolling update, is forgotten.
        assert_eq!(said(&[bad.clone(), bad.clone(), reading(&[(1, true)], None), bad]), "??+?");
    }

    #[test]
    fn a_query_without_a_value_holds_and_neither_proves_nor_refutes() {
        let with = |above| reading(&[(1, true)], Some(above));
        let (good, above, none) = (with(Ok(false)), with(Ok(true)), with(Err("no value".to_owned())));
        assert_eq!(said(&[good.clone(), none.clone(), none.clone(), none.clone(), none.clone()]), "+????");
        assert_eq!(said(&[above.clone(), none.clone(), above.clone(), none, above.clone()]), "????-");
        assert_eq!(said(&[above.clone(), above.clone(), good, above]), "??+?");
    }

    #[test]
    fn what_is_not_seen_holds_for_however_long() {
        let unseen = Reading { unseen: Some("DNS".to_owned()), ..reading(&[(1, true)], None) };
        assert_eq!(said(&[unseen.clone(), unseen.clone(), unseen.clone(), unseen]), "????");
        assert_eq!(said(&[reading(&[], None)]), "?", "nobody was looked at");
    }
}
