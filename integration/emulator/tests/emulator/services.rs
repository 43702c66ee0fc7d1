//! Services.

use aws_sdk_servicediscovery::operation::create_service::CreateServiceError;
use aws_sdk_servicediscovery::types::{
    DnsConfigChange, HealthCheckConfig, HealthCheckCustomConfig, HealthCheckType, ServiceChange, ServiceFilter,
    ServiceFilterName, ServiceType, ServiceTypeOption,
};
use cloudmap_emulator::RepeatedCreate;

use super::*;

#[tokio::test]
async fn a_name_is_taken_once_and_the_error_says_by_whom() {
    // ServiceAlreadyExists: "CreatorRequestId: The CreatorRequestId that was used to create the service. ServiceId: The
    // ID of the existing service. ServiceArn: The ARN of the existing service."
    let f = Fixture::start().await;
    let create = |creator: &str| {
        f.client.create_service().namespace_id(&f.namespace).name("claim").creator_request_id(creator).send()
    };
    let service = create("first").await.unwrap().service.unwrap();
    // The documentation leaves open what the same id gets; by default the error as well.
    for creator in ["second", "first"] {
        match create(creator).await.unwrap_err().into_service_error() {
            CreateServiceError::ServiceAlreadyExists(error) => {
                assert_eq!(error.creator_request_id(), Some("first"));
                assert_eq!(error.service_id(), service.id());
                assert_eq!(error.service_arn(), service.arn());
            }
            other => panic!("{other:?}"),
        }
    }
    f.emulator.control().update_settings(|settings| settings.repeated_create = RepeatedCreate::Success);
    assert_eq!(create("first").await.unwrap().service.unwrap().id(), service.id());
    assert_eq!(code(create("second").await), "ServiceAlreadyExists");
    // Other namespaces have names of their own.
    let other = create_http_namespace(&f.client, "other").await;
    create_service(&f.client, &other, "claim").await;
}

#[tokio::test]
async fn names_that_differ_by_case_are_one_in_dns_namespaces() {
    // "For services that are accessible by DNS queries, you can't create multiple services with names that differ only by
    // case [...]. However, if you use a namespace that's only accessible by API calls, then you can."
    let f = Fixture::start().await;
    create_service(&f.client, &f.namespace, "WEB").await;
    let namespace = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let create = |name: &str| {
        let config = dns(&[RecordType::A], RoutingPolicy::Multivalue);
        f.client.create_service().namespace_id(&namespace).name(name).dns_config(config).send()
    };
    create("web").await.unwrap();
    assert_eq!(code(create("WEB").await), "ServiceAlreadyExists");
}

