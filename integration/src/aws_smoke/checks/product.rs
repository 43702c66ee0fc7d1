//! The controller's own code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use cloudmap::{
    CreateService, ErrorKind, Instance, Lane, NewService, OperationId, OperationState, Permit, Read as _, Write as _,
};
use iam::{
    Mode, Scope,
    harmless::{self, Answer, Known},
    statements,
};

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{Lab, POLLS, TAG},
    meter::Costs,
    verdict::Verdict,
};

async fn finish(lab: &Lab, operation: &OperationId) -> anyhow::Result<()> {
    let ended = lab
        .until(|| async {
            match lab.adapter.operation(operation, Lane::Instances).await? {
                OperationState::Running => Ok(false),
                OperationState::Succeeded { .. } => Ok(true),
                OperationState::Failed { code, message } => anyhow::bail!("the operation failed: {code} {message}"),
            }
        })
        .await?;
    ended.map(drop).context("the operation did not end in time")
}

pub(crate) async fn adapter(lab: &Lab) -> anyhow::Result<Verdict> {
    // The adapter's calls are not counted one by one.
    lab.meter.admit(Costs { registrations: 1, discoveries: POLLS, zones: 0 })?;
    match life(lab).await {
        Ok(()) => Ok(Verdict::Confirmed("all of it".to_owned())),
        Err(error) => Ok(Verdict::Refuted(format!("{error:#}"))),
    }
}

async fn life(lab: &Lab) -> anyhow::Result<()> {
    let (cloudmap, permit) = (&lab.adapter, Permit::of_command());
    let all = cloudmap.list_namespaces(Lane::Instances).await?;
    let ours = all.iter().find(|found| *found.id == *lab.namespace.id).context("the listing lacks the namespace")?;
    let new = |creator: &str| NewService {
        namespace_id: ours.id.clone(),
        name: lab.name("adapter").into(),
        creator_request_id: creator.to_owned(),
        description: None,
        dns: None,
        custom_health_check: true,
        tags: [(TAG.to_owned(), lab.run.clone())].into(),
    };
    let CreateService::Created(service) = cloudmap.create_service(&permit, &new("us"), Lane::Instances).await? else {
        anyhow::bail!("the service exists already");
    };
    let taken = cloudmap.create_service(&permit, &new("them"), Lane::Instances).await?;
    let ours_exists = CreateService::Exists { id: service.id.clone(), creator_request_id: Some("us".to_owned()) };
    ensure!(taken == ours_exists, "the second creator learns {taken:?}");
    let listed = cloudmap.list_services(&ours.id, Lane::Instances).await?;
    ensure!(listed.iter().any(|found| found.id == service.id), "the listing lacks the service");

    let attributes = [(ADDRESS.0.to_owned(), ADDRESS.1.to_owned())].into();
    let instance = Instance { id: "one".into(), attributes };
    finish(lab, &cloudmap.register_instance(&permit, &service.id, &instance, Lane::Instances).await?).await?;
    let shown = lab
        .until(|| async {
            let all = BTreeMap::new();
            let found = cloudmap.discover_instances(ours.in_discovery(), &service.name, &all, Lane::Instances).await?;
            Ok(found.instances == std::slice::from_ref(&instance))
        })
        .await?;
    ensure!(shown.is_some(), "discovery does not show the instance");
    cloudmap.set_custom_health(&permit, &service.id, "one", false).await?;
    ensure!(cloudmap.list_instances(&service.id).await? == [instance], "the listing lacks the instance");
    let kept = cloudmap.delete_service(&permit, &service.id).await.err().map(|error| error.kind);
    ensure!(kept == Some(ErrorKind::InUse), "the deletion of a service with an instance ends in {kept:?}");
    finish(lab, &cloudmap.deregister_instance(&permit, &service.id, "one", Lane::Instances).await?).await?;
    cloudmap.delete_service(&permit, &service.id).await?;
    Ok(())
}

/// What the calls could change: namespaces with the name of the run, and what is in its own.
async fn content(lab: &Lab) -> anyhow::Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let mut namespaces = lab.client.list_namespaces().into_paginator().send();
    while let Some(page) = namespaces.try_next().await? {
        let names = page.namespaces().iter().filter_map(|found| found.name());
        all.extend(names.filter(|name| name.contains(&lab.run)).map(str::to_owned));
    }
    for service in lab.adapter.list_services(&lab.namespace.id, Lane::Instances).await? {
        for instance in lab.adapter.list_instances(&service.id).await? {
            all.insert(format!("{}/{}", service.id, instance.id));
        }
        let tags = lab.adapter.list_tags(&service.arn).await?;
        all.insert(format!("{} {tags:?}", service.id));
    }
    Ok(all)
}

pub(crate) async fn doctor(lab: &Lab) -> anyhow::Result<Verdict> {
    let service: Arc<str> = lab.service("doctor").await?.into();
    let scope = Scope {
        clusterset: Some(format!("smoke-{}", lab.run).parse().map_err(|_| anyhow::anyhow!("no ClusterSet id"))?),
        cluster_uid: Some(lab.run.clone()),
        namespaces: vec![lab.namespace.name.clone()],
        services: vec![service.to_string()],
        ..Scope::default()
    };
    let modes = [Mode::Ledger, Mode::Instances, Mode::Imports, Mode::Annotated, Mode::Joining, Mode::People];
    let known = Known {
        tagged: [("cloudmap-mcs/clusterset".to_owned(), service)].into(),
        ledger: Some(lab.namespace.id.as_str().into()),
        arn: Some(lab.namespace.arn.as_str().into()),
    };
    let before = content(lab).await?;
    let (mut tried, mut denied) = (0, BTreeSet::new());
    let statements = statements(&modes, &scope).map_err(|error| anyhow::anyhow!("{error}"))?;
    for statement in &statements {
        for operation in harmless::operations(statement) {
            lab.meter.admit(Costs { discoveries: 1, ..Costs::default() })?;
            tried += 1;
            if let Answer::Denied(_) =
                harmless::try_out(&lab.adapter, &Permit::of_command(), statement, operation, &known).await
            {
                denied.insert(operation.name());
            }
        }
    }
    // An operation that was begun nevertheless has its effect soon.
    tokio::time::sleep(lab.patience / 20).await;
    let changed = content(lab).await? != before;
    let denied = if denied.is_empty() { String::new() } else { format!(", denied: {denied:?}") };
    Ok(Verdict::holds(
        !changed,
        format!("{tried} calls{denied}; {}", if changed { "something changed" } else { "nothing changed" }),
    ))
}
