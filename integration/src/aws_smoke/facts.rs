//! The table of facts: what this project relies on, where it says so, and how it is checked.

use futures::{FutureExt as _, future::BoxFuture};

use super::{
    checks::{claims, discovery, dns, health, instances, limits, product, times},
    lab::Lab,
    verdict::Verdict,
};

/// Checks one fact. An error means that it could not be checked.
pub type Check = for<'a> fn(&'a Lab) -> BoxFuture<'a, anyhow::Result<Verdict>>;

/// What has to be given for a fact to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// `--vpc`: a private DNS namespace needs one.
    Vpc,
    /// `--many`: more than a thousand instances, which cost.
    Many,
    /// `--provoke-throttling`: other users of the account feel it.
    Throttling,
}

/// How a fact is checked.
#[derive(Clone, Copy, Debug)]
pub enum How {
    Always(Check),
    With(Extra, Check),
    /// This program cannot, and why.
    Never(&'static str),
}

/// One fact.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// A name that stays.
    pub id: &'static str,
    /// The fact, as a sentence.
    pub says: &'static str,
    /// Files of this project that say or use it, and words in them.
    pub said_in: &'static [(&'static str, &'static str)],
    /// Maximum number of instances that its check registers.
    pub instances: u32,
    /// Maximum number of times that its check waits for what discovery shows.
    pub waits: u32,
    pub how: How,
}

/// `id (instances, waits) says; said in; how`.
macro_rules! facts {
    ($($id:literal ($instances:literal, $waits:literal) $says:literal; [$($file:literal: $words:literal),+]; $how:expr;)*) => {
        /// All facts, in the order in which they are checked and reported.
        pub const FACTS: &[Fact] = &[$(Fact {
            id: $id,
            says: $says,
            said_in: &[$(($file, $words)),+],
            instances: $instances,
            waits: $waits,
            how: $how,
        },)*];
    };
}

macro_rules! check {
    ($check:path) => {
        How::Always(|lab| $check(lab).boxed())
    };
    ($extra:ident, $check:path) => {
        How::With(Extra::$extra, |lab| $check(lab).boxed())
    };
}

