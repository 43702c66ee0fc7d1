//! What a call asks IAM for.

use std::collections::BTreeMap;

use super::reference::{self, Key, Resources};
use crate::CloudMap;
use crate::requests::{Authorized, Tag};
use crate::state::{Namespace, Service};
use crate::sts::{Identity, account_of};

/// An action, the resources that it is to be carried out on, and the condition keys of the call.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) action: String,
    pub(crate) targets: Vec<Target>,
    keys: Keys,
}

/// A resource with its own condition keys. Of an action without resources, it is `*`.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) arn: String,
    keys: Keys,
}

/// Values by condition key, which is in lower case.
type Keys = BTreeMap<String, Vec<String>>;

impl Ask {
    /// An action of another service on one resource.
    pub(crate) fn new(action: &str, arn: &str, caller: &Identity) -> Self {
        let target = Target { arn: arn.to_owned(), keys: account(account_of(arn)) };
        Self { action: action.to_owned(), targets: vec![target], keys: of_caller(caller) }
    }

    /// The values of a condition key.
    pub(super) fn values<'a>(&'a self, target: &'a Target, key: &str) -> Option<&'a [String]> {
        target.keys.get(key).or_else(|| self.keys.get(key)).map(Vec::as_slice)
    }

    fn put(&mut self, key: &str, values: impl IntoIterator<Item = String>) {
        self.keys.insert(key.to_ascii_lowercase(), values.into_iter().collect());
    }
}

fn of_caller(caller: &Identity) -> Keys {
    // "For assumed roles, the request context returns the ARN of the role, not the ARN of the user that has assumed it."
    let arn = caller.role.clone().unwrap_or_else(|| caller.arn.clone());
    let keys = [("aws:principalarn", arn), ("aws:principalaccount", caller.account.clone())];
    keys.into_iter().map(|(key, value)| (key.to_owned(), vec![value])).collect()
}

fn account(id: &str) -> Keys {
    Keys::from([("aws:resourceaccount".to_owned(), vec![id.to_owned()])])
}

impl CloudMap {
    /// What a call asks for: its action, and `TagResource` if it gives tags to what it creates.
    pub(crate) fn asks(&self, caller: &Identity, operation: &str, body: &[u8]) -> Vec<Ask> {
        let request = Authorized::of(operation, body);
        let mut asks = vec![self.ask(caller, operation, &request)];
        // The reference lists TagResource with these operations, and not that it is for requests with tags only. Callers
        // who create without tags are not asked for it.
        if operation.starts_with("Create") && !request.tags.is_empty() {
            asks.push(self.ask(caller, "TagResource", &request));
        }
        asks
    }

    fn ask(&self, caller: &Identity, operation: &str, request: &Authorized) -> Ask {
        let (resources, keys) = reference::of(operation);
        let mut ask = Ask {
            action: format!("servicediscovery:{operation}"),
            targets: self.targets(resources, request),
            keys: of_caller(caller),
        };
        ask.put("aws:RequestedRegion", [self.settings.region.clone()]);
        for key in keys {
            self.add(&mut ask, *key, request);
        }
        ask
    }

    fn add(&self, ask: &mut Ask, key: Key, request: &Authorized) {
        match key {
            Key::RequestTag => {
                for Tag { key, value } in &request.tags {
                    ask.put(&format!("aws:RequestTag/{key}"), [value.clone()]);
                }
            }
            Key::TagKeys => {
                let tags = request.tags.iter().map(|tag| &tag.key);
                ask.put("aws:TagKeys", tags.chain(&request.tag_keys).cloned());
            }
            Key::NamespaceArn => {
                ask.put("servicediscovery:NamespaceArn", [self.target_arn("namespace", &request.namespace)]);
            }
            // The reference calls it "the name of the related namespace". The name of the request is meant, in which AWS
            // may have put a hash (`HttpName`): that is all that a caller who discovers has.
            Key::Names => {
                ask.put("servicediscovery:NamespaceName", [request.namespace_name.clone()]);
                ask.put("servicediscovery:ServiceName", [request.service_name.clone()]);
            }
            Key::ServiceArn => {
                ask.put("servicediscovery:ServiceArn", [self.target_arn("service", &request.service)]);
            }
            Key::ServiceCreatedByAccount => {
                if let Some(service) = self.service_of(&request.service) {
                    let creator = service.created_by.as_ref().unwrap_or(&self.settings.account);
                    ask.put("servicediscovery:ServiceCreatedByAccount", [creator.clone()]);
                }
            }
        }
    }

    fn targets(&self, resources: Resources, request: &Authorized) -> Vec<Target> {
        match resources {
            // Whose account aws:ResourceAccount names where there is no resource is not documented.
            Resources::Everything => vec![Target { arn: "*".to_owned(), keys: account(&self.settings.account) }],
            Resources::Namespace => vec![self.namespace_target(&request.namespace)],
            Resources::Service => vec![self.service_target(&request.service)],
            // The service has no id yet, and no tags: whether the tags that it will have count as aws:ResourceTag is not
            // documented, nor which ARN is asked for. A statement that names ids of services allows none.
            Resources::NewService => vec![self.namespace_target(&request.namespace), self.service_target("*")],
            // What does not exist has no ARN: a statement that names ids does not allow to look for it.
            Resources::Discovered => {
                let mut all = self.namespaces.values();
                let namespace = all.find(|namespace| namespace.http_name == request.namespace_name);
                let key = |namespace: &Namespace| namespace.service_key(&request.service_name);
                let service = namespace.and_then(|namespace| namespace.services.get(&key(namespace)));
                vec![
                    self.namespace_target(namespace.map_or("*", |namespace| &namespace.id)),
                    self.service_target(service.map_or("*", String::as_str)),
                ]
            }
            // The service is not a required resource. As with other services, it is asked for where there is one.
            Resources::Operation => match self.operation_place(&request.operation) {
                Some((namespace, service)) => {
                    let service = service.map(|id| self.service_target(id));
                    [self.namespace_target(namespace)].into_iter().chain(service).collect()
                }
                None => vec![self.namespace_target("*")],
            },
        }
    }

    fn namespace_target(&self, id_or_arn: &str) -> Target {
        let id = self.resource_id("namespace", id_or_arn);
        let tags = id.and_then(|id| self.namespaces.get(id)).map(|namespace| &namespace.tags);
        self.target("namespace", id_or_arn, tags)
    }

    fn service_target(&self, id_or_arn: &str) -> Target {
        self.target("service", id_or_arn, self.service_of(id_or_arn).map(|service| &service.tags))
    }

    fn target(&self, kind: &str, id_or_arn: &str, tags: Option<&BTreeMap<String, String>>) -> Target {
        let arn = self.target_arn(kind, id_or_arn);
        let mut keys = account(account_of(&arn));
        for (key, value) in tags.into_iter().flatten() {
            keys.insert(format!("aws:resourcetag/{}", key.to_ascii_lowercase()), vec![value.clone()]);
        }
        Target { arn, keys }
    }

    fn target_arn(&self, kind: &str, id_or_arn: &str) -> String {
        if id_or_arn.starts_with("arn:") { id_or_arn.to_owned() } else { self.arn(kind, id_or_arn) }
    }

    fn service_of(&self, id_or_arn: &str) -> Option<&Service> {
        self.services.get(self.resource_id("service", id_or_arn)?)
    }
}
