//! What a command writes, as a pure function of what is there.
//!
//! Two field managers write: one the course (steps, interval, wave), and one what holds it (a pause, a share, the way back).
//! So a hold ends without touching the course, which may be somebody else's, such as Git's.

use kube::Resource as _;
use serde_json::{Value, json};

use api::{Cutover, CutoverSpec, GuardFailure, names::FieldManager};
use model::ServiceKey;

/// What a user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// A course, and the fields of it that the user said nothing about.
    Start(CutoverSpec, Vec<&'static str>),
    Shift(u8),
    Pause,
    Resume,
    Back,
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Write {
    pub(super) manager: FieldManager,
    pub(super) object: Value,
}

/// The writes that fulfil a wish, given the Cutover that is there.
///
/// # Errors
/// There is nothing to change; the text says what to do.
pub(super) fn writes(key: &ServiceKey, there: Option<&Cutover>, wish: &Wish) -> Result<Vec<Write>, String> {
    let write = |manager, spec: &Value| Write { manager, object: object(key, spec) };
    let hold = |spec: &Value| write(FieldManager::CutoverHold, spec);
    // What the guard found counts until the spec changes.
    let again = || [hold(&json!({ "rollBack": true })), hold(&json!({}))];
    if there.is_none() && !matches!(wish, Wish::Start(..)) {
        // To begin is the opposite of going back.
        let remedy = if *wish == Wish::Back {
            "look at the name and at --namespace. Without a Cutover, the annotation cloudmap-mcs/share-of-traffic=0% takes the \
             traffic back"
        } else {
            "begin with `cloudmap-mcs cutover start`"
        };
        return Err(format!("there is no Cutover {key}: {remedy}"));
    }
    Ok(match wish {
        Wish::Start(spec, omitted) => {
            let mut course = serde_json::to_value(spec).map_err(|error| error.to_string())?;
            if let Some(there) = there {
                keep(&mut course, omitted, there).map_err(|error| error.to_string())?;
            }
            let mut writes = vec![write(FieldManager::CutoverCourse, &course)];
            match there {
                Some(there) if was_taken_back(there) => writes.extend(again()),
                Some(there) if is_held(&there.spec) => writes.push(hold(&json!({}))),
                _ => {}
            }
            writes
        }
        Wish::Shift(share) => vec![hold(&json!({ "shareOfTraffic": share }))],
        Wish::Pause => vec![hold(&json!({ "paused": true }))],
        Wish::Resume if there.is_some_and(was_taken_back) => again().into(),
        Wish::Resume => vec![hold(&json!({}))],
        Wish::Back => vec![hold(&json!({ "rollBack": true }))],
    })
}

/// Keeps what the user said nothing about. Server-side apply drops what its field manager sends no more, and hidden tasks, for
/// example, would be shown again. What others own stays by itself.
fn keep(course: &mut Value, omitted: &[&str], there: &Cutover) -> serde_json::Result<()> {
    let present = serde_json::to_value(&there.spec)?;
    let Some(course) = course.as_object_mut() else { return Ok(()) };
    for field in omitted {
        course.remove(*field);
        if let Some(value) = present.get(*field).filter(|_| is_of_course(there, field)) {
            course.insert((*field).to_owned(), value.clone());
        }
    }
    Ok(())
}

/// Whether `start` wrote a field of the spec.
fn is_of_course(there: &Cutover, field: &str) -> bool {
    let course = FieldManager::CutoverCourse.as_str();
    let mut entries = there.metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        let spec = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:spec"));
        entry.manager.as_deref() == Some(course) && spec.is_some_and(|spec| spec.get(format!("f:{field}")).is_some())
    })
}

