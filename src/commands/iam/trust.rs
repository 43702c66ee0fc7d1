//! Trust policies: who may take a role.

use super::{Printed, print};
use cli::{TrustArgs, Trusted};
use iam::{Policy, Statement, partition};

/// The longest trust policy that IAM takes, unless its quota is raised.
const LONGEST: usize = 2048;

pub(super) fn trust(args: &TrustArgs) -> anyhow::Result<Printed> {
    for (given, flag, who) in [
        (!args.oidc_issuer.is_empty(), "--oidc-issuer", Trusted::Irsa),
        (!args.cluster.is_empty(), "--cluster", Trusted::PodIdentity),
        (!args.role_arn.is_empty(), "--role-arn", Trusted::Account),
        (args.external_id.is_some(), "--external-id", Trusted::Account),
    ] {
        anyhow::ensure!(!given || args.who == who, "{flag} does not go with this --for: leave it out");
    }
    let policy = Policy::new(statements(args));
    let length = policy.length();
    let note = (length > LONGEST).then(|| {
        format!(
            "the trust policy has {length} characters, and IAM takes {LONGEST} unless you have the quota \"Role trust policy \
             length\" raised"
        )
    });
    Ok(Printed { output: print::trust(args.format, &policy)?, note, ..Printed::default() })
}

fn statements(args: &TrustArgs) -> Vec<Statement> {
    let (account, region) = (&args.account, &args.region);
    let partition = partition(region);
    let (namespace, name) = &args.service_account;
    match args.who {
        Trusted::Irsa => {
            let of = |(number, issuer): (usize, &String)| {
                Statement::allow(&format!("Cluster{number}"), ["sts:AssumeRoleWithWebIdentity"])
                    .by("Federated", [format!("arn:{partition}:iam::{account}:oidc-provider/{issuer}")])
                    .when("StringEquals", &format!("{issuer}:aud"), ["sts.amazonaws.com"])
                    .when(
                        "StringEquals",
                        &format!("{issuer}:sub"),
                        [format!("system:serviceaccount:{namespace}:{name}")],
                    )
            };
            (1..).zip(&args.oidc_issuer).map(of).collect()
        }
        Trusted::PodIdentity => {
            let mut statement = Statement::allow("PodIdentity", ["sts:AssumeRole", "sts:TagSession"])
                .by("Service", ["pods.eks.amazonaws.com"])
                .when("StringEquals", "aws:SourceAccount", [account])
                .when("StringEquals", "aws:RequestTag/kubernetes-namespace", [namespace])
                .when("StringEquals", "aws:RequestTag/kubernetes-service-account", [name]);
            if !args.cluster.is_empty() {
                let arns =
                    args.cluster.iter().map(|name| format!("arn:{partition}:eks:{region}:{account}:cluster/{name}"));
                statement = statement.when("StringEquals", "aws:RequestTag/eks-cluster-arn", arns);
            }
            vec![statement]
        }
        Trusted::Account => {
            // The session tags of EKS Pod Identity come along.
            let statement =
                Statement::allow("Clusters", ["sts:AssumeRole", "sts:TagSession"]).by("AWS", &args.role_arn);
            vec![match &args.external_id {
                Some(id) => statement.when("StringEquals", "sts:ExternalId", [id]),
                None => statement,
            }]
        }
    }
}
