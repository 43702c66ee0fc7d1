use clap::{Parser as _, ValueEnum as _};
use serde_json::{Value, json};

use super::{Printed, policies, trust};
use cli::{Cli, Command, IamCommand};
use iam::Mode;

/// Runs a command line.
fn said(line: &str) -> Result<Printed, String> {
    let Command::Iam(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else { panic!("{line}") };
    let result = match &args.command {
        Some(IamCommand::Trust(args)) => trust::trust(args),
        None => policies(&args.policy),
    };
    result.map_err(|error| format!("{error:#}"))
}

const PLACE: &str = "--account 111122223333 --region eu-central-1";

fn policy(flags: &str) -> Result<Printed, String> {
    said(&format!("cloudmap-mcs iam {PLACE} {flags}"))
}

fn output(flags: &str) -> String {
    let Printed { output, note, .. } = policy(flags).unwrap();
    assert_eq!(note, None);
    output
}

#[test]
fn the_documented_output_is_that_of_the_commands() {
    let document = include_str!("../../../docs/iam.md");
    let shown: Vec<_> = document.split("```console\n$ ").skip(1).collect();
    assert_eq!(shown.len(), 7);
    for shown in shown {
        let block = shown.split("```").next().unwrap().replace("\\\n", " ");
        let (command, expected) = block.split_once('\n').unwrap();
        assert_eq!(said(command).unwrap().output, expected, "{command}");
    }
}

#[test]
fn every_mode_is_documented() {
    let document = include_str!("../../../docs/iam.md");
    for mode in Mode::value_variants() {
        assert!(document.contains(&format!("\n| `{}` |", mode.name())), "{}", mode.name());
    }
}

#[test]
fn terraform_has_the_same_statements() {
    let expected = r#"data "aws_iam_policy_document" "cloudmap_mcs" {
  statement {
    sid    = "FindZones"
    effect = "Allow"
    actions = [
      "route53:GetHostedZone",
      "route53:ListHostedZonesByName",
    ]
    resources = ["*"]
  }

  statement {
    sid       = "WriteRecords"
    effect    = "Allow"
    actions   = ["route53:ChangeResourceRecordSets"]
    resources = ["arn:aws:route53:::hostedzone/Z1"]
  }
}

resource "aws_iam_policy" "cloudmap_mcs" {
  name   = "cloudmap-mcs"
  policy = data.aws_iam_policy_document.cloudmap_mcs.json
}
"#;
    assert_eq!(output("--mode dns --hosted-zones Z1 --format terraform"), expected);
    let condition = r#"
    condition {
      test     = "Null"
      variable = "aws:ResourceTag/cloudmap-mcs/clusterset"
      values   = ["false"]
    }
"#;
    let denied = output("--mode deny --clusterset prod --format terraform");
    assert!(denied.contains(condition) && denied.contains(" = \"Deny\""), "{denied}");
    assert_eq!(denied.matches('{').count(), denied.matches('}').count());
    let trusted = said(&format!(
        "cloudmap-mcs iam trust {PLACE} --for account --role-arn arn:aws:iam::444455556666:role/a --format terraform"
    ));
    let trusted = trusted.unwrap().output;
    assert!(trusted.contains("type        = \"AWS\"") && trusted.contains("resource \"aws_iam_role\""), "{trusted}");
    assert!(!trusted.contains("resources"), "{trusted}");
}

#[test]
fn cloudformation_has_the_same_document() {
    let read = |text: &str| serde_yaml_ng::from_str::<Value>(text).unwrap();
    let document: Value = serde_json::from_str(&output("--clusterset prod")).unwrap();
    let template = read(&output("--clusterset prod --format cloudformation"));
    let resource = &template["Resources"]["CloudmapMcsPolicy"];
    assert_eq!(template["AWSTemplateFormatVersion"], json!("2010-09-09"));
    assert_eq!(resource["Type"], "AWS::IAM::ManagedPolicy");
    assert_eq!(resource["Properties"]["PolicyDocument"], document);
    let trust = |format: &str| {
        said(&format!("cloudmap-mcs iam trust {PLACE} --for pod-identity --format {format}")).unwrap().output
    };
    let role = &read(&trust("cloudformation"))["Resources"]["CloudmapMcsRole"];
    assert_eq!(role["Type"], "AWS::IAM::Role");
    assert_eq!(role["Properties"]["AssumeRolePolicyDocument"], read(&trust("json")));
}

