//! All registries: one for each account and region that is called. The first one is the home: the account and region of
//! the settings.

use std::collections::BTreeMap;
use std::time::Duration;

use super::accounts::{Accounts, Caller};
use super::calls::{Admission, Outcome};
use super::error::ApiError;
use super::{CloudMap, EmulatorSettings};

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
}

/// A call that arrived, and where it is carried out.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) admission: Admission,
    place: Option<Place>,
}

impl Cloud {
    pub(crate) fn new(home: CloudMap) -> Self {
        Self { home, others: BTreeMap::new(), accounts: Accounts::default() }
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

    /// Which registry a call is for.
    fn place_of(&self, caller: &Caller) -> Option<Place> {
        let home = self.home.settings();
        let account = self.accounts.keys.get(caller.access_key).map_or(&home.account, |key| &key.account);
        let region = caller.region.filter(|_| self.accounts.separate_regions).unwrap_or(&home.region);
        self.place(account, region)
    }

    /// Decides about a call at its arrival ([`CloudMap::admit`]).
    pub(crate) fn admit(
        &mut self,
        now: Duration,
        caller: &Caller,
        operation: &str,
        body: &[u8],
    ) -> Result<Admitted, ApiError> {
        let place = self.place_of(caller);
        let admission = self.registry_mut(place.as_ref()).admit(now, caller.access_key, operation, body)?;
        Ok(Admitted { admission, place })
    }

    /// Does what was asked ([`CloudMap::execute`]).
    pub(crate) fn execute(&mut self, now: Duration, admitted: &Admitted, body: &[u8]) -> Outcome {
        self.registry_mut(admitted.place.as_ref()).execute(now, &admitted.admission, body)
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
        }
    }
}

fn at(settings: &EmulatorSettings, place: &Place) -> EmulatorSettings {
    let Place { account, region } = place.clone();
    EmulatorSettings { region, account, ..settings.clone() }
}
