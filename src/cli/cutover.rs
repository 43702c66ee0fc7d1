//! Flags of `cutover`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{
    AwsArgs, ClusterArgs, ControllerArgs, OutputFormat,
    values::{duration, http_url},
};
use api::{CutoverGuard, CutoverSpec};
use cutover::{Course, course::STEPS};

/// The commands for Cutovers.
#[derive(Debug, Subcommand)]
pub enum CutoverCommand {
    /// Say whether a name is ready to be moved, what is missing, and which shares its steps really reach. Changes nothing.
    #[command(
        after_help = "Exit status: 0 if it is ready, 1 if there are warnings, also about what could not be read, 2 if something blocks it or nothing can be read. With --write: 0 if all files are written, 1 if there are warnings or a service is left out, 2 if nothing is written."
    )]
    Plan(CutoverPlanArgs),
    /// Begin a cutover, or continue one: what no flag says stays as it is. Ends a pause, a hold or a roll-back.
    Start(CutoverStartArgs),
    /// Put a share of the traffic in force at once, and hold it.
    Shift(CutoverShiftArgs),
    /// Pause the steps: the share stays as it is until `resume`.
    Pause(CutoverEditArgs),
    /// End a pause, a hold or a roll-back. The steps go on.
    Resume(CutoverEditArgs),
    /// Say how far Cutovers are.
    #[command(after_help = "Exit status: 0 if all go on by themselves or are at their end, 1 if somebody must act.")]
    Status(CutoverStatusArgs),
    /// Register all pods, if no fewer pods are ready than tasks have traffic. When all are registered, print the
    /// commands that stop the tasks, or stop them (--scale-ecs).
    #[command(
        after_help = "Exit status: 0 if all is done that could be done now, 1 if something was refused or failed, or if tasks did not stop."
    )]
    Finish(CutoverFinishArgs),
    /// Take all traffic back from the pods, and say whether ECS has tasks that take it.
    Back(CutoverBackArgs),
}

/// Which Cutovers.
#[derive(Debug, Clone, Args)]
pub struct CutoverChoice {
    /// How to reach the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Names of Services, or `namespace/name`.
    #[arg(value_name = "NAME", required_unless_present_any = ["from_file", "all"])]
    pub names: Vec<String>,
    /// Namespace of the names; without it, that of the kubeconfig's context. With `plan --write`: the Cloud Map namespace, by
    /// its name or id.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// A file with a name on each line, or `-` for the standard input. Lines that begin with `#` are ignored.
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
    /// All Cutovers of the namespace. With `plan` and `start`: all ServiceExports with an annotation that names a Cloud Map
    /// service, joins one or asks for a share.
    #[arg(long, conflicts_with_all = ["names", "from_file"])]
    pub all: bool,
}

/// Where the ECS service is. Its tasks are registered in the Cloud Map service, so it is found without these flags, too.
#[derive(Debug, Clone, Args)]
pub struct EcsArgs {
    /// Name or ARN of the ECS cluster. Without it, all clusters of the account and region are searched.
    #[arg(long, value_name = "NAME")]
    pub ecs_cluster: Option<String>,
    /// Names or ARNs of ECS services in that cluster, separated by commas. With it, ECS is not searched for them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "ecs_cluster")]
    pub ecs_service: Vec<String>,
    /// Another address for ECS, such as an emulator. With --cloudmap-endpoint and without this flag, ECS is not asked. For
    /// PrivateLink set $AWS_ENDPOINT_URL_ECS instead.
    #[arg(long, env = "CLOUDMAP_MCS_ECS_ENDPOINT", value_name = "URL", value_parser = http_url)]
    pub ecs_endpoint: Option<String>,
}

