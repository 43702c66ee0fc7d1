use proptest::prelude::*;

use super::*;

fn source(name: &str) -> ClusterId {
    ClusterId::discovered(name).unwrap()
}

fn at(ip: &str, port: Option<u16>) -> Backend {
    let address: IpAddr = ip.parse().unwrap();
    Backend {
        source: source("ecs-prod"),
        ipv4: if let IpAddr::V4(ip) = address { Some(ip) } else { None },
        ipv6: if let IpAddr::V6(ip) = address { Some(ip) } else { None },
        port,
        dynamic: false,
        zone: None,
        healthy: true,
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port: number, app_protocol: None }
}

fn front(ports: &[ServicePort]) -> Front {
    let service_type = if ports.is_empty() { ServiceType::Headless } else { ServiceType::ClusterSetIp };
    Front { service_type, ports: ports.to_vec(), ip_families: vec![IpFamily::V4] }
}

fn pod(ip: &str, ports: &[(&str, u16)]) -> Endpoint {
    let port = |(name, number): &(&str, u16)| EndpointPort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        port: *number,
        app_protocol: None,
    };
    Endpoint {
        ipv4: Some(ip.parse().unwrap()),
        ipv6: None,
        ports: ports.iter().map(port).collect::<Vec<_>>().into(),
        conditions: Conditions::READY,
        hostname: None,
        zone: None,
        node: None,
    }
}

/// Under a service under which nothing was served before.
fn fit<'a>(front: &Front, exported: impl IntoIterator<Item = &'a Endpoint>, backends: &[Backend]) -> Fitted {
    super::fit(front, exported.into_iter().map(|endpoint| (endpoint, true)), backends, &Numbers::new())
}

/// The endpoints that fit, as `<address>:<number><name>`.
fn texts(fitted: &Fitted) -> Vec<String> {
    let text = |endpoint: &Endpoint| {
        let ports: Vec<_> = endpoint.ports.iter().map(|port| format!(":{}{}", port.port, port.name)).collect();
        let address = endpoint.ipv4.map_or_else(|| endpoint.ipv6.unwrap().to_string(), |ip| ip.to_string());
        format!("{address}{}", ports.concat())
    };
    fitted.endpoints.values().flatten().map(text).collect()
}

fn own_port(backends: &[Backend], present: Option<&Front>) -> Option<u16> {
    let service = service(backends, present).unwrap();
    assert_eq!(service.service_type == ServiceType::Headless, service.ports.is_empty());
    service.ports.first().map(|port| port.port)
}

#[test]
fn the_port_of_a_discovered_service_is_the_common_one_or_a_stable_one() {
    let [a, b, none] = [at("10.0.0.1", Some(8080)), at("10.0.0.2", Some(9090)), at("10.0.0.3", None)];
    let dynamic = Backend { dynamic: true, ..at("10.0.0.4", Some(32_768)) };
    let present = front(&[port("", 8080)]);
    assert_eq!(service(&[], None), None);
    assert_eq!(own_port(std::slice::from_ref(&none), None), None, "headless");
    assert_eq!(own_port(&[a.clone(), none.clone()], None), Some(8080));
    assert_eq!(own_port(&[a.clone(), b.clone()], None), Some(80));
    assert_eq!(
        own_port(&[a.clone(), b.clone()], Some(&present)),
        Some(8080),
        "it keeps what it has while they roll over"
    );
    assert_eq!(own_port(&[b], Some(&present)), Some(9090));
    assert_eq!(own_port(std::slice::from_ref(&dynamic), None), Some(80), "the next one will have another port");
    assert_eq!(own_port(std::slice::from_ref(&dynamic), Some(&front(&[port("", 443)]))), Some(443));
    assert_eq!(own_port(&[dynamic], Some(&front(&[port("a", 1), port("b", 2)]))), Some(80));
    assert_eq!(own_port(&[at("10.0.0.5", Some(50_051))], None), Some(50_051));
}

