//! The port: what is asked of ECS, in plain types.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::Operation;

/// ECS of one account and region.
///
/// Every call has a deadline of seconds, and is repeated a few times if it is throttled or not answered.
///
/// # Errors
/// [`Error`] has the operation and the remedy.
#[async_trait]
pub trait Ecs: Send + Sync + 'static {
    /// The ARNs of all clusters. Reads all pages.
    async fn clusters(&self) -> Result<Vec<String>, Error>;

    /// The ARNs of all services of a cluster, which is given by its name or ARN. Reads all pages.
    async fn services(&self, cluster: &str) -> Result<Vec<String>, Error>;

    /// These services of a cluster, given by their names or ARNs. Those that do not exist are left out.
    async fn describe(&self, cluster: &str, services: &[String]) -> Result<Vec<Service>, Error>;

    /// Sets how many tasks a service is to have. ECS starts or stops them afterwards.
    async fn set_desired_count(&self, cluster: &str, service: &str, count: u32) -> Result<(), Error>;
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ECS {operation} failed: {message}")]
pub struct Error {
    /// What was called.
    pub operation: Operation,
    /// What is wrong and what to do, with AWS's words.
    pub message: String,
    /// Whether ECS answered. If not, the next call takes as long and fails, too.
    pub answered: bool,
}

/// Who replaces the tasks of a service when it is deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Controller {
    /// ECS itself.
    #[default]
    Ecs,
    /// AWS CodeDeploy.
    CodeDeploy,
    /// Somebody else.
    External,
}

/// Where tasks with interfaces of their own are (network mode `awsvpc`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Ids of the subnets.
    pub subnets: BTreeSet<String>,
    /// Ids of the security groups. Without any it is the default one of the VPC.
    pub security_groups: BTreeSet<String>,
    /// Whether tasks get public addresses, without which they may have no way to a registry of images.
    pub public: bool,
}

/// A service of ECS.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that ECS answers with, and no state")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Name of its cluster.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Whether it is neither deleted nor being deleted.
    pub active: bool,
    /// How many tasks it is to have.
    pub desired: u32,
    /// How many tasks run.
    pub running: u32,
    /// How many tasks are being started.
    pub pending: u32,
    /// Whether it has one task on each host instead of a number of tasks (scheduling strategy `DAEMON`).
    pub daemon: bool,
    /// Who deploys it.
    pub controller: Controller,
    /// Whether a deployment is in progress.
    pub deploying: bool,
    /// Whether its tasks are reached through Service Connect.
    pub service_connect: bool,
    /// Whether some of its tasks run on Fargate Spot.
    pub spot: bool,
    /// ARNs of the Cloud Map services in which its tasks are registered.
    pub registries: BTreeSet<String>,
    /// ARNs of the Cloud Map services that Service Connect keeps for it.
    pub connected: BTreeSet<String>,
    /// Ports of its containers, as registries and load balancers have them.
    pub ports: BTreeSet<u16>,
    /// The network of its tasks; `None` if they share that of their hosts.
    pub network: Option<Network>,
    /// How many target groups (of VPC Lattice, too) and load balancers have its tasks.
    pub load_balancers: usize,
}

impl Service {
    /// Whether its tasks, or Service Connect for it, are registered in this Cloud Map service.
    pub fn registers_in(&self, arn: &str) -> bool {
        self.registries.contains(arn) || self.connected.contains(arn)
    }

    /// Whether it has no task and is to have none. One that is being deleted is to have none, whatever its desired count says.
    pub const fn is_at_zero(&self) -> bool {
        (self.desired == 0 || !self.active) && self.running == 0 && self.pending == 0
    }

    /// `cluster/name`, as in the resource ids of autoscaling.
    pub fn path(&self) -> String {
        format!("{}/{}", self.cluster, self.name)
    }

    /// Its region as a [`region_flag`]: ECS registers tasks in Cloud Map services of its own region only.
    pub fn region_flag(&self) -> String {
        self.registries.iter().chain(&self.connected).next().map_or_else(String::new, |arn| region_flag(arn))
    }

    /// The command that says whether something scales it, which ECS itself does not say.
    pub fn look_for_autoscaling(&self) -> String {
        format!(
            "aws application-autoscaling describe-scalable-targets{} --service-namespace ecs --resource-ids service/{}",
            self.region_flag(),
            self.path()
        )
    }
}

/// The flag of the AWS CLI that names the region of an ARN, with a space before it; nothing if the ARN has none.
pub fn region_flag(arn: &str) -> String {
    let region = arn.split(':').nth(3).filter(|region| !region.is_empty());
    region.map_or_else(String::new, |region| format!(" --region {region}"))
}
