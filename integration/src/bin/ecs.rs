//! ECS for the demo: services of tasks on hosts of the testbed outside the clusters.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use cloudmap_mcs_integration::ecs::{Definition, Ecs, EcsApi, Model, Records, Service};

/// Runs tasks outside the clusters and registers them in Cloud Map as ECS does.
///
/// It needs root and a testbed that is up, and an emulator that answers DNS for its hosts:
/// cloudmap-emulator --listen $TESTBED_HOST_IP:8700 --resolver-listen $TESTBED_HOST_IP:53
#[derive(Debug, Parser)]
#[command(name = "ecs", version)]
struct Arguments {
    /// Cloud Map, such as http://10.200.0.1:8700.
    #[arg(long, env = "CLOUDMAP_ENDPOINT", value_name = "URL")]
    endpoint: String,
    /// The ECS cluster.
    #[arg(long, default_value = "prod")]
    cluster: String,
    /// The private DNS namespace in Cloud Map; made if it is not there.
    #[arg(long, default_value = "internal")]
    namespace: String,
    /// The DNS records of the service in Cloud Map, where it is made.
    #[arg(long, value_enum, default_value_t = Kind::A)]
    records: Kind,
    /// TTL of the records and, for a namespace that is made, of the absence of names, in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    ttl: i64,
    /// Run tasks on EC2 hosts with dynamic ports; the records are then srv or none.
    #[arg(long)]
    bridge: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    A,
    Aaaa,
    DualStack,
    Srv,
    None,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lets a service have so many tasks, and prints them: ID, IPv4, IPv6, port and zone.
    Scale { service: String, count: usize },
    /// Prints the tasks of a service.
    Tasks { service: String },
    /// Runs a command on the host of a service's first task, such as: exec orders -- `curl http://orders.internal:8080/hostname`
    Exec {
        service: String,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Serves the API of ECS about services until it is interrupted: their tasks follow UpdateService, and those that die are
    /// replaced. Do not scale these services otherwise meanwhile. The tasks run on afterwards.
    Serve {
        #[arg(required = true)]
        services: Vec<String>,
        /// Address to serve on; port 0 takes any free one. The address is printed.
        #[arg(long, default_value = "127.0.0.1:8710", value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// Report to Cloud Map every so many seconds whether each task is healthy [default: never].
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        report: Option<u64>,
    },
}

impl Arguments {
    async fn open(&self, name: &str) -> Result<Service> {
        let ecs = Ecs::detached(self.endpoint.trim_end_matches('/'));
        let namespace = ecs.cloud_map().private_namespace(&self.namespace, self.ttl).await?;
        let records = match self.records {
            Kind::A => Records::A,
            Kind::Aaaa => Records::Aaaa,
            Kind::DualStack => Records::DualStack,
            Kind::Srv => Records::Srv,
            Kind::None => Records::None,
        };
        let registry = ecs.cloud_map().service(&namespace, name, records, self.ttl).await?;
        let mut definition = Definition::new(&self.cluster, name, &registry);
        definition.registers_ipv6 = matches!(self.records, Kind::Aaaa | Kind::DualStack);
        if self.bridge {
            definition = definition.in_bridge_mode();
        }
        ecs.service(definition).await
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "tasks and outputs are the output of the program")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let service = match &arguments.command {
        Command::Scale { service, count } => {
            let mut service = arguments.open(service).await?;
            service.scale(*count).await?;
            service
        }
        Command::Tasks { service } => arguments.open(service).await?,
        Command::Exec { service, command } => {
            let service = arguments.open(service).await?;
            let task = service.tasks().first().context("the service has no task: scale it up first")?;
            let command: Vec<_> = command.iter().map(String::as_str).collect();
            print!("{}", task.exec(&command).await?);
            return Ok(());
        }
        Command::Serve { services, listen, report } => {
            let api = EcsApi::start_on(*listen, Model::default()).await?;
            for name in services {
                let service = arguments.open(name).await?;
                let registry = service.registry_arn().await?;
                api.adopt(&registry, service, report.map(Duration::from_secs)).await?;
            }
            println!("{}", api.endpoint());
            tokio::signal::ctrl_c().await?;
            return Ok(());
        }
    };
    for task in service.tasks() {
        println!("{} {} {} {} {}", task.id, task.ipv4, task.ipv6, task.port, task.zone);
    }
    Ok(())
}
