//! The AWS adapter of ECS. No other code uses its SDK.

use std::{collections::BTreeSet, error::Error as StdError};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_ecs::{
    Client,
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    types::{
        self, AssignPublicIp, AwsVpcConfiguration, CapacityProviderStrategyItem, Deployment, DeploymentControllerType,
        DeploymentRolloutState, LoadBalancer, NetworkConfiguration, SchedulingStrategy, ServiceConnectConfiguration,
        ServiceRegistry, TaskSet, VpcLatticeConfiguration,
    },
};

use super::{Controller, Ecs, Error, Network, Operation, Service};
use cloudmap::{
    AwsSettings, ConnectError, chain, identified, is_denied, load, of_credentials, retries, unsigned, words,
};

/// Maximum size of a page in listings (`maxResults`).
const PAGE: i32 = 100;
/// Maximum number of services in a call of `DescribeServices`.
const DESCRIBED: usize = 10;
/// No listing is this long: with 100 rows per page it would be a million rows.
const MAX_PAGES: usize = 10_000;
/// The capacity provider whose tasks AWS may stop.
const SPOT: &str = "FARGATE_SPOT";
/// Why `DescribeServices` leaves out a service that does not exist.
const MISSING: &str = "MISSING";

/// ECS of one account and region, through the SDK.
#[derive(Debug, Clone)]
pub struct AwsEcs {
    client: Client,
}

impl AwsEcs {
    /// Reads the settings and the environment. Makes no call to ECS. `endpoint` is the URL of an emulator; the one of
    /// `settings` is Cloud Map's.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub async fn connect(settings: &AwsSettings, endpoint: Option<&str>) -> Result<Self, ConnectError> {
        Self::configured(&load(settings).await, settings, endpoint).await
    }

    /// Like [`connect`](Self::connect), with a region and credentials that the caller has loaded.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub async fn configured(
        sdk: &SdkConfig,
        settings: &AwsSettings,
        endpoint: Option<&str>,
    ) -> Result<Self, ConnectError> {
        let sdk = identified(sdk, settings).await?;
        let mut config = aws_sdk_ecs::config::Builder::from(&sdk).retry_config(retries(settings.repeat));
        if let Some(url) = endpoint {
            config = config.endpoint_url(url);
        }
        Ok(Self { client: Client::from_conf(config.build()) })
    }
}

#[async_trait]
impl Ecs for AwsEcs {
    async fn clusters(&self) -> Result<Vec<String>, Error> {
        let operation = Operation::ListClusters;
        pages(operation, async |token| {
            let request = self.client.list_clusters().max_results(PAGE).set_next_token(token);
            let page = request.send().await.map_err(|error| failed(operation, &error))?;
            Ok((page.cluster_arns.unwrap_or_default(), page.next_token))
        })
        .await
    }

    async fn services(&self, cluster: &str) -> Result<Vec<String>, Error> {
        let operation = Operation::ListServices;
        pages(operation, async |token| {
            let request = self.client.list_services().cluster(cluster).max_results(PAGE).set_next_token(token);
            let page = request.send().await.map_err(|error| failed(operation, &error))?;
            Ok((page.service_arns.unwrap_or_default(), page.next_token))
        })
        .await
    }

    async fn describe(&self, cluster: &str, services: &[String]) -> Result<Vec<Service>, Error> {
        let operation = Operation::DescribeServices;
        let mut all = Vec::new();
        for some in services.chunks(DESCRIBED) {
            let request = self.client.describe_services().cluster(cluster).set_services(Some(some.to_vec()));
            let answer = request.send().await.map_err(|error| failed(operation, &error))?;
            if let Some(failure) = answer.failures().iter().find(|failure| failure.reason() != Some(MISSING)) {
                let (arn, reason) = (failure.arn().unwrap_or(cluster), failure.reason().unwrap_or("no reason"));
                let message = format!("{arn} cannot be read (AWS says: {reason})");
                return Err(Error { operation, message, answered: true });
            }
            all.extend(answer.services().iter().map(service));
        }
        Ok(all)
    }

    async fn set_desired_count(&self, cluster: &str, service: &str, count: u32) -> Result<(), Error> {
        let operation = Operation::UpdateService;
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let request = self.client.update_service().cluster(cluster).service(service).desired_count(count);
        request.send().await.map_err(|error| failed(operation, &error))?;
        Ok(())
    }
}

/// Reads all pages of a listing. `page` gets a token, and returns ARNs and the next token.
async fn pages<F>(operation: Operation, mut page: impl FnMut(Option<String>) -> F + Send) -> Result<Vec<String>, Error>
where
    F: Future<Output = Result<(Vec<String>, Option<String>), Error>> + Send,
{
    let unending = |why: String| {
        let message = format!("the listing does not end: {why}");
        Error { operation, message, answered: true }
    };
    let (mut all, mut token) = (Vec::new(), None::<String>);
    for _ in 0..MAX_PAGES {
        let (arns, next) = page(token.clone()).await?;
        all.extend(arns);
        let next = next.filter(|next| !next.is_empty());
        if next.is_none() {
            return Ok(all);
        }
        if next == token {
            return Err(unending("it repeats a page".to_owned()));
        }
        token = next;
    }
    Err(unending(format!("there are more than {MAX_PAGES} pages")))
}

