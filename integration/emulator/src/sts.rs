//! AWS STS: `AssumeRole`, and the temporary access keys that it gives. It is asked at the address of the registry, in the
//! Query protocol (version 2011-06-15). Errors are those of the API reference of STS; where it gives no message, the message
//! is one that users have reported.

use std::collections::BTreeMap;
use std::time::Duration;

use super::accounts::{Accounts, Role};
use super::error::ApiError;

/// What fault rules and counters call the only operation. Rules without an operation do not hit it.
pub const ASSUME_ROLE: &str = "AssumeRole";

/// `DurationSeconds`: "from 900 seconds (15 minutes)", an hour if it is not given, and at most 12 hours.
const SHORTEST: u64 = 900;
const DEFAULT: u64 = 3600;
const LONGEST: u64 = 43_200;
/// "Role chaining limits your [...] role session to a maximum of one hour."
const LONGEST_CHAINED: u64 = 3600;

/// Who makes a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) account: String,
    /// As AWS names it in its messages.
    pub(crate) arn: String,
    /// The ARN of the role that was taken.
    pub(crate) role: Option<String>,
}

/// What is wrong with temporary keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadToken {
    Expired,
    Unknown,
}

impl BadToken {
    /// As Cloud Map answers (the common errors of its API reference).
    pub(crate) fn for_registry(self) -> ApiError {
        match self {
            Self::Expired => {
                ApiError::new("ExpiredTokenException", "The security token included in the request is expired")
            }
            Self::Unknown => {
                ApiError::new("UnrecognizedClientException", "The security token included in the request is invalid.")
            }
        }
    }

    fn for_sts(self) -> ApiError {
        let code = if self == Self::Expired { "ExpiredToken" } else { "InvalidClientTokenId" };
        ApiError { status: 403, ..ApiError::new(code, self.for_registry().message) }
    }
}

#[derive(Clone, Debug)]
struct Session {
    identity: Identity,
    token: String,
    expires: Duration,
}

/// Temporary keys by their ids, those that have expired too: whoever uses one of them is told so.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_key: BTreeMap<String, Session>,
}

impl Sessions {
    /// Whose a temporary key is; none if it is not one of these.
    pub(crate) fn find(
        &self,
        now: Duration,
        key: &str,
        token: Option<&str>,
        accounts: &Accounts,
    ) -> Option<Result<Identity, BadToken>> {
        let session = self.by_key.get(key)?;
        let role = session.identity.role.as_ref();
        if token != Some(&session.token) || !role.is_some_and(|role| accounts.roles.contains_key(role)) {
            return Some(Err(BadToken::Unknown));
        }
        Some(if now < session.expires { Ok(session.identity.clone()) } else { Err(BadToken::Expired) })
    }
}

/// The parameters of a request.
pub(crate) struct Form(BTreeMap<String, String>);

impl Form {
    pub(crate) fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn is_for(&self, action: &str) -> bool {
        self.get("Action") == Some(action)
    }

    /// The role that is asked for, for fault rules and policies.
    pub(crate) fn role(&self) -> &str {
        self.get("RoleArn").unwrap_or_default()
    }

    /// The actions that are asked for. "To pass session tags [...], you must have the sts:TagSession permission."
    pub(crate) fn actions(&self) -> impl Iterator<Item = &'static str> {
        let tags = self.0.keys().any(|key| key.starts_with("Tags.") || key.starts_with("TransitiveTagKeys."));
        ["sts:AssumeRole"].into_iter().chain(tags.then_some("sts:TagSession"))
    }

    fn required(&self, name: &str, lengths: std::ops::RangeInclusive<usize>) -> Result<&str, ApiError> {
        let value = self.get(name).unwrap_or_default();
        if lengths.contains(&value.chars().count()) {
            return Ok(value);
        }
        let (least, most) = (lengths.start(), lengths.end());
        Err(invalid(&format!("Value '{value}' at '{name}' must have {least} to {most} characters")))
    }
}

fn invalid(what: &str) -> ApiError {
    ApiError::new("ValidationError", format!("1 validation error detected: {what}"))
}

fn denied(caller: &Identity, role: &str) -> ApiError {
    let message = format!("User: {} is not authorized to perform: sts:AssumeRole on resource: {role}", caller.arn);
    ApiError { status: 403, ..ApiError::new("AccessDenied", message) }
}

/// A request that the role's trust policy lets through: what is left is to give keys.
pub(crate) struct Granted {
    role: String,
    account: String,
    session: String,
    lifetime: Duration,
}

