//! Policies as JSON, Terraform and CloudFormation.

use std::fmt::Write as _;

use serde_json::{Value, json};

use cli::IamFormat;
use iam::{Policy, Statement};

/// Policies with permissions, as files with their names: JSON has one policy a document, the other formats take several.
pub(super) fn policies(format: IamFormat, name: &str, policies: &[Policy]) -> anyhow::Result<Vec<(String, String)>> {
    // The second one is `<name>-2`.
    let numbered = |name: &str, joint: &str, at: usize| match at {
        0 => name.to_owned(),
        at => format!("{name}{joint}{}", at + 1),
    };
    let each = policies.iter().enumerate();
    Ok(match format {
        IamFormat::Json => each
            .map(|(at, policy)| Ok((format!("{}.json", numbered(name, "-", at)), json_document(policy)?)))
            .collect::<anyhow::Result<_>>()?,
        IamFormat::Terraform => {
            let resources = each.map(|(at, policy)| {
                let label = numbered("cloudmap_mcs", "_", at);
                let document = terraform_document(&label, policy);
                let of_policy = attributes(
                    "  ",
                    &[
                        ("name", quoted(&numbered(name, "-", at))),
                        ("policy", format!("data.aws_iam_policy_document.{label}.json")),
                    ],
                );
                format!("{document}\nresource \"aws_iam_policy\" \"{label}\" {{\n{of_policy}}}\n")
            });
            vec![(format!("{name}.tf"), resources.collect::<Vec<_>>().join("\n"))]
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
            vec![(format!("{name}.yaml"), template(&resources.collect())?)]
        }
    })
}

/// A role, but for what it may do.
pub(super) fn trust(format: IamFormat, policy: &Policy) -> anyhow::Result<String> {
    match format {
        IamFormat::Json => json_document(policy),
        IamFormat::Terraform => {
            let document = terraform_document("cloudmap_mcs_trust", policy);
            let role = attributes(
                "  ",
                &[
                    ("name", quoted("cloudmap-mcs")),
                    ("assume_role_policy", "data.aws_iam_policy_document.cloudmap_mcs_trust.json".to_owned()),
                ],
            );
            Ok(format!("{document}\nresource \"aws_iam_role\" \"cloudmap_mcs\" {{\n{role}}}\n"))
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
    let mut own =
        vec![("sid", quoted(sid)), ("effect", format!("\"{effect:?}\"")), ("actions", list(&action.0, "    "))];
    if !resource.0.is_empty() {
        own.push(("resources", list(&resource.0, "    ")));
    }
    let mut out = format!("  statement {{\n{}", attributes("    ", &own));
    let mut block = |name: &str, of: &[(&str, String)]| {
        let _ = write!(out, "\n    {name} {{\n{}    }}\n", attributes("      ", of));
    };
    for (kind, names) in principal {
        block("principals", &[("type", quoted(kind)), ("identifiers", list(&names.0, "      "))]);
    }
    for (operator, keys) in condition {
        for (key, values) in keys {
            let values = list(&values.0, "      ");
            block("condition", &[("test", quoted(operator)), ("variable", quoted(key)), ("values", values)]);
        }
    }
    out + "  }\n"
}

/// Attributes as `terraform fmt` writes them: the signs of those that follow each other are below each other, and a value of
/// several lines stands for itself (`hclwrite`, format.go).
fn attributes(indentation: &str, all: &[(&str, String)]) -> String {
    let (mut out, mut rest) = (String::new(), all);
    while !rest.is_empty() {
        let chain = rest.iter().take_while(|(_, value)| !value.contains('\n')).count();
        let (lines, after) = rest.split_at(chain.max(1));
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, value) in lines {
            let _ = writeln!(out, "{indentation}{name:width$} = {value}");
        }
        rest = after;
    }
    out
}
