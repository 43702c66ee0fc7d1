//! Whether AWS has room for tasks and pods at once, and what both cost.

use super::*;

/// What is said about a namespace that has so many instances, of names that add so many pods.
fn said(instances: Option<usize>, pods: &[usize]) -> Vec<plan::Finding> {
    let mut coming = Coming::default();
    for pods in pods {
        coming.add(&room(instances), *pods);
    }
    let plans = coming.plans();
    assert!(plans.len() == 1 && plans[0].0 == "Cloud Map namespace internal", "{plans:?}");
    plans[0].1.findings.clone()
}

fn about<'a>(findings: &'a [plan::Finding], about: &str) -> &'a plan::Finding {
    findings.iter().find(|finding| finding.about == about).unwrap()
}

#[test]
fn the_pods_of_all_names_count_together_against_the_quota_of_the_namespace() {
    use Grade::{Ok, Warning};
    for (now, pods, grade, sum) in [
        (Some(1_200), &[800][..], Ok, "are 2000 at once"),
        (Some(1_200), &[801], Warning, "are 2001 at once"),
        (Some(1_200), &[600, 600], Warning, "1200 more for the pods of these 2 names are 2400 at once"),
        (Some(0), &[0], Ok, "0 more for the pods of this name are 0 at once"),
        // It is full already.
        (Some(2_100), &[0], Warning, "are 2100 at once"),
    ] {
        let findings = said(now, pods);
        let quota = about(&findings, "quota");
        assert_eq!(quota.grade, grade, "{quota:?}");
        assert!(quota.text.contains(sum) && quota.text.contains("takes 2000 in a namespace"), "{quota:?}");
        assert_eq!(quota.remedy.as_ref().is_some_and(|remedy| remedy.contains("L-D95E8A57")), grade == Warning);
    }
    let findings = said(Some(1_200), &[1_200]);
    let remedy = about(&findings, "quota").remedy.as_deref().unwrap();
    let raise = "request-service-quota-increase --region eu-central-1 --service-code AWSCloudMap --quota-code L-D95E8A57 \
                 --desired-value 2400";
    assert!(remedy.contains(raise) && remedy.contains("waves"), "{remedy}");
}

#[test]
fn a_number_that_cloud_map_does_not_say_is_no_zero() {
    let findings = said(None, &[4]);
    let quota = about(&findings, "quota");
    assert_eq!(quota.grade, Grade::Warning);
    assert!(quota.remedy.as_deref().unwrap().contains("Values=ns-aaaaaaaaaaaaaaaa"), "{quota:?}");
    let of = |instances| cloudmap::Service { instances, ..mk_service() };
    let namespace = room(None).namespace;
    for (services, sum) in
        [(vec![], Some(0)), (vec![of(Some(3)), of(Some(4))], Some(7)), (vec![of(Some(3)), of(None)], None)]
    {
        assert_eq!(Room::of(&namespace, &services).instances, sum);
    }
}

#[test]
fn both_at_once_cost_a_tenth_of_a_dollar_for_each_pod_more() {
    let findings = said(Some(2_000), &[4; 500]);
    let cost = &about(&findings, "cost").text;
    assert!(cost.starts_with("2000 instances more cost about 200.00 USD a month"), "{cost}");
}

/// The program has no call that tells the VPCs of a zone, or the VPC of a cluster.
#[test]
fn who_resolves_a_private_namespace_is_said_with_the_command_that_shows_it() {
    let findings = said(Some(1), &[1]);
    let zone = about(&findings, "zone");
    assert!(zone.grade == Grade::Ok && zone.text.contains("(Z0123456789ABCDEFGHIJ)"), "{zone:?}");
    let remedy = zone.remedy.as_deref().unwrap();
    assert!(remedy.contains("aws route53 get-hosted-zone --id Z0123456789ABCDEFGHIJ --query VPCs"), "{remedy}");
    let of = |kind, hosted_zone| {
        let mut coming = Coming::default();
        let mut room = room(Some(1));
        (room.namespace.kind, room.namespace.hosted_zone) = (kind, hosted_zone);
        coming.add(&room, 1);
        let findings = coming.plans().remove(0).1.findings;
        findings.into_iter().find(|finding| finding.about == "zone").map(|finding| finding.remedy.unwrap())
    };
    assert_eq!([NamespaceKind::Http, NamespaceKind::DnsPublic].map(|kind| of(kind, None)), [None, None]);
    let unknown = of(NamespaceKind::DnsPrivate, None).unwrap();
    let first = "aws servicediscovery get-namespace --region eu-central-1 --id ns-aaaaaaaaaaaaaaaa";
    assert!(unknown.contains(first) && unknown.contains("--id ZONE --query VPCs"), "{unknown}");
}

/// How many pods a name adds.
fn more(situation: &Situation) -> usize {
    let mut coming = Coming::default();
    coming.observed(situation);
    let text = about(&coming.plans()[0].1.findings, "cost").text.clone();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_name_adds_the_pods_that_are_not_registered_yet_and_at_least_as_many_as_it_has_tasks() {
    assert_eq!(more(&situation()), 12);
    // There are none yet, or nobody may read them.
    assert_eq!(more(&Situation { pods: Ok(Pods::default()), ..situation() }), 12);
    assert_eq!(more(&Situation { pods: Err(Unread::Forbidden("forbidden".to_owned())), ..situation() }), 12);
    let several = Pods { ready: 20, unready: 4, ..pods(20) };
    assert_eq!(more(&Situation { pods: Ok(several.clone()), ..situation() }), 24);
    let mut begun = registry(12, 60);
    let own = Cluster { addresses: several.addresses.clone(), instances: 5, ..Cluster::default() };
    let other = Cluster { instances: 7, ..Cluster::default() };
    begun.clusters = [("own".to_owned(), own), ("other".to_owned(), other)].into();
    assert_eq!(more(&Situation { pods: Ok(several), registry: Ok(begun), ..situation() }), 19);
    // What does not exist takes nothing.
    let mut coming = Coming::default();
    coming.observed(&Situation {
        registry: Ok(CloudMapService { room: Some(room(Some(1))), ..CloudMapService::default() }),
        ..situation()
    });
    coming.observed(&Situation { registry: Err("denied".to_owned()), ..situation() });
    assert_eq!(coming.plans(), []);
}

#[test]
fn a_service_takes_a_thousand_tasks_and_pods_at_once() {
    let of = |instances: usize, ready: usize| {
        let mut situation = situation();
        situation.registry.as_mut().unwrap().service.as_mut().unwrap().instances = Some(instances);
        situation.pods = Ok(pods(ready));
        let findings = plan(&situation, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "quota").map(|finding| finding.grade)
    };
    for (instances, ready, grade) in [
        (500, 500, None),
        (500, 501, Some(Grade::Warning)),
        // Not even without tasks.
        (12, 1_001, Some(Grade::Blocked)),
    ] {
        assert_eq!(of(instances, ready), grade, "{instances} and {ready}");
    }
}