/// Flags of `cutover plan`.
#[derive(Debug, Args)]
#[command(mut_arg("names", |names| names.required_unless_present("write")))]
pub struct CutoverPlanArgs {
    /// Which ones.
    #[command(flatten)]
    pub choice: CutoverChoice,
    /// Where the controller is.
    #[command(flatten)]
    pub controller: ControllerArgs,
    /// How to reach the registry.
    #[command(flatten)]
    pub aws: AwsArgs,
    /// Where the ECS service is.
    #[command(flatten)]
    pub ecs: EcsArgs,
    /// The steps, in percent, separated by commas. Without it: those of the Cutover if it exists, otherwise
    /// 5,25,50,100.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    pub steps: Vec<u8>,
    /// Manifests for a whole Cloud Map namespace.
    #[command(flatten)]
    pub write: CutoverWriteArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

/// Flags of `cutover plan` for manifests. They need no cluster.
#[derive(Debug, Clone, Args)]
pub struct CutoverWriteArgs {
    /// Write manifests for all ECS services of a Cloud Map namespace, which --namespace names, into this folder: a file for each,
    /// with a Service, a ServiceExport and a paused Cutover. The folder must be empty, or not exist. What no flag says is marked
    /// TODO in the files, and kubectl refuses them until it is filled in. Needs no cluster.
    #[arg(long, value_name = "DIR", requires = "namespace", conflicts_with_all = ["names", "from_file", "all"])]
    pub write: Option<PathBuf>,
    /// With --write: the Kubernetes namespace of the objects.
    #[arg(long, value_name = "NAME", requires = "write")]
    pub into: Option<String>,
    /// With --write: the labels of the pods, separated by commas. `{service}` stands for the name of the Cloud Map service:
    /// app={service}.
    #[arg(long, value_name = "KEY=VALUE", requires = "write", value_delimiter = ',')]
    pub selector: Vec<String>,
    /// With --write: the port of all Services and of their pods. Without it: the one that the tasks have.
    #[arg(long, value_name = "PORT", requires = "write", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// With --write: write no Services, because those of these names are there already, or come from elsewhere.
    #[arg(long, requires = "write", conflicts_with_all = ["selector", "port"])]
    pub existing_services: bool,
}

/// Flags of `cutover start`.
#[derive(Debug, Args)]
pub struct CutoverStartArgs {
    /// What all changes have.
    #[command(flatten)]
    pub edit: CutoverEditArgs,
    /// The steps, in percent, separated by commas. Each is higher than the one before. Without it: those of the Cutover if it
    /// exists, otherwise 5,25,50,100.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    pub steps: Vec<u8>,
    /// How long a step lasts at least after its share was reached, at least 1s, in whole seconds. Without it:
    /// that of the Cutover if it exists, otherwise 5m. It is never shorter than the TTL of the DNS records plus the
    /// controller's --settle, which is 30s by default.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub every: Option<Duration>,
    /// The wave, a number: the steps wait until all Cutovers of the namespace with a lower number are Finished. Without
    /// it: that of the Cutover if it exists, otherwise 0.
    #[arg(long, value_name = "NUMBER")]
    pub wave: Option<u32>,
    /// Hide ECS tasks where the pods cannot have the share otherwise: mark them as unhealthy in Cloud Map, so that no
    /// client uses them when they stop. The controller needs --hide-tasks.
    #[arg(long)]
    pub hide_tasks: bool,
    /// Check each step with a guard, and take the traffic back if it finds something wrong. The guard looks at DNS,
    /// DiscoverInstances, and TCP connections to the pods. The other flags of the guard imply this one.
    #[arg(long)]
    pub guard: bool,
    /// Path for the guard's HTTP checks, instead of TCP connections: the pods must answer a GET with a status from 200
    /// to 399.
    #[arg(long, value_name = "PATH")]
    pub guard_path: Option<String>,
    /// Port of the pods for the guard's checks: a TCP port of the Service, by its number at the pods (targetPort). Without
    /// it: the port with which the pods are registered.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub guard_port: Option<u16>,
    /// Query for the guard, which it sends to the Prometheus of the controller's flag --guard-prometheus. The result
    /// must be one value.
    #[arg(long, value_name = "QUERY", requires = "guard_max")]
    pub guard_query: Option<String>,
    /// The highest value of the query that is still good.
    #[arg(long, value_name = "NUMBER", requires = "guard_query", allow_negative_numbers = true)]
    pub guard_max: Option<String>,
}

/// Flags of `cutover shift`.
#[derive(Debug, Args)]
pub struct CutoverShiftArgs {
    /// What all changes have.
    #[command(flatten)]
    pub edit: CutoverEditArgs,
    /// The share of the traffic, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub to: u8,
}

/// What all commands have that change Cutovers.
#[derive(Debug, Clone, Args)]
pub struct CutoverEditArgs {
    /// Which ones.
    #[command(flatten)]
    pub choice: CutoverChoice,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `cutover status`.
#[derive(Debug, Args)]
pub struct CutoverStatusArgs {
    /// How to reach the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Names of Services; without them, all Cutovers of the namespace.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// The namespace; without it, that of the kubeconfig's context.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// All namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["names", "namespace"])]
    pub all_namespaces: bool,
    /// Print again whenever something changes, until all are at their end.
    #[arg(long, short)]
    pub watch: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

/// Flags of `cutover finish`.
#[derive(Debug, Args)]
pub struct CutoverFinishArgs {
    /// What all changes have.
    #[command(flatten)]
    pub edit: CutoverEditArgs,
    /// Where the controller is.
    #[command(flatten)]
    pub controller: ControllerArgs,
    /// How to reach the registry.
    #[command(flatten)]
    pub aws: AwsArgs,
    /// Where the ECS service is.
    #[command(flatten)]
    pub ecs: EcsArgs,
    /// Finish even if fewer pods are ready than tasks have traffic, if pods are not ready, if either cannot be counted,
    /// or if the traffic was taken back. Also stop tasks that cannot be hidden, or that serve others, such as a load balancer,
    /// or print how.
    #[arg(long)]
    pub force: bool,
    /// Set the desired count of the ECS services to 0, with your own role, as soon as their Cutovers are Finished and no client
    /// uses hidden tasks any more, and wait until no task runs. The ECS services stay.
    #[arg(long)]
    pub scale_ecs: bool,
    /// With --scale-ecs: how long to wait until tasks may be stopped, and then again until ECS has stopped them. ECS continues
    /// by itself.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}

/// Flags of `cutover back`.
#[derive(Debug, Args)]
pub struct CutoverBackArgs {
    /// What all changes have.
    #[command(flatten)]
    pub edit: CutoverEditArgs,
    /// Where the controller is.
    #[command(flatten)]
    pub controller: ControllerArgs,
    /// How to reach the registry.
    #[command(flatten)]
    pub aws: AwsArgs,
    /// Where the ECS service is.
    #[command(flatten)]
    pub ecs: EcsArgs,
}

fn percent(text: &str) -> Result<u8, String> {
    let digits = text.trim().trim_end_matches('%');
    digits.parse().ok().filter(|percent| (1..=100).contains(percent)).ok_or_else(|| {
        format!("{text:?} is not a percentage from 1 to 100; write steps that rise, such as 5,25,50,100")
    })
}

fn share(text: &str) -> Result<u8, String> {
    let digits = text.trim().trim_end_matches('%');
    let share = digits.parse().ok().filter(|percent| (0..=100).contains(percent));
    share.ok_or_else(|| format!("{text:?} is not a percentage from 0 to 100"))
}

impl CutoverStartArgs {
    /// The course that these flags describe.
    ///
    /// # Errors
    /// Why it is none; the text names the field.
    pub fn course(&self) -> Result<Course, String> {
        Course::read(&self.spec())
    }