/// The last part of an ARN.
fn name_of(arn: Option<&str>) -> String {
    arn.and_then(|arn| arn.rsplit('/').next()).unwrap_or_default().to_owned()
}

fn service(service: &types::Service) -> Service {
    let count = |number: i32| u32::try_from(number).unwrap_or_default();
    let (deployments, sets) = (service.deployments(), service.task_sets());
    // Task sets of an external deployment controller have registries and load balancers of their own.
    let registries = service.service_registries().iter().chain(sets.iter().flat_map(TaskSet::service_registries));
    let registries: Vec<&ServiceRegistry> = registries.collect();
    let balancers = service.load_balancers().iter().chain(sets.iter().flat_map(TaskSet::load_balancers));
    let balancers: Vec<&LoadBalancer> = balancers.collect();
    let lattice = deployments.iter().flat_map(Deployment::vpc_lattice_configurations);
    let groups = balancers.iter().filter_map(|balancer| balancer.target_group_arn().or(balancer.load_balancer_name()));
    let groups: BTreeSet<&str> = groups.chain(lattice.map(VpcLatticeConfiguration::target_group_arn)).collect();
    let controller = match service.deployment_controller().map(types::DeploymentController::r#type) {
        Some(DeploymentControllerType::CodeDeploy) => Controller::CodeDeploy,
        Some(DeploymentControllerType::External) => Controller::External,
        _ => Controller::Ecs,
    };
    let is_spot = |item: &CapacityProviderStrategyItem| {
        item.capacity_provider() == SPOT && (item.weight() > 0 || item.base() > 0)
    };
    let rolls_out = |deployment: &Deployment| deployment.rollout_state() == Some(&DeploymentRolloutState::InProgress);
    let connects = |deployment: &&Deployment| {
        deployment.service_connect_configuration().is_some_and(ServiceConnectConfiguration::enabled)
    };
    let connected: Vec<&Deployment> = deployments.iter().filter(connects).collect();
    let own = service.network_configuration().into_iter();
    let networks = own.chain(deployments.iter().filter_map(Deployment::network_configuration));
    let network = networks.chain(sets.iter().filter_map(TaskSet::network_configuration)).next();
    let resources = connected.iter().flat_map(|deployment| deployment.service_connect_resources());
    let ports = registries.iter().filter_map(|registry| registry.container_port().or(registry.port()));
    let ports = ports.chain(balancers.iter().filter_map(|balancer| balancer.container_port()));
    Service {
        cluster: name_of(service.cluster_arn()),
        name: service.service_name().map_or_else(|| name_of(service.service_arn()), str::to_owned),
        active: service.status() == Some("ACTIVE"),
        desired: count(service.desired_count()),
        running: count(service.running_count()),
        pending: count(service.pending_count()),
        daemon: service.scheduling_strategy() == Some(&SchedulingStrategy::Daemon),
        controller,
        deploying: deployments.len() > 1 || deployments.iter().any(rolls_out),
        service_connect: !connected.is_empty(),
        spot: service.capacity_provider_strategy().iter().any(is_spot),
        registries: registries.iter().filter_map(|registry| registry.registry_arn()).map(str::to_owned).collect(),
        connected: resources.filter_map(|resource| resource.discovery_arn()).map(str::to_owned).collect(),
        ports: ports.filter_map(|port| u16::try_from(port).ok()).collect::<BTreeSet<_>>(),
        network: network.and_then(NetworkConfiguration::awsvpc_configuration).map(interfaces),
        load_balancers: groups.len(),
    }
}

fn interfaces(network: &AwsVpcConfiguration) -> Network {
    Network {
        subnets: network.subnets().iter().cloned().collect(),
        security_groups: network.security_groups().iter().cloned().collect(),
        public: network.assign_public_ip() == Some(&AssignPublicIp::Enabled),
    }
}

/// What is wrong with a call, and what to do.
fn failed<E>(operation: Operation, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    match error {
        SdkError::ServiceError(context) => {
            let (code, status) = (context.err().code(), context.raw().status().as_u16());
            let message = answered(operation, code, context.err().message(), status);
            Error { operation, message, answered: true }
        }
        _ => Error { operation, message: not_answered(&chain(error)), answered: false },
    }
}

fn answered(operation: Operation, code: Option<&str>, message: Option<&str>, status: u16) -> String {
    let code = code.unwrap_or_default();
    let words = words(code, message, status);
    let why = match code {
        _ if is_denied(code) => format!(
            "access denied: your role needs the action {}, which `cloudmap-mcs iam --mode cutover` prints",
            operation.action()
        ),
        "ClusterNotFoundException" => {
            "there is no such ECS cluster in this account and region: look at --ecs-cluster and --region".to_owned()
        }
        "ServiceNotFoundException" | "ServiceNotActiveException" => {
            "there is no such ECS service any more: look at --ecs-service".to_owned()
        }
        "UnknownOperationException" => {
            "the endpoint is not one of ECS: look at --ecs-endpoint and AWS_ENDPOINT_URL".to_owned()
        }
        _ => match of_credentials(code, message) {
            Some(why) => why.to_owned(),
            None => return words,
        },
    };
    format!("{why} (AWS says: {words})")
}

