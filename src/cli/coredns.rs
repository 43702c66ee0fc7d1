//! Flags of `coredns`.

use clap::{Args, Subcommand};

use super::ClusterArgs;
use api::names;

/// The commands for CoreDNS.
#[derive(Debug, Subcommand)]
pub enum CorednsCommand {
    /// List what is missing, each with its remedy, and what `apply` would change. Fails if something is missing.
    Check(CorednsPlace),
    /// Add what is missing: the zone in the Corefile (and in that of NodeLocal DNSCache), and the permission to read
    /// ServiceImports. Everything else in the Corefile stays as it is.
    Apply(CorednsWriteArgs),
    /// Undo `apply`.
    Remove(CorednsWriteArgs),
}

/// Where CoreDNS is.
#[derive(Debug, Args)]
pub struct CorednsPlace {
    /// How to reach the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of CoreDNS.
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub namespace: String,
    /// ConfigMap that has the Corefile, under the key `Corefile`. Helm charts give it another name.
    #[arg(long, value_name = "NAME", default_value = "coredns")]
    pub config_map: String,
    /// Deployment or DaemonSet of CoreDNS.
    #[arg(long, value_name = "NAME", default_value = "coredns")]
    pub deployment: String,
    /// Zone of the ClusterSet.
    #[arg(long, value_name = "ZONE", default_value = names::ZONE, value_parser = zone)]
    pub zone: String,
    /// Read the Corefile from this file, or from the standard input if it is `-`, and ask no cluster. It may be that of
    /// NodeLocal DNSCache. `apply` and `remove` print the changed Corefile. With `--addon-values`, it is the Corefile that
    /// the add-on has while its values have none.
    #[arg(long, value_name = "FILE")]
    pub corefile: Option<String>,
}

/// Flags of `coredns apply` and `coredns remove`.
#[derive(Debug, Args)]
pub struct CorednsWriteArgs {
    /// Where CoreDNS is.
    #[command(flatten)]
    pub place: CorednsPlace,
    /// Do not wait until CoreDNS has read the change, which takes about a minute. Without this flag, `apply` asks its pods
    /// through the API server, for up to 3 minutes, and takes the change back if names of the cluster do not resolve any more.
    #[arg(long)]
    pub no_wait: bool,
    /// Show the changes, and make none.
    #[arg(long)]
    pub dry_run: bool,
    /// For the managed add-on of EKS: read its configuration values from this file, or from the standard input if it is
    /// `-`, and print them with the changed Corefile. The input is `configurationValues` of `aws eks describe-addon`,
    /// as JSON or YAML. The output is for `aws eks update-addon`. The ConfigMap is not written. Values that have a Corefile
    /// need no cluster.
    #[arg(long, value_name = "FILE")]
    pub addon_values: Option<String>,
    /// Write the ConfigMap even if somebody else keeps it, such as the managed add-on of EKS, Helm, Argo CD or Flux. Their
    /// next update may then overwrite the change.
    #[arg(long)]
    pub write_managed: bool,
}

fn zone(text: &str) -> Result<String, String> {
    let name = text.trim_end_matches('.').to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    if name.split('.').all(label) {
        Ok(name)
    } else {
        Err(format!("{text:?} is not a DNS name such as clusterset.local"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name() {
        assert_eq!(zone("ClusterSet.Local."), Ok("clusterset.local".to_owned()));
        for bad in ["", ".", "a b", "a..b", "a{b"] {
            assert!(zone(bad).is_err(), "{bad:?}");
        }
    }
}