/// The fields of the spec that still contradict a command after its write, because another field manager owns them.
pub(super) fn still_held(wish: &Wish, after: &Cutover) -> Option<String> {
    let CutoverSpec { paused, share_of_traffic, roll_back, .. } = &after.spec;
    let goes_on = matches!(wish, Wish::Start(..) | Wish::Resume);
    // A share holds in a pause, too, but not on the way back.
    let rises = goes_on || matches!(wish, Wish::Shift(_));
    let fields = [
        ("paused", *paused && goes_on),
        ("shareOfTraffic", share_of_traffic.is_some() && goes_on),
        ("rollBack", *roll_back && rises),
    ];
    let held: Vec<_> = fields.into_iter().filter(|(_, set)| *set).map(|(name, _)| format!("spec.{name}")).collect();
    (!held.is_empty())
        .then(|| format!("{} stays, because somebody else set it: take it away there", held.join(" and ")))
}

/// Why the guard took the traffic back, if the spec has not changed since.
fn guard_failure(there: &Cutover) -> Option<&GuardFailure> {
    let failure = there.status.as_ref()?.guard_failure.as_ref()?;
    (Some(failure.generation) == there.metadata.generation).then_some(failure)
}

fn was_taken_back(there: &Cutover) -> bool {
    guard_failure(there).is_some()
}

/// Why the traffic was taken back, and what to do before it goes to the pods again; `None`: it was not.
pub(super) fn taken_back(there: &Cutover) -> Option<String> {
    if there.spec.roll_back {
        return Some("its traffic was taken back (spec.rollBack): run `cloudmap-mcs cutover resume` first".to_owned());
    }
    let GuardFailure { message, .. } = guard_failure(there)?;
    Some(format!(
        "the guard took its traffic back ({message}): repair what is wrong, and run `cloudmap-mcs cutover resume` first"
    ))
}

const fn is_held(spec: &CutoverSpec) -> bool {
    spec.paused || spec.roll_back || spec.share_of_traffic.is_some()
}