    /// The fields of the spec that no flag is given for.
    pub fn omitted(&self) -> Vec<&'static str> {
        let fields = [
            ("steps", !self.steps.is_empty()),
            ("interval", self.every.is_some()),
            ("hideTasks", self.hide_tasks),
            ("wave", self.wave.is_some()),
            ("guard", self.spec().guard.is_some()),
        ];
        fields.into_iter().filter(|(_, is_given)| !is_given).map(|(field, _)| field).collect()
    }

    /// The spec that these flags describe, for a Cutover that does not exist yet.
    pub fn spec(&self) -> CutoverSpec {
        let guard = CutoverGuard {
            path: self.guard_path.clone(),
            port: self.guard_port.map(i64::from),
            query: self.guard_query.clone(),
            max: self.guard_max.clone(),
        };
        let steps = if self.steps.is_empty() { &STEPS[..] } else { &self.steps[..] };
        CutoverSpec {
            steps: steps.iter().copied().map(i64::from).collect(),
            interval: self.every.map(|every| format!("{}s", every.as_secs().max(1))),
            hide_tasks: self.hide_tasks,
            wave: self.wave.map(i64::from).unwrap_or_default(),
            guard: (self.guard || guard != CutoverGuard::default()).then_some(guard),
            ..CutoverSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_with_and_without_their_sign() {
        assert_eq!((percent("5"), percent("100%"), share("0%")), (Ok(5), Ok(100), Ok(0)));
        for wrong in ["0", "101", "-1", "x", ""] {
            assert!(percent(wrong).unwrap_err().contains("5,25,50,100"), "{wrong}");
        }
        for wrong in ["101", "-1", "5,25", ""] {
            let error = share(wrong).unwrap_err();
            assert!(
                error.contains("from 0 to 100") && !error.contains("steps"),
                "a single share has no steps: {error}"
            );
        }
    }
}