facts! {
    "namespace-time" (0, 0) "The operation that creates a namespace ends within a minute.";
        ["src/cloudmap/operation.rs": "AWS documents no bound; operations take seconds"]; check!(times::namespace);
    "operation-time" (5, 0) "Operations that register and deregister end within a minute.";
        ["src/cloudmap/operation.rs": "AWS documents no bound; operations take seconds"]; check!(times::operations);
    "call-time" (1, 1) "A call is answered within 5 s.";
        ["src/cloudmap/aws/session.rs": "Deadline of one request"]; check!(times::calls);
    "service-at-once" (0, 0) "A service is there when CreateService answers, and gone when DeleteService does.";
        ["src/cloudmap/port.rs": "Outcome of [`Write::create_service`]"]; check!(times::services);
    "discovery-lag" (3, 6) "Discovery shows a change within 10 s of the end of its operation.";
        ["docs/registrations.md": "as long as discovery lags less than that", "docs/ledger.md": "verify limit (W2) | 15 s"];
        check!(times::discovery);
    "reads-go-back" (1, 2) "A discovery call may return an older state than the one before it.";
        ["docs/adr/0001-a-ledger.md": "Reads may be stale, partial, or older than the previous read"]; check!(times::reads);
    "listing-is-current" (3, 0) "ListInstances has a change when its operation has ended.";
        ["docs/ecs.md": "control plane (`ListInstances`) before it removes the endpoint"]; check!(times::listing);

    "register-replaces" (2, 0) "Registering an instance again replaces all its attributes.";
        ["src/cloudmap/port.rs": "Begins to create or update an instance"]; check!(instances::replaces);
    "one-operation" (2, 0) "While an operation on an instance runs, another one is refused with DuplicateRequest, which names it.";
        ["src/cloudmap/port.rs": "Only one operation per (service, instance) can run at a time"]; check!(instances::one_operation);
    "request-id-again" (2, 0) "A registration with the CreatorRequestId of an earlier one, but other attributes, takes effect.";
        ["docs/testing.md": "no_two_registrations_have_the_same_request_id"]; check!(instances::same_request_id);
    "deregister-nothing" (0, 0) "Deregistering an instance that there is not is refused with InstanceNotFound.";
        ["src/cloudmap/port.rs": "does not exist (or not yet)"]; check!(instances::deregister_nothing);
    "instance-id" (1, 0) "An instance id has up to 64 characters of `[0-9a-zA-Z_/:.@-]`.";
        ["src/cloudmap/port.rs": "At most 64 characters of `[0-9a-zA-Z_/:.@-]`"]; check!(limits::instance_ids);
    "attribute-number" (1, 0) "An instance has up to 30 custom attributes.";
        ["src/cloudmap/port.rs": "Attributes of an instance: at most 30"]; check!(limits::number);
    "attribute-name" (1, 0) "The name of an attribute has up to 255 characters.";
        ["src/cloudmap/port.rs": "names of at most 255 characters"]; check!(limits::name);
    "attribute-value" (1, 0) "The value of an attribute has up to 1,024 characters.";
        ["src/cloudmap/port.rs": "values of at most 1,024"]; check!(limits::value);
    "attribute-total" (1, 0) "Names and values of the attributes have up to 5,000 characters together.";
        ["src/cloudmap/port.rs": "and 5,000 characters in total"]; check!(limits::total);
    "attribute-characters" (1, 0) "A value may have every printable character of ASCII, and comes back unchanged; others are refused.";
        ["docs/ledger.md": "contain the bytes in base64", "integration/emulator/src/validate.rs": "values printable ASCII"];
        check!(limits::characters);

    "one-wins" (0, 0) "Of CreateService calls for one name that run at once, exactly one creates the service.";
        ["docs/adr/0001-a-ledger.md": "a service name can be created once"]; check!(claims::one_wins);
    "creator-kept" (0, 0) "GetService returns the CreatorRequestId with which a service was created.";
        ["src/cloudmap/port.rs": "Set by the creator and never changed: our owner mark"]; check!(claims::creator_kept);
    "creator-of-other" (0, 0) "ServiceAlreadyExists has the id and the CreatorRequestId of the service that has the name.";
        ["src/cloudmap/port.rs": "The name is taken, with the creator, so that the loser knows the winner"]; check!(claims::other_creator);
    "creator-repeats" (0, 0) "CreateService with the same CreatorRequestId again returns the service, or ServiceAlreadyExists with its creator.";
        ["src/cloudmap/port.rs": "AWS may return this also to a repeated request of the same creator"]; check!(claims::same_creator);
    "service-in-use" (1, 0) "DeleteService refuses a service that has instances with ResourceInUse.";
        ["src/cloudmap/port.rs": "Deletes a service, which must have no instances"]; check!(claims::service_in_use);
    "service-id-again" (0, 0) "A service that is created again under its name may get the id of the deleted one.";
        ["integration/emulator/src/settings.rs": "gets its id again, as users have reported"]; check!(claims::service_id_again);
    "update-refused" (0, 0) "UpdateService is refused in an API-only namespace.";
        ["src/cloudmap/port.rs": "Services in API-only namespaces cannot be updated"]; check!(claims::update_refused);
    "namespace-in-use" (0, 0) "A namespace that has services is not deleted.";
        ["src/cloudmap/port.rs": "AWS never deletes a namespace that has services"]; check!(claims::namespace_in_use);
    "namespace-exists" (0, 0) "CreateHttpNamespace with a name that is taken is refused with NamespaceAlreadyExists, which has the id.";
        ["src/cloudmap/port.rs": "A namespace with this name exists"]; check!(claims::namespace_exists);
    "http-name" (1, 1) "A namespace that is created anew under its name is discovered under the HttpName that GetNamespace returns.";
        ["src/cloudmap/port.rs": "It differs from `name` if the name was used before"]; check!(claims::http_name);
    "tags-at-creation" (0, 0) "Tags given at creation are there, and TagResource adds to them.";
        ["docs/iam.md": "The controller tags what it creates"]; check!(limits::tags);
    "tags-number" (0, 0) "A resource has up to 50 tags.";
        ["src/cloudmap/quotas.rs": "Tags of a resource. AWS does not raise it."]; check!(limits::tag_number);

    "query" (2, 2) "DiscoverInstances with QueryParameters returns exactly the instances that have all of them.";
        ["src/cloudmap/port.rs": "that have the attributes in `query`"]; check!(discovery::query);
    "max-results" (0, 0) "DiscoverInstances takes MaxResults up to 1,000.";
        ["src/cloudmap/aws/mod.rs": "Maximum number of instances that `DiscoverInstances` returns"]; check!(discovery::max_results);
    "revision-registered" (1, 3) "InstancesRevision changes when an instance is registered or deregistered.";
        ["docs/ecs.md": "The controller does not use `DiscoverInstancesRevision`"]; check!(discovery::revision_registered);
    "revision-updated" (2, 2) "InstancesRevision stays when an instance gets other attributes.";
        ["integration/emulator/src/settings.rs": "so that callers should not rely on it"]; check!(discovery::revision_updated);
    "revision-health" (1, 2) "InstancesRevision stays when a health status changes.";
        ["docs/ecs.md": "which costs the same and does not cover health"]; check!(discovery::revision_health);
    "first-hundred" (101, 2) "DiscoverInstances without MaxResults returns 100 of more instances.";
        ["docs/instances.md": "`DiscoverInstances` returns 100 instances unless its caller sets `MaxResults`"];
        check!(Many, discovery::first_hundred);
    "thousand" (1001, 2) "DiscoverInstances returns 1,000 instances, and a service takes no more.";
        ["docs/instances.md": "1,000 instances in a service, which AWS does not raise"]; check!(Many, discovery::thousand);

    "health-first" (2, 1) "With a custom health check an instance begins as healthy, unless AWS_INIT_HEALTH_STATUS says otherwise.";
        ["docs/instances.md": "registered as healthy"]; check!(health::first);
    "health-delay" (1, 2) "A custom health status takes effect within 45 s.";
        ["src/instances/sync/health.rs": "AWS waits about 30 s", "docs/instances.md": "AWS takes about 30 seconds"];
        check!(health::delay);
    "health-only-custom" (1, 0) "A health status can be set in services with a custom health check only.";
        ["src/cloudmap/port.rs": "Sets the health status of an instance, in a service with a custom health check"];
        check!(health::only_custom);
    "health-of-others" (0, 0) "UpdateInstanceCustomHealthStatus works on an instance that ECS registered, and holds until ECS' next report.";
        ["docs/cutover.md": "`UpdateInstanceCustomHealthStatus` on an instance that another principal registered was tried in an"];
        How::Never("needs ECS tasks, whose registrations another principal makes: ECS may report their health again at any time and undo it. That a status can be set is `health-delay`");
    "health-ignored" (1, 1) "Without a health check, HealthStatus of DiscoverInstances is ignored.";
        ["src/cloudmap/port.rs": "Empty if the service has no health check"]; check!(health::ignored);

    "adapter" (1, 1) "The controller's adapter creates, claims, registers, discovers, lists, deregisters and deletes.";
        ["src/cloudmap/aws/mod.rs": "A call of the port is one request"]; check!(product::adapter);
    "doctor" (0, 1) "The calls with which doctor learns permissions change nothing.";
        ["src/iam/harmless.rs": "writes that AWS has to refuse even to those"]; check!(product::doctor);
    "throttled" (0, 0) "The control plane throttles with ThrottlingException.";
        ["src/cloudmap/aws/error.rs": "| \"ThrottlingException\""]; check!(Throttling, limits::throttled);

    "dns-equal-values" (2, 0) "In DNS, two instances of a service may have the same address.";
        ["docs/moving-from-external-dns.md": "equal values of two instances was not verified on AWS (?)",
         "docs/moving-from-cloudmap-controller.md": "Whether Route 53 accepts this was not verified on AWS (?)"];
        check!(Vpc, dns::equal_values);
    "dns-update" (0, 0) "UpdateService changes the TTL of a record and keeps what is repeated.";
        ["src/cloudmap/port.rs": "AWS deletes what the request omits"]; check!(Vpc, dns::update);
    "dns-api-only" (1, 1) "A service of type HTTP in a DNS namespace takes instances without an address.";
        ["src/cloudmap/port.rs": "`None` creates a service that can be discovered only through the API"]; check!(Vpc, dns::api_only);
    "dns-zone-taken" (0, 0) "The operation of CreatePrivateDnsNamespace fails with CANNOT_CREATE_HOSTED_ZONE if the VPC has a zone of the name.";
        ["integration/emulator/src/namespaces.rs": "`CANNOT_CREATE_HOSTED_ZONE`, as users of Terraform report"];
        How::Never("users of Terraform report it, and AWS charges for a second zone");

    "iam-zone-tags" (0, 0) "CreatePrivateDnsNamespace with tags needs no route53:ChangeTagsForResource.";
        ["docs/iam.md": "not the zone (?)"];
        How::Never("needs a role with the policy of `cloudmap-mcs iam --mode instances,dns-namespaces`");
    "iam-delete-zone" (0, 0) "DeleteNamespace of a namespace with DNS needs route53:DeleteHostedZone.";
        ["docs/iam.md": "does not mention it for `DeleteNamespace` (?)"];
        How::Never("needs a role with the policy of `cloudmap-mcs iam --mode people,dns`");
    "iam-namespace-name" (0, 0) "IAM compares servicediscovery:NamespaceName with the HttpName in the request.";
        ["docs/iam.md": "which is the namespace's HttpName (?)"];
        How::Never("needs a role with the policy: `cloudmap-mcs doctor` with that role shows it");
    "iam-request-tag" (0, 0) "A condition on the request's tags is enough for CreateService in a namespace without tags.";
        ["docs/iam.md": "covers `CreateInItsNamespaces` (?)"];
        How::Never("needs a role with the policy: `cloudmap-mcs doctor` with that role shows it");
    "iam-source-account" (0, 0) "Pod Identity sends aws:SourceAccount when it assumes a role.";
        ["docs/iam.md": "`aws:SourceAccount` is from its samples (?)"]; How::Never("needs a pod in an EKS cluster");
    "iam-tag-session" (0, 0) "The session tags of Pod Identity go on to a role that is assumed next.";
        ["docs/iam.md": "whose session tags go on to the next role (?)"]; How::Never("needs a pod in an EKS cluster");
    "eks-field-manager" (0, 0) "The field manager `eks` is the sign of CoreDNS as a managed add-on.";
        ["coredns/README.md": "inference (?)"]; How::Never("needs EKS clusters with and without the add-on");
    "listing-rate" (0, 0) "AWS allows two calls of ListServices a second.";
        ["docs/ecs.md": "AWS allows two such calls a second"];
        How::Never("AWS publishes no rate of this operation, and finding it would throttle other users of the account");
}