#[test]
fn families_follow_the_instances_and_the_primary_one_stays() {
    let (v4, v6) = (at("10.0.0.1", Some(80)), at("fd00::1", Some(80)));
    let families = |backends: &[Backend], present: Option<&Front>| service(backends, present).unwrap().ip_families;
    assert_eq!(families(&[v6.clone(), v4.clone()], None), [IpFamily::V4, IpFamily::V6]);
    assert_eq!(families(std::slice::from_ref(&v6), None), [IpFamily::V6]);
    let present = Front { ip_families: vec![IpFamily::V6], ..front(&[port("", 80)]) };
    assert_eq!(families(&[v4, v6], Some(&present)), [IpFamily::V6, IpFamily::V4]);
}

#[test]
fn each_dynamic_port_is_one_endpoint_port_behind_the_service_port() {
    let backends = [at("10.0.0.1", Some(32_768)), at("10.0.0.1", Some(32_770)), at("10.0.0.2", Some(32_768))];
    let fitted = fit(&front(&[port("", 80)]), [], &backends);
    assert_eq!(texts(&fitted), ["10.0.0.1:32768", "10.0.0.1:32770", "10.0.0.2:32768"]);
    assert_eq!(fitted.misfits, []);
}

#[test]
fn a_number_finds_its_port_by_the_exported_endpoints_and_then_by_the_number() {
    let several = front(&[port("http", 80), port("metrics", 8080)]);
    let pods = [pod("10.1.0.1", &[("http", 8080), ("metrics", 9090)])];
    let place = |number| {
        let fitted = fit(&several, &pods, &[at("10.0.0.1", number)]);
        (texts(&fitted), fitted.misfits.first().map(|misfit| misfit.2))
    };
    assert_eq!(place(Some(8080)), (vec!["10.0.0.1:8080http".to_owned()], None));
    assert_eq!(place(Some(9090)), (vec!["10.0.0.1:9090metrics".to_owned()], None));
    assert_eq!(place(Some(80)), (vec!["10.0.0.1:80http".to_owned()], None));
    assert_eq!(place(Some(81)), (vec![], Some(Misfit::NoSuchPort)));
    assert_eq!(place(None), (vec![], Some(Misfit::NoPort)));
    let one = front(&[port("http", 80)]);
    assert_eq!(texts(&fit(&one, &pods, &[at("10.0.0.1", Some(3000))])), ["10.0.0.1:3000http"]);
    assert_eq!(texts(&fit(&front(&[]), [], &[at("10.0.0.1", Some(3000))])), ["10.0.0.1"], "headless");
}

#[test]
fn an_instance_without_a_port_is_assumed_to_listen_where_the_others_do() {
    let one = front(&[port("http", 80)]);
    let pods = [pod("10.1.0.1", &[("http", 8080)])];
    let none = at("10.0.0.1", None);
    assert_eq!(texts(&fit(&one, [], std::slice::from_ref(&none))), ["10.0.0.1:80http"]);
    assert_eq!(texts(&fit(&one, &pods, std::slice::from_ref(&none))), ["10.0.0.1:8080http"]);
    let with = at("10.0.0.2", Some(3000));
    assert_eq!(texts(&fit(&one, &pods, &[none.clone(), with.clone()])), ["10.0.0.1:3000http", "10.0.0.2:3000http"]);
    let fitted = fit(&one, &pods, &[none, with, at("10.0.0.3", Some(3001))]);
    assert_eq!(fitted.misfits, [(source("ecs-prod"), "10.0.0.1".parse().unwrap(), Misfit::NoPort)]);
}

#[test]
fn a_number_that_was_known_stays_when_the_pods_go() {
    let one = front(&[port("http", 80)]);
    let place = |exported: &[Endpoint], backends: &[Backend], before: &[(&str, &[u16])]| {
        let before = before.iter().map(|(name, numbers)| (Arc::from(*name), numbers.iter().copied().collect()));
        let before: Numbers = before.collect();
        texts(&super::fit(&one, exported.iter().map(|endpoint| (endpoint, true)), backends, &before))
    };
    let pods = [pod("10.1.0.1", &[("http", 8080)])];
    let none = [at("10.0.0.1", None)];
    assert_eq!(place(&[], &none, &[("http", &[8080])]), ["10.0.0.1:8080http"]);
    assert_eq!(place(&pods, &none, &[("http", &[3000])]), ["10.0.0.1:8080http"], "they show it better");
    assert_eq!(place(&[], &none, &[("http", &[8080, 9090])]), ["10.0.0.1:80http"], "which one, nobody knows");
    assert_eq!(place(&[], &none, &[("metrics", &[9090])]), ["10.0.0.1:80http"], "of another port");
    let with = at("10.0.0.2", Some(3000));
    assert_eq!(
        place(&[], &[at("10.0.0.1", None), with], &[("http", &[8080])]),
        ["10.0.0.1:3000http", "10.0.0.2:3000http"]
    );
}

