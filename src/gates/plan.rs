//! When the gate of a pod opens, and why: pure.

use std::time::Duration;

use api::conditions::GateReason;
use model::Target;

/// How long a pod waits at least if nothing is on its way. Its EndpointSlices, one for each IP family, may not all list it yet,
/// so that it lacks a record of its Cloud Map service; and whoever applies a folder of manifests may create the ServiceExport
/// last.
const GRACE: Duration = Duration::from_secs(10);

/// What became of a pod's instances in one target, or of one Service of it that has no target (yet).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Discovery shows all of them.
    Shown(Target),
    /// A share of the traffic leaves them out.
    HeldBack(Target),
    /// They are on their way. The text completes "waiting: ".
    Waits(String),
    /// The Service is not to be registered, because its user or the operator said so.
    Declined,
    /// They will not be registered, for a reason that does not pass by itself. The text is for the user.
    Refused(String),
}

/// What is known of a pod that waits for nothing but its gate.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// What became of it, in all targets of all its Services. Empty if none of them is registered.
    pub progress: &'a [Progress],
    /// How long it has been waiting: under earlier leaders by the pod's conditions, under this one by what it saw pass.
    pub waited: Duration,
    /// For how much of that this leader has known the pod.
    pub known_for: Duration,
    /// `--gate-timeout`.
    pub timeout: Duration,
}

/// The decision about a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It stays closed. The text says what the pod waits for.
    Wait(String),
    /// It opens, for good.
    Open(GateReason, String),
}

/// Whether the gate of a pod opens.
///
/// - As long as anything is on its way, the pod waits, but not longer than the timeout. A new leader looks for a short time
///   even if the timeout is over: Cloud Map may show the pod, and a clock may be wrong.
/// - Otherwise it opens: nothing is to be waited for. Where the pod is in several targets, what is refused or left out in
///   one does not matter as long as another shows it.
/// - If it is refused, or has no target though nobody said that it should have none, it waits for a short time, because not
///   everything may be known yet.
pub fn plan(observed: &Observed<'_>) -> Verdict {
    let Observed { progress, waited, known_for, timeout } = *observed;
    let is_new = known_for < GRACE.min(timeout);
    let (mut shown, mut held_back, mut refused, mut declined) = (Vec::new(), Vec::new(), Vec::new(), false);
    for progress in progress {
        match progress {
            Progress::Waits(why) if waited < timeout || is_new => return Verdict::Wait(why.clone()),
            Progress::Waits(why) => {
                let text = format!("Opened after {}, the --gate-timeout, still waiting: {why}.", words(timeout));
                return Verdict::Open(GateReason::TimedOut, text);
            }
            Progress::Declined => declined = true,
            Progress::Shown(target) => shown.push(target.to_string()),
            Progress::HeldBack(target) => held_back.push(target.to_string()),
            Progress::Refused(why) => refused.push(why.as_str()),
        }
    }
    if !shown.is_empty() {
        let text = format!("Registered in Cloud Map, where discovery shows it: {}.", shown.join(", "));
        Verdict::Open(GateReason::Registered, text)
    } else if !held_back.is_empty() {
        let text = format!(
            "Not registered, because fewer pods are enough for the share of the traffic that is requested: {}.",
            held_back.join(", ")
        );
        Verdict::Open(GateReason::HeldBack, text)
    } else if !refused.is_empty() {
        let text = format!("It cannot be registered: {}", refused.join(" "));
        if is_new { Verdict::Wait(text) } else { Verdict::Open(GateReason::Refused, text) }
    } else if !declined && is_new {
        Verdict::Wait("no Service that lists the pod is registered in Cloud Map yet".to_owned())
    } else {
        let text = "No Service that lists the pod is registered in Cloud Map by this cluster.";
        Verdict::Open(GateReason::NotRegistered, text.to_owned())
    }
}