fn object(key: &ServiceKey, spec: &Value) -> Value {
    json!({
        "apiVersion": Cutover::api_version(&()),
        "kind": Cutover::kind(&()),
        "metadata": {"namespace": &*key.namespace, "name": &*key.name},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use cli::{Cli, Command, CutoverCommand};

    fn cutover(spec: Value) -> Cutover {
        Cutover::new("orders", serde_json::from_value(spec).unwrap())
    }

    fn written(there: Option<&Cutover>, wish: &Wish) -> Vec<(FieldManager, Value)> {
        let writes = writes(&ServiceKey::new("shop", "orders"), there, wish).unwrap();
        writes.into_iter().map(|write| (write.manager, write.object["spec"].clone())).collect()
    }

    #[test]
    fn each_wish_writes_its_own_fields_and_ends_the_one_before() {
        let there = cutover(json!({"steps": [5, 100], "paused": true}));
        let hold = |spec: Value| vec![(FieldManager::CutoverHold, spec)];
        assert_eq!(written(Some(&there), &Wish::Shift(30)), hold(json!({"shareOfTraffic": 30})));
        assert_eq!(written(Some(&there), &Wish::Pause), hold(json!({"paused": true})));
        assert_eq!(written(Some(&there), &Wish::Back), hold(json!({"rollBack": true})));
        assert_eq!(written(Some(&there), &Wish::Resume), hold(json!({})));
        let spec: CutoverSpec = serde_json::from_value(json!({"steps": [5, 50], "interval": "60s"})).unwrap();
        let course = (FieldManager::CutoverCourse, json!({"steps": [5, 50], "interval": "60s"}));
        assert_eq!(written(None, &Wish::Start(spec.clone(), Vec::new())), std::slice::from_ref(&course));
        let both = [course.clone(), (FieldManager::CutoverHold, json!({}))];
        assert_eq!(written(Some(&there), &Wish::Start(spec.clone(), Vec::new())), both);
        // What the guard took back begins again with another spec, even if it is the same in the end.
        let mut failed = cutover(json!({"steps": [5, 100]}));
        failed.metadata.generation = Some(3);
        failed.status = serde_json::from_value(json!({"guardFailure": {"generation": 3, "message": "500"}})).unwrap();
        let again = [hold(json!({"rollBack": true})), hold(json!({}))].concat();
        assert_eq!(written(Some(&failed), &Wish::Resume), again);
        assert_eq!(written(Some(&failed), &Wish::Start(spec, Vec::new())), [vec![course], again].concat());
        failed.metadata.generation = Some(4);
        assert_eq!(written(Some(&failed), &Wish::Resume), hold(json!({})));
    }

    /// Server-side apply drops what is sent no more: hidden tasks would be shown again, and nobody asked for that.
    #[test]
    fn what_no_flag_says_stays_as_it_is() {
        let line = |flags: &str| {
            let line = ["cloudmap-mcs", "cutover", "start", "orders"].into_iter().chain(flags.split_whitespace());
            let Command::Cutover(command) = Cli::try_parse_from(line).unwrap().command else { panic!("not cutover") };
            let CutoverCommand::Start(args) = *command else { panic!("not start") };
            Wish::Start(args.spec(), args.omitted())
        };
        let all = json!({"steps": [1, 100], "interval": "60s", "hideTasks": true, "wave": 2, "guard": {"path": "/ok"}});
        let there = |manager: &str| {
            let fields =
                json!({"f:steps": {}, "f:interval": {}, "f:hideTasks": {}, "f:wave": {}, "f:guard": {"f:path": {}}});
            let entry = json!({"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": fields}});
            let mut there = cutover(all.clone());
            there.metadata.managed_fields = serde_json::from_value(json!([entry])).unwrap();
            there
        };
        let with = |field: &str, value: Value| {
            let mut spec = all.clone();
            spec[field] = value;
            spec
        };
        let no_wave = json!({"steps": [1, 100], "interval": "60s", "hideTasks": true, "guard": {"path": "/ok"}});
        let ours = there(FieldManager::CutoverCourse.as_str());
        for (flags, expected) in [
            ("", all.clone()),
            ("--steps 5,50", with("steps", json!([5, 50]))),
            ("--every 5m", with("interval", json!("300s"))),
            ("--wave 1", with("wave", json!(1))),
            ("--wave 0", no_wave),
            ("--guard", with("guard", json!({}))),
        ] {
            assert_eq!(written(Some(&ours), &line(flags)), [(FieldManager::CutoverCourse, expected)], "{flags}");
        }
        // A field that Git manages must not be sent: Git could not change it any more without a conflict.
        let of_git = written(Some(&there("git")), &line("--hide-tasks"));
        assert_eq!(of_git, [(FieldManager::CutoverCourse, json!({"hideTasks": true}))]);
        let new = (FieldManager::CutoverCourse, json!({"steps": [5, 25, 50, 100]}));
        assert_eq!(written(None, &line("")), [new]);
    }

    #[test]
    fn what_is_not_there_is_begun_first() {
        let refused = |wish: Wish| writes(&ServiceKey::new("shop", "orders"), None, &wish).unwrap_err();
        for error in [Wish::Shift(30), Wish::Pause, Wish::Resume].map(refused) {
            assert!(error.contains("shop/orders") && error.contains("cutover start"), "{error}");
        }
        let error = refused(Wish::Back);
        assert!(error.contains("--namespace") && error.contains("share-of-traffic=0%"), "{error}");
        assert!(!error.contains("start"), "who goes back does not want to begin: {error}");
    }

    #[test]
    fn a_pause_of_somebody_else_is_said() {
        let paused = cutover(json!({"steps": [5], "paused": true, "rollBack": true}));
        let said = still_held(&Wish::Resume, &paused).unwrap();
        assert!(said.contains("spec.paused and spec.rollBack"), "{said}");
        assert_eq!(still_held(&Wish::Pause, &paused), None);
        let said = still_held(&Wish::Shift(10), &paused).unwrap();
        assert!(said.starts_with("spec.rollBack stays"), "the share does not count: {said}");
        assert_eq!(still_held(&Wish::Shift(10), &cutover(json!({"steps": [5], "paused": true}))), None);
    }
}
