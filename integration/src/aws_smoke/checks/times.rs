//! How long things take.

use std::time::{Duration, Instant};

use cloudmap::LATEST_EFFECT;

use super::ADDRESS;
use crate::aws_smoke::{lab::Lab, lab::answer, verdict::Verdict};

/// The deadline of a call in the controller.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// `--claim-delay`.
const CLAIM_DELAY: Duration = Duration::from_secs(10);

pub(crate) async fn namespace(lab: &Lab) -> anyhow::Result<Verdict> {
    Ok(Verdict::within(LATEST_EFFECT, &[("CreateHttpNamespace", vec![lab.namespace.took])]))
}

pub(crate) async fn operations(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("operations").await?;
    let (mut registering, mut deregistering) = (Vec::new(), Vec::new());
    for number in 0..5 {
        let operation = lab.register(&service, &format!("i-{number}"), &[ADDRESS]).await?;
        match lab.finish(&operation).await {
            Ok(took) => registering.push(took),
            Err(error) => return Ok(Verdict::Differs(format!("RegisterInstance: {error:#}"))),
        }
    }
    for number in 0..5 {
        deregistering.push(lab.remove(&service, &format!("i-{number}")).await?);
    }
    Ok(Verdict::within(LATEST_EFFECT, &[("RegisterInstance", registering), ("DeregisterInstance", deregistering)]))
}

pub(crate) async fn calls(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("calls").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    let (mut lists, mut discoveries) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let begin = Instant::now();
        lab.client.list_instances().service_id(&service).send().await?;
        lists.push(begin.elapsed());
        let begin = Instant::now();
        lab.discover("calls").await?;
        discoveries.push(begin.elapsed());
    }
    Ok(Verdict::within(CALL_DEADLINE, &[("ListInstances", lists), ("DiscoverInstances", discoveries)]))
}

pub(crate) async fn services(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("at-once").await?;
    let there = answer(lab.client.get_service().id(&service).send().await)?;
    lab.client.delete_service().id(&service).send().await?;
    let gone = answer(lab.client.get_service().id(&service).send().await)?;
    let holds = there == "accepted" && gone == "ServiceNotFound";
    Ok(Verdict::holds(holds, format!("GetService: {there} after the creation, {gone} after the deletion")))
}

pub(crate) async fn discovery(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("lag").await?;
    let (mut coming, mut going) = (Vec::new(), Vec::new());
    for id in ["a", "b", "c"] {
        lab.put(&service, id, &[ADDRESS]).await?;
        let Some(lag) = lab.shown("lag", 1).await? else {
            return Ok(Verdict::Differs(never(lab, "a registered instance")));
        };
        coming.push(lag);
        lab.remove(&service, id).await?;
        let Some(lag) = lab.shown("lag", 0).await? else {
            return Ok(Verdict::Differs(never(lab, "a deregistration")));
        };
        going.push(lag);
    }
    Ok(Verdict::within(CLAIM_DELAY, &[("registered", coming), ("deregistered", going)]))
}

fn never(lab: &Lab, what: &str) -> String {
    format!("discovery did not show {what} within {} s", lab.patience.as_secs_f64())
}

pub(crate) async fn reads(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("reads").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    let (mut seen, mut back, mut calls) = (false, 0, 0);
    let begin = Instant::now();
    // Replicas are most apart right after a change.
    while calls < 200 && begin.elapsed() < lab.patience {
        let now = !lab.discover("reads").await?.is_empty();
        back += u32::from(seen && !now);
        seen |= now;
        calls += 1;
        tokio::time::sleep(lab.patience / 6000).await;
    }
    let text = format!("{back} of {calls} calls did not have what an earlier one had");
    Ok(if back > 0 {
        Verdict::Confirmed(text)
    } else {
        Verdict::Skipped(format!("{text}, which does not show that none ever does"))
    })
}

pub(crate) async fn listing(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("listing").await?;
    let count = async || -> anyhow::Result<usize> {
        Ok(lab.client.list_instances().service_id(&service).send().await?.instances().len())
    };
    let mut wrong = Vec::new();
    for (number, id) in ["a", "b", "c"].into_iter().enumerate() {
        lab.put(&service, id, &[ADDRESS]).await?;
        let listed = count().await?;
        if listed != number + 1 {
            wrong.push(format!("{listed} instead of {} after a registration", number + 1));
        }
    }
    lab.remove(&service, "a").await?;
    let listed = count().await?;
    if listed != 2 {
        wrong.push(format!("{listed} instead of 2 after a deregistration"));
    }
    Ok(Verdict::holds(wrong.is_empty(), if wrong.is_empty() { "four changes".to_owned() } else { wrong.join("; ") }))
}
