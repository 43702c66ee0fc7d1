//! `trust`: the keys with which clusters sign, as the ledger shows them and as this cluster has pinned them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    asking::{self, AllLedgers},
    table::{self, Table},
};
use app::connect;
use base::env;
use cli::{TrustAcceptArgs, TrustCommand, TrustListArgs, TrustRejectArgs, TrustRotateArgs};
use cluster::{identity, keys::KeyStore, record::RecordObject};
use ledger::{
    RegistryName,
    head::Head,
    record::{self, Accepted, Gone, Record, RecordStore as _},
    trust::{Keys, TRUSTED},
};
use model::{ClusterId, ClusterSetId, PublicKey};
use records::ClusterView;

pub(super) async fn trust(command: TrustCommand) -> anyhow::Result<()> {
    match command {
        TrustCommand::List(args) => list(args).await,
        TrustCommand::Accept(args) => accept(args).await,
        TrustCommand::Reject(args) => reject(args).await,
        TrustCommand::Rotate(args) => rotate(args).await,
    }
}

/// What is known of one cluster's key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    cluster: String,
    /// The key that signed its head.
    signs: Option<PublicKey>,
    /// The key that this cluster has pinned.
    pinned: Option<PublicKey>,
    own: bool,
    note: &'static str,
}

impl Row {
    /// `view` is `None` if the ledger has no head of the cluster; `uid` is that of this cluster.
    fn new(cluster: &str, view: Option<&ClusterView>, accepted: Option<&Accepted>, uid: &str) -> Self {
        let head = view.and_then(|view| view.head.as_deref());
        let (signs, pinned) = (head.and_then(|head| head.signer), accepted.and_then(|accepted| accepted.key));
        let own = head.is_some_and(|head| *head.uid == *uid);
        // A cluster that left has a head that says so. With a live one it is back, and its key may be another one.
        let rejected = accepted.is_some_and(|accepted| accepted.gone == Some(Gone::Rejected));
        let gone = match accepted.and_then(|accepted| accepted.gone) {
            Some(Gone::Left) => !head.is_some_and(Head::is_live),
            gone => gone.is_some_and(Gone::is_left),
        };
        let other = head.zip(accepted).is_some_and(|(head, accepted)| *head.uid != *accepted.uid);
        let note = match (pinned, signs) {
            _ if own => "this cluster",
            _ if rejected => "rejected here",
            _ if gone => "left",
            _ if view.is_none() => "no head in the ledger",
            _ if head.is_none() => "its head cannot be read",
            (Some(_), _) if other => "another cluster under this id: if it was rebuilt, trust accept",
            (Some(pinned), Some(signs)) if pinned != signs => "another key: if it was rebuilt, trust accept",
            (Some(_), None) => "not signed: ignored",
            (None, None) => "not signed",
            (None, Some(_)) => "not pinned: with --join=approve, trust accept",
            (Some(_), Some(_)) => "",
        };
        Self { cluster: cluster.to_owned(), signs, pinned, own, note }
    }
}

/// One row for each cluster that has a head or is recorded here. Of an id that several registries have, the head is that of the
/// recorded one.
fn rows<'a>(
    all: impl Iterator<Item = (Option<&'a RegistryName>, &'a ClusterView)>,
    accepted: &BTreeMap<String, Accepted>,
    uid: &str,
) -> Vec<Row> {
    let mut views = BTreeMap::<&str, &ClusterView>::new();
    for (registry, view) in all {
        let recorded = accepted.get(&*view.id).is_some_and(|it| it.registry.as_deref() == registry.map(|name| &**name));
        if recorded || !views.contains_key(&*view.id) {
            views.insert(&view.id, view);
        }
    }
    let ids: BTreeSet<&str> = views.keys().copied().chain(accepted.keys().map(String::as_str)).collect();
    ids.into_iter().map(|id| Row::new(id, views.get(id).copied(), accepted.get(id), uid)).collect()
}

