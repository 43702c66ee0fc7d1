//! All registries: one for each account and region that is called. The first one is the home: the account and region of
//! the settings.

use std::collections::BTreeMap;
use std::time::Duration;

use super::accounts::{Accounts, Caller};
use super::calls::{Admission, Outcome};
use super::error::ApiError;
use super::faults::Shaping;
use super::iam::{self, Ask};
use super::ram::{Share, Shares};
use super::requests::{Authorized, Subject};
use super::services::namespace_arn;
use super::state::{Namespace, Service};
use super::sts::{self, ASSUME_ROLE, BadToken, Form, Identity, Sessions, account_of};
use super::{CloudMap, EmulatorSettings, Shared};

/// The account and the region of a registry that is not the home.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) account: String,
    pub(crate) region: String,
}

/// The registries and what says who calls which of them.
#[derive(Debug)]
pub(crate) struct Cloud {
    home: CloudMap,
    others: BTreeMap<Place, CloudMap>,
    accounts: Accounts,
    sessions: Sessions,
    shares: Shares,
}

/// A call that arrived, and where it is carried out.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) admission: Admission,
    place: Option<Place>,
    /// The ARNs of namespaces that others share with the account, if it lists what there is.
    shared: Vec<String>,
}

/// Where a call is carried out.
enum Way {
    /// In the caller's own registry.
    Own,
    /// In the registry of an account that shares a namespace.
    Shared(Option<Place>),
    /// Nowhere: this ARN is not shared with the caller.
    Denied(String),
}

/// What becomes of a request to STS.
#[derive(Debug)]
pub(crate) struct StsCall {
    pub(crate) latency: Duration,
    /// The body of a success; none where the connection is closed.
    pub(crate) answer: Option<Result<String, ApiError>>,
}

impl Cloud {
    pub(crate) fn new(home: CloudMap) -> Self {
        Self {
            home,
            others: BTreeMap::new(),
            accounts: Accounts::default(),
            sessions: Sessions::default(),
            shares: Shares::default(),
        }
    }

    /// The registry at a place, the home if there is none.
    pub(crate) fn registry(&self, place: Option<&Place>) -> &CloudMap {
        place.and_then(|place| self.others.get(place)).unwrap_or(&self.home)
    }

    /// The registry at a place; an empty one is made if there is none.
    pub(crate) fn registry_mut(&mut self, place: Option<&Place>) -> &mut CloudMap {
        let Some(place) = place else { return &mut self.home };
        if !self.others.contains_key(place) {
            let home = self.home.settings();
            let settings = EmulatorSettings {
                // Two registries with one seed would give out the same ids.
                seed: home.seed.map(|seed| seed.wrapping_add(1 + self.others.len() as u64)),
                ..at(home, place)
            };
            let mut registry = CloudMap::new(settings);
            registry.advance(self.home.now);
            self.others.insert(place.clone(), registry);
        }
        self.others.get_mut(place).unwrap_or(&mut self.home)
    }

    /// Where an account and a region are; none is the home.
    pub(crate) fn place(&self, account: &str, region: &str) -> Option<Place> {
        let home = self.home.settings();
        let is_home = (account, region) == (&*home.account, &*home.region);
        (!is_home).then(|| Place { account: account.to_owned(), region: region.to_owned() })
    }

    /// Who makes a call.
    fn identify(&self, now: Duration, caller: &Caller) -> Result<Identity, BadToken> {
        let Caller { access_key, token, .. } = *caller;
        if let Some(found) = self.sessions.find(now, access_key, token, &self.accounts) {
            return found;
        }
        let key = self.accounts.keys.get(access_key);
        // Without accounts, every key is as good as any other. AWS's temporary keys begin like this.
        if key.is_none() && access_key.starts_with("ASIA") && !self.accounts.is_empty() {
            return Err(BadToken::Unknown);
        }
        let account = key.map_or(&self.home.settings().account, |key| &key.account);
        let arn = key.and_then(|key| key.arn.clone());
        let arn = arn.unwrap_or_else(|| format!("arn:aws:iam::{account}:user/{access_key}"));
        Ok(Identity { account: account.clone(), arn, role: None })
    }

