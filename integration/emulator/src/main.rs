//! Serves the Cloud Map emulator until it is interrupted.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use cloudmap_emulator::{Emulator, EmulatorSettings, Latency, OPERATIONS, Rate, RepeatedCreate};

/// A faithful AWS Cloud Map in memory.
///
/// It speaks the API of the AWS SDKs and CLI: point them at it with an endpoint URL and any credentials. AWS's quotas and
/// request rates hold unless a flag says otherwise. Nothing is stored: what was registered is gone when it stops.
///
/// The control interface is under /_emulator/: counters, writes, faults, snapshot, settings, accounts, shares, reset.
#[derive(Debug, Parser)]
#[command(name = "cloudmap-emulator", version)]
struct Arguments {
    /// Address to serve on; port 0 takes any free one. The address is printed. Can be repeated, for both IP families.
    #[arg(long, env = "CLOUDMAP_EMULATOR_LISTEN", default_value = "127.0.0.1:8700", value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Take AWS's time: calls 10-30 ms, operations 1-3 s, three discovery replicas up to 5 s behind. The latency and
    /// lag flags still count.
    #[arg(long)]
    aws_times: bool,
    /// How long each call takes, such as 20ms or 10ms-30ms [default: no time].
    #[arg(long, value_name = "DURATION")]
    call_latency: Option<Latency>,
    /// How long an asynchronous operation takes, such as 100ms or 1s-3s [default: no time].
    #[arg(long, value_name = "DURATION")]
    operation_latency: Option<Latency>,
    /// How far each discovery replica is behind, such as 0s-5s [default: not at all].
    #[arg(long, value_name = "DURATION")]
    discovery_lag: Option<Latency>,
    /// Number of discovery replicas; each read is answered by any of them [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=100))]
    replicas: Option<u16>,
    /// How far each replica of the DNS side is behind [default: as --discovery-lag].
    #[arg(long, value_name = "DURATION")]
    dns_lag: Option<Latency>,
    /// Answer DNS queries for DNS namespaces here, over UDP and TCP, as the name servers of Route 53. The address is
    /// printed after those of the API. Can be repeated.
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns_listen: Vec<SocketAddr>,
    /// Answer DNS queries here as the resolver of a VPC does, from a cache. The address is printed last. Can be repeated;
    /// each address has a cache of its own.
    #[arg(long, value_name = "ADDRESS:PORT")]
    resolver_listen: Vec<SocketAddr>,
    /// Where the resolver asks for names that are in no DNS namespace [default: it refuses them].
    #[arg(long, value_name = "ADDRESS:PORT", requires = "resolver_listen")]
    resolver_upstream: Option<SocketAddr>,
    /// Addresses of a load balancer, for instances with AWS_ALIAS_DNS_NAME, such as
    /// lb.example.com=192.0.2.1,192.0.2.2. Can be repeated.
    #[arg(long, value_name = "NAME=ADDRESS,...", value_parser = parse_load_balancer)]
    load_balancer: Vec<(String, Vec<IpAddr>)>,
    /// How long a custom health status waits before it takes effect.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    health_delay: Latency,
    /// Quota of namespaces.
    #[arg(long, default_value_t = 50, value_name = "NUMBER")]
    max_namespaces: usize,
    /// Quota of instances in a namespace.
    #[arg(long, default_value_t = 2000, value_name = "NUMBER")]
    max_instances_per_namespace: usize,
    /// Quota of instances in a service.
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    max_instances_per_service: usize,
    /// Let every call through, at any rate.
    #[arg(long)]
    no_throttling: bool,
    /// Request rate of one operation, such as RegisterInstance=50/100: calls a second and burst. Can be repeated
    /// [default: AWS's rates].
    #[arg(long, value_name = "OPERATION=RATE/BURST", value_parser = parse_rate)]
    rate: Vec<(String, Rate)>,
    /// Answer success when a service is created again with the same creator request id, instead of an error.
    #[arg(long)]
    repeated_create_succeeds: bool,
    /// Region in ARNs.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Account in ARNs: twelve digits.
    #[arg(long, default_value = "123456789012")]
    account: String,
    /// Makes ids, latencies and orders reproducible.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

fn parse_rate(text: &str) -> Result<(String, Rate), String> {
    let wrong = || format!("`{text}` is no rate; write OPERATION=RATE/BURST, such as RegisterInstance=50/100");
    let (operation, rate) = text.split_once('=').ok_or_else(wrong)?;
    if !OPERATIONS.contains(&operation) {
        return Err(format!("`{operation}` is no operation of Cloud Map; write a name such as RegisterInstance"));
    }
    let (per_second, burst) = rate.split_once('/').ok_or_else(wrong)?;
    let rate =
        Rate { per_second: per_second.parse().map_err(|_| wrong())?, burst: burst.parse().map_err(|_| wrong())? };
    Ok((operation.to_owned(), rate))
}

fn parse_load_balancer(text: &str) -> Result<(String, Vec<IpAddr>), String> {
    let wrong = || format!("`{text}` is no load balancer; write NAME=ADDRESS,..., such as lb.example.com=192.0.2.1");
    let (name, addresses) = text.split_once('=').ok_or_else(wrong)?;
    let addresses =
        addresses.split(',').map(|address| address.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    Ok((name.trim_end_matches('.').to_ascii_lowercase(), addresses))
}

/// Where to serve what.
struct Addresses {
    api: Vec<SocketAddr>,
    dns: Vec<SocketAddr>,
    resolver: Vec<SocketAddr>,
    upstream: Option<SocketAddr>,
}

impl Arguments {
    fn settings(self) -> (Addresses, EmulatorSettings) {
        let Self {
            listen,
            aws_times,
            call_latency,
            operation_latency,
            discovery_lag,
            replicas,
            dns_lag,
            dns_listen,
            resolver_listen,
            resolver_upstream,
            load_balancer,
            health_delay,
            max_namespaces,
            max_instances_per_namespace,
            max_instances_per_service,
            no_throttling,
            rate,
            repeated_create_succeeds,
            region,
            account,
            seed,
        } = self;
        let mut settings = if aws_times { EmulatorSettings::aws() } else { EmulatorSettings::default() };
        settings.call_latency = call_latency.unwrap_or(settings.call_latency);
        settings.operation_latency = operation_latency.unwrap_or(settings.operation_latency);
        let lag = discovery_lag.unwrap_or(settings.discovery_lag[0]);
        settings.discovery_lag = vec![lag; replicas.map_or(settings.discovery_lag.len(), usize::from)];
        settings.dns_lag = vec![dns_lag.unwrap_or(lag); settings.discovery_lag.len()];
        settings.load_balancers.extend(load_balancer);
        settings.health_delay = health_delay.max;
        settings.quotas.namespaces = max_namespaces;
        settings.quotas.instances_per_namespace = max_instances_per_namespace;
        settings.quotas.instances_per_service = max_instances_per_service;
        settings.throttling = !no_throttling;
        settings.rates.extend(rate);
        if repeated_create_succeeds {
            settings.repeated_create = RepeatedCreate::Success;
        }
        settings.region = region;
        settings.account = account;
        settings.seed = seed;
        let addresses =
            Addresses { api: listen, dns: dns_listen, resolver: resolver_listen, upstream: resolver_upstream };
        (addresses, settings)
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the address is the output of the program")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let (Addresses { api, dns, resolver, upstream }, settings) = Arguments::parse().settings();
    if let Err(error) = settings.check() {
        Arguments::command().error(ErrorKind::ValueValidation, error).exit();
    }
    let failed = |address: &SocketAddr| format!("failed to serve on {address}");
    let (first, others) = api.split_first().context("no address to serve on")?;
    let mut emulator = Emulator::start_on(*first, settings).await.with_context(|| failed(first))?;
    let mut endpoints = vec![emulator.endpoint()];
    for address in others {
        let address = emulator.serve_on(*address).await.with_context(|| failed(address))?;
        endpoints.push(format!("http://{address}"));
    }
    let mut servers = Vec::new();
    for address in dns {
        servers.push(emulator.serve_dns(address).await.with_context(|| format!("failed to answer DNS on {address}"))?);
    }
    for address in resolver {
        let served = emulator.serve_resolver(address, upstream).await;
        servers.push(served.with_context(|| format!("failed to answer as a resolver on {address}"))?);
    }
    // Whoever reads the addresses may stop it at once.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    for endpoint in &endpoints {
        println!("{endpoint}");
    }
    for server in &servers {
        println!("{}", server.address());
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    emulator.shutdown().await;
    Ok(())
}
