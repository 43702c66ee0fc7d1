//! Asynchronous operations, slowed down by fault rules where a test has to see them under way.

use std::time::Duration;

use aws_sdk_servicediscovery::operation::register_instance::RegisterInstanceError;
use aws_sdk_servicediscovery::types::{
    FilterCondition, HttpNamespaceChange, OperationFilter, OperationFilterName, OperationStatus, OperationTargetType,
    OperationType,
};
use cloudmap_emulator::{Effect, Fault};

use super::*;

/// Long enough that no test lasts until then.
const NEVER: Duration = Duration::from_hours(1);

fn slow(operation: &str) -> Fault {
    Fault::on(operation, Effect::OperationLatency { add: NEVER })
}

#[tokio::test]
async fn one_operation_at_a_time_for_an_instance() {
    // "One RegisterInstance request must complete before you can submit another request and specify the same service ID
    // and instance ID." DuplicateRequest: "DuplicateOperationId: The ID of the operation that's already in progress."
    let f = Fixture::start().await;
    f.emulator.control().add_fault(slow("RegisterInstance").for_instance("slow"));
    let register =
        |id: &str| f.client.register_instance().service_id(&f.service).instance_id(id).attributes("k", "v").send();
    let first = register("slow").await.unwrap().operation_id.unwrap();
    match register("slow").await.unwrap_err().into_service_error() {
        RegisterInstanceError::DuplicateRequest(error) => {
            assert_eq!(error.duplicate_operation_id(), Some(first.as_str()));
        }
        other => panic!("{other:?}"),
    }
    let deregister = f.client.deregister_instance().service_id(&f.service).instance_id("slow").send().await;
    assert_eq!(code(deregister), "DuplicateRequest");
    register("other").await.unwrap();
    assert_eq!(f.discover().await, ["other"]);
    // "The instance was recently registered, and information about the instance hasn't propagated yet."
    let get = f.client.get_instance().service_id(&f.service).instance_id("slow").send().await;
    assert_eq!(code(get), "InstanceNotFound");
    // It counts for deletion.
    f.client.deregister_instance().service_id(&f.service).instance_id("other").send().await.unwrap();
    assert_eq!(code(f.client.delete_service().id(&f.service).send().await), "ResourceInUse");
}

#[tokio::test]
async fn one_operation_at_a_time_for_a_namespace() {
    // DuplicateRequest: "The operation is already in progress."
    let f = Fixture::start().await;
    f.emulator.control().add_fault(slow("CreateHttpNamespace"));
    f.emulator.control().add_fault(slow("UpdateHttpNamespace"));
    let create = || f.client.create_http_namespace().name("slow").send();
    create().await.unwrap();
    assert_eq!(code(create().await), "DuplicateRequest");
    let update = || {
        let change = HttpNamespaceChange::builder().description("d").build().unwrap();
        f.client.update_http_namespace().id(&f.namespace).namespace(change).send()
    };
    update().await.unwrap();
    assert_eq!(code(update().await), "DuplicateRequest");
    assert_eq!(code(f.client.delete_namespace().id(&f.namespace).send().await), "DuplicateRequest");
}

