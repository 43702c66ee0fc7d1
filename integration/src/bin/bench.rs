//! Measures two running clusters and prints each figure as a line of JSON. `integration/bench.sh` boots what it needs.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use cloudmap_mcs_integration::bench::{Bench, Member, Plan, Stage, Verdict};
use ledger::driver::sessions::Streaming;

/// Measures cloudmap-mcs on two running clusters whose controllers share the Cloud Map emulator.
///
/// Each figure is a line of JSON on standard output; what happens is told on standard error. The exit status is 1 if a
/// figure misses its target.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Arguments {
    /// What to measure.
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "image,small,large,instances,idle,memory,change,direct,instance,cut,sustained,rollout,failover",
        value_name = "FIGURES"
    )]
    figures: Vec<Stage>,
    /// The exporting cluster: id=ID,context=CONTEXT,pid=PID,admin=URL, where PID and URL are its controller's. The id is
    /// also the controller's AWS access key id, by which the emulator tells the callers apart.
    #[arg(long, value_name = "CLUSTER")]
    exporter: Member,
    /// The importing cluster, in the same form.
    #[arg(long, value_name = "CLUSTER")]
    importer: Member,
    /// integration/bench-host.sh, which starts replicas and cuts the connections between leaders.
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// Address of the Cloud Map emulator.
    #[arg(long, value_name = "URL")]
    emulator: String,
    /// Number of exported Services for all figures but `small`, which has 100.
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    services: u16,
    /// Endpoints of each Service.
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=100))]
    endpoints: u16,
    /// Number of changed endpoints that are timed.
    #[arg(long, default_value_t = 300, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    changes: u16,
    /// Seconds in which nothing is done, for the idle figures.
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(10..))]
    idle: u16,
    /// Endpoints that are replaced a second, for the figures of sustained change.
    #[arg(long, default_value_t = 100, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rate: u16,
    /// Seconds of sustained change.
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(10..))]
    sustained: u16,
    /// How often the leader of the exporting cluster ends by each signal, for the figures of failover.
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=4))]
    failovers: u8,
    /// Numbers of clusters whose cost is measured one after the other, with those that are measured.
    #[arg(long, value_delimiter = ',', default_value = "100", value_name = "NUMBERS", value_parser = clap::value_parser!(u16).range(2..=900))]
    clusters: Vec<u16>,
    /// Seconds in which the cost of many clusters is measured.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(10..))]
    clusters_for: u16,
    /// How many of these clusters export from namespaces that the importing cluster has, beside the exporting one.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    imported: u16,
    /// Decides which pods there are, which are replaced, and when.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// The registry takes AWS' times.
    #[arg(long)]
    aws_times: bool,
    /// The controllers are not ours: only small, large, instances, change and direct are measured, without targets.
    #[arg(long)]
    peer: bool,
    /// `off` if leaders do not tell each other their endpoints: a change may take longer then.
    #[arg(long, value_enum, default_value = "auto")]
    stream: Streaming,
    /// The controller's container image, as a file.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// The same, compressed.
    #[arg(long, value_name = "FILE")]
    compressed_image: Option<PathBuf>,
    /// The controller's binary.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the figures are the output of the program")]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "bench=info,cloudmap_mcs_integration=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let mut clusters: Vec<usize> = arguments.clusters.into_iter().map(usize::from).collect();
    clusters.sort_unstable();
    let plan = Plan {
        stages: arguments.figures,
        exporter: arguments.exporter,
        importer: arguments.importer,
        registry: arguments.emulator,
        host: arguments.host,
        services: arguments.services.into(),
        endpoints: arguments.endpoints.into(),
        changes: arguments.changes.into(),
        idle: Duration::from_secs(arguments.idle.into()),
        rate: arguments.rate,
        sustained: Duration::from_secs(arguments.sustained.into()),
        failovers: arguments.failovers.into(),
        clusters,
        clusters_for: Duration::from_secs(arguments.clusters_for.into()),
        imported: arguments.imported.into(),
        seed: arguments.seed,
        aws_times: arguments.aws_times,
        peer: arguments.peer,
        stream: arguments.stream == Streaming::Auto,
        image: arguments.image,
        compressed_image: arguments.compressed_image,
        binary: arguments.binary,
    };
    let bench = Bench::new(plan).await?;
    println!("{}", bench.setting().await?);
    let mut verdict = Verdict::default();
    // It holds all stages.
    Box::pin(bench.run(|figure| verdict.take(figure))).await?;
    Ok(verdict.exit_code())
}
