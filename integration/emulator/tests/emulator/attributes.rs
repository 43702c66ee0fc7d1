//! Service attributes and tags.

use std::collections::HashMap;

use aws_sdk_servicediscovery::types::Tag;

use super::*;

#[tokio::test]
async fn service_attributes_are_merged_key_by_key() {
    // "You can specify a total of 30 attributes."
    let f = Fixture::start().await;
    let arn = f.client.get_service().id(&f.service).send().await.unwrap().service.unwrap().arn.unwrap();
    let update = |pairs: HashMap<String, String>| {
        f.client.update_service_attributes().service_id(&arn).set_attributes(Some(pairs)).send()
    };
    let pairs = |range: std::ops::Range<u32>, value: &str| -> HashMap<_, _> {
        range.map(|n| (format!("key-{n}"), value.to_owned())).collect()
    };
    update(pairs(0..20, "old")).await.unwrap();
    update(pairs(10..30, "new")).await.unwrap();
    let get = async || {
        let found = f.client.get_service_attributes().service_id(&f.service).send().await.unwrap();
        let found = found.service_attributes.unwrap();
        assert_eq!(found.service_arn(), Some(arn.as_str()));
        found.attributes.unwrap()
    };
    let found = get().await;
    assert_eq!((found.len(), found["key-9"].as_str(), found["key-10"].as_str()), (30, "old", "new"));
    // ServiceAttributesLimitExceededException: "you've exceeded the quota for the number of attributes".
    assert_eq!(code(update(pairs(30..31, "v")).await), "ServiceAttributesLimitExceededException");
    assert_eq!(code(update(pairs(0..31, "v")).await), "InvalidInput");
    assert_eq!(code(update(HashMap::new()).await), "InvalidInput");
    assert_eq!(code(update(pairs(0..1, &"v".repeat(1025))).await), "InvalidInput");
    let delete = f.client.delete_service_attributes().service_id(&f.service).attributes("key-0").attributes("none");
    delete.send().await.unwrap();
    assert_eq!(get().await.len(), 29);
    let nowhere = f.client.get_service_attributes().service_id("srv-none").send().await;
    assert_eq!(code(nowhere), "ServiceNotFound");
}

#[tokio::test]
async fn tags_are_up_to_fifty() {
    // "The maximum number of tags that can be applied to a resource is 50."
    let f = Fixture::start().await;
    let tag = |n: usize| Tag::builder().key(format!("key-{n:02}")).value("v").build().unwrap();
    let tags = |range: std::ops::Range<usize>| Some(range.map(tag).collect::<Vec<_>>());
    let create = f.client.create_service().namespace_id(&f.namespace).name("tagged").set_tags(tags(0..40));
    let service = create.send().await.unwrap().service.unwrap();
    let arn = service.arn().unwrap();
    let add = |range| f.client.tag_resource().resource_arn(arn).set_tags(tags(range)).send();
    add(30..50).await.unwrap();
    assert_eq!(code(add(50..51).await), "TooManyTagsException");
    f.client.untag_resource().resource_arn(arn).tag_keys("key-00").tag_keys("none").send().await.unwrap();
    let list = |arn: &str| f.client.list_tags_for_resource().resource_arn(arn).send();
    assert_eq!(list(arn).await.unwrap().tags().len(), 49);
    let too_many = f.client.create_http_namespace().name("n").set_tags(tags(0..51)).send().await;
    assert_eq!(code(too_many), "TooManyTagsException");
    let reserved = Tag::builder().key("aws:x").value("v").build().unwrap();
    assert_eq!(code(f.client.tag_resource().resource_arn(arn).tags(reserved).send().await), "InvalidInput");
    // ResourceNotFoundException: "The operation can't be completed because the resource was not found."
    f.client.delete_service().id(arn).send().await.unwrap();
    assert_eq!(code(list(arn).await), "ResourceNotFoundException");
    assert_eq!(code(list(&f.service).await), "InvalidInput");
    let namespace = f.client.get_namespace().id(&f.namespace).send().await.unwrap().namespace.unwrap().arn.unwrap();
    let one = f.client.tag_resource().resource_arn(&namespace).tags(tag(1));
    one.send().await.unwrap();
    assert_eq!(list(&namespace).await.unwrap().tags()[0].key(), "key-01");
}
