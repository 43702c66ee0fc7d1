//! The control interface: the same things in the process and over HTTP, under `/_emulator/`.
//!
//! | route | what it does |
//! |---|---|
//! | `GET /_emulator/health` | answers `ok` |
//! | `GET`, `DELETE /_emulator/counters` | calls by operation and caller, DNS queries; sets them to zero |
//! | `GET /_emulator/writes?since=<sequence>`, `DELETE /_emulator/writes` | the calls that change something; forgets them |
//! | `GET`, `POST`, `DELETE /_emulator/faults` | fault rules; adds one and answers its id; removes all |
//! | `DELETE /_emulator/faults/<id>` | removes one |
//! | `GET`, `POST /_emulator/snapshot` | all resources; puts others in their place |
//! | `GET`, `PUT /_emulator/settings` | the settings; changes those that are named, objects member by member |
//! | `GET`, `PUT /_emulator/accounts` | the [`Accounts`]; puts others in their place |
//! | `<method> /_emulator/registries/<account>/<region>/<route>` | any route above, for that registry instead of the home |
//! | `GET`, `POST /_emulator/shares` | shares of namespaces ([`Share`]); makes one and answers its id |
//! | `POST /_emulator/shares/<id>/accept`, `DELETE /_emulator/shares/<id>` | accepts a share; revokes it |
//! | `POST /_emulator/clock` | lets `{"skip_ms": 60000}` pass at once |
//! | `DELETE /_emulator/resolved` | empties the caches of the resolvers |
//! | `POST /_emulator/reset` | forgets everything but the settings and the accounts |

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::accounts::check_account;
use super::cloud::{Cloud, Place};
use super::{Accounts, CloudMap, Counters, EmulatorSettings, Fault, Share, Snapshot, Write};

/// A handle on a running registry, to steer it and to look into it. Clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct Control {
    cloud: Arc<Mutex<Cloud>>,
    clock: Arc<Clock>,
    /// None is the home.
    place: Option<Place>,
}

/// The registry of a handle while nothing else happens.
pub(crate) struct Locked<'a> {
    cloud: MutexGuard<'a, Cloud>,
    place: Option<&'a Place>,
}

impl Deref for Locked<'_> {
    type Target = CloudMap;

    fn deref(&self) -> &CloudMap {
        self.cloud.registry(self.place)
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut CloudMap {
        self.cloud.registry_mut(self.place)
    }
}

#[derive(Debug, Default)]
struct Clock {
    /// Microseconds that were passed over.
    skipped: AtomicU64,
    /// How often the resolvers were told to forget.
    forgotten: AtomicU64,
}

impl Control {
    pub(crate) fn new(registry: CloudMap) -> Self {
        Self { cloud: Arc::new(Mutex::new(Cloud::new(registry))), clock: Arc::default(), place: None }
    }

    /// A handle on the registry of another account or region. It has the settings of the home, but for these two.
    ///
    /// # Panics
    /// If the account is not twelve digits.
    #[must_use]
    pub fn registry(&self, account: &str, region: &str) -> Self {
        check_account("account", account).expect("an account");
        let place = self.cloud().place(account, region);
        Self { place, ..self.clone() }
    }

    /// Shares a namespace with another account and gives the number of the share.
    ///
    /// # Panics
    /// If there is no such namespace, or it can't be shared with the account.
    pub fn share(&self, share: Share) -> u64 {
        self.add_share(share).expect("a share")
    }

    fn add_share(&self, share: Share) -> Result<u64, String> {
        let mut cloud = self.cloud();
        cloud.advance(self.now());
        cloud.share(share)
    }

    /// Accepts a share in the name of the account that it is for. Whether there is such a share.
    pub fn accept_share(&self, id: u64) -> bool {
        self.cloud().shares().accept(id)
    }

    /// Ends a share at once. Whether there was such a share.
    pub fn revoke_share(&self, id: u64) -> bool {
        self.cloud().shares().revoke(id)
    }

    /// All shares, by their numbers.
    pub fn shares(&self) -> Vec<(u64, Share)> {
        self.cloud().shares().list()
    }

