//! Readiness gates, which are looked at only where the controller opens them.

use super::{super::super::gates::Unwatched, *};

fn unwatched(name: &str, owner: Option<&str>) -> Unwatched {
    Unwatched { namespace: "shop".to_owned(), name: name.to_owned(), owner: owner.map(str::to_owned) }
}

/// State, text and remedy of the finding.
fn found(unwatched: Result<Vec<Unwatched>, Unread>) -> (State, String, String) {
    let mut observation = healthy();
    first(&mut observation).unwatched = Some(unwatched);
    let report = plan(&observation);
    let all: Vec<_> = report.0.iter().filter(|finding| finding.subject == "gates").collect();
    let [finding] = &all[..] else { panic!("{}", report.table()) };
    assert_eq!(finding.place, "a");
    (finding.state, finding.what.clone(), finding.remedy.clone().unwrap_or_default())
}

#[test]
fn a_pod_with_the_gate_and_without_the_label_is_named_with_its_workload_and_remedy() {
    let web = Some("Deployment web");
    let (state, what, remedy) =
        found(Ok(vec![unwatched("web-1", web), unwatched("web-2", web), unwatched("alone", None)]));
    assert_eq!(state, State::Fail);
    let pods = "3 pod(s) have the readiness gate cloudmap-mcs/registered without the label cloudmap-mcs/gate";
    assert!(what.contains(pods), "{what}");
    assert!(what.contains("shop/web-1 of Deployment web") && what.contains("shop/alone"), "{what}");
    assert!(!what.contains("web-2"), "{what}");
    let command = "kubectl --context a -n shop label pod web-1 cloudmap-mcs/gate=registered";
    assert!(remedy.contains("pod template") && remedy.contains(command), "{remedy}");
}

#[test]
fn of_many_workloads_some_are_named() {
    let pods = (1..=9).map(|number| unwatched(&format!("web-{number}"), None)).collect();
    let (_, what, _) = found(Ok(pods));
    assert!(what.contains("shop/web-5") && what.contains("pods of 4 more workloads"), "{what}");
}

#[test]
fn gates_are_well_if_all_have_the_label_and_skipped_if_pods_may_not_be_read() {
    let (state, what, _) = found(Ok(Vec::new()));
    assert!(state == State::Ok && what.contains("cloudmap-mcs/registered"), "{what}");
    let (state, what, remedy) = found(Err(Unread::Forbidden("you may not list pods".to_owned())));
    assert!(state == State::Skip && what.contains("you may not list pods"), "{what}");
    assert!(remedy.contains("list the pods of all namespaces"), "{remedy}");
    let (state, _, _) = found(Err(Unread::Failed("no answer".to_owned())));
    assert_eq!(state, State::Fail);
}
