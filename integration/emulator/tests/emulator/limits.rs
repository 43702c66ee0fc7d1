//! Quotas and request rates.

use aws_sdk_servicediscovery::operation::discover_instances::DiscoverInstancesError;
use cloudmap_emulator::{Quotas, Rate};

use super::*;

#[tokio::test]
async fn quotas_refuse_what_is_new() {
    // ResourceLimitExceeded: "The resource can't be created because you've reached the quota on the number of resources."
    let quotas = Quotas { instances_per_service: 2, instances_per_namespace: 3, namespaces: 2, custom_attributes: 1 };
    let f = Fixture::start_with(EmulatorSettings { quotas, ..EmulatorSettings::unthrottled() }).await;
    let other = create_service(&f.client, &f.namespace, "other").await;
    let register = |service: &str, id: &str| {
        f.client.register_instance().service_id(service).instance_id(id).attributes("k", "v").send()
    };
    register(&f.service, "a").await.unwrap();
    register(&f.service, "b").await.unwrap();
    assert_eq!(code(register(&f.service, "c").await), "ResourceLimitExceeded");
    // An instance that is there can be changed.
    register(&f.service, "a").await.unwrap();
    register(&other, "a").await.unwrap();
    assert_eq!(code(register(&other, "b").await), "ResourceLimitExceeded");
    f.client.deregister_instance().service_id(&f.service).instance_id("a").send().await.unwrap();
    register(&other, "b").await.unwrap();
    let two = f.client.register_instance().service_id(&other).instance_id("b").attributes("k", "v");
    assert_eq!(code(two.attributes("l", "v").send().await), "InvalidInput");
    create_http_namespace(&f.client, "second").await;
    assert_eq!(code(f.client.create_http_namespace().name("third").send().await), "ResourceLimitExceeded");
}

#[test]
fn quotas_and_rates_of_aws_are_the_default() {
    // Service Quotas: L-2DA90E5C, L-D95E8A57, L-0FE3F50E, L-D589BB26, L-514A639A / L-76CF203B, L-0BA10AAE.
    let settings = EmulatorSettings::default();
    let Quotas { instances_per_service, instances_per_namespace, namespaces, custom_attributes } = settings.quotas;
    assert_eq!((instances_per_service, instances_per_namespace, namespaces, custom_attributes), (1000, 2000, 50, 30));
    assert!(settings.throttling);
    assert_eq!(settings.rates["DiscoverInstances"], Rate { per_second: 1000.0, burst: 2000.0 });
    assert_eq!(settings.rates["DiscoverInstancesRevision"], Rate { per_second: 3000.0, burst: 3000.0 });
    assert_eq!(settings.rates["RegisterInstance"], Rate { per_second: 50.0, burst: 100.0 });
}

#[tokio::test]
async fn calls_beyond_the_rate_are_throttled() {
    // The control plane answers ThrottlingException, which the model does not have; for the discovery calls it has
    // RequestLimitExceeded: "you've reached the quota for the number of requests".
    let mut settings = EmulatorSettings::default();
    for operation in ["ListServices", "DiscoverInstances"] {
        settings.rates.insert(operation.into(), Rate { per_second: 0.001, burst: 2.0 });
    }
    let f = Fixture::start_with(settings).await;
    let discover = || f.client.discover_instances().namespace_name("apps").service_name("web").send();
    for _ in 0..2 {
        f.client.list_services().send().await.unwrap();
        discover().await.unwrap();
    }
    let throttled = f.client.list_services().send().await;
    assert_eq!(throttled.as_ref().unwrap_err().message(), Some("Rate exceeded"));
    assert_eq!(code(throttled), "ThrottlingException");
    let refused = discover().await.unwrap_err().into_service_error();
    assert!(matches!(refused, DiscoverInstancesError::RequestLimitExceeded(_)), "{refused:?}");
    assert_eq!(f.emulator.control().counters().errors("ListServices", "ThrottlingException"), 1);
}