fn not_answered(words: &str) -> String {
    unsigned(words).unwrap_or_else(|| format!("no usable answer (for PrivateLink, set AWS_ENDPOINT_URL_ECS): {words}"))
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[test]
    fn a_refusal_names_its_remedy() {
        for (code, part) in [
            ("AccessDeniedException", "needs the action ecs:ListServices"),
            ("ClusterNotFoundException", "--ecs-cluster"),
            ("ServiceNotActiveException", "--ecs-service"),
            ("ExpiredTokenException", "expired"),
            ("UnrecognizedClientException", "not accepted"),
            ("UnknownOperationException", "--ecs-endpoint"),
            ("ServerException", "ServerException: the reason"),
        ] {
            let said = answered(Operation::ListServices, Some(code), Some("the reason"), 400);
            assert!(said.contains(part) && said.contains("the reason"), "{code}: {said}");
        }
        assert_eq!(answered(Operation::ListServices, None, None, 502), "HTTP status 502");
        assert!(not_answered("no credentials in the chain").contains("cannot get AWS credentials"));
    }

    /// As a broken proxy may answer. Otherwise `plan` would make thousands of calls.
    #[tokio::test]
    async fn a_listing_that_repeats_a_page_ends() {
        let mut answers = ["a", "b", "b", ""].into_iter();
        let listed = |next: Option<&str>| Ok((vec!["arn".to_owned()], next.map(str::to_owned)));
        let error = pages(Operation::ListServices, |_| future::ready(listed(answers.next()))).await.unwrap_err();
        assert!(error.answered && error.message.contains("repeats a page"), "{error:?}");
        assert_eq!(answers.next(), Some(""), "no further page is read");
        let mut answers = ["a", "b", ""].into_iter();
        let all = pages(Operation::ListServices, |_| future::ready(listed(answers.next()))).await.unwrap();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn an_answer_without_fields_is_a_service_without_tasks() {
        let read = service(&types::Service::builder().service_arn("arn:aws:ecs:r:1:service/prod/orders").build());
        assert_eq!(read, Service { name: "orders".to_owned(), ..Service::default() });
        assert!(read.is_at_zero() && !read.registers_in("arn"));
    }

    #[test]
    fn what_task_sets_and_vpc_lattice_have_counts_as_well() {
        let registry = ServiceRegistry::builder().registry_arn("arn:orders").container_port(8080).build();
        let balancer = LoadBalancer::builder().target_group_arn("arn:group").container_port(8081).build();
        let lattice = VpcLatticeConfiguration::builder().role_arn("arn:role").target_group_arn("arn:lattice");
        let deployment = Deployment::builder().vpc_lattice_configurations(lattice.port_name("http").build().unwrap());
        let set = TaskSet::builder().service_registries(registry).load_balancers(balancer.clone()).build();
        let all = types::Service::builder().task_sets(set).load_balancers(balancer).deployments(deployment.build());
        let read = service(&all.build());
        assert!(read.registers_in("arn:orders"), "{read:?}");
        assert_eq!((read.load_balancers, read.ports), (2, [8080, 8081].into()));
    }

    #[test]
    fn the_network_of_the_tasks_is_that_of_the_service_or_of_its_deployment() {
        let network = |subnet: &str| {
            let there = AwsVpcConfiguration::builder().subnets(subnet).security_groups("sg-1");
            let there = there.assign_public_ip(AssignPublicIp::Enabled).build().unwrap();
            NetworkConfiguration::builder().awsvpc_configuration(there).build()
        };
        let deployment = Deployment::builder().network_configuration(network("subnet-b")).build();
        let deployed = types::Service::builder().deployments(deployment);
        let subnets = |service: types::Service| {
            let Network { subnets, security_groups, public } = super::service(&service).network?;
            assert!(public && security_groups == ["sg-1".to_owned()].into());
            subnets.into_iter().next()
        };
        assert_eq!(subnets(deployed.clone().build()).as_deref(), Some("subnet-b"));
        let own = deployed.network_configuration(network("subnet-a")).build();
        assert_eq!(subnets(own).as_deref(), Some("subnet-a"));
        assert_eq!(subnets(types::Service::builder().build()), None);
    }

    #[test]
    fn spot_counts_where_tasks_may_be_placed_there() {
        let with = |weight: i32| {
            let item = CapacityProviderStrategyItem::builder().capacity_provider(SPOT).weight(weight).build().unwrap();
            service(&types::Service::builder().capacity_provider_strategy(item).build()).spot
        };
        assert!(with(1) && !with(0));
    }
}
