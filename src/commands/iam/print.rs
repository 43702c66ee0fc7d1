//! Policies as JSON, Terraform and CloudFormation.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    cli::IamFormat,
    iam::{Policy, Statement},
};

/// Policies with permissions.
pub(super) fn policies(format: IamFormat, name: &str, policies: &[Policy]) -> anyhow::Result<String> {
    // The second one is `<name>-2`.
    let numbered = |name: &str, joint: &str, at: usize| match at {
        0 => name.to_owned(),
        at => format!("{name}{joint}{}", at + 1),
    };
    let each = policies.iter().enumerate();
    match format {
        IamFormat::Json => policies.iter().map(json_document).collect(),
        IamFormat::Terraform => {
            let resources = each.map(|(at, policy)| {
                let label = numbered("cloudmap_mcs", "_", at);
                let name = quoted(&numbered(name, "-", at));
                let document = terraform_document(&label, policy);
                format!(
                    "{document}\nresource \"aws_iam_policy\" \"{label}\" {{\n  name   = {name}\n  policy = \
                     data.aws_iam_policy_document.{label}.json\n}}\n"
                )
            });
            Ok(resources.collect::<Vec<_>>().join("\n"))
        }
        IamFormat::Cloudformation => {
            let resources = each.map(|(at, policy)| {
                let properties =
                    json!({"Description": "What the controllers of cloudmap-mcs may do", "PolicyDocument": policy});
                (
                    numbered("CloudmapMcsPolicy", "", at),
                    json!({"Type": "AWS::IAM::ManagedPolicy", "Properties": properties}),
                )
            });
            template(&resources.collect())
        }
    }
}

/// A role, but for what it may do.
pub(super) fn trust(format: IamFormat, policy: &Policy) -> anyhow::Result<String> {
    match format {
        IamFormat::Json => json_document(policy),
        IamFormat::Terraform => {
            let document = terraform_document("cloudmap_mcs_trust", policy);
            Ok(format!(
                "{document}\nresource \"aws_iam_role\" \"cloudmap_mcs\" {{\n  name               = \"cloudmap-mcs\"\n  \
                 assume_role_policy = data.aws_iam_policy_document.cloudmap_mcs_trust.json\n}}\n"
            ))
        }
        IamFormat::Cloudformation => {
            let properties = json!({"AssumeRolePolicyDocument": policy});
            let role = json!({"Type": "AWS::IAM::Role", "Properties": properties});
            template(&[("CloudmapMcsRole".to_owned(), role)].into_iter().collect())
        }
    }
}

fn json_document(policy: &Policy) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(policy)? + "\n")
}

fn template(resources: &serde_json::Map<String, Value>) -> anyhow::Result<String> {
    Ok(serde_yaml_ng::to_string(&json!({"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}))?)
}

/// A text in HCL, in which `${` and `%{` begin templates.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace("${", "$${").replace("%{", "%%{");
    format!("\"{text}\"")
}

fn list(values: &[String], indentation: &str) -> String {
    match values {
        [one] => format!("[{}]", quoted(one)),
        several => {
            let lines: Vec<_> = several.iter().map(|value| format!("{indentation}  {},\n", quoted(value))).collect();
            format!("[\n{}{indentation}]", lines.concat())
        }
    }
}

fn terraform_document(label: &str, policy: &Policy) -> String {
    let statements: Vec<_> = policy.statement.iter().map(terraform_statement).collect();
    format!("data \"aws_iam_policy_document\" \"{label}\" {{\n{}}}\n", statements.join("\n"))
}

fn terraform_statement(statement: &Statement) -> String {
    let Statement { sid, effect, principal, action, resource, condition } = statement;
    let mut out = format!("  statement {{\n    sid    = {}\n    effect = \"{effect:?}\"\n", quoted(sid));
    let _ = writeln!(out, "    actions = {}", list(&action.0, "    "));
    if !resource.0.is_empty() {
        let _ = writeln!(out, "    resources = {}", list(&resource.0, "    "));
    }
    for (kind, names) in principal {
        let names = list(&names.0, "      ");
        let _ = writeln!(
            out,
            "\n    principals {{\n      type        = {}\n      identifiers = {names}\n    }}",
            quoted(kind)
        );
    }
    for (operator, keys) in condition {
        for (key, values) in keys {
            let (operator, key, values) = (quoted(operator), quoted(key), list(&values.0, "      "));
            let _ = writeln!(
                out,
                "\n    condition {{\n      test     = {operator}\n      variable = {key}\n      values   = {values}\n    }}"
            );
        }
    }
    out + "  }\n"
}
