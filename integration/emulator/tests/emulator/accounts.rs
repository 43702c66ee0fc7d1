//! Accounts and regions: "Cloud Map is Regional", and an account has what it owns.

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::config::Region;
use cloudmap_emulator::{AccessKey, Accounts, Emulator, EmulatorSettings};

use super::{code, create_http_namespace, create_service};

/// A client with this access key in a region.
pub(crate) fn client(emulator: &Emulator, key: &str, region: &str) -> Client {
    let config = emulator.sdk_config(key).to_builder().region(Region::new(region.to_owned()));
    Client::from_conf(config.build())
}

pub(crate) async fn names(client: &Client) -> Vec<String> {
    let found = client.list_namespaces().send().await.unwrap();
    found.namespaces().iter().map(|namespace| namespace.name().unwrap().to_owned()).collect()
}

fn two_accounts() -> Accounts {
    Accounts::default().with_key("KEY1", AccessKey::of("111111111111")).with_key("KEY2", AccessKey::of("222222222222"))
}

#[tokio::test]
async fn one_registry_answers_all_keys_and_regions_unless_accounts_are_configured() {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
    create_http_namespace(&client(&emulator, "anyone", "us-east-1"), "apps").await;
    for (key, region) in [("anyone", "eu-west-1"), ("other", "us-east-1"), ("other", "cn-north-1")] {
        assert_eq!(names(&client(&emulator, key, region)).await, ["apps"], "{key} {region}");
    }
}

#[tokio::test]
async fn an_access_key_leads_to_the_registry_of_its_account() {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
    emulator.control().set_accounts(two_accounts());
    let [first, second, home] = ["KEY1", "KEY2", "unnamed"].map(|key| client(&emulator, key, "us-east-1"));
    create_http_namespace(&first, "of-first").await;
    // The same name is free in another account.
    create_http_namespace(&second, "of-first").await;
    create_http_namespace(&second, "of-second").await;
    assert_eq!(names(&first).await, ["of-first"]);
    assert_eq!(names(&second).await.len(), 2);
    assert!(names(&home).await.is_empty());
    let found = first.list_namespaces().send().await.unwrap();
    let namespace = &found.namespaces()[0];
    assert!(namespace.arn().unwrap().starts_with("arn:aws:servicediscovery:us-east-1:111111111111:namespace/ns-"));
    assert_eq!(namespace.resource_owner(), Some("111111111111"));
    // Regions are one until they are separated.
    assert_eq!(names(&client(&emulator, "KEY1", "eu-west-1")).await, ["of-first"]);
}

#[tokio::test]
async fn each_region_is_a_registry_of_its_own_once_they_are_separated() {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
    emulator.control().set_accounts(two_accounts().with_regions());
    let [virginia, ireland] = ["us-east-1", "eu-west-1"].map(|region| client(&emulator, "KEY1", region));
    let namespace = create_http_namespace(&ireland, "apps").await;
    let service = create_service(&ireland, &namespace, "web").await;
    assert!(names(&virginia).await.is_empty());
    let arn = ireland.get_service().id(&service).send().await.unwrap().service.unwrap().arn.unwrap();
    assert_eq!(arn, format!("arn:aws:servicediscovery:eu-west-1:111111111111:service/{service}"));
    assert_eq!(ireland.get_service().id(&arn).send().await.unwrap().service.unwrap().id.unwrap(), service);
    assert_eq!(code(virginia.get_service().id(&arn).send().await), "ServiceNotFound");
    assert_eq!(code(virginia.get_service().id(&service).send().await), "ServiceNotFound");
    // Keys without a name have the account of the settings, and in its region the home.
    create_http_namespace(&client(&emulator, "unnamed", "us-east-1"), "home").await;
    assert!(emulator.control().snapshot().namespace("home").is_some());
    assert!(names(&client(&emulator, "unnamed", "eu-west-1")).await.is_empty());
}

#[tokio::test]
async fn a_handle_looks_into_the_registry_of_an_account_and_region() {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
    let control = emulator.control();
    control.set_accounts(two_accounts().with_regions());
    let ireland = client(&emulator, "KEY2", "eu-west-1");
    create_http_namespace(&ireland, "apps").await;
    let there = control.registry("222222222222", "eu-west-1");
    assert!(there.snapshot().namespace("apps").is_some());
    assert_eq!(there.counters().calls_by("KEY2", "CreateHttpNamespace"), 1);
    assert_eq!(control.counters().total(), 0);
    // Settings of the home are for all; each keeps where it is.
    control.update_settings(|settings| settings.quotas.namespaces = 1);
    let settings = there.settings();
    assert_eq!((settings.quotas.namespaces, &*settings.region, &*settings.account), (1, "eu-west-1", "222222222222"));
    assert_eq!(code(ireland.create_http_namespace().name("more").send().await), "ResourceLimitExceeded");
    control.reset();
    assert!(there.snapshot().namespaces.is_empty());
    assert_eq!(control.accounts(), two_accounts().with_regions());
}

#[tokio::test]
async fn the_same_seed_gives_registries_different_ids() {
    let settings = EmulatorSettings { seed: Some(7), ..EmulatorSettings::unthrottled() };
    let emulator = Emulator::start(settings).await.unwrap();
    emulator.control().set_accounts(two_accounts());
    let mut ids = Vec::new();
    for key in ["KEY1", "KEY2", "unnamed"] {
        ids.push(create_http_namespace(&client(&emulator, key, "us-east-1"), "apps").await);
    }
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}