#[test]
fn what_is_too_long_for_one_policy_is_several_and_is_said() {
    let services: Vec<_> = (0..60).map(|n| format!("srv-{n:016}")).collect();
    let flags = format!("--clusterset prod --mode instances,joining --services {}", services.join(","));
    let Printed { output, note, .. } = policy(&format!("{flags} --format terraform")).unwrap();
    assert!(note.unwrap().contains("these are 2 policies"));
    assert!(
        output.contains("resource \"aws_iam_policy\" \"cloudmap_mcs_2\" {\n  name   = \"cloudmap-mcs-prod-2\""),
        "{output}"
    );
    assert!(policy(&format!("{flags} --format cloudformation")).unwrap().output.contains("CloudmapMcsPolicy2:"));
    // Two documents in one stream are none.
    let error = policy(&flags).unwrap_err();
    assert!(error.contains("these are 2 policies") && error.contains("--out"), "{error}");
    let Printed { output, files, .. } = policy(&format!("{flags} --out x")).unwrap();
    let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((output.as_str(), names), ("", vec!["cloudmap-mcs-prod.json", "cloudmap-mcs-prod-2.json"]));
    assert!(files.iter().all(|(_, text)| serde_json::from_str::<Value>(text).is_ok()));

    // However many there are: the tag is the way for a role, of which IAM keeps ten policies.
    let more: Vec<_> = (0..1000).map(|n| format!("srv-{n:016}")).collect();
    let many = policy(&format!("--mode joining,hiding --services {} --format terraform", more.join(","))).unwrap();
    assert!(many.note.unwrap().contains("the tag joined-by"));
    let by_tag = self::output("--mode joining,hiding --clusterset prod");
    assert!(by_tag.contains("\"aws:ResourceTag/joined-by\": \"prod\""), "{by_tag}");

    let issuers: Vec<_> = (0..9).map(|n| format!("https://oidc.eks.eu-central-1.amazonaws.com/id/{n:032}")).collect();
    let trust = said(&format!("cloudmap-mcs iam trust {PLACE} --for irsa --oidc-issuer {}", issuers.join(",")));
    assert!(trust.unwrap().note.unwrap().contains("Role trust policy length"));
}

#[test]
fn files_are_written_once_and_those_that_are_there_stay() {
    let folder = std::env::temp_dir().join(format!("cloudmap-mcs-iam-{}", std::process::id()));
    let inner = folder.join("policies");
    let files = [("a.json".to_owned(), "one".to_owned())];
    assert_eq!(super::written(&inner, &files).unwrap(), [inner.join("a.json")]);
    let error = format!("{:#}", super::written(&inner, &[("a.json".to_owned(), "two".to_owned())]).unwrap_err());
    assert!(error.contains("a.json: remove it, or name another folder with --out"), "{error}");
    assert_eq!(std::fs::read_to_string(inner.join("a.json")).unwrap(), "one");
    std::fs::remove_dir_all(folder).unwrap();
}

/// What `terraform fmt` would change, as far as it is about signs of attributes: those of lines that follow each other, each
/// with a whole value, are below each other.
#[test]
fn terraform_is_written_as_its_formatter_writes_it() {
    let flags = [
        "--clusterset prod",
        "--clusterset prod --cluster-id a,b",
        "--mode deny --clusterset prod",
        "--mode joining --services srv-1,srv-2",
    ];
    for flags in flags {
        let text = output(&format!("{flags} --format terraform"));
        let mut sign: Option<usize> = None;
        for line in text.lines() {
            let at = line.find(" = ").filter(|_| !line.ends_with('['));
            assert!(sign.zip(at).is_none_or(|(before, at)| before == at), "{line}\nin\n{text}");
            assert!(line.find(" = ").is_none_or(|at| !line.ends_with('[') || !line[..at].ends_with(' ')), "{line}");
            assert_eq!(line, line.trim_end());
            sign = at;
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (flags, hint) in [
        ("", "--mode ledger needs --clusterset"),
        ("--mode annotated", "--mode annotated needs --cluster-uid"),
        ("--mode instances,people --clusterset prod", "for an administrator"),
        ("--mode dns,assume-role --hosted-zones Z1", "print it alone"),
        ("--clusterset prod --services srv-1", "--services is for --mode joining"),
        ("--clusterset prod --cloudmap-namespaces a", "--mode imports or aws-mcs or gates"),
        ("--mode joining --services srv-1 --clusterset prod", "--clusterset is for --mode ledger or"),
        ("--mode people --clusterset prod --cluster-id one", "--cluster-id is for --mode ledger or"),
        ("--mode annotated --cluster-uid u --cluster-id one", "--cluster-id is for --mode ledger or"),
    ] {
        let error = policy(flags).unwrap_err();
        assert!(error.contains(hint), "{flags}: {error}");
    }
    // What is refused nowhere is in the policy of each mode that takes it.
    let others = [
        ("ledger,instances", ""),
        ("imports", "--cloudmap-namespaces a"),
        ("aws-mcs", "--cloudmap-namespaces a --cloudmap-namespace-ids ns-1"),
    ];
    for (modes, flags) in others {
        let output = output(&format!("--mode {modes} {flags} --clusterset prod --cluster-id one"));
        assert!(output.contains("\"prod\"") && output.contains("\"one\""), "{modes}: {output}");
    }
    for mode in ["deny", "people"] {
        assert!(output(&format!("--mode {mode} --clusterset prod")).contains("\"prod\""), "{mode}");
    }
    // For `purge` where instances are in namespaces with DNS.
    assert!(output("--mode people,dns --clusterset prod --hosted-zones Z1").contains("hostedzone/Z1"));
    let error = said(&format!("cloudmap-mcs iam trust {PLACE} --for pod-identity --external-id x")).unwrap_err();
    assert!(error.contains("--external-id does not go with"), "{error}");
}
