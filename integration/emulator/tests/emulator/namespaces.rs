//! Namespaces.

use aws_sdk_servicediscovery::operation::create_http_namespace::CreateHttpNamespaceError;
use aws_sdk_servicediscovery::types::{
    FilterCondition, HttpNamespaceChange, NamespaceFilter, NamespaceFilterName, NamespaceType, OperationStatus,
    PrivateDnsNamespaceChange, PrivateDnsNamespaceProperties, PrivateDnsNamespacePropertiesChange,
    PrivateDnsPropertiesMutable, PrivateDnsPropertiesMutableChange, Soa, SoaChange,
};

use super::*;

#[tokio::test]
async fn a_name_is_taken_once_and_the_error_says_by_whom() {
    // NamespaceAlreadyExists: "CreatorRequestId: The CreatorRequestId that was used to create the namespace.
    // NamespaceId: The ID of the existing namespace."
    let f = Fixture::start().await;
    let create = |creator: &str| f.client.create_http_namespace().name("taken").creator_request_id(creator).send();
    let id = namespace_of(&f.client, create("first").await.unwrap().operation_id().unwrap()).await;
    match create("second").await.unwrap_err().into_service_error() {
        CreateHttpNamespaceError::NamespaceAlreadyExists(error) => {
            assert_eq!(error.creator_request_id(), Some("first"));
            assert_eq!(error.namespace_id(), Some(id.as_str()));
            assert!(error.message().is_some());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reused_name_gets_another_http_name() {
    // "In most cases, Name and HttpName match. However, if you reuse Name for namespace creation, a generated hash is
    // added to HttpName to distinguish the two."
    let f = Fixture::start().await;
    let http_name = async |id: &str| {
        let found = f.client.get_namespace().id(id).send().await.unwrap().namespace.unwrap();
        assert_eq!(found.name(), Some("shared"));
        found.properties.unwrap().http_properties.unwrap().http_name.unwrap()
    };
    let first = create_private_namespace(&f.client, "shared", "vpc-1").await;
    let second = create_private_namespace(&f.client, "shared", "vpc-2").await;
    assert_eq!(http_name(&first).await, "shared");
    let generated = http_name(&second).await;
    assert!(generated.starts_with("shared-"), "{generated}");
    // Discovery takes the HttpName.
    let service = f.client.create_service().namespace_id(&second).name("web").r#type("HTTP".into());
    service.send().await.unwrap();
    let discover = |name: &str| f.client.discover_instances().namespace_name(name).service_name("web").send();
    assert_eq!(code(discover("shared").await), "ServiceNotFound");
    discover(&generated).await.unwrap();
}

/// As users of Terraform report it: the request is taken, and Route 53 refuses a second zone.
#[tokio::test]
async fn the_operation_fails_for_a_second_private_namespace_of_a_name_in_a_vpc() {
    let f = Fixture::start().await;
    let create = |vpc: &str, creator: &str| {
        f.client.create_private_dns_namespace().name("shared").vpc(vpc).creator_request_id(creator).send()
    };
    let id = namespace_of(&f.client, create("vpc-1", "first").await.unwrap().operation_id().unwrap()).await;
    let begun = create("vpc-1", "second").await.unwrap();
    let failed = f.client.get_operation().operation_id(begun.operation_id().unwrap()).send().await.unwrap();
    let failed = failed.operation.unwrap();
    assert_eq!(
        (failed.status(), failed.error_code()),
        (Some(&OperationStatus::Fail), Some("CANNOT_CREATE_HOSTED_ZONE"))
    );
    assert!(failed.error_message().unwrap().contains("vpc-1"), "{failed:?}");
    assert_eq!(code(create("vpc-1", "first").await), "NamespaceAlreadyExists");
    create_private_namespace(&f.client, "shared", "vpc-2").await;
    // With the namespace, its zone goes.
    f.client.delete_namespace().id(&id).send().await.unwrap();
    create_private_namespace(&f.client, "shared", "vpc-1").await;
}

#[tokio::test]
async fn ids_and_arns_are_the_same() {
    // "Id: The ID or Amazon Resource Name (ARN) of the namespace that you want to get information about."
    let f = Fixture::start().await;
    let by_id = f.client.get_namespace().id(&f.namespace).send().await.unwrap().namespace.unwrap();
    let arn = by_id.arn().unwrap();
    assert_eq!(arn, format!("arn:aws:servicediscovery:us-east-1:123456789012:namespace/{}", f.namespace));
    let by_arn = f.client.get_namespace().id(arn).send().await.unwrap().namespace.unwrap();
    assert_eq!(by_id, by_arn);
    assert_eq!((by_id.service_count(), by_id.r#type()), (Some(1), Some(&NamespaceType::Http)));
    let elsewhere = arn.replace("us-east-1", "eu-west-1");
    assert_eq!(code(f.client.get_namespace().id(elsewhere).send().await), "NamespaceNotFound");
    let service = format!("arn:aws:servicediscovery:us-east-1:123456789012:service/{}", f.namespace);
    assert_eq!(code(f.client.get_namespace().id(service).send().await), "NamespaceNotFound");
    create_service(&f.client, arn, "by-arn").await;
    let change = HttpNamespaceChange::builder().description("new").build().unwrap();
    f.client.update_http_namespace().id(arn).namespace(change).send().await.unwrap();
    let changed = f.client.get_namespace().id(arn).send().await.unwrap().namespace.unwrap();
    assert_eq!(changed.description(), Some("new"));
}

#[tokio::test]
async fn only_an_empty_namespace_can_be_deleted() {
    // "If the namespace still contains one or more services, the request fails."
    let f = Fixture::start().await;
    let delete = || f.client.delete_namespace().id(&f.namespace).send();
    assert_eq!(code(delete().await), "ResourceInUse");
    f.client.delete_service().id(&f.service).send().await.unwrap();
    delete().await.unwrap();
    assert_eq!(code(delete().await), "NamespaceNotFound");
    let discover = f.client.discover_instances().namespace_name("apps").service_name("web").send().await;
    assert_eq!(code(discover), "NamespaceNotFound");
    // The name is free again.
    create_http_namespace(&f.client, "apps").await;
}

#[tokio::test]
async fn dns_namespaces_have_a_zone_and_a_soa_record() {
    // "When you create a private DNS namespace, Cloud Map automatically creates an Amazon Route 53 private hosted zone."
    let f = Fixture::start().await;
    let soa = Soa::builder().ttl(60).build().unwrap();
    let properties = PrivateDnsPropertiesMutable::builder().soa(soa).build();
    let properties = PrivateDnsNamespaceProperties::builder().dns_properties(properties).build();
    let created = f.client.create_private_dns_namespace().name("example.com").vpc("vpc-1").properties(properties);
    let id = namespace_of(&f.client, created.send().await.unwrap().operation_id().unwrap()).await;
    let dns = async || {
        let found = f.client.get_namespace().id(&id).send().await.unwrap().namespace.unwrap();
        assert_eq!(found.r#type(), Some(&NamespaceType::DnsPrivate));
        found.properties.unwrap().dns_properties.unwrap()
    };
    assert!(dns().await.hosted_zone_id().unwrap().starts_with('Z'));
    assert_eq!(dns().await.soa().unwrap().ttl(), 60);
    let soa = SoaChange::builder().ttl(300).build().unwrap();
    let change = PrivateDnsPropertiesMutableChange::builder().soa(soa).build();
    let change = PrivateDnsNamespacePropertiesChange::builder().dns_properties(change).build();
    let change = PrivateDnsNamespaceChange::builder().properties(change).build();
    f.client.update_private_dns_namespace().id(&id).namespace(change).send().await.unwrap();
    assert_eq!(dns().await.soa().unwrap().ttl(), 300);
    // A namespace of another type.
    let change = HttpNamespaceChange::builder().description("x").build().unwrap();
    assert_eq!(code(f.client.update_http_namespace().id(&id).namespace(change).send().await), "InvalidInput");
}

#[tokio::test]
async fn names_are_checked() {
    // NamespaceNameHttp ^(?!arn:)[!-~]{1,1024}$, NamespaceNamePublic: DNS labels; "CreatorRequestId": 64 characters;
    // "Description": 1,024.
    let f = Fixture::start().await;
    let http = |name: &str| f.client.create_http_namespace().name(name);
    for wrong in ["arn:aws", "a b", "", &"x".repeat(1025)] {
        assert_eq!(code(http(wrong).send().await), "InvalidInput", "{wrong}");
    }
    http(&"x".repeat(1024)).send().await.unwrap();
    assert_eq!(code(http("a").creator_request_id("x".repeat(65)).send().await), "InvalidInput");
    assert_eq!(code(http("a").description("x".repeat(1025)).send().await), "InvalidInput");
    let public = |name: &str| f.client.create_public_dns_namespace().name(name).send();
    assert_eq!(code(public("local").await), "InvalidInput");
    public("example.com").await.unwrap();
    let private = f.client.create_private_dns_namespace().name("x".repeat(254)).vpc("vpc-1").send().await;
    assert_eq!(code(private), "InvalidInput");
}

#[tokio::test]
async fn lists_filter_and_page() {
    // "EQ is supported for TYPE, NAME, RESOURCE_OWNER and HTTP_NAME"; "BEGINS_WITH is supported for TYPE, NAME, and
    // HTTP_NAME."
    let f = Fixture::start().await;
    for n in 0..4 {
        create_http_namespace(&f.client, &format!("team-{n}")).await;
    }
    create_private_namespace(&f.client, "team-dns", "vpc-1").await;
    let list = async |name: NamespaceFilterName, condition: Option<FilterCondition>, value: &str| {
        let filter = NamespaceFilter::builder().name(name).set_condition(condition).values(value).build().unwrap();
        let mut pages = f.client.list_namespaces().max_results(2).filters(filter).into_paginator().send();
        let mut names = Vec::new();
        while let Some(page) = pages.try_next().await.unwrap() {
            names.extend(page.namespaces().iter().map(|found| found.name().unwrap().to_owned()));
        }
        names.sort_unstable();
        names
    };
    assert_eq!(list(NamespaceFilterName::Name, None, "team-1").await, ["team-1"]);
    assert_eq!(list(NamespaceFilterName::Type, None, "DNS_PRIVATE").await, ["team-dns"]);
    assert_eq!(list(NamespaceFilterName::HttpName, Some(FilterCondition::BeginsWith), "team-").await.len(), 5);
    assert_eq!(list(NamespaceFilterName::ResourceOwner, None, "SELF").await.len(), 6);
    assert_eq!(list(NamespaceFilterName::ResourceOwner, None, "OTHER_ACCOUNTS").await.len(), 0);
    let wrong = NamespaceFilter::builder().name(NamespaceFilterName::Name).values("a").values("b").build().unwrap();
    assert_eq!(code(f.client.list_namespaces().filters(wrong).send().await), "InvalidInput");
    assert_eq!(code(f.client.list_namespaces().next_token("x").send().await), "InvalidInput");
    assert_eq!(code(f.client.list_namespaces().max_results(101).send().await), "InvalidInput");
}

/// "Namespaces that are shared with your account" (AWS RAM) come with the others, unless a filter says otherwise.
#[tokio::test]
async fn a_namespace_that_another_account_shares_is_listed_as_its_own() {
    let f = Fixture::start().await;
    create_http_namespace(&f.client, "shared").await;
    let control = f.emulator.control();
    let mut snapshot = control.snapshot();
    let shared = snapshot.namespaces.iter_mut().find(|namespace| namespace.name == "shared").unwrap();
    let own = shared.arn.split(':').nth(4).unwrap().to_owned();
    shared.arn = shared.arn.replace(&own, "999999999999");
    control.restore(snapshot);
    let list = async |owner: &str| {
        let name = NamespaceFilterName::ResourceOwner;
        let filter = NamespaceFilter::builder().name(name).values(owner).build().unwrap();
        let page = f.client.list_namespaces().filters(filter).send().await.unwrap();
        let found = page.namespaces().iter();
        found.map(|n| (n.name().unwrap().to_owned(), n.resource_owner().unwrap().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(list("OTHER_ACCOUNTS").await, [("shared".to_owned(), "999999999999".to_owned())]);
    assert!(list("SELF").await.iter().all(|(name, owner)| name != "shared" && *owner == own));
    assert_eq!(f.client.list_namespaces().send().await.unwrap().namespaces().len(), list("SELF").await.len() + 1);
    // The name is free in this account.
    create_http_namespace(&f.client, "shared").await;
}