async fn list(args: TrustListArgs) -> anyhow::Result<()> {
    let client = connect::kubernetes(&args.place.kube).await?;
    let clusterset = asking::clusterset(&args.place.kube, &args.place.identity).await?;
    let ledgers = AllLedgers::read(&args.place.aws, &clusterset).await?;
    let uid = identity::kube_system_uid(&client).await?;
    let record = RecordObject::new(client, &args.place.kube.controller.namespace).load().await?;
    let record = record.map(|(record, _)| record).filter(|record| record.is_of(clusterset.as_str()));
    let accepted = record.map(|record| record.accepted).unwrap_or_default();
    let rows = rows(ledgers.clusters(), &accepted, &uid);
    let json = || {
        let row = |Row { cluster, signs, pinned, own, note }: &Row| json!({"cluster": cluster, "signsWith": signs, "pinned": pinned, "own": own, "note": note});
        json!({"clusterset": clusterset.as_str(), "clusters": rows.iter().map(row).collect::<Vec<_>>()})
    };
    table::print(args.output, || tables(&rows), json)?;
    ledgers.all_read()
}

fn tables(rows: &[Row]) -> String {
    let text = |key: Option<PublicKey>| key.map_or_else(|| "-".to_owned(), |key| key.to_string());
    let mut table = Table::new(["CLUSTER", "SIGNS WITH", "PINNED HERE", "NOTE"]);
    for Row { cluster, signs, pinned, own: _, note } in rows {
        table.row([cluster.clone(), text(*signs), text(*pinned), (*note).to_owned()]);
    }
    // The flag of the controller is not read here.
    format!("{table}\nWith --trust=pinned, only the keys in the ConfigMap {TRUSTED} count, whatever is pinned here.\n")
}

async fn accept(args: TrustAcceptArgs) -> anyhow::Result<()> {
    let id = &args.cluster;
    let clusterset = asking::clusterset(&args.place.kube, &args.place.identity).await?;
    let ledgers = AllLedgers::read(&args.place.aws, &clusterset).await?;
    let Some((registry, head)) = head_of(ledgers.clusters(), id, args.key) else {
        ledgers.all_read()?;
        anyhow::bail!("the ClusterSet {clusterset} has no head of a cluster {id} that can be read");
    };
    let signer = head.signer.with_context(|| {
        format!("the head of {id} has no valid signature: start its controller without --trust=open, and try again")
    })?;
    let key = args.key.with_context(|| compare(id, &head.uid, signer, &args.place.kube.cluster.flags()))?;
    anyhow::ensure!(key == signer, "the cluster {id} signs with the key {signer}, not with {key}: nothing is accepted");
    let client = connect::kubernetes(&args.place.kube).await?;
    refuse_own(id, &head.uid, &identity::kube_system_uid(&client).await?)?;
    let store = RecordObject::new(client, &args.place.kube.controller.namespace);
    let home = args.place.aws.home()?.0;
    let registry = registry.map_or(home.as_str(), |name| name);
    let pinned = record::update(&store, |record| pin(record, &clusterset, (id, registry), &head.uid, key)).await?;
    let pinned = pinned.context("this cluster has no ledger record: its controller has never led")?;
    anyhow::ensure!(
        pinned,
        "the cluster that is to accept the key is not in the ClusterSet {clusterset}, so nothing is accepted: name a member with \
         --context"
    );
    writeln!(
        std::io::stdout(),
        "The key {key} of cluster {id} is accepted. What it says counts within seconds. With --trust=pinned, it counts only if the \
         ConfigMap {TRUSTED} has the key."
    )?;
    Ok(())
}

/// The head of a cluster, and its registry if that is not the home. Of an id that several registries have, the one that is signed with
/// this key, and then the newest: the cluster may have moved.
fn head_of<'a>(
    all: impl Iterator<Item = (Option<&'a RegistryName>, &'a ClusterView)>,
    id: &ClusterId,
    key: Option<PublicKey>,
) -> Option<(Option<&'a RegistryName>, &'a Head)> {
    let of_id = all.filter(|(_, view)| *view.id == *id.as_str());
    let heads = of_id.filter_map(|(registry, view)| Some((registry, view.head.as_deref()?)));
    heads.max_by_key(|(_, head)| (key.is_some() && head.signer == key, head.position))
}

