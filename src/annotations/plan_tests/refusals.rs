//! What is refused, and what stays registered.

use super::*;

/// Tenants write `spec.externalIPs` and the annotation.
#[test]
fn addresses_that_cannot_be_endpoints_are_left_out_and_reported() {
    let node_port = json!({"type": "NodePort"});
    let targets = "192.0.2.1,169.254.169.254,fd00:ec2::254,::ffff:10.0.0.1,255.255.255.255";
    let found = planned(&service(&[(HOSTNAME, "web.internal"), (TARGET, targets)], &node_port, &json!([])), &[]);
    assert_eq!(lines(&found), ["internal/web: 192.0.2.1 (A 300)"]);
    assert_eq!(reasons(&found), ["AddressSkipped"; 4]);
    assert!(found.refusals.iter().any(|refusal| refusal.message.contains("169.254.169.254")), "{:?}", found.refusals);
    let external = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["169.254.170.23"]});
    let found = planned(&service(&[(HOSTNAME, "web.internal")], &external, &json!([])), &[]);
    assert_eq!(
        (lines(&found).concat(), reasons(&found)),
        ("internal/web:  (nothing yet)".to_owned(), vec!["AddressSkipped"])
    );
}

/// A CNAME to such a text is an answer that nobody can use.
#[test]
fn what_is_no_host_is_refused_with_the_remedy_and_what_is_registered_stays() {
    let ips = json!({"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    for (target, remedy) in [
        ("10.9.0.6:443", "write only \"10.9.0.6\""),
        ("https://lb.example.org/", "write only \"lb.example.org\""),
        ("10.9.0.256", "four numbers"),
    ] {
        let found = planned(&service(&[(HOSTNAME, "web.internal"), (TARGET, target)], &ips, &json!([])), &[]);
        assert_eq!(reasons(&found), ["InvalidAnnotation"], "{target}");
        let message = &found.refusals[0].message;
        assert!(message.contains(TARGET) && message.contains(remedy), "{message}");
        let wanted = found.wanted.unwrap().into_values().next().unwrap();
        assert!(wanted.keep && wanted.instances.is_empty() && !wanted.creation.service, "{target}: {wanted:?}");
    }
    // The API server takes such a name, too.
    let external = json!({"type": "ExternalName", "externalName": "10.0.0.256"});
    let found = planned(&service(&[(HOSTNAME, "web.internal")], &external, &json!([])), &[]);
    assert_eq!(reasons(&found), ["AddressSkipped"]);
    assert!(found.wanted.unwrap().into_values().all(|wanted| wanted.keep && wanted.instances.is_empty()));
}

#[test]
fn host_names_that_are_several_in_one_or_no_names_get_a_hint() {
    for (hostname, hint) in [
        ("a.internal b.internal", "\"a.internal,b.internal\""),
        ("a.internal\nb.internal", "\"a.internal,b.internal\""),
        ("bücher.internal", "\"xn--bcher-kva.internal\""),
        ("https://web.internal/", "write only \"web.internal\""),
        ("web.internal:8080", "write only \"web.internal\""),
    ] {
        let pods = [pod("10.0.0.1", true, None)];
        let found = planned(&headless(&[(HOSTNAME, &format!("{hostname},web.internal"))]), &pods);
        assert_eq!(reasons(&found), ["InvalidAnnotation"], "{hostname}");
        assert!(found.refusals[0].message.contains(hint), "{:?}", found.refusals);
        assert_eq!(lines(&found), ["internal/web: 10.0.0.1 (A 300)"], "the others are registered");
    }
}

/// Two annotations of 64 KiB, which any user of a namespace may write.
#[test]
fn names_and_addresses_are_bounded_together_and_each_name_keeps_some_of_the_addresses() {
    let names = |count: usize, zone: &str| (0..count).map(|n| format!("w{n}.{zone}")).collect::<Vec<_>>().join(",");
    let targets = (0..5_000).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect::<Vec<_>>().join(",");
    let asks = |names: &str| {
        planned(
            &service(&[(HOSTNAME, names), (TARGET, targets.as_str())], &json!({"type": "NodePort"}), &json!([])),
            &[],
        )
    };
    let counts = |planned: &Planned| {
        planned.wanted.iter().flatten().map(|(_, wanted)| wanted.instances.len()).collect::<Vec<_>>()
    };
    assert_eq!(counts(&asks(&names(10, "internal"))), [5_000; 10]);
    let pods: Vec<_> = (0..250).map(|n| pod(&format!("10.0.0.{n}"), true, Some(&format!("p{n}")))).collect();
    let of_pods = |names: &str| planned(&headless(&[(HOSTNAME, names)]), &pods);
    let too_many = asks(&names(11, "internal"));
    assert_eq!((counts(&too_many), reasons(&too_many)), (vec![4_545; 11], vec!["QuotaExceeded"]));
    let too_many = asks(&names(3_000, "internal"));
    assert_eq!((counts(&too_many), reasons(&too_many)), (vec![500; MOST_NAMES], vec!["QuotaExceeded"; 2]));
    assert_eq!(of_pods(&names(3_000, "internal")).wanted.unwrap().len(), MOST_NAMES + MOST_NAMES * 250);
    assert_eq!(of_pods(&names(60, "internal")).wanted.unwrap().len(), 60 + 60 * 250);
    let elsewhere = asks(&names(3_000, "example.org"));
    assert_eq!(elsewhere.wanted, Some(BTreeMap::new()));
    assert_eq!(elsewhere.refusals.len(), MOST_REFUSALS);
}