    /// Decides about a call at its arrival ([`CloudMap::admit`]).
    pub(crate) fn admit(
        &mut self,
        now: Duration,
        caller: &Caller,
        operation: &str,
        body: &[u8],
    ) -> Result<Admitted, ApiError> {
        if !self.accounts.is_empty() {
            // What others share has to be there by now.
            self.advance(now);
        }
        let identity = self.identify(now, caller);
        let home = self.home.settings();
        let account = identity.as_ref().map_or(&home.account, |identity| &identity.account);
        let region = caller.region.filter(|_| self.accounts.separate_regions).unwrap_or(&home.region);
        let own = self.place(account, region);
        let way = match &identity {
            Ok(identity) if !self.accounts.is_empty() => self.way(identity, region, operation, body),
            _ => Way::Own,
        };
        let refusal = self.registry_mut(own.as_ref()).throttle(now, operation)?;
        let place = if let Way::Shared(place) = &way { place.clone() } else { own };
        let registry = self.registry_mut(place.as_ref());
        let mut admission = registry.admit_unthrottled(now, caller.access_key, operation, body, refusal)?;
        let mut shared = Vec::new();
        match identity {
            Err(bad) => admission.refusal = Some(bad.for_registry()),
            // In which order AWS looks at arguments and at permissions is not documented. Whoever may not call learns
            // nothing about the arguments here.
            Ok(identity) => {
                if admission.refusal.is_none() {
                    admission.refusal = self.authorize(place.as_ref(), caller, &identity, operation, body).err();
                }
                match way {
                    Way::Own if ["ListNamespaces", "ListServices"].contains(&operation) => {
                        shared.extend(self.shares.with(&identity.account).map(str::to_owned));
                    }
                    Way::Own => {}
                    Way::Shared(_) => admission.guest = Some(identity.account),
                    Way::Denied(arn) => {
                        let action = format!("servicediscovery:{operation}");
                        let why = format!("because no resource-based policy allows the {action} action");
                        admission.refusal.get_or_insert_with(|| iam::denied(&identity, &action, &arn, &why));
                    }
                }
            }
        }
        Ok(Admitted { admission, place, shared })
    }

    /// Whether the caller's policies allow a call.
    fn authorize(
        &self,
        place: Option<&Place>,
        caller: &Caller,
        identity: &Identity,
        operation: &str,
        body: &[u8],
    ) -> Result<(), ApiError> {
        let policies = self.accounts.policies(caller.access_key, identity);
        if policies.is_empty() {
            return Ok(());
        }
        let asks = self.registry(place).asks(identity, operation, body);
        asks.iter().try_for_each(|ask| iam::decide(policies, identity, ask))
    }

    /// Answers a request to STS. It is counted in the home, whose fault rules for `AssumeRole` apply.
    pub(crate) fn answer_sts(&mut self, now: Duration, caller: &Caller, body: &[u8]) -> StsCall {
        self.home.advance(now);
        let form = Form::parse(body);
        let known = form.is_for(ASSUME_ROLE);
        let subject = Subject { service_name: form.role().to_owned(), ..Subject::default() };
        let mut shaping = Shaping::default();
        if known && !self.home.faults.is_empty() {
            shaping = self.home.faults.select(ASSUME_ROLE, caller.access_key, &subject, &mut self.home.rng);
        }
        let latency = self.home.settings.call_latency.sample(&mut self.home.rng) + shaping.latency;
        let answer = match shaping.error {
            _ if shaping.drop_request => None,
            Some(error) => Some(Err(error)),
            None => Some(self.assume_role(now, caller, &form)),
        };
        let result = match &answer {
            None => "dropped",
            Some(Ok(_)) => "ok",
            Some(Err(error)) => &error.code,
        };
        if known {
            self.home.counters.count(ASSUME_ROLE, caller.access_key, result);
        }
        StsCall { latency, answer: answer.filter(|_| !shaping.drop_response) }
    }

    fn assume_role(&mut self, now: Duration, caller: &Caller, form: &Form) -> Result<String, ApiError> {
        let identity = self.identify(now, caller);
        let granted = sts::check(form, identity.as_ref().map_err(|bad| *bad), &self.accounts)?;
        if let Ok(identity) = &identity {
            // Across accounts both have to agree, the role's trust and the caller's policies. In one account, AWS is content
            // with a trust policy that names the caller; this is not.
            let policies = self.accounts.policies(caller.access_key, identity);
            for action in form.actions().filter(|_| !policies.is_empty()) {
                let denied = |error| ApiError { code: "AccessDenied".to_owned(), status: 403, ..error };
                iam::decide(policies, identity, &Ask::new(action, form.role(), identity)).map_err(denied)?;
            }
        }
        let keep = self.home.settings.history;
        let home = &mut self.home;
        Ok(granted.give(&mut self.sessions, now, keep, |length| home.random_id(length)))
    }

