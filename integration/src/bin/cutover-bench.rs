//! Measures a move of many services from ECS to pods and back. `make cutover-bench` starts what it needs.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::Duration,
};

use clap::Parser;
use cloudmap_mcs_integration::bench::{CutoverBench, CutoverPlan, Member, Verdict};
use cutover::Settle;

/// Moves services from ECS to pods and back, while clients send requests, and prints what became of them.
///
/// One JSON line describes the conditions, then one follows for each figure. The exit status is 1 if a target is missed: a
/// request of a client failed that resolves again, connections did not follow a share, the controller wrote a task otherwise
/// than by a mark, or something of --trouble did not happen.
#[derive(Debug, Parser)]
#[command(name = "cutover-bench", version)]
struct Arguments {
    /// The controller: id=ID,context=CONTEXT,pid=PID,admin=URL. ID is its access key id.
    #[arg(long, value_name = "FIELDS")]
    controller: Member,
    /// The emulator of Cloud Map, such as http://10.200.0.1:8700.
    #[arg(long, value_name = "URL")]
    emulator: String,
    /// Where its resolver answers, at port 53.
    #[arg(long, value_name = "ADDRESS")]
    resolver: IpAddr,
    /// The program `cloudmap-mcs`.
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// The first address for tasks and pods. This machine has it and those after it.
    #[arg(long, value_name = "ADDRESS")]
    addresses: Ipv4Addr,
    /// Number of services.
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    services: u16,
    /// Number of tasks of each.
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=8))]
    tasks: u16,
    /// Number of pods of each.
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=8))]
    pods: u16,
    /// TTL of the records in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=300))]
    ttl: u32,
    /// The steps, in percent. The last one has to be 100.
    #[arg(long, default_value = "25,50,100", value_delimiter = ',', value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    steps: Vec<u8>,
    /// The least time of a step in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    every: u32,
    /// By how many seconds clients may be late beyond the TTL. The controller runs with the same --settle.
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = settle)]
    settle: Settle,
    /// Hide no task: then requests fail when tasks stop, and count for comparison only.
    #[arg(long)]
    keep_tasks: bool,
    /// On the way, replace pods, take some away, give some a bad image, drain a zone, kill leaders, restart the API server, and
    /// throttle Cloud Map.
    #[arg(long, requires = "host", conflicts_with = "keep_tasks")]
    trouble: bool,
    /// A folder of further clients, one program for each runtime: integration/clients has their sources.
    #[arg(long, value_name = "FOLDER")]
    clients: Option<PathBuf>,
    /// integration/bench-host.sh, for --trouble.
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// ECS reports every so many seconds that its tasks are healthy, which brings hidden ones back [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    reports: Option<u32>,
    /// Requests a second of all clients that resolve when the TTL is over. Pools send half as many, and clients that never
    /// resolve again a quarter.
    #[arg(long, default_value_t = 200, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=5000))]
    rate: u16,
    /// Decides which addresses clients choose.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
}

fn settle(seconds: &str) -> Result<Settle, String> {
    format!("{seconds}s").parse()
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the figures are the output of the program")]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "cutover_bench=info,cloudmap_mcs_integration=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    anyhow::ensure!(arguments.steps.last() == Some(&100), "the last step has to be 100");
    let plan = CutoverPlan {
        controller: arguments.controller,
        registry: arguments.emulator,
        resolver: arguments.resolver,
        program: arguments.program,
        first_address: arguments.addresses,
        services: arguments.services.into(),
        tasks: arguments.tasks.into(),
        pods: arguments.pods.into(),
        ttl: arguments.ttl,
        steps: arguments.steps,
        every: Duration::from_secs(arguments.every.into()),
        hide_tasks: !arguments.keep_tasks,
        settle: arguments.settle,
        reports: arguments.reports.map(|seconds| Duration::from_secs(seconds.into())),
        rate: arguments.rate,
        seed: arguments.seed,
        trouble: arguments.trouble,
        clients: arguments.clients,
        host: arguments.host,
    };
    let bench = CutoverBench::new(plan);
    println!("{}", bench.setting().await?);
    let mut verdict = Verdict::default();
    // It holds everything that is done.
    Box::pin(bench.run(|figure| verdict.take(figure))).await?;
    Ok(verdict.exit_code())
}
