//! Which ECS service registers its tasks in a Cloud Map service.

use super::{Ecs, Error, Service};

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Name or ARN of a cluster; without it, all clusters.
    pub cluster: Option<String>,
    /// Names or ARNs of services; without any, all services of the clusters.
    pub services: Vec<String>,
}

/// All services where `choice` says.
///
/// # Errors
/// The first call that failed.
pub async fn all(ecs: &dyn Ecs, choice: &Choice) -> Result<Vec<Service>, Error> {
    let clusters = match &choice.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => ecs.clusters().await?,
    };
    let mut all = Vec::new();
    for cluster in clusters {
        let names = if choice.services.is_empty() { ecs.services(&cluster).await? } else { choice.services.clone() };
        all.extend(ecs.describe(&cluster, &names).await?);
    }
    Ok(all)
}

/// Those that register their tasks in this Cloud Map service. What was deleted and runs no task any more does not count.
pub fn registering(services: Vec<Service>, arn: &str) -> Vec<Service> {
    let there = |service: &Service| service.registers_in(arn) && (service.active || service.running > 0);
    services.into_iter().filter(there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ecs::{
        Operation,
        fake::{FakeEcs, mk_service},
    };

    fn names(services: &[Service]) -> Vec<&str> {
        services.iter().map(|service| &*service.name).collect()
    }

    #[tokio::test]
    async fn a_service_is_found_by_the_arn_in_its_registries() {
        let orders = mk_service("prod", "orders", "arn:orders");
        let connected = Service { connected: ["arn:orders".to_owned()].into(), ..mk_service("test", "web", "arn:web") };
        let deleted = Service { active: false, running: 0, ..mk_service("prod", "old", "arn:orders") };
        let ending = Service { active: false, running: 1, ..mk_service("prod", "ending", "arn:orders") };
        let ecs = FakeEcs::with([orders, mk_service("prod", "carts", "arn:carts"), connected, deleted, ending]);
        let found = registering(all(&ecs, &Choice::default()).await.unwrap(), "arn:orders");
        assert_eq!(names(&found), ["orders", "ending", "web"]);
        assert_eq!(registering(found, "arn:carts"), []);
    }

    #[tokio::test]
    async fn who_names_cluster_and_service_needs_no_permission_to_list() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", "arn:orders"), mk_service("prod", "carts", "arn:carts")]);
        ecs.deny(Operation::ListClusters);
        let error = all(&ecs, &Choice::default()).await.unwrap_err();
        assert_eq!(error.operation, Operation::ListClusters);
        let cluster = Choice { cluster: Some("prod".to_owned()), services: Vec::new() };
        assert_eq!(names(&all(&ecs, &cluster).await.unwrap()), ["orders", "carts"]);
        ecs.deny(Operation::ListServices);
        all(&ecs, &cluster).await.unwrap_err();
        let both = Choice { services: vec!["orders".to_owned(), "gone".to_owned()], ..cluster };
        assert_eq!(names(&all(&ecs, &both).await.unwrap()), ["orders"]);
    }
}
