//! Cutover: how the traffic of a Cloud Map service moves to the pods of a Service, step by step.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{crds, spec_may_be_absent};

/// spec says how the traffic moves to the pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cloudmap-mcs.io",
    version = "v1alpha1",
    kind = "Cutover",
    plural = "cutovers",
    namespaced,
    status = "CutoverStatus",
    category = "mcs",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Share", "type": "integer", "description": "The share of the traffic that is in force, in percent", "jsonPath": ".status.shareOfTraffic"}"#,
    printcolumn = r#"{"name": "Reached", "type": "string", "description": "The share that the registered pods have", "jsonPath": ".status.reached"}"#,
    printcolumn = r#"{"name": "Step", "type": "integer", "description": "The number of steps that are reached or begun", "jsonPath": ".status.step"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    doc = "Cutover moves the traffic of a Cloud Map service to the pods of the Service with the same namespace and name, step by step and back. A ServiceExport or an annotated Service or Ingress of that name says which Cloud Map service it is.",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("required" = ["steps"]))]
pub struct CutoverSpec {
    /// steps are the shares of the traffic that the pods get one after the other, in percent. Each is higher than the
    /// one before.
    #[schemars(schema_with = "steps_schema")]
    #[serde(deserialize_with = "crds::null_as_default")]
    pub steps: Vec<i64>,

    /// interval is the shortest time that a step lasts after its share was reached in Cloud Map, such as 5m. The
    /// default is 5m. It is never shorter than the TTL of the DNS records plus the controller's --settle, which is
    /// 30s by default.
    #[schemars(schema_with = "interval_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,

    /// paused stops the steps: the share stays as it is.
    #[schemars(with = "bool")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub paused: bool,

    /// shareOfTraffic is a share of the traffic in percent. While it is set, it is in force at once, whatever the steps
    /// are. When it is removed, the steps go on from there.
    #[schemars(schema_with = "percent_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_traffic: Option<i64>,

    /// rollBack takes the traffic back from the pods. The registered pods keep it until somebody else has a healthy
    /// instance.
    #[schemars(with = "bool")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub roll_back: bool,

    /// hideTasks lets the controller hide ECS tasks where the pods cannot have the share otherwise. It marks them as
    /// unhealthy in Cloud Map: they still run, but clients no longer find them. On the way back it marks them as
    /// healthy again. It needs the controller's flag --hide-tasks, and a Cloud Map service with a custom health check.
    #[schemars(with = "bool")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub hide_tasks: bool,

    /// wave is a number. The steps wait until all Cutovers of the namespace with a lower number are Finished. The
    /// default is 0.
    #[schemars(schema_with = "wave_schema")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub wave: i64,

    /// guard checks each step. A step begins only while the guard finds that all is well. If it finds something wrong,
    /// the traffic goes back to others, and stays there until the spec changes. An empty guard asks DNS and
    /// DiscoverInstances for the registered pods, and connects to the ready pods.
    #[schemars(with = "CutoverGuard")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<CutoverGuard>,
}

/// What the guard of a Cutover looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.query) == has(self.max)",
    "message": "query and max belong together"
}]))]
pub struct CutoverGuard {
    /// path is an HTTP path. The ready pods must answer a GET for it with a status from 200 to 399. Without it, they
    /// must accept a TCP connection.
    #[schemars(with = "String", extend("maxLength" = 1024, "pattern" = "^/"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,

    /// port is the port of the pods that is checked: a TCP port of the Service, by its number at the pods (targetPort).
    /// The default is the port with which they are registered.
    #[schemars(with = "i64", extend("minimum" = 1, "maximum" = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,

    /// query is a query, which the guard sends to the Prometheus of the controller's flag --guard-prometheus. Its
    /// result must be one value. No value, NaN, or several values hold the step.
    #[schemars(with = "String", extend("minLength" = 1, "maxLength" = 4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,

