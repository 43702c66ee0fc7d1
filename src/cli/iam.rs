//! Flags of `iam`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::values::parsed;
use cloudmap::NamespaceArn;
use iam::Mode;
use model::{ClusterId, ClusterSetId};

/// Flags of `iam`. Those of the policies do not go with the subcommand.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct IamArgs {
    /// What to print instead of policies.
    #[command(subcommand)]
    pub command: Option<IamCommand>,
    /// The policies.
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// What `iam` prints beside policies.
#[derive(Debug, Subcommand)]
pub enum IamCommand {
    /// Print the trust policy of a role, which says who may assume it.
    Trust(TrustArgs),
}

/// What a policy must know.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// What the role is for. Several modes are separated by commas, and their permissions add up.
    #[arg(long, value_enum, value_name = "MODES", value_delimiter = ',', default_value = "instances")]
    pub mode: Vec<Mode>,
    /// Id of the account that has the registry.
    #[arg(long, value_name = "ID", required = true, value_parser = account)]
    pub account: Option<String>,
    /// Region of the registry.
    #[arg(long, value_name = "REGION", required = true, value_parser = region)]
    pub region: Option<String>,
    /// Id of the ClusterSet.
    #[arg(long, value_name = "ID", value_parser = parsed::<ClusterSetId>)]
    pub clusterset: Option<ClusterSetId>,
    /// Id of the cluster, if the role is for one cluster alone. The role may then not write the parts of the ledger
    /// that belong to other clusters. While the cluster changes its id: both ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parsed::<ClusterId>)]
    pub cluster_id: Vec<ClusterId>,
    /// For `annotated`: UID of the namespace kube-system, from `kubectl get namespace kube-system -o
    /// jsonpath='{.metadata.uid}'`.
    #[arg(long, value_name = "UID", value_parser = word)]
    pub cluster_uid: Option<String>,
    /// For `imports`, `reading`, `aws-mcs` and `gates`: names of Cloud Map namespaces (their HttpName). For `imports` and
    /// `reading`, also ARNs of those that other accounts share.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = namespace)]
    pub cloudmap_namespaces: Vec<String>,
    /// For `aws-mcs`: ids of Cloud Map namespaces (ns-...).
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = namespace_id)]
    pub cloudmap_namespace_ids: Vec<String>,
    /// For `joining` and `hiding`: ids of Cloud Map services (srv-...). Without them: all services with the tag `joined-by`
    /// that has the id of the ClusterSet, or the UID of the cluster.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = service_id)]
    pub services: Vec<String>,
    /// For `dns`: ids of the namespaces' hosted zones (Z...). For `people`: ids of those that may be deleted with their
    /// namespaces.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = hosted_zone)]
    pub hosted_zones: Vec<String>,
    /// For `cutover`: names of ECS clusters whose tasks may be stopped.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = word)]
    pub ecs_clusters: Vec<String>,
    /// For `assume-role`: ARN of the role in the registry's account.
    #[arg(long, value_name = "ARN", value_parser = role)]
    pub role_arn: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = IamFormat::Json)]
    pub format: IamFormat,
    /// Folder for the policies, which is made if it is not there. In JSON each policy is a file of its own, and several
    /// need it. Files that are there are not changed.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Flags of `iam trust`.
#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Who may assume the role.
    #[arg(long = "for", value_name = "WHO", value_enum)]
    pub who: Trusted,
    /// Id of the account that has the clusters. For `account`: id of the account that has the role.
    #[arg(long, value_name = "ID", value_parser = account)]
    pub account: String,
    /// Region of the clusters.
    #[arg(long, value_name = "REGION", value_parser = region)]
    pub region: String,
    /// The controller's service account.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "cloudmap-mcs-system/cloudmap-mcs", value_parser = service_account)]
    pub service_account: (String, String),
    /// For `irsa`: URL of the OIDC issuer of each cluster, separated by commas, from `aws eks describe-cluster --query
    /// cluster.identity.oidc.issuer`.
    #[arg(long, value_name = "URLS", value_delimiter = ',', value_parser = issuer, required_if_eq("who", "irsa"))]
    pub oidc_issuer: Vec<String>,
    /// For `pod-identity`: names of the clusters, separated by commas. Without it: all clusters of the account, in
    /// every region.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = word)]
    pub cluster: Vec<String>,
    /// For `account`: ARNs of the clusters' roles, separated by commas. They may be in several accounts.
    #[arg(long, value_name = "ARNS", value_delimiter = ',', value_parser = role, required_if_eq("who", "account"))]
    pub role_arn: Vec<String>,
    /// For `account`: the external id that the controllers send (`--assume-role-external-id`).
    #[arg(long, value_name = "ID", value_parser = word)]
    pub external_id: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = IamFormat::Json)]
    pub format: IamFormat,
}

/// Who may assume a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Trusted {
    /// The controller's pods, by IAM roles for service accounts.
    Irsa,
    /// The controller's pods, by EKS Pod Identity.
    PodIdentity,
    /// The clusters' roles in other accounts (`--assume-role-arn`).
    Account,
}

