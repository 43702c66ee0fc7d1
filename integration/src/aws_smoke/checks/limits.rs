//! Lengths, numbers and characters. Each limit is tried twice: as much as fits, and one more.

use std::collections::HashMap;

use aws_sdk_servicediscovery::config::{Config, retry::RetryConfig};
use aws_sdk_servicediscovery::error::ProvideErrorMetadata as _;
use aws_sdk_servicediscovery::types::Tag;

use crate::aws_smoke::{
    lab::{Lab, TAG, answer, tag},
    verdict::Verdict,
};

/// Registers what fits, which has to come back unchanged, and then what does not fit.
async fn limit(
    lab: &Lab,
    what: &str,
    fits: (&str, HashMap<String, String>),
    over: &[(&str, HashMap<String, String>)],
) -> anyhow::Result<Verdict> {
    let service = lab.service(what).await?;
    let register = |(id, attributes): (&str, HashMap<String, String>)| {
        lab.client.register_instance().service_id(&service).instance_id(id).set_attributes(Some(attributes)).send()
    };
    let (id, attributes) = fits.clone();
    match register(fits).await {
        Ok(begun) => lab.finish(begun.operation_id().unwrap_or_default()).await?,
        Err(refused) => return Ok(Verdict::Refuted(format!("what fits: {}", answer::<(), _>(Err(refused))?))),
    };
    let found = lab.client.get_instance().service_id(&service).instance_id(id).send().await?;
    if found.instance.and_then(|instance| instance.attributes).unwrap_or_default() != attributes {
        return Ok(Verdict::Refuted("what fits came back changed".to_owned()));
    }
    let mut codes = Vec::new();
    for (id, attributes) in over {
        let code = answer(register((id, attributes.clone())).await)?;
        if code == "accepted" {
            return Ok(Verdict::Refuted(format!("more was accepted: {id}")));
        }
        codes.push(code);
    }
    codes.dedup();
    Ok(Verdict::Confirmed(format!("one more: {}", codes.join(", "))))
}

fn attributes(all: impl IntoIterator<Item = (String, String)>) -> HashMap<String, String> {
    all.into_iter().collect()
}

fn one(key: &str, value: &str) -> HashMap<String, String> {
    attributes([(key.to_owned(), value.to_owned())])
}

pub(crate) async fn instance_ids(lab: &Lab) -> anyhow::Result<Verdict> {
    let id = format!("{:a<64}", "0AZaz_/:.@-");
    let over =
        [(format!("{id}a"), one("k", "v")), ("a b".to_owned(), one("k", "v")), ("a+b".to_owned(), one("k", "v"))];
    let over = over.each_ref().map(|(id, attributes)| (id.as_str(), attributes.clone()));
    limit(lab, "ids", (&id, one("k", "v")), &over).await
}

pub(crate) async fn number(lab: &Lab) -> anyhow::Result<Verdict> {
    let many = |number: u32| attributes((0..number).map(|n| (format!("k{n}"), "v".to_owned())));
    limit(lab, "number", ("one", many(30)), &[("31-attributes", many(31))]).await
}

pub(crate) async fn name(lab: &Lab) -> anyhow::Result<Verdict> {
    let named = |length: usize| one(&"k".repeat(length), "v");
    limit(lab, "name", ("one", named(255)), &[("name-of-256", named(256))]).await
}

pub(crate) async fn value(lab: &Lab) -> anyhow::Result<Verdict> {
    let of = |length: usize| one("k", &"v".repeat(length));
    limit(lab, "value", ("one", of(1024)), &[("value-of-1025", of(1025))]).await
}

pub(crate) async fn total(lab: &Lab) -> anyhow::Result<Verdict> {
    // Five of a thousand characters each.
    let of =
        |more: usize| attributes((0..5).map(|n| (format!("k{n}"), "v".repeat(998 + if n == 0 { more } else { 0 }))));
    limit(lab, "total", ("one", of(0)), &[("5001-characters", of(1))]).await
}

pub(crate) async fn characters(lab: &Lab) -> anyhow::Result<Verdict> {
    let printable: String = ('!'..='~').collect();
    let fits = attributes([("k".to_owned(), format!("{printable} {printable}")), ("empty".to_owned(), String::new())]);
    let over = [("umlaut", one("k", "ä")), ("space-first", one("k", " v")), ("line", one("k", "a\nb"))];
    limit(lab, "characters", ("one", fits), &over).await
}

pub(crate) async fn tags(lab: &Lab) -> anyhow::Result<Verdict> {
    let created = lab.new_service("tags").tags(tag("first", "1")).send().await?;
    let arn = created.service.and_then(|service| service.arn).unwrap_or_default();
    lab.client.tag_resource().resource_arn(&arn).tags(tag("second", "2")).send().await?;
    let found = lab.client.list_tags_for_resource().resource_arn(&arn).send().await?;
    let mut keys: Vec<_> = found.tags().iter().map(Tag::key).collect();
    keys.sort_unstable();
    Ok(Verdict::holds(keys == [TAG, "first", "second"], keys.join(", ")))
}

pub(crate) async fn tag_number(lab: &Lab) -> anyhow::Result<Verdict> {
    let created = lab.new_service("tag-number").send().await?;
    let arn = created.service.and_then(|service| service.arn).unwrap_or_default();
    let add = |numbers: std::ops::Range<u32>| {
        let tags = numbers.map(|n| tag(&format!("k{n}"), "v")).collect();
        lab.client.tag_resource().resource_arn(&arn).set_tags(Some(tags)).send()
    };
    // One is there already.
    let fits = answer(add(0..49).await)?;
    let over = answer(add(49..50).await)?;
    Ok(Verdict::holds(fits == "accepted" && over == "TooManyTagsException", format!("50: {fits}; 51: {over}")))
}

pub(crate) async fn throttled(lab: &Lab) -> anyhow::Result<Verdict> {
    let once = Config::builder().retry_config(RetryConfig::disabled());
    let call = || lab.client.list_namespaces().max_results(1).customize().config_override(once.clone());
    let burst = (0..60).map(|_| call().send());
    let answers = futures::future::join_all(burst).await;
    let mut codes: Vec<_> = answers
        .into_iter()
        .filter_map(Result::err)
        .map(|error| error.code().unwrap_or("no answer").to_owned())
        .collect();
    let number = codes.len();
    codes.sort_unstable();
    codes.dedup();
    Ok(if codes.is_empty() {
        Verdict::Skipped("none of 60 calls of ListNamespaces at once was throttled".to_owned())
    } else {
        Verdict::holds(codes == ["ThrottlingException"], format!("{number} of 60 calls at once: {}", codes.join(", ")))
    })
}
