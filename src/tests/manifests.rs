//! Holds the Deployment in `config/manager` to the command line that it starts.

use std::{collections::BTreeSet, fs};

use clap::{CommandFactory, Parser};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Container};

use api::names;
use cli::{Cli, Command};

fn container() -> Container {
    let path = super::root().join("config/manager/deployment.yaml");
    let deployment: Deployment = serde_yaml_ng::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut containers = deployment.spec.unwrap().template.spec.unwrap().containers;
    assert_eq!(containers.len(), 1);
    containers.remove(0)
}

#[test]
fn its_environment_is_made_of_flags() {
    let run = Cli::command().find_subcommand("run").unwrap().clone();
    let known: BTreeSet<String> =
        run.get_arguments().filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned())).collect();
    let given: BTreeSet<String> = container().env.unwrap().into_iter().map(|variable| variable.name).collect();
    let ours = |name: &&String| name.starts_with("CLOUDMAP_MCS_");
    assert!(given.iter().filter(ours).count() > 0);
    let unknown: Vec<_> = given.iter().filter(ours).filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "no flag reads {unknown:?}");
}

#[test]
fn its_probes_ask_where_the_controller_listens() {
    let container = container();
    let args = container.args.unwrap();
    let Command::Run(run) = Cli::parse_from(std::iter::once(names::CONTROLLER.to_owned()).chain(args)).command else {
        panic!("the container does not run the controller");
    };
    let ports = container.ports.unwrap();
    let ports: Vec<_> = ports.iter().map(|port| (port.name.as_deref(), port.container_port)).collect();
    let (admin, stream) = (i32::from(run.listen.port()), i32::from(run.stream_port));
    assert_eq!(ports, [(Some("admin"), admin), (Some("stream"), stream)]);
    let path = |probe: Option<k8s_openapi::api::core::v1::Probe>| probe.unwrap().http_get.unwrap().path.unwrap();
    assert_eq!(path(container.liveness_probe), "/healthz");
    assert_eq!(path(container.readiness_probe), "/readyz");
}
