use serde_json::json;

use super::*;

fn caller() -> Identity {
    let arn = "arn:aws:sts::111111111111:assumed-role/controller/pod".to_owned();
    Identity { account: "111111111111".into(), arn, role: Some("arn:aws:iam::111111111111:role/controller".into()) }
}

/// Whether a statement allows an action on a resource, with nothing but what every call has.
fn allows(statement: &Value, action: &str, arn: &str) -> bool {
    let document = json!({ "Version": "2012-10-17", "Statement": statement });
    let policy = Policy::try_from(document).unwrap();
    decide(&[policy], &caller(), &Ask::new(action, arn, &caller())).is_ok()
}

fn refusal(statement: &Value) -> String {
    Policy::try_from(json!({ "Version": "2012-10-17", "Statement": statement })).unwrap_err()
}

const SERVICE: &str = "arn:aws:servicediscovery:us-east-1:111111111111:service/srv-1";

#[test]
fn wildcards_stand_for_any_text_and_for_one_character() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("a*c", "abbbc", true),
        ("a*c", "abbb", false),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("*b*b", "abab", true),
        ("*aab", "aaaab", true),
        ("service/*", "service/*", true),
        ("service/srv-1", "service/*", false),
        ("", "a", false),
    ] {
        assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn actions_are_compared_without_case() {
    let any = |action: &str| json!({ "Effect": "Allow", "Action": action, "Resource": "*" });
    for (pattern, expected) in [
        ("servicediscovery:RegisterInstance", true),
        ("ServiceDiscovery:registerinstance", true),
        ("servicediscovery:Register*", true),
        ("servicediscovery:?egisterInstance", true),
        ("*", true),
        ("servicediscovery:DeregisterInstance", false),
        ("route53:*", false),
    ] {
        assert_eq!(allows(&any(pattern), "servicediscovery:RegisterInstance", SERVICE), expected, "{pattern}");
    }
    let but = json!({ "Effect": "Allow", "NotAction": ["servicediscovery:Delete*"], "Resource": "*" });
    assert!(allows(&but, "servicediscovery:GetService", SERVICE));
    assert!(!allows(&but, "servicediscovery:DeleteService", SERVICE));
}

#[test]
fn a_wildcard_in_a_resource_does_not_reach_over_a_colon() {
    let on = |key: &str, arn: &str| json!({ "Effect": "Allow", "Action": "*", key: arn });
    for (pattern, expected) in [
        (SERVICE, true),
        ("arn:aws:servicediscovery:*:*:service/*", true),
        ("arn:aws:servicediscovery:us-east-1:111111111111:namespace/*", false),
        ("arn:aws:servicediscovery:us-east-1:222222222222:service/*", false),
        ("arn:*:service/srv-1:*:*:*", false),
    ] {
        assert_eq!(allows(&on("Resource", pattern), "servicediscovery:GetService", SERVICE), expected, "{pattern}");
        assert_eq!(allows(&on("NotResource", pattern), "servicediscovery:GetService", SERVICE), !expected, "{pattern}");
    }
    // An action without a resource is allowed on everything or not at all.
    let some = on("Resource", "arn:aws:servicediscovery:*:*:*");
    assert!(!allows(&some, "servicediscovery:ListServices", "*"));
    assert!(allows(&on("Resource", "*"), "servicediscovery:ListServices", "*"));
}

#[test]
fn a_denial_wins_and_says_so() {
    let document = json!({ "Version": "2012-10-17", "Statement": [
        { "Effect": "Allow", "Action": "*", "Resource": "*" },
        { "Effect": "Deny", "Action": "servicediscovery:Delete*", "Resource": "*" },
    ]});
    let policies = [Policy::try_from(document).unwrap()];
    let ask = |action: &str| Ask::new(action, SERVICE, &caller());
    decide(&policies, &caller(), &ask("servicediscovery:GetService")).unwrap();
    let error = decide(&policies, &caller(), &ask("servicediscovery:DeleteService")).unwrap_err();
    assert_eq!(error.code, "AccessDeniedException");
    assert_eq!(
        error.message,
        "User: arn:aws:sts::111111111111:assumed-role/controller/pod is not authorized to perform: \
         servicediscovery:DeleteService on resource: arn:aws:servicediscovery:us-east-1:111111111111:service/srv-1 \
         with an explicit deny in an identity-based policy"
    );
    let error = decide(&[], &caller(), &ask("servicediscovery:GetService")).unwrap_err();
    let expected = "because no identity-based policy allows the servicediscovery:GetService action";
    assert!(error.message.ends_with(expected), "{error}");
}

#[test]
fn operators_treat_values_and_missing_keys_as_documented() {
    use super::condition::Condition;
    let (one, several) = (vec!["blue".to_owned()], vec!["blue".to_owned(), "red".to_owned()]);
    let holds = |operator: &str, wanted: &[&str], found: Option<&Vec<String>>| {
        let wanted = wanted.iter().map(|&value| value.to_owned()).collect();
        Condition::parse(operator, "aws:ResourceTag/color", wanted).unwrap().holds(found.map(Vec::as_slice))
    };
    // Operator, wanted values, then whether it holds for one value, for several, and for a key that is missing.
    for (operator, wanted, expected) in [
        ("StringEquals", &["green", "blue"][..], [true, false, false]),
        ("StringEquals", &["Blue"], [false, false, false]),
        ("StringEqualsIgnoreCase", &["Blue"], [true, false, false]),
        ("StringEqualsIfExists", &["green"], [false, false, true]),
        ("StringNotEquals", &["blue"], [false, false, true]),
        ("StringNotEquals", &["green"], [true, true, true]),
        ("StringLike", &["b*"], [true, false, false]),
        ("StringNotLike", &["b*"], [false, false, true]),
        ("ForAllValues:StringEquals", &["blue", "red", "green"], [true, true, true]),
        ("ForAllValues:StringEquals", &["red"], [false, false, true]),
        ("ForAnyValue:StringEquals", &["red"], [false, true, false]),
        ("ForAnyValue:StringEqualsIfExists", &["red"], [false, true, true]),
        ("ForAnyValue:StringNotEquals", &["blue"], [false, true, false]),
        ("Null", &["true"], [false, false, true]),
        ("Null", &["false"], [true, true, false]),
    ] {
        let found = [Some(&one), Some(&several), None].map(|found| holds(operator, wanted, found));
        assert_eq!(found, expected, "{operator} {wanted:?}");
    }
    let arn = vec![SERVICE.to_owned()];
    for operator in ["ArnEquals", "ArnLike"] {
        assert!(holds(operator, &["arn:aws:servicediscovery:*:*:service/srv-?"], Some(&arn)));
        assert!(!holds(operator, &["arn:aws:servicediscovery:*:service/srv-1"], Some(&arn)));
    }
}

#[test]
fn global_keys_are_those_of_the_caller_and_the_resource() {
    let when = |key: &str, value: &str| {
        let condition = json!({ "StringEquals": { key: value } });
        json!({ "Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition })
    };
    for (key, value, expected) in [
        ("aws:ResourceAccount", "111111111111", true),
        ("AWS:resourceaccount", "222222222222", false),
        ("aws:PrincipalArn", "arn:aws:iam::111111111111:role/controller", true),
        ("aws:PrincipalAccount", "111111111111", true),
    ] {
        assert_eq!(allows(&when(key, value), "servicediscovery:GetService", SERVICE), expected, "{key} {value}");
    }
}

#[test]
fn what_is_not_evaluated_is_refused() {
    let with = |member: &str, value: Value| {
        let mut statement = json!({ "Effect": "Allow", "Action": "servicediscovery:*", "Resource": "*" });
        statement[member] = value;
        refusal(&statement)
    };
    for (member, value, expected) in [
        ("Effect", json!("allow"), "Effect"),
        ("Principal", json!("*"), "Principal"),
        ("NotAction", json!("sts:*"), "either Action or NotAction"),
        ("Action", json!([]), "Action is empty"),
        ("Action", json!("ListServices"), "no vendor"),
        ("Resource", json!("service/srv-1"), "ARN format"),
        ("Resource", json!("arn:aws:servicediscovery:*:${aws:PrincipalAccount}:*"), "policy variable"),
        ("Sid", json!("two words"), "letters and digits"),
        ("Condition", json!({ "NumericEquals": { "aws:ResourceTag/a": 1 } }), "NumericEquals"),
        ("Condition", json!({ "NullIfExists": { "aws:ResourceTag/a": true } }), "NullIfExists"),
        ("Condition", json!({ "StringEquals": { "aws:SourceVpc": "vpc-1" } }), "aws:SourceVpc"),
        ("Condition", json!({ "StringEquals": { "servicediscovery:Namespace": "a" } }), "servicediscovery:Namespace"),
        ("Condition", json!({ "StringEquals": { "aws:TagKeys": "a" } }), "ForAnyValue:StringEquals"),
    ] {
        let message = with(member, value);
        assert!(message.contains(expected), "{message}");
    }
    let statement = json!([{ "Sid": "One", "Effect": "Allow", "Action": "*", "Resource": "*" }]);
    assert!(Policy::try_from(json!({ "Statement": statement })).unwrap_err().contains("Version"));
    let twice = json!([statement[0], statement[0]]);
    assert!(refusal(&twice).contains("twice"));
    // Other services have condition keys of their own.
    let other = json!({ "StringEquals": { "route53:VPCs": "a" } });
    let statement = json!({ "Effect": "Allow", "Action": "route53:*", "Resource": "*", "Condition": other });
    Policy::try_from(json!({ "Version": "2012-10-17", "Statement": statement })).unwrap();
}
