//! Whether the cluster's DNS answers after a change, as it did before: its pods are asked, and a change that makes it worse is
//! taken back.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use cluster::coredns::{Answer, Ask, Kind};

/// How many pods are asked.
const PODS: usize = 3;
/// The kubelet takes up to a minute and a half to show pods a ConfigMap, and CoreDNS looks every 30 s.
pub(super) const PATIENCE: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_secs(3);
/// After so many bad answers in a row, it is not a pod that restarts.
const BAD: usize = 3;

/// The queries, and the pods that get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Questions {
    /// The pods.
    pub(super) pods: Vec<String>,
    pub(super) port: u16,
    /// A name that every cluster has.
    pub(super) everywhere: String,
    /// A name that CoreDNS answers by itself once it has the zone.
    pub(super) version: String,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All pods that were asked answer for the zone.
    Answers(usize),
    /// Some pods do not answer for the zone yet, and nothing is worse than before.
    NotYet(String),
    /// Names of the cluster that were answered before are not.
    Worse(String),
}

/// The pods that answer for the cluster before the change: only they can show that it is worse.
pub(super) async fn before(asker: &dyn Ask, questions: &Questions) -> Result<Questions, String> {
    let mut good = Vec::new();
    let mut why = "no pod of it runs".to_owned();
    for pod in questions.pods.iter().take(PODS) {
        match asker.ask(pod, questions.port, &questions.everywhere, Kind::A).await {
            Ok(answer) if answer.is_good() => good.push(pod.clone()),
            other => why = failure(pod, &questions.everywhere, &other),
        }
    }
    if good.is_empty() { Err(why) } else { Ok(Questions { pods: good, ..questions.clone() }) }
}

/// Asks until all pods have the zone, until the cluster's names are gone, or until [`PATIENCE`] is over.
pub(super) async fn after(asker: &dyn Ask, questions: &Questions) -> Verdict {
    let deadline = Instant::now() + PATIENCE;
    let mut bad = 0;
    loop {
        let (mut worse, mut waiting, mut silent) = (None, None, 0);
        for pod in &questions.pods {
            let answer = asker.ask(pod, questions.port, &questions.everywhere, Kind::A).await;
            let good = |answer: &Result<Answer, String>| answer.as_ref().is_ok_and(|answer| answer.is_good());
            if good(&answer) {
                let version = asker.ask(pod, questions.port, &questions.version, Kind::Txt).await;
                if !good(&version) {
                    waiting = Some(failure(pod, &questions.version, &version));
                }
            } else {
                let why = Some(failure(pod, &questions.everywhere, &answer));
                // A pod that is gone may have been replaced.
                if answer.is_err() {
                    silent += 1;
                    waiting = why;
                } else {
                    worse = why;
                }
            }
        }
        bad = if worse.is_some() { bad + 1 } else { 0 };
        match worse.or(waiting) {
            None => return Verdict::Answers(questions.pods.len()),
            Some(why) if bad == BAD => return Verdict::Worse(why),
            Some(why) if Instant::now() >= deadline && silent == questions.pods.len() => return Verdict::Worse(why),
            Some(why) if Instant::now() >= deadline => return Verdict::NotYet(why),
            Some(_) => sleep(POLL).await,
        }
    }
}

fn failure(pod: &str, name: &str, answer: &Result<Answer, String>) -> String {
    match answer {
        Err(why) => format!("the pod {pod}, asked for {name}: {why}"),
        Ok(Answer { code: 0, .. }) => format!("the pod {pod} has no record for {name}"),
        Ok(Answer { code, .. }) => {
            let code = match code {
                2 => "SERVFAIL".to_owned(),
                3 => "NXDOMAIN".to_owned(),
                5 => "REFUSED".to_owned(),
                other => format!("code {other}"),
            };
            format!("the pod {pod} answers {code} to {name}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;

    /// Answers by the pod and by how many questions it was asked before.
    struct Script<F>(F, Mutex<Vec<String>>);

    #[async_trait]
    impl<F: Fn(&str, Kind, usize) -> Result<Answer, String> + Send + Sync> Ask for Script<F> {
        async fn ask(&self, pod: &str, _: u16, _: &str, kind: Kind) -> Result<Answer, String> {
            let mut asked = self.1.lock().unwrap();
            let before = asked.iter().filter(|it| *it == pod).count();
            asked.push(pod.to_owned());
            (self.0)(pod, kind, before)
        }
    }

    const GOOD: Result<Answer, String> = Ok(Answer { code: 0, records: 1 });
    const FAILS: Result<Answer, String> = Ok(Answer { code: 2, records: 0 });
    const NONE: Result<Answer, String> = Ok(Answer { code: 3, records: 0 });

    fn questions() -> Questions {
        let (everywhere, version) =
            ("kubernetes.default.svc.cluster.local".to_owned(), "dns-version.clusterset.local".to_owned());
        Questions { pods: ["a", "b"].map(str::to_owned).into(), port: 53, everywhere, version }
    }

    async fn verdict(answers: impl Fn(&str, Kind, usize) -> Result<Answer, String> + Send + Sync) -> Verdict {
        after(&Script(answers, Mutex::default()), &questions()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_good_when_all_pods_have_the_zone() {
        assert_eq!(
            verdict(|_, kind, asked| if kind == Kind::Txt && asked < 20 { NONE } else { GOOD }).await,
            Verdict::Answers(2)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_does_not_read_its_corefile_is_named() {
        let said = verdict(|pod, kind, _| if kind == Kind::Txt && pod == "b" { NONE } else { GOOD }).await;
        assert_eq!(said, Verdict::NotYet("the pod b answers NXDOMAIN to dns-version.clusterset.local".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_worse_when_names_of_the_cluster_fail_more_than_for_a_moment() {
        let fails = verdict(|_, _, asked| {
            if asked > 6 {
                FAILS
            } else if asked % 2 == 0 {
                GOOD
            } else {
                NONE
            }
        })
        .await;
        assert!(matches!(&fails, Verdict::Worse(why) if why.contains("SERVFAIL")), "{fails:?}");
        let silent = verdict(|_, _, _| Err("no answer within 5 s".to_owned())).await;
        assert!(matches!(silent, Verdict::Worse(_)), "{silent:?}");
        let moment = verdict(|_, _, asked| if asked < 2 { FAILS } else { GOOD }).await;
        assert_eq!(moment, Verdict::Answers(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_was_replaced_is_not_a_worse_answer() {
        let said = verdict(|pod, _, _| if pod == "a" { Err("not found".to_owned()) } else { GOOD }).await;
        assert!(matches!(&said, Verdict::NotYet(why) if why.contains("the pod a")), "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_pods_that_answered_before_can_show_that_it_is_worse() {
        let script = Script(|pod: &str, _: Kind, _: usize| if pod == "a" { FAILS } else { GOOD }, Mutex::default());
        assert_eq!(before(&script, &questions()).await.map(|it| it.pods), Ok(vec!["b".to_owned()]));
        let script = Script(|_: &str, _: Kind, _: usize| Err("forbidden".to_owned()), Mutex::default());
        assert!(before(&script, &questions()).await.unwrap_err().contains("forbidden"));
    }
}
