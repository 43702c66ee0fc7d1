//! Asynchronous operations: submitted, pending, and then a success that has its effect at that moment, or a failure
//! that has none.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Call;
use super::error::{Answer, ApiError};
use super::paging;
use super::requests::{Filter, GetOperationRequest, ListRequest, NamespaceChange, ServiceChange};
use super::state::{Instance, Namespace};
use super::{CloudMap, Event, timestamp, validate};

/// What an operation does when it succeeds.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    CreateNamespace(Box<Namespace>),
    UpdateNamespace { id: String, change: NamespaceChange },
    DeleteNamespace { id: String },
    UpdateService { id: String, change: ServiceChange },
    Register { service: String, instance: Box<Instance> },
    Deregister { service: String, instance: String },
}

impl Work {
    fn kind(&self) -> &'static str {
        match self {
            Self::CreateNamespace(_) => "CREATE_NAMESPACE",
            Self::UpdateNamespace { .. } => "UPDATE_NAMESPACE",
            Self::DeleteNamespace { .. } => "DELETE_NAMESPACE",
            Self::UpdateService { .. } => "UPDATE_SERVICE",
            Self::Register { .. } => "REGISTER_INSTANCE",
            Self::Deregister { .. } => "DEREGISTER_INSTANCE",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    id: String,
    kind: &'static str,
    targets: BTreeMap<&'static str, String>,
    /// For filters, whatever the target.
    namespace: String,
    submitted: Duration,
    pending: Duration,
    done: Duration,
    /// Code and message where it is to fail.
    failure: Option<(String, String)>,
    /// Taken when it ends.
    work: Option<Work>,
}

impl Operation {
    /// The status and since when.
    fn status(&self, now: Duration) -> (&'static str, Duration) {
        match self.work {
            None if self.failure.is_some() => ("FAIL", self.done),
            None => ("SUCCESS", self.done),
            Some(_) if now >= self.pending => ("PENDING", self.pending),
            Some(_) => ("SUBMITTED", self.submitted),
        }
    }

    fn matches(&self, filter: &Filter, now: Duration) -> bool {
        let (status, since) = self.status(now);
        let any = |field: &str| filter.values.iter().any(|value| value == field);
        match filter.name.as_str() {
            "NAMESPACE_ID" => any(&self.namespace),
            "SERVICE_ID" => self.targets.get("SERVICE").is_some_and(|service| any(service)),
            // The documentation of the filter calls SUCCESS "SUCCEED".
            "STATUS" => any(status) || status == "SUCCESS" && any("SUCCEED"),
            "TYPE" => any(self.kind),
            _ => {
                let bounds: Vec<f64> = filter.values.iter().filter_map(|value| value.parse().ok()).collect();
                matches!(bounds[..], [from, to] if (from..=to).contains(&timestamp(since)))
            }
        }
    }
}

/// By number, so that lists are in order of submission.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    by_number: BTreeMap<u64, Operation>,
    numbers: HashMap<String, u64>,
}

impl Operations {
    pub(crate) fn get(&self, number: u64) -> Option<&Operation> {
        self.by_number.get(&number)
    }

    pub(crate) fn work(&self, number: u64) -> Option<&Work> {
        self.get(number)?.work.as_ref()
    }

    /// Lets an operation that is under way fail with this error, unless it fails already.
    pub(crate) fn fail(&mut self, number: u64, code: &str, message: String) {
        if let Some(operation) = self.by_number.get_mut(&number) {
            operation.failure.get_or_insert_with(|| (code.to_owned(), message));
        }
    }

    /// Forgets the oldest finished ones beyond `history`.
    fn trim(&mut self, history: usize) {
        while self.by_number.len() > history {
            match self.by_number.first_entry() {
                Some(oldest) if oldest.get().work.is_none() => {
                    self.numbers.remove(&oldest.remove().id);
                }
                _ => break,
            }
        }
    }
}

