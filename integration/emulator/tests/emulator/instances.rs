//! Instances.

use std::collections::HashMap;

use aws_sdk_servicediscovery::types::HealthCheckCustomConfig;

use super::*;

async fn register(client: &Client, service: &str, attributes: &[(&str, &str)]) -> Result<(), String> {
    let attributes: HashMap<_, _> = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let request = client.register_instance().service_id(service).instance_id("i").set_attributes(Some(attributes));
    match request.send().await {
        Ok(_) => Ok(()),
        refused => Err(code(refused)),
    }
}

/// Sets of attributes.
type Sets<'a> = &'a [&'a [(&'a str, &'a str)]];

fn invalid() -> Result<(), String> {
    Err("InvalidInput".to_owned())
}

#[tokio::test]
async fn registering_again_replaces_all_attributes() {
    // "If you specify an existing InstanceId and ServiceId, Cloud Map updates"; "the previous values for the service
    // instance are not retained".
    let f = Fixture::start().await;
    register(&f.client, &f.service, &[("a", "1"), ("b", "2")]).await.unwrap();
    register(&f.client, &f.service, &[("b", "3")]).await.unwrap();
    let found = f.client.get_instance().service_id(&f.service).instance_id("i").send().await.unwrap();
    let expected = HashMap::from([("b".to_owned(), "3".to_owned())]);
    assert_eq!(found.instance().unwrap().attributes(), Some(&expected));
    assert_eq!(found.resource_owner(), Some("123456789012"));
    let listed = f.client.list_instances().service_id(&f.service).send().await.unwrap();
    assert_eq!(listed.instances().len(), 1);
    let discovered = f.client.discover_instances().namespace_name("apps").service_name("web").send().await.unwrap();
    assert_eq!(discovered.instances()[0].attributes(), Some(&expected));
    let service = f.client.get_service().id(&f.service).send().await.unwrap().service.unwrap();
    assert_eq!(service.instance_count(), Some(1));
}

#[tokio::test]
async fn what_is_not_there_cannot_be_deregistered() {
    // InstanceNotFound: "No instance exists with the specified ID"; ServiceNotFound.
    let f = Fixture::start().await;
    let deregister = |service: &str| f.client.deregister_instance().service_id(service).instance_id("i").send();
    assert_eq!(code(deregister(&f.service).await), "InstanceNotFound");
    assert_eq!(code(deregister("srv-none").await), "ServiceNotFound");
    register(&f.client, &f.service, &[]).await.unwrap();
    deregister(&f.service).await.unwrap();
    let get = f.client.get_instance().service_id(&f.service).instance_id("i").send().await;
    assert_eq!(code(get), "InstanceNotFound");
    assert_eq!(register(&f.client, "srv-none", &[]).await, Err("ServiceNotFound".to_owned()));
}

#[tokio::test]
async fn attributes_have_limits() {
    // "You can add up to 30 custom attributes. For each key-value pair, the maximum length of the attribute name is 255
    // characters, and the maximum length of the attribute value is 1,024 characters. The total size of all provided
    // attributes (sum of all keys and values) must not exceed 5,000 characters."
    let f = Fixture::start().await;
    let keys: Vec<_> = (0..31).map(|n| format!("key-{n:02}")).collect();
    let mut attributes: Vec<_> = keys.iter().map(|key| (key.as_str(), "v")).collect();
    assert_eq!(register(&f.client, &f.service, &attributes).await, invalid());
    attributes.pop();
    attributes.push(("AWS_INSTANCE_PORT", "80"));
    register(&f.client, &f.service, &attributes).await.unwrap();
    // Four keys of one character and values of 1,024, and the rest up to 5,000 and one more.
    let (full, rest) = ("v".repeat(1024), "v".repeat(5000 - 4 * 1025 - 1));
    let over = format!("{rest}v");
    let four = [("a", full.as_str()), ("b", &full), ("c", &full), ("d", &full)];
    register(&f.client, &f.service, &[four.as_slice(), &[("e", &rest)]].concat()).await.unwrap();
    assert_eq!(register(&f.client, &f.service, &[four.as_slice(), &[("e", &over)]].concat()).await, invalid());
    let (long_key, long_value) = ("k".repeat(256), "v".repeat(1025));
    for wrong in
        [(long_key.as_str(), "v"), ("k", &long_value), ("a b", "v"), ("k", " v"), ("k", "é"), ("AWS_BOGUS", "v")]
    {
        assert_eq!(register(&f.client, &f.service, &[wrong]).await, invalid(), "{wrong:?}");
    }
    register(&f.client, &f.service, &[("!~", "inner space\tand tab"), ("empty", "")]).await.unwrap();
}

#[tokio::test]
async fn ids_are_checked() {
    // InstanceId: ^[0-9a-zA-Z_/:.@-]+$, at most 64 characters.
    let f = Fixture::start().await;
    let register =
        |id: &str| f.client.register_instance().service_id(&f.service).instance_id(id).attributes("k", "v").send();
    register("pod_1/a:b.c@d-e").await.unwrap();
    for wrong in ["", "a b", "a+b", &"x".repeat(65)] {
        assert_eq!(code(register(wrong).await), "InvalidInput", "{wrong}");
    }
}

#[tokio::test]
async fn each_record_type_requires_its_attributes() {
    use RecordType::{A, Aaaa, Cname, Srv};
    // AWS_INSTANCE_IPV4: "required if the service [...] includes settings for an A record", and so on; "If the service
    // includes settings for an SRV record, you must specify a value for AWS_INSTANCE_IPV4, AWS_INSTANCE_IPV6, or both."
    let f = Fixture::start().await;
    let namespace = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let service = async |name: &str, kinds: &[RecordType]| {
        let policy = if kinds == [Cname] { RoutingPolicy::Weighted } else { RoutingPolicy::Multivalue };
        let request = f.client.create_service().namespace_id(&namespace).name(name).dns_config(dns(kinds, policy));
        request.send().await.unwrap().service.unwrap().id.unwrap()
    };
    let (v4, v6) = (("AWS_INSTANCE_IPV4", "192.0.2.1"), ("AWS_INSTANCE_IPV6", "2001:db8::1"));
    let (port, cname) = (("AWS_INSTANCE_PORT", "80"), ("AWS_INSTANCE_CNAME", "example.org"));
    let cases: [(&str, &[RecordType], Sets, Sets); 6] = [
        ("a", &[A], &[&[v4], &[v4, v6, port]], &[&[], &[v6], &[("AWS_INSTANCE_IPV4", "300.0.0.1")]]),
        ("aaaa", &[Aaaa], &[&[v6]], &[&[v4], &[("AWS_INSTANCE_IPV6", "192.0.2.1")]]),
        ("both", &[A, Aaaa], &[&[v4, v6]], &[&[v4], &[v6]]),
        ("srv", &[Srv], &[&[v4, port], &[v6, port]], &[&[port], &[v4], &[v4, ("AWS_INSTANCE_PORT", "65536")]]),
        ("a-srv", &[A, Srv], &[&[v4, port], &[v4, v6, port]], &[&[v4], &[port], &[v6, port]]),
        ("cname", &[Cname], &[&[cname]], &[&[v4], &[]]),
    ];
    for (name, kinds, good, bad) in cases {
        let id = service(name, kinds).await;
        for attributes in good {
            assert_eq!(register(&f.client, &id, attributes).await, Ok(()), "{name} {attributes:?}");
        }
        for attributes in bad {
            assert_eq!(register(&f.client, &id, attributes).await, invalid(), "{name} {attributes:?}");
        }
    }
    // An instance may also have attributes that no record asks for, but none of them may be malformed.
    assert_eq!(register(&f.client, &f.service, &[("AWS_INSTANCE_IPV4", "x")]).await, invalid());
}

#[tokio::test]
async fn alias_and_machine_attributes_exclude_others() {
    // AWS_ALIAS_DNS_NAME: "the value of RoutingPolicy must be WEIGHTED"; "don't specify values for any of the
    // AWS_INSTANCE attributes". AWS_EC2_INSTANCE_ID: "HTTP namespaces only"; "the only other attribute that can be
    // specified is AWS_INIT_HEALTH_STATUS"; "the AWS_INSTANCE_IPV4 attribute will be filled out".
    let f = Fixture::start().await;
    let namespace = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let service = async |name: &str, policy| {
        let config = dns(&[RecordType::A], policy);
        let request = f.client.create_service().namespace_id(&namespace).name(name).dns_config(config);
        request.send().await.unwrap().service.unwrap().id.unwrap()
    };
    let (weighted, multivalue) =
        (service("w", RoutingPolicy::Weighted).await, service("m", RoutingPolicy::Multivalue).await);
    let alias = ("AWS_ALIAS_DNS_NAME", "lb-1.us-east-1.elb.amazonaws.com");
    register(&f.client, &weighted, &[alias]).await.unwrap();
    assert_eq!(register(&f.client, &multivalue, &[alias]).await, invalid());
    assert_eq!(register(&f.client, &f.service, &[alias]).await, invalid());
    assert_eq!(register(&f.client, &weighted, &[alias, ("AWS_INSTANCE_IPV4", "192.0.2.1")]).await, invalid());
    let machine = ("AWS_EC2_INSTANCE_ID", "i-0123456789abcdef0");
    assert_eq!(register(&f.client, &weighted, &[machine]).await, invalid());
    assert_eq!(register(&f.client, &f.service, &[machine, ("k", "v")]).await, invalid());
    register(&f.client, &f.service, &[machine]).await.unwrap();
    let found = f.client.get_instance().service_id(&f.service).instance_id("i").send().await.unwrap();
    assert!(found.instance().unwrap().attributes().unwrap().contains_key("AWS_INSTANCE_IPV4"));
}

#[tokio::test]
async fn the_initial_health_needs_a_custom_check() {
    // AWS_INIT_HEALTH_STATUS: "If the service configuration includes HealthCheckCustomConfig, you can [...] specify the
    // initial status of the custom health check, HEALTHY or UNHEALTHY."
    let f = Fixture::start().await;
    assert_eq!(register(&f.client, &f.service, &[("AWS_INIT_HEALTH_STATUS", "HEALTHY")]).await, invalid());
    let custom = HealthCheckCustomConfig::builder().build();
    let created = f.client.create_service().namespace_id(&f.namespace).name("c").health_check_custom_config(custom);
    let id = created.send().await.unwrap().service.unwrap().id.unwrap();
    register(&f.client, &id, &[("AWS_INIT_HEALTH_STATUS", "UNHEALTHY")]).await.unwrap();
    assert_eq!(register(&f.client, &id, &[("AWS_INIT_HEALTH_STATUS", "UNKNOWN")]).await, invalid());
}

#[tokio::test]
async fn lists_page() {
    // "If you don't specify a value for MaxResults, Cloud Map returns up to 100 instances."
    let f = Fixture::start().await;
    for n in 0..120 {
        f.register(&format!("i-{n}"), "v").await;
    }
    let first = f.client.list_instances().service_id(&f.service).send().await.unwrap();
    assert_eq!((first.instances().len(), first.next_token().is_some()), (100, true));
    let mut pages = f.client.list_instances().service_id(&f.service).max_results(50).into_paginator().send();
    let mut ids = std::collections::BTreeSet::new();
    while let Some(page) = pages.try_next().await.unwrap() {
        ids.extend(page.instances().iter().map(|found| found.id().unwrap().to_owned()));
    }
    assert_eq!(ids.len(), 120);
    assert_eq!(code(f.client.list_instances().service_id(&f.service).max_results(101).send().await), "InvalidInput");
}
