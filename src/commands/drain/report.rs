//! What the leader reports of a drain, for people. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use api::conditions::{DrainReason, ExportCondition, ValidReason};
use model::ServiceKey;

/// Where the endpoints go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Out,
    Back,
}

/// What a ServiceExport says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// The drain, or the way back, is done.
    Done,
    /// Endpoints stay, for this reason.
    Stays(String),
    /// It is under way.
    Moving,
    /// Nobody has said anything yet.
    Unsaid,
    /// Something is to be corrected.
    Invalid(String),
    /// Nothing is exported.
    NotExported,
}

impl State {
    /// By the conditions of a ServiceExport.
    pub(super) fn of(conditions: &[Condition], way: Way) -> Self {
        let find = |type_: ExportCondition| conditions.iter().find(|condition| condition.type_ == type_.as_str());
        let is = |condition: &Condition, reason: DrainReason| condition.reason == reason.as_str();
        let Some(drained) = find(ExportCondition::Drained) else {
            let refused = find(ExportCondition::Valid).filter(|valid| valid.reason != ValidReason::Valid.as_str());
            return match (way, refused) {
                (Way::Back, _) => Self::Done,
                (Way::Out, Some(_)) => Self::NotExported,
                (Way::Out, None) => Self::Unsaid,
            };
        };
        match way {
            _ if is(drained, DrainReason::InvalidDrain) => Self::Invalid(drained.message.clone()),
            Way::Out if is(drained, DrainReason::Drained) => Self::Done,
            Way::Out if is(drained, DrainReason::Stays) => Self::Stays(drained.message.clone()),
            Way::Out | Way::Back => Self::Moving,
        }
    }
}

/// What a look showed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// The ServiceExports that the command is about.
    pub(super) exports: Vec<(ServiceKey, State)>,
    /// Why nothing was seen, if so.
    unread: Option<String>,
    /// Those that stay drained on the way back of all others, because their own annotation says so.
    pub(super) by_themselves: Vec<ServiceKey>,
    /// What imports here say of silent clusters.
    pub(super) silent: Vec<String>,
}

impl Seen {
    /// A look that failed.
    pub(super) fn unread(why: String) -> Self {
        Self { unread: Some(why), ..Self::default() }
    }

    fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.exports.iter().filter(|(_, state)| is(state)).count()
    }

    /// What is to be corrected before anything goes on.
    pub(super) fn invalid(&self) -> Option<String> {
        self.exports.iter().find_map(|(key, state)| match state {
            State::Invalid(why) => Some(format!("ServiceExport {key}: {why}")),
            _ => None,
        })
    }

    /// What is still under way; `None` if nothing is.
    pub(super) fn waits(&self, way: Way) -> Option<String> {
        if let Some(why) = &self.unread {
            return Some(format!("the API server does not answer: {why}"));
        }
        let (moving, unsaid) =
            (self.count(|state| *state == State::Moving), self.count(|state| *state == State::Unsaid));
        if moving + unsaid == 0 {
            return None;
        }
        let done = self.count(|state| *state == State::Done);
        let (are, go) = match way {
            Way::Out => ("drained", "leave step by step"),
            Way::Back => ("back", "come back step by step"),
        };
        let unsaid = match unsaid {
            0 => String::new(),
            count => format!(", {count} wait for the leader"),
        };
        Some(format!("{done} of {} names are {are}, {moving} {go}{unsaid}", self.exports.len()))
    }

    /// Whether endpoints stay.
    pub(super) fn any_stays(&self) -> bool {
        self.exports.iter().any(|(_, state)| matches!(state, State::Stays(_)))
    }

    /// The end of the way back.
    pub(super) fn back(&self) -> String {
        if self.by_themselves.is_empty() {
            return "All endpoints of this cluster are back.\n".to_owned();
        }
        let names: Vec<_> = self.by_themselves.iter().map(ToString::to_string).collect();
        format!(
            "All endpoints of this cluster are back but those of names that are drained by themselves: {}.\n",
            names.join(", ")
        )
    }

    /// The end of a drain. `back`: the command that undoes it.
    pub(super) fn drained(&self, back: &str) -> String {
        let done = self.count(|state| *state == State::Done);
        let names = if done == 1 { "1 name is drained" } else { &*format!("{done} names are drained") };
        let mut lines = vec![format!("{names}: no client of an import uses the endpoints of this cluster.")];
        let silent = self.silent.iter();
        lines.extend(silent.map(|silent| format!("Clusters whose controller is away do not follow. {silent}")));
        if self.any_stays() {
            lines.push("These names stay, and fail while the pods of this cluster are away:".to_owned());
            lines.extend(self.exports.iter().filter_map(|(key, state)| match state {
                State::Stays(why) => Some(format!("  {key}: {why}")),
                _ => None,
            }));
        } else {
            lines.push("This cluster may be upgraded now.".to_owned());
        }
        lines.push(format!("To bring the endpoints back: {back}"));
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use api::conditions::Row;

    fn condition(row: impl Into<Row>) -> Condition {
        let row = row.into();
        Condition {
            type_: row.condition.to_owned(),
            status: row.status.as_str().to_owned(),
            reason: row.reason.to_owned(),
            message: "why".to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    #[test]
    fn a_name_is_done_when_the_leader_says_so() {
        let valid = condition(ValidReason::Valid);
        let of = |way, reason: DrainReason| State::of(&[valid.clone(), condition(reason)], way);
        for (reason, out, back) in [
            (DrainReason::Drained, State::Done, State::Moving),
            (DrainReason::Stays, State::Stays("why".to_owned()), State::Moving),
            (DrainReason::Leaving, State::Moving, State::Moving),
            (DrainReason::Returning, State::Moving, State::Moving),
            (DrainReason::InvalidDrain, State::Invalid("why".to_owned()), State::Invalid("why".to_owned())),
        ] {
            assert_eq!((of(Way::Out, reason), of(Way::Back, reason)), (out, back), "{reason}");
        }
        let of = |conditions: &[Condition]| [Way::Out, Way::Back].map(|way| State::of(conditions, way));
        assert_eq!(of(&[valid]), [State::Unsaid, State::Done]);
        assert_eq!(of(&[]), [State::Unsaid, State::Done]);
        assert_eq!(of(&[condition(ValidReason::NoService)]), [State::NotExported, State::Done]);
    }

    #[test]
    fn it_waits_for_all_and_says_which_names_stay() {
        let seen = |states: &[State]| {
            let exports =
                states.iter().zip(0..).map(|(state, n)| (ServiceKey::new("shop", format!("s{n}")), state.clone()));
            Seen { exports: exports.collect(), ..Seen::default() }
        };
        let stays = State::Stays("No other cluster exports this name.".to_owned());
        let waiting = seen(&[State::Done, State::Moving, State::Unsaid, stays.clone()]);
        let text = "1 of 4 names are drained, 1 leave step by step, 1 wait for the leader";
        assert_eq!(waiting.waits(Way::Out).unwrap(), text);
        let done = seen(&[State::Done, State::NotExported]);
        assert_eq!((done.waits(Way::Out), done.any_stays()), (None, false));
        let text = done.drained("back");
        assert!(text.starts_with("1 name is drained: ") && text.contains("may be upgraded now"), "{text}");
        let some = Seen { silent: vec!["red is silent.".to_owned()], ..seen(&[State::Done, State::Done, stays]) };
        let text = some.drained("cloudmap-mcs drain --all --back");
        assert!(some.any_stays() && !text.contains("may be upgraded"), "{text}");
        for part in [
            "2 names are drained",
            "  shop/s2: No other cluster",
            "do not follow. red is silent.",
            "back: cloudmap-mcs drain --all --back",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let invalid = seen(&[State::Invalid("write true".to_owned())]);
        assert_eq!(invalid.invalid().unwrap(), "ServiceExport shop/s0: write true");
    }
}