    /// Which registry a call is for: the caller's own, unless it names something of another account.
    fn way(&self, caller: &Identity, region: &str, operation: &str, body: &[u8]) -> Way {
        let account = &caller.account;
        let request = Authorized::of(operation, body);
        if let Some(arn) = request.foreign_arn(account) {
            // There are no shares across regions, and so there is nothing that could let the caller in.
            if arn.split(':').nth(3) != Some(region) {
                return Way::Own;
            }
            let place = self.place(account_of(arn), region);
            let owner = self.existing(place.as_ref());
            let namespace = owner.and_then(|owner| owner.namespace_of(arn));
            let tagged = operation.starts_with("Create") && !request.tags.is_empty();
            let allowed = |namespace: &str| {
                self.shares.allow(account, namespace, operation)
                    && (!tagged || self.shares.allow(account, namespace, "TagResource"))
            };
            return match namespace.filter(|namespace| allowed(namespace)) {
                Some(_) => Way::Shared(place),
                None => Way::Denied(arn.to_owned()),
            };
        }
        let Some(owner) = request.owner_account.as_ref().filter(|owner| *owner != account) else { return Way::Own };
        let place = self.place(owner, region);
        let namespace = self.existing(place.as_ref()).and_then(|owner| {
            let namespace = if operation == "GetOperation" {
                owner.operation_place(&request.operation)?.0
            } else {
                let mut all = owner.namespaces();
                &all.find(|namespace| namespace.http_name == request.namespace_name)?.id
            };
            Some(owner.arn("namespace", namespace))
        });
        match namespace.filter(|namespace| self.shares.allow(account, namespace, operation)) {
            Some(_) => Way::Shared(place),
            None => Way::Own,
        }
    }

    fn existing(&self, place: Option<&Place>) -> Option<&CloudMap> {
        place.map_or(Some(&self.home), |place| self.others.get(place))
    }

    /// Does what was asked ([`CloudMap::execute`]).
    pub(crate) fn execute(&mut self, now: Duration, admitted: &Admitted, body: &[u8]) -> Outcome {
        let Admitted { admission, place, shared } = admitted;
        let mut found = Shared::default();
        if !shared.is_empty() {
            self.advance(now);
        }
        for arn in shared {
            let region = arn.split(':').nth(3).unwrap_or_default();
            if region != self.registry(place.as_ref()).settings().region {
                continue;
            }
            let owner = self.place(account_of(arn), region);
            if let Some(owner) = self.existing(owner.as_ref()) {
                found.namespaces.extend(owner.namespaces().filter(|one| one.arn == *arn).map(of_namespace));
                found.services.extend(owner.services().filter(|one| namespace_arn(one) == *arn).map(of_service));
            }
        }
        let registry = self.registry_mut(place.as_ref());
        registry.shared = found;
        let outcome = registry.execute(now, admission, body);
        registry.shared = Shared::default();
        outcome
    }

    /// Shares a namespace.
    ///
    /// # Errors
    /// If there is no such namespace, or it can't be shared with this account.
    pub(crate) fn share(&mut self, share: Share) -> Result<u64, String> {
        share.check()?;
        let arn = &share.namespace;
        let place = self.place(account_of(arn), arn.split(':').nth(3).unwrap_or_default());
        let owner = self.existing(place.as_ref());
        if owner.and_then(|owner| owner.namespace_of(arn)).is_none_or(|namespace| namespace != *arn) {
            return Err(format!("namespace `{arn}` does not exist in the account that its ARN names"));
        }
        Ok(self.shares.add(share))
    }

    pub(crate) fn shares(&mut self) -> &mut Shares {
        &mut self.shares
    }

    /// Lets everything happen in all registries that is due by `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.home.advance(now);
        self.others.values_mut().for_each(|registry| registry.advance(now));
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub(crate) fn set_accounts(&mut self, accounts: Accounts) -> Result<(), String> {
        accounts.check()?;
        self.accounts = accounts;
        Ok(())
    }

    /// Changes the settings of one registry; those of the home are for all. Each keeps its account and its region.
    ///
    /// # Errors
    /// If [`EmulatorSettings::check`] fails; nothing has changed then.
    pub(crate) fn set_settings(&mut self, place: Option<&Place>, settings: EmulatorSettings) -> Result<(), String> {
        if let Some(place) = place {
            return self.registry_mut(Some(place)).set_settings(at(&settings, place));
        }
        for (place, registry) in &mut self.others {
            let seed = registry.settings().seed;
            registry.set_settings(EmulatorSettings { seed, ..at(&settings, place) })?;
        }
        self.home.set_settings(settings)
    }

    /// Forgets what one registry has, and with the home all others.
    pub(crate) fn reset(&mut self, place: Option<&Place>) {
        self.registry_mut(place).reset();
        if place.is_none() {
            self.others.clear();
            self.shares = Shares::default();
        }
    }
}

fn of_namespace(namespace: &Namespace) -> (String, Namespace) {
    (namespace.id.clone(), namespace.clone())
}

fn of_service(service: &Service) -> (String, Service) {
    (service.id.clone(), service.clone())
}

fn at(settings: &EmulatorSettings, place: &Place) -> EmulatorSettings {
    let Place { account, region } = place.clone();
    EmulatorSettings { region, account, ..settings.clone() }
}