/// Pins the key of another cluster, whose ledger is in this registry (empty: registries have no names); `false` if the record is that of a cluster in another ClusterSet, where another cluster may
/// have the id.
fn pin(
    record: &mut Record,
    clusterset: &ClusterSetId,
    (id, registry): (&ClusterId, &str),
    uid: &str,
    key: PublicKey,
) -> bool {
    let is_member = record.is_of(clusterset.as_str());
    if is_member {
        // The date of its service stays: who created it did not change.
        let created = record.accepted.get(id.as_str()).filter(|before| before.uid == uid).map_or(0, |it| it.created);
        // As the controller names them; without names there is one.
        let elsewhere = record.home.as_ref().filter(|home| !registry.is_empty() && *home != registry);
        let registry = elsewhere.map(|_| registry.to_owned());
        let accepted = Accepted { created, registry, ..Accepted::unread(uid.to_owned(), Some(key)) };
        record.accepted.insert(id.to_string(), accepted);
    }
    is_member
}

async fn reject(args: TrustRejectArgs) -> anyhow::Result<()> {
    let id = &args.cluster;
    let client = connect::kubernetes(&args.kube).await?;
    let store = RecordObject::new(client, &args.kube.controller.namespace);
    let mut own = false;
    let rejected = record::update(&store, |record| {
        own = record.member.as_ref().is_some_and(|member| member.cluster == id.as_str());
        !own && take_back(record, id)
    });
    let rejected = rejected.await?.context("this cluster has no ledger record: its controller has never led")?;
    anyhow::ensure!(!own, "{id} is this cluster itself: to leave the ClusterSet, run cloudmap-mcs leave");
    let said = if rejected { "is rejected here" } else { "was rejected here before" };
    writeln!(
        std::io::stdout(),
        "Cluster {id} {said}: what it exports is dropped within seconds, and nothing that it says counts until `cloudmap-mcs trust \
         accept {id}`. Run this in every cluster of the ClusterSet (--context). It stops no one who may write to Cloud Map: take the \
         rights of the role away, too."
    )?;
    Ok(())
}

/// Says in the record that a cluster is no member; `false` if the record says so already.
fn take_back(record: &mut Record, id: &ClusterId) -> bool {
    let accepted = record.accepted.entry(id.to_string()).or_insert_with(|| Accepted::unread(String::new(), None));
    accepted.gone.replace(Gone::Rejected) != Some(Gone::Rejected)
}

/// Fails if the head is this cluster's own. Its leader would wait for another cluster with this id, report it as stale, and
/// never forget it. `uid` is that of this cluster.
fn refuse_own(id: &ClusterId, head: &str, uid: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        head != uid,
        "{id} is this cluster itself, whose key the others have to accept: run this in each of them (--context)"
    );
    Ok(())
}

/// What is to be done before a key counts. `flags` lead to the cluster that is to accept it.
fn compare(id: &ClusterId, uid: &str, signer: PublicKey, flags: &str) -> String {
    format!(
        "the cluster {id} (UID {uid}) signs with the key {signer}. Compare it with what `cloudmap-mcs trust list` prints in that \
         cluster, then run: cloudmap-mcs trust accept {id} --key {signer}{flags}"
    )
}

async fn rotate(args: TrustRotateArgs) -> anyhow::Result<()> {
    let client = connect::kubernetes(&args.kube).await?;
    let uid = identity::kube_system_uid(&client).await?;
    let record = RecordObject::new(client.clone(), &args.kube.controller.namespace).load().await?;
    let store = KeyStore::new(client, &args.kube.controller.namespace);
    let (stored, version) =
        store.load().await?.context("this cluster has no key yet: its controller makes one when it leads")?;
    let keys = Keys::read(&stored).map_err(anyhow::Error::msg)?;
    refuse_if_unused(&keys, record.as_ref().map(|(record, _)| record))?;
    let next = keys.rotated(&uid, env::secret()).context("no key follows from random bytes")?;
    let key = Keys::read(&next).map_err(anyhow::Error::msg)?.current.public();
    store.store(&next, version).await?;
    writeln!(
        std::io::stdout(),
        "The key {} is replaced by {key}. The leader signs with it within a minute. Clusters with --trust=pinned must be told the \
         new one.\nThe old key goes on counting in this cluster alone, for its own last head. If it was stolen, run this again \
         after the leader has signed with the new one.",
        keys.current.public()
    )?;
    Ok(())
}