impl CloudMap {
    /// Starts an operation and gives its number and its id. The target's `in_flight` entry has to be set by the caller
    /// before time passes; [`Self::finish`] clears it.
    pub(crate) fn submit(
        &mut self,
        call: &Call,
        namespace: &str,
        targets: impl IntoIterator<Item = (&'static str, String)>,
        work: Work,
    ) -> (u64, Value) {
        let latency = self.settings.operation_latency.sample(&mut self.rng) + call.shaping.operation_latency;
        let id = format!("{}-{}", self.random_id(32), self.random_id(8));
        let number = self.next_sequence();
        let operation = Operation {
            id: id.clone(),
            kind: work.kind(),
            targets: targets.into_iter().collect(),
            namespace: namespace.to_owned(),
            submitted: call.now,
            pending: call.now + latency / 4,
            done: call.now + latency,
            failure: call.shaping.fail_operation.clone(),
            work: Some(work),
        };
        self.operations.trim(self.settings.history);
        self.operations.numbers.insert(id.clone(), number);
        self.schedule(operation.done, Event::Finish { operation: number });
        self.operations.by_number.insert(number, operation);
        (number, json!({ "OperationId": id }))
    }

    /// The error for a request whose target has an operation under way.
    pub(crate) fn duplicate(&self, number: u64) -> ApiError {
        ApiError::duplicate_request(self.operations.get(number).map_or("", |operation| &operation.id))
    }

    /// Ends an operation: frees its target, and does its work unless it fails.
    pub(crate) fn finish(&mut self, number: u64, at: Duration) {
        let Some(operation) = self.operations.by_number.get_mut(&number) else { return };
        let failed = operation.failure.is_some();
        let Some(work) = operation.work.take() else { return };
        match work {
            Work::CreateNamespace(namespace) => self.finish_create_namespace(*namespace, failed, at),
            Work::UpdateNamespace { id, change } => self.finish_update_namespace(&id, change, failed, at),
            Work::DeleteNamespace { id } => self.finish_delete_namespace(&id, failed, at),
            Work::UpdateService { id, change } => self.finish_update_service(&id, change, failed, at),
            Work::Register { service, instance } => self.finish_register(&service, *instance, failed, at),
            Work::Deregister { service, instance } => self.finish_deregister(&service, &instance, failed, at),
        }
    }

    /// The namespace and the service of an operation.
    pub(crate) fn operation_place(&self, id: &str) -> Option<(&str, Option<&str>)> {
        let operation = self.operations.get(*self.operations.numbers.get(id)?)?;
        Some((&operation.namespace, operation.targets.get("SERVICE").map(String::as_str)))
    }

    pub(crate) fn get_operation(&self, call: &Call, request: &GetOperationRequest) -> Answer {
        validate::required("OperationId", &request.operation_id)?;
        validate::length("OperationId", &request.operation_id, 255)?;
        let account = &self.settings.account;
        let operation = request
            .owner_account
            .as_ref()
            .is_none_or(|owner| owner == account)
            .then(|| self.operations.numbers.get(&request.operation_id))
            .flatten()
            .and_then(|number| self.operations.get(*number))
            .ok_or_else(|| ApiError::operation_not_found(&request.operation_id))?;
        let (status, since) = operation.status(call.now);
        let failure = operation.failure.as_ref().filter(|_| status == "FAIL");
        Ok(json!({ "Operation": {
            "Id": operation.id,
            "OwnerAccount": account,
            "Type": operation.kind,
            "Status": status,
            "ErrorCode": failure.map(|(code, _)| code),
            "ErrorMessage": failure.map(|(_, message)| message),
            "CreateDate": timestamp(operation.submitted),
            "UpdateDate": timestamp(since),
            "Targets": operation.targets,
        }}))
    }

    /// "Cloud Map gets `MaxResults` operations and then filters them", so that pages can be empty.
    pub(crate) fn list_operations(&self, call: &Call, request: &ListRequest) -> Answer {
        const FILTERS: &[(&str, &[&str])] = &[
            ("NAMESPACE_ID", &["EQ"]),
            ("SERVICE_ID", &["EQ"]),
            ("STATUS", &["EQ", "IN"]),
            ("TYPE", &["EQ", "IN"]),
            ("UPDATE_DATE", &["BETWEEN"]),
        ];
        let size = validate::max_results(request.max_results, 100)?;
        request.filters.iter().try_for_each(|filter| validate::filter(filter, FILTERS))?;
        let invalid = || ApiError::invalid("NextToken is not valid.");
        let after = match &request.next_token {
            Some(token) => paging::decode("ListOperations", token)?.parse().map_err(|_| invalid())?,
            None => 0u64,
        };
        let mut rest = self.operations.by_number.range(after + 1..);
        let page: Vec<_> = rest.by_ref().take(size).collect();
        let next = match (page.last(), rest.next()) {
            (Some((last, _)), Some(_)) => Some(paging::encode("ListOperations", &last.to_string())),
            _ => None,
        };
        let operations: Vec<_> = page
            .into_iter()
            .map(|(_, operation)| operation)
            .filter(|operation| request.filters.iter().all(|filter| operation.matches(filter, call.now)))
            .map(|operation| json!({ "Id": operation.id, "Status": operation.status(call.now).0 }))
            .collect();
        Ok(json!({ "Operations": operations, "NextToken": next }))
    }
}