#[test]
fn exported_addresses_count_once_and_other_families_are_reported() {
    let one = front(&[port("http", 80)]);
    let pods = [pod("10.1.0.1", &[("http", 8080)])];
    let twice = Backend { source: source("cloudmap-shop"), ..at("10.0.0.1", Some(8080)) };
    let backends = [at("10.1.0.1", Some(8080)), at("10.0.0.1", Some(8080)), twice, at("fd00::1", Some(8080))];
    let fitted = fit(&one, &pods, &backends);
    assert_eq!(texts(&fitted), ["10.0.0.1:8080http"]);
    assert_eq!(fitted.misfits, [(source("ecs-prod"), "fd00::1".parse().unwrap(), Misfit::Family)]);
}

#[test]
fn an_unhealthy_instance_is_an_endpoint_that_is_not_ready() {
    let sick = Backend { healthy: false, ..at("10.0.0.1", Some(80)) };
    let fitted = fit(&front(&[port("", 80)]), [], &[sick]);
    let conditions = fitted.endpoints[&source("ecs-prod")][0].conditions;
    assert_eq!(conditions, Conditions { ready: false, serving: false, terminating: false });
}

/// ECS sometimes leaves an instance behind, and a new task gets its address.
#[test]
fn an_unhealthy_twin_hides_no_healthy_instance() {
    for stale in ["ecs-prod", "cloudmap-shop"] {
        let sick = Backend { source: source(stale), healthy: false, ..at("10.0.0.1", Some(80)) };
        let mut backends = [at("10.0.0.1", Some(80)), sick];
        backends.sort();
        assert!(!backends[0].healthy);
        for ports in [&[port("", 80)][..], &[]] {
            let fitted = fit(&front(ports), [], &backends);
            let endpoints: Vec<_> =
                fitted.endpoints.iter().flat_map(|(source, all)| all.iter().map(move |one| (source, one))).collect();
            let [(of, endpoint)] = endpoints[..] else { panic!("{fitted:?}") };
            assert_eq!((of.as_str(), endpoint.conditions), ("ecs-prod", Conditions::READY));
        }
    }
}

proptest! {
    #[test]
    fn every_backend_is_an_endpoint_or_reported_as_a_misfit(
        rows in prop::collection::vec((0u8..40, prop::option::of(prop::sample::select(vec![80u16, 8080, 9090])), any::<bool>()), 0..40),
        ports in prop::sample::select(vec![vec![], vec![("http", 80)], vec![("http", 80), ("alt", 8080)]]),
    ) {
        let backends: Vec<Backend> = rows
            .iter()
            .map(|(n, number, healthy)| Backend { healthy: *healthy, ..at(&format!("10.0.0.{n}"), *number) })
            .collect();
        let ports: Vec<_> = ports.into_iter().map(|(name, number)| port(name, number)).collect();
        let fitted = fit(&front(&ports), [], &backends);
        let placed: BTreeSet<IpAddr> =
            fitted.endpoints.values().flatten().filter_map(|endpoint| endpoint.ipv4.map(IpAddr::V4)).collect();
        let refused: BTreeSet<IpAddr> = fitted.misfits.iter().map(|misfit| misfit.1).collect();
        let all: BTreeSet<IpAddr> = backends.iter().flat_map(Backend::addresses).collect();
        prop_assert_eq!(placed.union(&refused).copied().collect::<BTreeSet<_>>(), all);
        // In a service of its own, everything fits, except for an instance without a port among several ports.
        if let Some(own) = service(&backends, None) {
            let fitted = fit(&Front::of(&own), [], &backends);
            prop_assert!(fitted.misfits.iter().all(|misfit| misfit.2 == Misfit::NoPort));
        }
    }
}