/// Fails if the ledger may still have a head of this cluster that another key signed than the current one. With one more key,
/// that head would not be this cluster's any more, and the next leader would start from nothing.
fn refuse_if_unused(keys: &Keys, record: Option<&Record>) -> anyhow::Result<()> {
    let member = record.filter(|record| record.member.is_some() && record.signed_since.is_some());
    let Some(Record { signs, .. }) = member.filter(|_| !keys.former.is_empty()) else { return Ok(()) };
    let current = keys.current.public();
    let last = signs.map_or_else(|| "a former key".to_owned(), |key| format!("the key {key}"));
    anyhow::ensure!(
        *signs == Some(current),
        "the leader has not signed with the key {current} yet: its last head in the ledger is signed with {last}. The key is \
         not replaced again before that. Try again in a minute; if this stays, look into the log of the leader, and whether \
         the controller has the version of this program"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;

    use super::*;
    use crate::status::tests::view;
    use cli::{Cli, Command};
    use ledger::{head::Presence, record::Member, trust::StoredKey};

    /// Otherwise the leader would take the own last head for a forged one.
    #[test]
    fn a_key_is_not_replaced_before_a_head_is_signed_with_it() {
        let first = Keys::read(&StoredKey { seed: vec![1; 32], former: Vec::new() }).unwrap();
        let second = Keys::read(&first.rotated("uid", [2; 32]).unwrap()).unwrap();
        let [one, two] = [&first, &second].map(|keys| keys.current.public());
        let member = Some(Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() });
        let signing = Record { member, signed_since: Some(1), ..Record::default() };
        let before = Record { signs: Some(one), ..signing.clone() };
        let error = refuse_if_unused(&second, Some(&before)).unwrap_err().to_string();
        assert!(error.contains(&one.to_string()) && error.contains(&two.to_string()), "{error}");
        refuse_if_unused(&second, Some(&signing)).unwrap_err();
        refuse_if_unused(&second, Some(&Record { signs: Some(two), ..signing.clone() })).unwrap();
        // No head can be signed with an earlier key.
        refuse_if_unused(&first, Some(&signing)).unwrap();
        refuse_if_unused(&second, None).unwrap();
        refuse_if_unused(&second, Some(&Record { signed_since: None, ..before.clone() })).unwrap();
        refuse_if_unused(&second, Some(&Record { member: None, ..before })).unwrap();
    }

    #[test]
    fn the_command_that_accepts_a_key_leads_to_the_cluster_that_was_asked() {
        let arguments = ["cloudmap-mcs", "trust", "accept", "blue", "--context", "green"];
        let Command::Trust(TrustCommand::Accept(args)) = Cli::parse_from(arguments).command else {
            panic!("not accept")
        };
        let key = PublicKey::from_bytes([1; 32]);
        let said = compare(&args.cluster, "uid-blue", key, &args.place.kube.cluster.flags());
        assert!(said.ends_with(&format!("cloudmap-mcs trust accept blue --key {key} --context green")), "{said}");
    }

    #[test]
    fn a_key_is_pinned_only_in_the_cluster_set_of_its_cluster() {
        let (prod, blue) = ("prod".parse().unwrap(), "blue".parse().unwrap());
        for (own, pinned) in [("prod", true), ("staging", false)] {
            let member = Some(Member { clusterset: own.to_owned(), cluster: "green".to_owned() });
            let mut record = Record { member, ..Record::default() };
            assert_eq!(pin(&mut record, &prod, (&blue, ""), "uid-blue", PublicKey::from_bytes([1; 32])), pinned);
            assert_eq!(record.accepted.contains_key("blue"), pinned);
        }
    }

    /// A person has compared the key.
    #[test]
    fn of_an_id_in_two_registries_the_head_with_the_key_is_accepted_with_its_registry() {
        let [one, two] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
        let signed = |key| {
            let blue = view("blue");
            let head = Head { signer: Some(key), ..Head::clone(blue.head.as_deref().unwrap()) };
            ClusterView { head: Some(Arc::new(head)), ..blue }
        };
        let ledgers = AllLedgers { home: vec![signed(one)], others: vec![("us".into(), Ok(vec![signed(two)]))] };
        let (prod, blue) = ("prod".parse().unwrap(), "blue".parse().unwrap());
        let found = |key| head_of(ledgers.clusters(), &blue, key).unwrap().0.map(ToString::to_string);
        assert_eq!([found(Some(one)), found(Some(two))], [None, Some("us".to_owned())]);
        // The controller may have another home than the command.
        for (home, registry, stored) in [(Some("eu"), "us", Some("us")), (Some("us"), "us", None), (None, "", None)] {
            let mut record = Record { home: home.map(str::to_owned), ..Record::default() };
            assert!(pin(&mut record, &prod, (&blue, registry), "uid-blue", one));
            assert_eq!(record.accepted["blue"].registry.as_deref(), stored);
        }
    }

    #[test]
    fn a_cluster_that_is_rejected_stays_so_until_somebody_accepts_it() {
        let (prod, blue): (ClusterSetId, ClusterId) = ("prod".parse().unwrap(), "blue".parse().unwrap());
        let key = PublicKey::from_bytes([1; 32]);
        let mut record = Record::default();
        assert!(take_back(&mut record, &blue), "before it was ever read");
        assert!(!take_back(&mut record, &blue));
        assert_eq!(record.accepted["blue"].gone, Some(Gone::Rejected));
        let head = view("blue");
        let row = |record: &Record| Row::new("blue", Some(&head), record.accepted.get("blue"), "uid-green").note;
        assert_eq!(row(&record), "rejected here");
        assert!(pin(&mut record, &prod, (&blue, ""), "uid-blue", key));
        assert_eq!((record.accepted["blue"].gone, record.accepted["blue"].key), (None, Some(key)));
        record.accepted.get_mut("blue").unwrap().created = 7;
        assert!(take_back(&mut record, &blue) && pin(&mut record, &prod, (&blue, ""), "uid-blue", key));
        assert_eq!(record.accepted["blue"].created, 7, "since when it is there is not forgotten");
    }

    #[test]
    fn a_cluster_does_not_accept_its_own_key() {
        let blue: ClusterId = "blue".parse().unwrap();
        let error = refuse_own(&blue, "uid-blue", "uid-blue").unwrap_err().to_string();
        assert!(error.contains("blue is this cluster itself"), "{error}");
        refuse_own(&blue, "uid-blue", "uid-green").unwrap();
    }

    /// Its key is gone with the namespace of its controller, as after `kubectl delete -k`.
    #[test]
    fn a_cluster_that_left_and_is_back_with_another_key_is_shown_with_the_remedy() {
        let [old, new] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
        let accepted = |gone| Accepted { gone, ..Accepted::unread("uid-blue".to_owned(), Some(old)) };
        let back = view("blue");
        let head = Arc::new(Head { signer: Some(new), ..Head::clone(back.head.as_deref().unwrap()) });
        let left = Arc::new(Head {
            presence: Presence::Left { successor: None },
            signer: Some(old),
            ..Head::clone(back.head.as_deref().unwrap())
        });
        let note = |head: &Arc<Head>, gone| {
            let view = ClusterView { head: Some(Arc::clone(head)), ..view("blue") };
            Row::new("blue", Some(&view), Some(&accepted(Some(gone))), "uid-green").note
        };
        assert!(note(&head, Gone::Left).contains("trust accept"));
        assert_eq!(note(&left, Gone::Left), "left");
        // The last head of a dead cluster is live.
        assert_eq!(note(&head, Gone::Forgotten), "left");
    }

    #[test]
    fn a_cluster_without_a_head_that_can_be_read_is_shown_with_its_pin() {
        let key = PublicKey::from_bytes([1; 32]);
        let accepted = [
            ("blue".to_owned(), Accepted::unread("uid-blue".to_owned(), Some(key))),
            ("red".to_owned(), Accepted::unread("uid-red".to_owned(), None)),
        ];
        let unreadable = ClusterView { head: None, ..view("black") };
        let rows = rows([(None, &unreadable)].into_iter(), &accepted.into(), "uid-green");
        let notes: Vec<_> = rows.iter().map(|row| (row.cluster.as_str(), row.pinned, row.note)).collect();
        let absent = "no head in the ledger";
        assert_eq!(
            notes,
            [("black", None, "its head cannot be read"), ("blue", Some(key), absent), ("red", None, absent)]
        );
        let said = tables(&rows);
        assert!(
            said.contains("With --trust=pinned, only the keys in the ConfigMap cloudmap-mcs-trust count"),
            "{said}"
        );
    }
}