    /// max is the highest value of the query that is still good, such as "0.01".
    #[schemars(with = "String", extend("maxLength" = 32, "pattern" = "^-?[0-9]+([.][0-9]+)?$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
}

spec_may_be_absent!(CutoverSpec, "CutoverSpec");

/// How far a Cutover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CutoverPhase {
    /// Cutovers of lower waves are not finished.
    Waiting,
    /// A step was begun; it lasts for its interval.
    Shifting,
    /// `spec.paused` is set.
    Paused,
    /// `spec.shareOfTraffic` is set, or the last step is less than 100 % and is reached.
    Holding,
    /// 100 % is requested, and all pods are registered.
    Finished,
    /// `spec.rollBack` is set, and pods are still registered.
    RollingBack,
    /// `spec.rollBack` is set, and no pod is registered.
    RolledBack,
    /// Somebody has to change something. The condition says what.
    Blocked,
}

impl CutoverPhase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Shifting,
        Self::Paused,
        Self::Holding,
        Self::Finished,
        Self::RollingBack,
        Self::RolledBack,
        Self::Blocked,
    ];

    /// The spelling of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Shifting => "Shifting",
            Self::Paused => "Paused",
            Self::Holding => "Holding",
            Self::Finished => "Finished",
            Self::RollingBack => "RollingBack",
            Self::RolledBack => "RolledBack",
            Self::Blocked => "Blocked",
        }
    }
}

impl std::fmt::Display for CutoverPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// status says how far the Cutover is. The controller continues from it, whichever replica leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CutoverStatus {
    /// observedGeneration is the generation of the spec that this status follows.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// phase is where the Cutover is.
    #[schemars(schema_with = "phase_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<CutoverPhase>,

    /// step is the number of steps that are reached or begun.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,

    /// shareOfTraffic is the share of the traffic that is in force, in percent. It takes precedence over the annotation
    /// cloudmap-mcs/share-of-traffic.
    #[schemars(schema_with = "percent_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_traffic: Option<i64>,

    /// stepSince is the time at which shareOfTraffic came into force.
    #[schemars(schema_with = "time_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_since: Option<Time>,

    /// waitedSeconds is the part of the interval that is over: for how many seconds the share has been reached. It is
    /// written four times in an interval, so that another leader continues from it.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<i64>,

    /// reached is the share of the traffic that the registered pods have.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,

    /// reachable is the largest share that the ready pods can have beside the instances of others.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reachable: Option<String>,

    /// hidden is the number of ECS tasks that are hidden.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<i64>,

    /// hiddenSince is the time since which all of these tasks are known to be marked as unhealthy.
    #[schemars(schema_with = "time_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_since: Option<Time>,

    /// guardFailure says what the guard found. While it is set, the share is 0 %, until the spec changes.
    #[schemars(with = "GuardFailure")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard_failure: Option<GuardFailure>,

    /// conditions has Progressing, which says why the phase is what it is. With spec.hideTasks, it also has
    /// TasksHidden.
    #[schemars(schema_with = "crds::conditions_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub conditions: Vec<Condition>,
}

/// What the guard of a Cutover found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GuardFailure {
    /// generation is the generation of the spec under which the guard found it. The failure counts until the spec has
    /// another generation.
    pub generation: i64,

    /// message says what was wrong.
    pub message: String,
}

fn steps_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 20,
        "items": {"type": "integer", "minimum": 1, "maximum": 100},
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": [{
            "rule": "self.isSorted() && self.all(step, self.exists_one(other, other == step))",
            "message": "steps must rise, such as 5, 25, 50, 100"
        }]
    })
}

fn interval_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32, "pattern": "^([0-9]+(s|m|h))+$"})
}

fn percent_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 0, "maximum": 100})
}

fn wave_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 0, "maximum": 1_000_000})
}

fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

fn phase_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": CutoverPhase::ALL.map(CutoverPhase::as_str)})
}