    pub(crate) fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.cloud.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut cloud = self.cloud();
        cloud.registry_mut(self.place.as_ref());
        Locked { cloud, place: self.place.as_ref() }
    }

    /// The registry with all that is due done.
    fn current(&self) -> Locked<'_> {
        let mut registry = self.lock();
        registry.advance(self.now());
        registry
    }

    /// Who may call, and which registries there are.
    pub fn accounts(&self) -> Accounts {
        self.cloud().accounts().clone()
    }

    /// Puts others in their place. What registries have stays.
    ///
    /// # Panics
    /// If [`Accounts::check`] fails.
    pub fn set_accounts(&self, accounts: Accounts) {
        self.cloud().set_accounts(accounts).expect("accounts");
    }

    /// The time of the emulator since the Unix epoch: the machine's, and what was skipped.
    pub(crate) fn now(&self) -> Duration {
        let machine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        machine + Duration::from_micros(self.clock.skipped.load(Ordering::Relaxed))
    }

    /// Lets time pass at once: for operations, lags, health, request rates and the TTLs in the resolver's cache.
    pub fn skip_time(&self, time: Duration) {
        self.clock.skipped.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        self.cloud().advance(self.now());
    }

    /// Empties the caches of the resolvers.
    pub fn forget_resolved(&self) {
        self.clock.forgotten.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn resolver_generation(&self) -> u64 {
        self.clock.forgotten.load(Ordering::Relaxed)
    }

    /// Adds a rule and gives its id.
    ///
    /// # Panics
    /// If [`Fault::check`] fails.
    pub fn add_fault(&self, fault: Fault) -> u64 {
        self.current().add_fault(fault).expect("fault rule")
    }

    /// Whether there was such a rule.
    pub fn remove_fault(&self, id: u64) -> bool {
        self.lock().remove_fault(id)
    }

    pub fn clear_faults(&self) {
        self.lock().clear_faults();
    }

    /// The rules that are not spent.
    pub fn faults(&self) -> Vec<(u64, Fault)> {
        self.lock().faults()
    }

    pub fn counters(&self) -> Counters {
        self.lock().counters().clone()
    }

    pub fn clear_counters(&self) {
        self.lock().clear_counters();
    }

    /// Every write that is remembered, the oldest first, those that failed too.
    pub fn writes(&self) -> Vec<Write> {
        self.writes_since(0)
    }

    /// The writes after the one with the given sequence number.
    pub fn writes_since(&self, sequence: u64) -> Vec<Write> {
        self.lock().writes_since(sequence)
    }

    pub fn clear_writes(&self) {
        self.lock().clear_writes();
    }

    /// All resources as the control plane has them now.
    pub fn snapshot(&self) -> Snapshot {
        self.current().snapshot()
    }

    /// Puts a snapshot in the place of all resources.
    ///
    /// # Panics
    /// If a service names a namespace that is not there.
    pub fn restore(&self, snapshot: Snapshot) {
        self.current().restore(snapshot).expect("snapshot");
    }

    pub fn settings(&self) -> EmulatorSettings {
        self.lock().settings().clone()
    }

    /// Changes the settings for all that comes: those of the home in all registries.
    ///
    /// # Panics
    /// If [`EmulatorSettings::check`] fails.
    pub fn update_settings(&self, change: impl FnOnce(&mut EmulatorSettings)) {
        let mut registry = self.current();
        let mut settings = registry.settings().clone();
        change(&mut settings);
        registry.cloud.set_settings(self.place.as_ref(), settings).expect("settings");
    }

    /// Forgets everything but the settings, the accounts and the time that was skipped; with the home, in all registries.
    pub fn reset(&self) {
        self.forget_resolved();
        self.cloud().reset(self.place.as_ref());
    }

    /// Answers a request of the control interface: the HTTP status and the body.
    pub(crate) fn answer(&self, method: &str, path: &str, query: &str, body: &[u8]) -> (u16, Value) {
        match self.route(method, path, query, body) {
            Ok(value) => (200, value),
            Err((status, message)) => (status, json!({ "error": message })),
        }
    }

    fn route(&self, method: &str, path: &str, query: &str, body: &[u8]) -> Result<Value, (u16, String)> {
        let bad = |message: String| (400, message);
        if let Some(rest) = path.strip_prefix("registries/") {
            let [account, region, path] = rest.splitn(3, '/').collect::<Vec<_>>()[..] else {
                return Err(bad("give registries/<account>/<region>/<route>".into()));
            };
            check_account("account", account).map_err(bad)?;
            return self.registry(account, region).route(method, path, query, body);
        }
        let json = |value: serde_json::Result<Value>| value.map_err(|error| (500, error.to_string()));
        match (method, path) {
            ("GET", "health") => Ok(json!("ok")),
            ("GET", "counters") => json(serde_json::to_value(self.counters())),
            ("DELETE", "counters") => {
                self.clear_counters();
                Ok(json!({}))
            }
            ("GET", "writes") => {
                let since = match query.strip_prefix("since=") {
                    Some(number) => number.parse().map_err(|_| bad(format!("since={number} is not a number")))?,
                    None => 0,
                };
                json(serde_json::to_value(self.writes_since(since)))
            }
            ("DELETE", "writes") => {
                self.clear_writes();
                Ok(json!({}))
            }
            ("GET", "faults") => {
                let rules = self.faults().into_iter().map(|(id, fault)| json!({ "id": id, "fault": fault }));
                Ok(rules.collect())
            }
            ("POST", "faults") => {
                let fault = parse(body)?;
                let id = self.current().add_fault(fault).map_err(bad)?;
                Ok(json!({ "id": id }))
            }
            ("DELETE", "faults") => {
                self.clear_faults();
                Ok(json!({}))
            }
            ("GET", "snapshot") => json(serde_json::to_value(self.snapshot())),
            ("POST", "snapshot") => {
                self.current().restore(parse(body)?).map_err(bad)?;
                Ok(json!({}))
            }
            ("GET", "settings") => json(serde_json::to_value(self.settings())),
            ("PUT", "settings") => {
                let mut registry = self.current();
                let mut merged = json(serde_json::to_value(registry.settings()))?;
                merge(&mut merged, parse(body)?);
                let settings = serde_json::from_value(merged).map_err(|error| bad(error.to_string()))?;
                registry.cloud.set_settings(self.place.as_ref(), settings).map_err(bad)?;
                json(serde_json::to_value(registry.settings()))
            }
            ("GET", "accounts") => json(serde_json::to_value(self.accounts())),
            ("PUT", "accounts") => {
                self.cloud().set_accounts(parse(body)?).map_err(bad)?;
                json(serde_json::to_value(self.accounts()))
            }
            ("GET", "shares") => {
                Ok(self.shares().into_iter().map(|(id, share)| json!({ "id": id, "share": share })).collect())
            }
            ("POST", "shares") => {
                let id = self.add_share(parse(body)?).map_err(bad)?;
                Ok(json!({ "id": id }))
            }
            ("POST" | "DELETE", path) if path.starts_with("shares/") => {
                let id = &path["shares/".len()..];
                let done = match (method, id.strip_suffix("/accept")) {
                    ("POST", Some(id)) => id.parse().is_ok_and(|id| self.accept_share(id)),
                    ("DELETE", None) => id.parse().is_ok_and(|id| self.revoke_share(id)),
                    _ => false,
                };
                if done { Ok(json!({})) } else { Err((404, format!("there is no share {path}"))) }
            }
            ("POST", "clock") => {
                let Skip { time } = parse(body)?;
                self.skip_time(time);
                Ok(json!({}))
            }
            ("DELETE", "resolved") => {
                self.forget_resolved();
                Ok(json!({}))
            }
            ("POST", "reset") => {
                self.reset();
                Ok(json!({}))
            }
            ("DELETE", path) if path.starts_with("faults/") => {
                let id = path["faults/".len()..].parse().ok();
                if id.is_some_and(|id| self.remove_fault(id)) {
                    Ok(json!({}))
                } else {
                    Err((404, format!("there is no rule {path}")))
                }
            }
            _ => Err((404, format!("{method} /_emulator/{path} is nothing that the control interface knows"))),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    #[serde(rename = "skip_ms", with = "super::settings::millis")]
    time: Duration,
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, (u16, String)> {
    serde_json::from_slice(body).map_err(|error| (400, error.to_string()))
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