#[tokio::test]
async fn an_operation_describes_itself() {
    // Targets: "NAMESPACE, SERVICE, INSTANCE"; "SUBMITTED This is the initial state that occurs immediately after you
    // submit a request."
    let f = Fixture::start().await;
    let get = async |id: &str| f.client.get_operation().operation_id(id).send().await.unwrap().operation.unwrap();
    let register = |id: &str| f.client.register_instance().service_id(&f.service).instance_id(id).attributes("k", "v");
    let done = get(register("a").send().await.unwrap().operation_id().unwrap()).await;
    assert_eq!(
        (done.status(), done.r#type()),
        (Some(&OperationStatus::Success), Some(&OperationType::RegisterInstance))
    );
    let targets = done.targets().unwrap();
    assert_eq!(targets[&OperationTargetType::Instance], "a");
    assert_eq!(targets[&OperationTargetType::Service], f.service);
    assert_eq!((done.owner_account(), done.error_code()), (Some("123456789012"), None));
    f.emulator.control().add_fault(slow("RegisterInstance"));
    let waiting = get(register("b").send().await.unwrap().operation_id().unwrap()).await;
    assert_eq!(waiting.status(), Some(&OperationStatus::Submitted));
    assert_eq!(code(f.client.get_operation().operation_id("none").send().await), "OperationNotFound");
}

#[tokio::test]
async fn a_failed_operation_has_no_effect_and_says_why() {
    // "FAIL The operation failed. For the failure reason, see ErrorMessage."
    let f = Fixture::start().await;
    let effect = Effect::FailOperation { code: "INTERNAL_FAILURE".into(), message: "out of luck".into() };
    f.emulator.control().add_fault(Fault::on("RegisterInstance", effect).times(1));
    let register = || f.client.register_instance().service_id(&f.service).instance_id("a").attributes("k", "v").send();
    let id = register().await.unwrap().operation_id.unwrap();
    let failed = f.client.get_operation().operation_id(id).send().await.unwrap().operation.unwrap();
    assert_eq!(failed.status(), Some(&OperationStatus::Fail));
    assert_eq!((failed.error_code(), failed.error_message()), (Some("INTERNAL_FAILURE"), Some("out of luck")));
    assert!(f.discover().await.is_empty());
    // The instance is free for another try.
    register().await.unwrap();
    assert_eq!(f.discover().await, ["a"]);
}

#[tokio::test]
async fn lists_filter_after_paging() {
    // "Cloud Map gets MaxResults operations and then filters them based on the specified criteria." Conditions: "EQ is
    // supported for NAMESPACE_ID, SERVICE_ID, STATUS, and TYPE"; "IN is supported for STATUS and TYPE"; "BETWEEN is
    // supported for UPDATE_DATE".
    let f = Fixture::start().await;
    for n in 0..5 {
        f.register(&format!("i-{n}"), "v").await;
    }
    f.emulator.control().add_fault(slow("DeregisterInstance"));
    f.client.deregister_instance().service_id(&f.service).instance_id("i-0").send().await.unwrap();
    let filter = |name, condition: Option<FilterCondition>, values: &[&str]| {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        OperationFilter::builder().name(name).set_condition(condition).set_values(Some(values)).build().unwrap()
    };
    let count = async |filter: OperationFilter| {
        let mut pages = f.client.list_operations().max_results(2).filters(filter).into_paginator().send();
        let (mut found, mut count) = (0, 0);
        while let Some(page) = pages.try_next().await.unwrap() {
            found += page.operations().len();
            count += 1;
        }
        // One namespace, five registrations, one deregistration, whatever passes the filter.
        assert_eq!(count, 4);
        found
    };
    let (kind, status) = (OperationFilterName::Type, OperationFilterName::Status);
    assert_eq!(count(filter(kind.clone(), None, &["REGISTER_INSTANCE"])).await, 5);
    assert_eq!(count(filter(kind, Some(FilterCondition::In), &["CREATE_NAMESPACE", "DEREGISTER_INSTANCE"])).await, 2);
    assert_eq!(count(filter(status.clone(), None, &["SUBMITTED"])).await, 1);
    // The documentation of the filter says SUCCEED, the enumeration of statuses SUCCESS.
    assert_eq!(count(filter(status.clone(), None, &["SUCCEED"])).await, 6);
    assert_eq!(count(filter(OperationFilterName::ServiceId, None, &[&f.service])).await, 6);
    assert_eq!(count(filter(OperationFilterName::NamespaceId, None, &[&f.namespace])).await, 7);
    let between = Some(FilterCondition::Between);
    assert_eq!(count(filter(OperationFilterName::UpdateDate, between.clone(), &["0", "9999999999"])).await, 7);
    assert_eq!(count(filter(OperationFilterName::UpdateDate, between.clone(), &["0", "1"])).await, 0);
    let wrong = f.client.list_operations().filters(filter(status, between, &["A", "B"])).send().await;
    assert_eq!(code(wrong), "InvalidInput");
}