#[tokio::test]
async fn record_types_come_in_certain_combinations() {
    use RecordType::{A, Aaaa, Cname, Srv};
    use RoutingPolicy::{Multivalue, Weighted};
    // "You can specify values for Type in the following combinations: A, AAAA, A and AAAA, SRV, CNAME"; for CNAME "you
    // must specify WEIGHTED for the value of RoutingPolicy". ECS adds A and SRV: "you can create any combination of A or
    // SRV records for each service task".
    let f = Fixture::start().await;
    let namespace = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let create = async |n: usize, kinds: &[RecordType], policy: &RoutingPolicy| {
        let config = dns(kinds, policy.clone());
        let request = f.client.create_service().namespace_id(&namespace).name(format!("s{n}")).dns_config(config);
        request.send().await
    };
    let good: [(&[RecordType], _); 6] = [
        (&[A], Multivalue),
        (&[Aaaa], Multivalue),
        (&[A, Aaaa], Weighted),
        (&[Srv], Multivalue),
        (&[Srv, A], Multivalue),
        (&[Cname], Weighted),
    ];
    for (n, (kinds, policy)) in good.iter().enumerate() {
        let service = create(n, kinds, policy).await.unwrap().service.unwrap();
        assert_eq!(service.r#type(), Some(&ServiceType::DnsHttp));
        assert_eq!(service.dns_config().unwrap().dns_records().len(), kinds.len());
    }
    let bad: [(&[RecordType], _); 6] = [
        (&[Aaaa, Srv], Multivalue),
        (&[A, Aaaa, Srv], Multivalue),
        (&[Cname], Multivalue),
        (&[A, A], Multivalue),
        (&[], Multivalue),
        (&[Cname, A], Weighted),
    ];
    for (kinds, policy) in &bad {
        assert_eq!(code(create(9, kinds, policy).await), "InvalidInput", "{kinds:?}");
    }
}

#[tokio::test]
async fn records_are_for_services_that_dns_finds() {
    // Type: "specifies that the service instances are only discoverable using the DiscoverInstances API operation. No
    // DNS records is registered"; an HTTP namespace has no DNS.
    let f = Fixture::start().await;
    let config = || dns(&[RecordType::A], RoutingPolicy::Multivalue);
    let in_http = f.client.create_service().namespace_id(&f.namespace).name("a").dns_config(config()).send().await;
    assert_eq!(code(in_http), "InvalidInput");
    let private = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let create = |name: &str| f.client.create_service().namespace_id(&private).name(name);
    assert_eq!(code(create("a").send().await), "InvalidInput");
    assert_eq!(code(create("a").r#type(ServiceTypeOption::Http).dns_config(config()).send().await), "InvalidInput");
    let service = create("a").r#type(ServiceTypeOption::Http).send().await.unwrap().service.unwrap();
    assert_eq!((service.r#type(), service.dns_config()), (Some(&ServiceType::Http), None));
}

#[tokio::test]
#[expect(deprecated, reason = "the rule is about the parameter that is deprecated")]
async fn health_checks_are_one_kind_or_the_other() {
    // "If you specify a health check configuration, you can specify either HealthCheckCustomConfig or HealthCheckConfig
    // but not both"; HealthCheckConfig: "Public DNS and HTTP namespaces only"; "If you specify TCP for Type, you must not
    // specify a value for ResourcePath"; FailureThreshold of the custom one "is always set to 1".
    let f = Fixture::start().await;
    let check = |kind| HealthCheckConfig::builder().r#type(kind);
    let custom = || HealthCheckCustomConfig::builder().failure_threshold(5).build();
    let create = |name: &str| f.client.create_service().namespace_id(&f.namespace).name(name);
    let both = create("a").health_check_config(check(HealthCheckType::Tcp).build().unwrap());
    assert_eq!(code(both.health_check_custom_config(custom()).send().await), "InvalidInput");
    let path = check(HealthCheckType::Tcp).resource_path("/").build().unwrap();
    assert_eq!(code(create("a").health_check_config(path).send().await), "InvalidInput");
    let threshold = check(HealthCheckType::Tcp).failure_threshold(11).build().unwrap();
    assert_eq!(code(create("a").health_check_config(threshold).send().await), "InvalidInput");
    let http = create("b").health_check_config(check(HealthCheckType::Http).build().unwrap()).send().await.unwrap();
    assert_eq!(http.service().unwrap().health_check_config().unwrap().resource_path(), Some("/"));
    let service = create("c").health_check_custom_config(custom()).send().await.unwrap().service.unwrap();
    assert_eq!(service.health_check_custom_config().unwrap().failure_threshold(), Some(1));
    let private = create_private_namespace(&f.client, "example.com", "vpc-1").await;
    let config = dns(&[RecordType::A], RoutingPolicy::Multivalue);
    let in_private = f.client.create_service().namespace_id(private).name("a").dns_config(config);
    let in_private = in_private.health_check_config(check(HealthCheckType::Tcp).build().unwrap()).send().await;
    assert_eq!(code(in_private), "InvalidInput");
    let public = f.client.create_public_dns_namespace().name("example.com").send().await.unwrap();
    let public = namespace_of(&f.client, public.operation_id().unwrap()).await;
    // "You can't specify both CNAME for Type and settings for HealthCheckConfig."
    let config = dns(&[RecordType::Cname], RoutingPolicy::Weighted);
    let cname = f.client.create_service().namespace_id(public).name("a").dns_config(config);
    let cname = cname.health_check_config(check(HealthCheckType::Tcp).build().unwrap()).send().await;
    assert_eq!(code(cname), "InvalidInput");
}

#[tokio::test]
async fn only_an_empty_service_can_be_deleted() {
    // "If the service still contains one or more registered instances, the request fails."
    let f = Fixture::start().await;
    f.register("a", "v").await;
    let arn = f.client.get_service().id(&f.service).send().await.unwrap().service.unwrap().arn.unwrap();
    let delete = || f.client.delete_service().id(&arn).send();
    assert_eq!(code(delete().await), "ResourceInUse");
    f.client.deregister_instance().service_id(&arn).instance_id("a").send().await.unwrap();
    delete().await.unwrap();
    assert_eq!(code(delete().await), "ServiceNotFound");
    assert_eq!(code(f.client.get_service().id(&f.service).send().await), "ServiceNotFound");
    // A claim is free again, and by default the id is another one.
    assert_ne!(create_service(&f.client, &f.namespace, "web").await, f.service);
    assert!(f.discover().await.is_empty());
}

#[tokio::test]
async fn ids_of_deleted_services_can_come_again() {
    // Not in the documentation, but reported by users.
    let settings = EmulatorSettings { reuse_service_ids: true, ..EmulatorSettings::unthrottled() };
    let f = Fixture::start_with(settings).await;
    f.client.delete_service().id(&f.service).send().await.unwrap();
    assert_eq!(create_service(&f.client, &f.namespace, "web").await, f.service);
}

#[tokio::test]
async fn an_update_deletes_what_it_leaves_out() {
    // "If you omit any existing DnsRecords or HealthCheckConfig configurations from an UpdateService request, the
    // configurations are deleted"; "the record type of a service [...] can't be updated"; UpdateService is refused "when
    // the service is associated with an HTTP namespace".
    let f = Fixture::start().await;
    let update = |id: &str, change: ServiceChange| f.client.update_service().id(id).service(change).send();
    let change = || ServiceChange::builder().description("d");
    assert_eq!(code(update(&f.service, change().build()).await), "InvalidInput");
    let public = f.client.create_public_dns_namespace().name("example.com").send().await.unwrap();
    let public = namespace_of(&f.client, public.operation_id().unwrap()).await;
    let check = HealthCheckConfig::builder().r#type(HealthCheckType::Tcp).build().unwrap();
    let config = dns(&[RecordType::A, RecordType::Aaaa], RoutingPolicy::Multivalue);
    let created = f.client.create_service().namespace_id(public).name("a").dns_config(config);
    let id = created.health_check_config(check.clone()).send().await.unwrap().service.unwrap().id.unwrap();
    let records = |kind: RecordType| {
        let record = DnsRecord::builder().r#type(kind).ttl(5).build().unwrap();
        DnsConfigChange::builder().dns_records(record).build().unwrap()
    };
    assert_eq!(code(update(&id, change().dns_config(records(RecordType::Srv)).build()).await), "InvalidInput");
    update(&id, change().dns_config(records(RecordType::A)).build()).await.unwrap();
    let service = f.client.get_service().id(&id).send().await.unwrap().service.unwrap();
    assert_eq!((service.description(), service.health_check_config()), (Some("d"), None));
    let left: Vec<_> = service.dns_config().unwrap().dns_records().iter().map(|r| (r.r#type(), r.ttl())).collect();
    assert_eq!(left, [(&RecordType::A, 5)]);
}

#[tokio::test]
async fn lists_filter_after_paging() {
    // "Cloud Map gets MaxResults services and then filters them based on the specified criteria. It's possible that no
    // services in the first MaxResults services matched."
    let f = Fixture::start().await;
    for n in 0..20 {
        create_service(&f.client, &f.namespace, &format!("s{n}")).await;
    }
    let other = create_http_namespace(&f.client, "other").await;
    create_service(&f.client, &other, "lonely").await;
    let arn = f.client.get_namespace().id(&other).send().await.unwrap().namespace.unwrap().arn.unwrap();
    for value in [&other, &arn] {
        let filter = ServiceFilter::builder().name(ServiceFilterName::NamespaceId).values(value).build().unwrap();
        let mut pages = f.client.list_services().max_results(5).filters(filter).into_paginator().send();
        let mut sizes = Vec::new();
        while let Some(page) = pages.try_next().await.unwrap() {
            sizes.push(page.services().len());
        }
        // 22 services in pages of 5, all empty but one.
        assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (5, 1));
    }
}

#[tokio::test]
async fn names_and_namespaces_are_checked() {
    // ServiceName: 1 to 127 characters of DNS labels that may have underscores.
    let f = Fixture::start().await;
    let create = |name: &str| f.client.create_service().namespace_id(&f.namespace).name(name).send();
    for wrong in ["", "-a", "a..b", "a b", &"x".repeat(64)] {
        assert_eq!(code(create(wrong).await), "InvalidInput", "{wrong}");
    }
    create("_http._tcp").await.unwrap();
    let nowhere = f.client.create_service().name("a").namespace_id("ns-none").send().await;
    assert_eq!(code(nowhere), "NamespaceNotFound");
    assert_eq!(code(f.client.create_service().name("a").send().await), "InvalidInput");
}