/// Format of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IamFormat {
    /// The document itself, for `aws iam create-policy`.
    Json,
    /// HCL: the document, and a policy or a role that uses it.
    Terraform,
    /// A template with the policy or the role.
    Cloudformation,
}

fn checked(text: &str, what: &str, holds: bool) -> Result<String, String> {
    if holds { Ok(text.to_owned()) } else { Err(format!("{text:?} is not {what}")) }
}

fn account(text: &str) -> Result<String, String> {
    checked(text, "an account id of 12 digits", text.len() == 12 && text.chars().all(|c| c.is_ascii_digit()))
}

fn region(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('-').collect();
    let lower = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase());
    let holds = matches!(&*parts, [names @ .., number]
        if names.len() >= 2 && names.iter().all(lower) && number.parse::<u8>().is_ok());
    checked(text, "a region such as eu-central-1", holds)
}

/// A name that means nothing to IAM: no wildcard, no variable.
fn word(text: &str) -> Result<String, String> {
    let holds = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "*?${}\"'\\".contains(c));
    checked(text, "a name", holds)
}

fn namespace(text: &str) -> Result<String, String> {
    if NamespaceArn::is_meant(text) {
        let what = "the ARN of a Cloud Map namespace, such as \
                    arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-aaaaaaaaaaaaaaaa";
        return checked(text, what, NamespaceArn::parse(text).is_some());
    }
    word(text)
}

fn id(text: &str, prefix: &str, what: &str) -> Result<String, String> {
    let rest = text.strip_prefix(prefix).unwrap_or_default();
    checked(text, what, !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric()))
}

fn namespace_id(text: &str) -> Result<String, String> {
    id(text, "ns-", "the id of a Cloud Map namespace, such as ns-aaaaaaaaaaaaaaaa")
}

fn service_id(text: &str) -> Result<String, String> {
    id(text, "srv-", "the id of a Cloud Map service, such as srv-aaaaaaaaaaaaaaaa")
}

fn hosted_zone(text: &str) -> Result<String, String> {
    id(text.trim_start_matches("/hostedzone/"), "Z", "the id of a hosted zone, such as Z0123456789ABCDEFGHIJ")
}

fn role(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let holds = matches!(&*parts, ["arn", partition, "iam", "", id, role]
        if partition.starts_with("aws") && account(id).is_ok() && role.strip_prefix("role/").is_some_and(|name| word(name).is_ok()));
    checked(text, "the ARN of a role, such as arn:aws:iam::111122223333:role/cloudmap-mcs", holds)
}

fn issuer(text: &str) -> Result<String, String> {
    let rest = text.trim_start_matches("https://").trim_end_matches('/');
    checked(rest, "the URL of an OIDC issuer", rest.contains('.') && rest.contains('/') && word(rest).is_ok())
}

fn service_account(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(namespace, name)| word(namespace).is_ok() && word(name).is_ok());
    let (namespace, name) = parts.ok_or_else(|| format!("{text:?} is not a namespace and a name, as in a/b"))?;
    Ok((namespace.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Cli;

    #[test]
    fn bad_input_is_refused_with_what_the_flag_takes() {
        let policy = ["iam", "--account=111122223333", "--region=eu-central-1"];
        let trust = ["iam", "trust", "--account=111122223333", "--region=eu-central-1"];
        for (command, flags, hint) in [
            (&["iam"][..], &[][..], "--account"),
            (&policy, &["--mode=all"], "[possible values: ledger"),
            (&policy[..1], &["--account=1", "--region=eu-central-1"], "12 digits"),
            (&policy[..2], &["--region=Frankfurt"], "eu-central-1"),
            (&policy, &["--clusterset=A b"], "--clusterset"),
            (&policy, &["--services=orders"], "srv-"),
            (&policy, &["--cloudmap-namespace-ids=shop"], "ns-"),
            (&policy, &["--cloudmap-namespaces=*"], "a name"),
            (&policy, &["--cloudmap-namespaces=arn:aws:servicediscovery:eu-west-1:1:namespace/ns-1"], "the ARN of"),
            (&policy, &["--hosted-zones=internal"], "hosted zone"),
            (&policy, &["--ecs-clusters=*"], "a name"),
            (&policy, &["--role-arn=cloudmap-mcs"], "ARN"),
            (&policy, &["--format=yaml"], "terraform"),
            (&trust, &[], "--for"),
            (&trust, &["--for=irsa"], "--oidc-issuer"),
            (&trust, &["--for=irsa", "--oidc-issuer=x"], "OIDC"),
            (&trust, &["--for=account"], "--role-arn"),
            (&trust, &["--for=pod-identity", "--service-account=x"], "a/b"),
        ] {
            let error =
                Cli::try_parse_from(["cloudmap-mcs"].iter().chain(command).chain(flags)).unwrap_err().to_string();
            assert!(error.contains(hint), "{flags:?}: {error}");
        }
    }
}
