use serde_json::json;

use super::*;

#[test]
fn names_that_look_secret_are_known_and_others_are_not() {
    for name in [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "DB_PASSWORD",
        "api-key",
        "apiKey",
        "NEW_RELIC_APIKEY",
        "accessKeyId",
        "apiToken",
        "Authorization",
        "CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID",
        "assume-role-external-id",
        "example.org/credentials",
        "DB_PWD",
        "mysqlPwd",
        "ssh-passphrase",
        "JWT",
        "jwt_signing",
        "SENTRY_DSN",
        "sentryDsn",
        "ConnectionString",
        "AZURE_CONNECTION_STRING",
        "AccountKey",
        "BEARER",
        ".dockerconfigjson",
    ] {
        assert!(is_secret(name), "{name}");
    }
    for name in [
        "CLOUDMAP_MCS_REGION",
        "CLOUDMAP_MCS_REGISTRATION_POLICY",
        "cloudmap-mcs/share",
        "app.kubernetes.io/name",
        "author",
        "monkey",
        "passive",
        "adsName",
        "loadsNothing",
    ] {
        assert!(!is_secret(name), "{name}");
    }
}

#[test]
fn secrets_of_plugins_are_taken_out_of_a_corefile() {
    let text = "\
.:53 {
route53 example.org.:Z1 {
    aws_access_key AKIA x/y
}
\tetcd {
    credentials me x
    endpoint https://me:x@etcd:2379
}
tsig {
    secret name. x
}
# aws_access_key AKIA x/y
acme_token x {
}
secret
kubernetes cluster.local clusterset.local {
  multicluster clusterset.local
}
}
credentials me x";
    let expected = "\
.:53 {
route53 example.org.:Z1 {
    aws_access_key REDACTED
}
\tetcd {
    credentials REDACTED
    endpoint https://REDACTED@etcd:2379
}
tsig {
    secret REDACTED
}
# aws_access_key REDACTED
acme_token REDACTED {
}
secret
kubernetes cluster.local clusterset.local {
  multicluster clusterset.local
}
}
credentials REDACTED";
    assert_eq!(redact_corefile(text), expected);
}

#[test]
fn variables_annotations_and_flags_that_look_secret_are_replaced() {
    let mut object = json!({
        "metadata": {
            "managedFields": [{}],
            "annotations": {REPEATING[0]: "{\"password\":\"x\"}", REPEATING[2]: "H4sI", "example.org/api-key": "x", "example.org/team": "a"},
        },
        "spec": {"containers": [{
            "args": ["run", "--token=x", "--password", "x", "--region", "eu-central-1", "--secret", "--dry-run"],
            "env": [
                {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
                {"name": "FROM_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "optional": true}}},
                {"name": "PROXY", "value": "http://me:x@proxy:3128/path and https://b@c"},
                {"name": "REGION", "value": "eu-central-1"},
            ],
        }]},
        "data": {"CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID": "x", "CLOUDMAP_MCS_POLICY": "sync"},
    });
    redact(&mut object);
    assert_eq!(
        object,
        json!({
            "metadata": {"annotations": {"example.org/api-key": REDACTED, "example.org/team": "a"}},
            "spec": {"containers": [{
                "args": ["run", "--token=REDACTED", "--password", REDACTED, "--region", "eu-central-1", "--secret", "--dry-run"],
                "env": [
                    {"name": "AWS_SECRET_ACCESS_KEY", "value": REDACTED},
                    {"name": "FROM_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "optional": true}}},
                    {"name": "PROXY", "value": "http://REDACTED@proxy:3128/path and https://REDACTED@c"},
                    {"name": "REGION", "value": "eu-central-1"},
                ],
            }]},
            "data": {"CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID": REDACTED, "CLOUDMAP_MCS_POLICY": "sync"},
        })
    );
}

#[test]
fn secrets_inside_of_texts_are_replaced_and_the_rest_stays() {
    for (text, expected) in [
        ("https://x/a?b=1&token=x&c=2#d", "https://x/a?b=1&token=REDACTED&c=2#d"),
        ("https://x/?X-Amz-Signature=0a&sig=b", "https://x/?X-Amz-Signature=REDACTED&sig=REDACTED"),
        ("export TOKEN=\"x\";  run\n -password x -v", "export TOKEN=\"REDACTED\";  run\n -password REDACTED -v"),
        ("--set=auth.token=x,region=y", "--set=auth.token=REDACTED,region=y"),
        ("Authorization: Bearer x.y.z", "Authorization: Bearer REDACTED"),
        ("postgres://me:x@db/a?sslmode=off", "postgres://REDACTED@db/a?sslmode=off"),
        ("DB=me:x@tcp(db:3306)/a", "DB=REDACTED@tcp(db:3306)/a"),
        ("Server=db;User Id=me;Pwd=x;Timeout=3", "Server=db;User Id=me;Pwd=REDACTED;Timeout=3"),
        ("AccountName=a;AccountKey=x==;", "AccountName=a;AccountKey=REDACTED;"),
        ("password: x\nuser: me", "password: REDACTED\nuser: me"),
        ("{\"passphrase\":\"x\",\"user\":\"me\"}", "{\"passphrase\":\"REDACTED\",\"user\":\"me\"}"),
        ("{\"jwt\": \"x\", \"a\": 1}", "{\"jwt\": \"REDACTED\", \"a\": 1}"),
        ("as AKIAIOSFODNN7EXAMPLE.", "as REDACTED"),
        ("(eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.x-y_z)", "(REDACTED)"),
        (
            "a -----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY----- b",
            "a -----BEGIN RSA PRIVATE KEY-----REDACTED-----END RSA PRIVATE KEY----- b",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nabc", "-----BEGIN PRIVATE KEY-----REDACTED"),
    ] {
        assert_eq!(without_secrets(text), expected);
    }
    for plain in [
        "app=web,tier in (a, b)",
        "a = b",
        "key",
        "--private",
        "a==",
        "kubectl get pods -l app=web",
        "ghcr.io/a/b:v1@sha256:0a",
        "nginx:1@sha256:0a",
        "a@b.example",
        "key: default/web",
    ] {
        assert_eq!(without_secrets(plain), plain);
    }
}

#[test]
fn secrets_in_nested_objects_and_in_commands_are_replaced() {
    let applied = json!({"spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": "x"}]}]}});
    let redacted = json!({"spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": REDACTED}]}]}});
    let mut object = json!({
        "metadata": {"annotations": {"example.org/applied": applied.to_string(), "example.org/plain": "{ \"a\": 1 }"}},
        "spec": {
            "env": [{"name": "CONFIG", "value": "{\"keys\": [\"x\"], \"n\": 1}"}],
            "command": ["env", "DB_PASSWORD=x y", "sh", "-c", "run --token x"],
            "args": ["-password", "x", "-v", "2", "--header", "Authorization: Bearer x"],
        },
        "data": {"record": "{\"key\":\"public\"}"},
    });
    redact(&mut object);
    assert_eq!(
        object,
        json!({
            "metadata": {"annotations": {"example.org/applied": redacted.to_string(), "example.org/plain": "{ \"a\": 1 }"}},
            "spec": {
                "env": [{"name": "CONFIG", "value": "{\"keys\":[\"REDACTED\"],\"n\":1}"}],
                "command": ["env", "DB_PASSWORD=REDACTED", "sh", "-c", "run --token REDACTED"],
                "args": ["-password", REDACTED, "-v", "2", "--header", "Authorization: Bearer REDACTED"],
            },
            "data": {"record": "{\"key\":\"public\"}"},
        })
    );
}