/// Checks a request as STS does. Whether the caller's own policies allow it is another matter.
pub(crate) fn check(
    form: &Form,
    caller: Result<&Identity, BadToken>,
    accounts: &Accounts,
) -> Result<Granted, ApiError> {
    let caller = caller.map_err(BadToken::for_sts)?;
    if !form.is_for(ASSUME_ROLE) {
        let action = form.get("Action").unwrap_or_default();
        return Err(ApiError::new(
            "InvalidAction",
            format!("Could not find operation {action} for version 2011-06-15"),
        ));
    }
    let arn = form.required("RoleArn", 20..=2048)?;
    let session = form.required("RoleSessionName", 2..=64)?;
    if !session.chars().all(|c| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c)) {
        return Err(invalid(&format!(
            "Value '{session}' at 'roleSessionName' failed to satisfy constraint: Member must satisfy regular expression \
             pattern: [\\w+=,.@-]*"
        )));
    }
    // A session that may do less than its role is not modelled; one that may do too much would be worse.
    if form.0.keys().any(|key| key == "Policy" || key.starts_with("PolicyArns.")) {
        return Err(invalid("the emulator knows no session policies"));
    }
    let seconds = duration(form.get("DurationSeconds"))?;
    // AWS does not say whether there is such a role.
    let role = accounts.roles.get(arn).filter(|role| trusts(role, caller, form)).ok_or_else(|| denied(caller, arn))?;
    if seconds > role.max_session_seconds {
        let message = "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.";
        return Err(ApiError::new("ValidationError", message));
    }
    if caller.role.is_some() && seconds > LONGEST_CHAINED {
        let message =
            "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.";
        return Err(ApiError::new("ValidationError", message));
    }
    Ok(Granted {
        role: arn.to_owned(),
        account: account_of(arn).to_owned(),
        session: session.to_owned(),
        lifetime: Duration::from_secs(seconds).min(accounts.longest_session),
    })
}

fn duration(given: Option<&str>) -> Result<u64, ApiError> {
    let Some(given) = given else { return Ok(DEFAULT) };
    let bound = match given.parse::<u64>() {
        Ok(seconds) if seconds < SHORTEST => format!("greater than or equal to {SHORTEST}"),
        Ok(seconds) if seconds > LONGEST => format!("less than or equal to {LONGEST}"),
        Ok(seconds) => return Ok(seconds),
        Err(_) => "of type Integer".to_owned(),
    };
    Err(invalid(&format!(
        "Value '{given}' at 'durationSeconds' failed to satisfy constraint: Member must have value {bound}"
    )))
}

/// Whether the role's trust policy lets the caller in. A role that asks for no external id takes any.
fn trusts(role: &Role, caller: &Identity, form: &Form) -> bool {
    let root = format!("arn:aws:iam::{}:root", caller.account);
    let mut names = [caller.account.as_str(), &root, &caller.arn].into_iter().chain(caller.role.as_deref());
    let known = role.trusted.is_empty() || names.any(|name| role.trusted.iter().any(|trusted| trusted == name));
    known && role.external_id.as_deref().is_none_or(|wanted| form.get("ExternalId") == Some(wanted))
}

/// The account in an ARN.
pub(crate) fn account_of(arn: &str) -> &str {
    arn.split(':').nth(4).unwrap_or_default()
}

impl Granted {
    /// Gives keys. `random` gives random letters and digits in lower case. `keep` is how many keys are remembered.
    pub(crate) fn give(
        self,
        sessions: &mut Sessions,
        now: Duration,
        keep: usize,
        mut random: impl FnMut(usize) -> String,
    ) -> String {
        // "arn:aws:sts::123456789012:assumed-role/demo/TestAR": the path of the role is left out.
        let name = self.role.rsplit('/').next().unwrap_or_default();
        let arn = format!("arn:aws:sts::{}:assumed-role/{name}/{}", self.account, self.session);
        let mut upper = |length| random(length).to_uppercase();
        let (key, role_id, secret) = (format!("ASIA{}", upper(16)), format!("AROA{}", upper(17)), upper(40));
        let token = random(200);
        let expires = now + self.lifetime;
        let answer = format!(
            "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>\
             <AssumedRoleUser><AssumedRoleId>{role_id}:{session}</AssumedRoleId><Arn>{arn}</Arn></AssumedRoleUser>\
             <Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
             <SessionToken>{token}</SessionToken><Expiration>{expiration}</Expiration></Credentials>\
             </AssumeRoleResult></AssumeRoleResponse>",
            session = escape(&self.session),
            arn = escape(&arn),
            expiration = date(expires),
        );
        while sessions.by_key.len() >= keep.max(1) {
            let oldest = sessions.by_key.iter().min_by_key(|(_, session)| session.expires);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            sessions.by_key.remove(&oldest);
        }
        let identity = Identity { account: self.account, arn, role: Some(self.role) };
        sessions.by_key.insert(key, Session { identity, token, expires });
        answer
    }
}

/// An error as STS answers it.
pub(crate) fn error_body(error: &ApiError) -> String {
    let fault = if error.status < 500 { "Sender" } else { "Receiver" };
    let (code, message) = (escape(&error.code), escape(&error.message));
    format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>{fault}</Type>\
         <Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML 1.0 has no other control characters.
            c if c < ' ' && !matches!(c, '\t' | '\n' | '\r') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A time since the Unix epoch as ISO 8601 writes it, in UTC: `2030-01-01T00:00:00.000Z`.
fn date(time: Duration) -> String {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    // From days since 0000-03-01 in the Gregorian calendar, whose leap day is then the last day of a year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z", second % 60, time.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(date(Duration::from_millis(1_500)), "1970-01-01T00:00:01.500Z");
    }

    #[test]
    fn text_cannot_break_out_of_its_element() {
        let body = error_body(&ApiError::new("ValidationError", "<a href=\"b\">&\u{1}"));
        assert!(body.contains("<Message>&lt;a href=&quot;b&quot;&gt;&amp;\u{fffd}</Message>"), "{body}");
    }
}