fn words(time: Duration) -> String {
    k8s_openapi::jiff::SignedDuration::try_from(time).map_or_else(|_| String::new(), |time| format!("{time:#}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(5);

    fn shown() -> Progress {
        Progress::Shown(Target { namespace: "shop".into(), service: "web".into() })
    }

    fn held_back() -> Progress {
        Progress::HeldBack(Target { namespace: "shop".into(), service: "api".into() })
    }

    fn waits() -> Progress {
        Progress::Waits("AWS throttles".to_owned())
    }

    fn refused() -> Progress {
        Progress::Refused("The service is foreign.".to_owned())
    }

    fn judge(progress: &[Progress], waited: u64, known_for: u64) -> Result<(GateReason, String), String> {
        let [waited, known_for] = [waited, known_for].map(Duration::from_secs);
        match plan(&Observed { progress, waited, known_for, timeout: TIMEOUT }) {
            Verdict::Wait(why) => Err(why),
            Verdict::Open(reason, text) => Ok((reason, text)),
        }
    }

    #[test]
    fn a_gate_opens_when_nothing_is_to_be_waited_for_any_more() {
        use GateReason::{HeldBack, NotRegistered, Refused, Registered, TimedOut};
        for (progress, waited, known_for, expected) in [
            (&[waits()][..], 0, 0, None),
            (&[waits()], 299, 299, None),
            // A new leader has not looked yet.
            (&[waits()], 300, 9, None),
            (&[waits()], 300, 10, Some(TimedOut)),
            (&[shown()], 0, 0, Some(Registered)),
            (&[shown(), waits()], 299, 299, None),
            (&[shown(), waits()], 300, 300, Some(TimedOut)),
            (&[held_back()], 0, 0, Some(HeldBack)),
            (&[held_back(), waits()], 0, 0, None),
            (&[held_back(), shown()], 0, 0, Some(Registered)),
            (&[held_back(), refused()], 0, 0, Some(HeldBack)),
            // Its EndpointSlices come one by one.
            (&[refused()], 9, 9, None),
            (&[refused()], 10, 10, Some(Refused)),
            (&[refused(), waits()], 10, 10, None),
            (&[refused(), shown()], 0, 0, Some(Registered)),
            (&[], 9, 9, None),
            // A new leader may not know the Service yet, however long the pod has waited.
            (&[], 1000, 9, None),
            (&[], 10, 10, Some(NotRegistered)),
            (&[Progress::Declined], 0, 0, Some(NotRegistered)),
            (&[Progress::Declined, waits()], 0, 0, None),
        ] {
            let said = judge(progress, waited, known_for);
            assert_eq!(said.as_ref().ok().map(|(reason, _)| *reason), expected, "{progress:?} {waited} {said:?}");
        }
    }

    #[test]
    fn what_is_said_names_what_the_pod_waited_for_and_where_it_is() {
        assert_eq!(judge(&[waits()], 1, 1), Err("AWS throttles".to_owned()));
        let (_, text) = judge(&[waits()], 300, 300).unwrap();
        assert_eq!(text, "Opened after 5m, the --gate-timeout, still waiting: AWS throttles.");
        assert!(judge(&[shown()], 1, 1).unwrap().1.contains("shop/web"));
        assert!(judge(&[held_back()], 1, 1).unwrap().1.contains("shop/api"));
        assert!(judge(&[refused()], 10, 10).unwrap().1.contains("The service is foreign."));
    }

    proptest! {
        /// Roll-outs and PodDisruptionBudgets never hang on Cloud Map.
        #[test]
        fn no_gate_is_closed_after_the_timeout(
            kinds in proptest::collection::vec(0..4u8, 0..5), waited in 0..1000u64, known_for in 0..1000u64,
        ) {
            let progress: Vec<_> =
                kinds.iter().map(|kind| [shown(), waits(), refused(), held_back()][usize::from(*kind)].clone()).collect();
            let said = judge(&progress, waited, known_for);
            if waited >= 300 && known_for >= 10 {
                prop_assert!(said.is_ok());
            }
            if let Ok((GateReason::Registered, _)) = said {
                prop_assert!(progress.contains(&shown()) && !progress.contains(&waits()));
            }
        }
    }
}
