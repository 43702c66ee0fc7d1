//! Which ECS service registers its tasks in a Cloud Map service.

use super::{Ecs, Error, Service};

/// How many clusters that could not be read are named.
const NAMED: usize = 5;

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Name or ARN of a cluster; without it, all clusters.
    pub cluster: Option<String>,
    /// Names or ARNs of services; without any, all services of the clusters.
    pub services: Vec<String>,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The services.
    pub services: Vec<Service>,
    /// What could not be searched, and why, as a text for people; `None`: everything was searched.
    pub unread: Option<String>,
}

impl Found {
    /// Those that register their tasks in this Cloud Map service. What was deleted and runs no task any more does not count.
    #[must_use]
    pub fn registering(&self, arn: &str) -> Self {
        let there = |service: &&Service| service.registers_in(arn) && (service.active || service.running > 0);
        Self { services: self.services.iter().filter(there).cloned().collect(), unread: self.unread.clone() }
    }
}

/// All services where `choice` says. A cluster that cannot be read hides no other one.
///
/// # Errors
/// The clusters cannot be listed, or none of them can be read, or a call has no answer.
pub async fn all(ecs: &dyn Ecs, choice: &Choice) -> Result<Found, Error> {
    let clusters = match &choice.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => ecs.clusters().await?,
    };
    let (mut services, mut unread, mut why) = (Vec::new(), Vec::new(), None);
    for cluster in &clusters {
        match within(ecs, cluster, &choice.services).await {
            Ok(there) => services.extend(there),
            Err(error) if error.answered => {
                unread.push(cluster.rsplit('/').next().unwrap_or(cluster));
                why.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match why {
        Some(error) if unread.len() == clusters.len() => Err(error),
        why => Ok(Found { services, unread: why.map(|error| not_read(&unread, &error)) }),
    }
}

/// These services of a cluster, or all if there are no names.
async fn within(ecs: &dyn Ecs, cluster: &str, names: &[String]) -> Result<Vec<Service>, Error> {
    if names.is_empty() {
        return ecs.describe(cluster, &ecs.services(cluster).await?).await;
    }
    ecs.describe(cluster, names).await
}

/// Which clusters could not be read, and why not the first one.
fn not_read(clusters: &[&str], why: &Error) -> String {
    let (named, more) = clusters.split_at(clusters.len().min(NAMED));
    let named = named.join(", ");
    match (clusters.len(), more.len()) {
        (1, _) => format!("the ECS cluster {named} could not be read: {why}"),
        (_, 0) => format!("the ECS clusters {named} could not be read: {why}"),
        (_, more) => format!("the ECS clusters {named} and {more} more could not be read: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
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
        let found = all(&ecs, &Choice::default()).await.unwrap().registering("arn:orders");
        assert_eq!(names(&found.services), ["orders", "ending", "web"]);
        assert_eq!(found.registering("arn:carts"), Found::default());
    }

    #[tokio::test]
    async fn who_names_cluster_and_service_needs_no_permission_to_list() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", "arn:orders"), mk_service("prod", "carts", "arn:carts")]);
        ecs.deny(Operation::ListClusters);
        let error = all(&ecs, &Choice::default()).await.unwrap_err();
        assert_eq!(error.operation, Operation::ListClusters);
        let cluster = Choice { cluster: Some("prod".to_owned()), services: Vec::new() };
        assert_eq!(names(&all(&ecs, &cluster).await.unwrap().services), ["orders", "carts"]);
        ecs.deny(Operation::ListServices);
        all(&ecs, &cluster).await.unwrap_err();
        let both = Choice { services: vec!["orders".to_owned(), "gone".to_owned()], ..cluster };
        assert_eq!(names(&all(&ecs, &both).await.unwrap().services), ["orders"]);
    }

    #[tokio::test]
    async fn a_cluster_that_cannot_be_read_hides_no_other_and_is_named() {
        let clusters = ["a", "b", "c", "d", "e", "f", "g"];
        let ecs = FakeEcs::with(clusters.map(|cluster| mk_service(cluster, "orders", "arn:orders")));
        let mut unread = Vec::new();
        for (cluster, expected) in [
            ("b", "the ECS cluster b could not be read: ECS ListServices failed: "),
            ("c", "the ECS clusters b, c could not be read: "),
            ("d", "the ECS clusters b, c, d could not be read: "),
            ("e", "the ECS clusters b, c, d, e could not be read: "),
            ("f", "the ECS clusters b, c, d, e, f could not be read: "),
            ("g", "the ECS clusters b, c, d, e, f and 1 more could not be read: "),
        ] {
            unread.push(cluster);
            ecs.state().unreadable.insert(cluster.to_owned());
            let found = all(&ecs, &Choice::default()).await.unwrap();
            assert_eq!(found.services.len() + unread.len(), clusters.len());
            let said = found.unread.unwrap();
            assert!(said.starts_with(expected) && said.contains("ecs:ListServices"), "{said}");
        }
        // None is left, or nobody wants another one.
        ecs.state().unreadable.insert("a".to_owned());
        assert_eq!(all(&ecs, &Choice::default()).await.unwrap_err().operation, Operation::ListServices);
        ecs.state().unreadable.remove("a");
        let cluster = Choice { cluster: Some("b".to_owned()), services: Vec::new() };
        assert_eq!(all(&ecs, &cluster).await.unwrap_err().operation, Operation::ListServices);
    }
}
