//! What exports leave out of the EndpointSlices of their Services, and what to say about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use api::events::EventReason;
use cluster::{
    events::{self, EventRecord},
    objects::{ServiceExport, SourceSlice},
};
use model::{ServiceKey, addresses::Forbidden};

/// What was last said, by export.
#[derive(Debug, Clone, Default)]
pub(super) struct LeftOut {
    said: BTreeMap<ServiceKey, Omitted>,
}

#[derive(Debug, Clone, Default)]
struct Omitted {
    /// The ServiceExport: one that was deleted and made again at once is another one.
    uid: Box<str>,
    /// Addresses that can never be endpoints.
    addresses: BTreeMap<IpAddr, Forbidden>,
    /// Names of EndpointSlices with host names.
    host_names: BTreeSet<Arc<str>>,
}

impl LeftOut {
    /// The Events about what an export leaves out, as far as that is new. `slices` are those of its Service.
    pub(super) fn update(
        &mut self,
        key: &ServiceKey,
        export: Option<&ServiceExport>,
        slices: &[Arc<SourceSlice>],
    ) -> Vec<EventRecord> {
        let before = self.said.remove(key);
        let Some(export) = export else { return Vec::new() };
        let before = before.filter(|before| before.uid == export.uid).unwrap_or_default();
        let (addresses, host_names) = (export::forbidden(slices), export::host_names(slices));
        let now = Omitted { uid: export.uid.clone(), addresses, host_names };
        let texts = [
            now.of_addresses(key).filter(|_| now.addresses != before.addresses),
            now.of_host_names(key).filter(|_| now.host_names != before.host_names),
        ];
        if !now.addresses.is_empty() || !now.host_names.is_empty() {
            self.said.insert(key.clone(), now);
        }
        let note = |text| {
            let (regarding, reason) = (events::export(key, &export.uid), EventReason::AddressSkipped);
            EventRecord { regarding, reason, action: "Export", text }
        };
        texts.into_iter().flatten().map(note).collect()
    }
}

/// The texts have no numbers: an Event is not created anew with each address that comes or goes.
impl Omitted {
    fn of_addresses(&self, key: &ServiceKey) -> Option<String> {
        let (address, why) = self.addresses.first_key_value()?;
        Some(format!(
            "Left out addresses of Service {key} that can never be endpoints, such as {address}: it is {}. Correct its \
             EndpointSlices.",
            why.as_str()
        ))
    }

    fn of_host_names(&self, key: &ServiceKey) -> Option<String> {
        let name = self.host_names.first()?;
        Some(format!(
            "Left out EndpointSlices of Service {key} that list host names, such as {}/{name}: only IP addresses can be \
             exported. List addresses in a slice with addressType IPv4 or IPv6, or let clients use the host name itself.",
            key.namespace
        ))
    }
}
