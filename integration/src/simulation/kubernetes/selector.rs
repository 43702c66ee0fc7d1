//! Label selectors, as `labelSelector` has them.

use serde_json::Value;

use super::refusal::Refusal;

/// Which objects are meant, by their labels. All requirements must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    /// Objects without the label match, too.
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// # Errors
    /// A requirement that cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let mut requirements = Vec::new();
        for part in split(text) {
            requirements.push(requirement(part.trim()).ok_or_else(|| {
                Refusal::bad_request(format!("unable to parse requirement: {part:?} in the selector {text:?}"))
            })?);
        }
        Ok(Self(requirements))
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |name: &String| object["metadata"]["labels"][name.as_str()].as_str();
        let among = |name, values: &Vec<String>| label(name).is_some_and(|value| values.iter().any(|v| v == value));
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(name, values) => among(name, values),
            Requirement::NotIn(name, values) => !among(name, values),
            Requirement::Exists(name) => label(name).is_some(),
            Requirement::Absent(name) => label(name).is_none(),
        })
    }
}

/// At commas that are not within the parentheses of a set.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|part| !part.trim().is_empty())
}

fn requirement(text: &str) -> Option<Requirement> {
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((name, value)) = text.split_once("!=") {
        return Some(Requirement::NotIn(name.trim().to_owned(), one(value)));
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Requirement::In(name.trim().to_owned(), one(value)));
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [name] => Some(match name.strip_prefix('!') {
            Some(name) => Requirement::Absent(name.to_owned()),
            None => Requirement::Exists((*name).to_owned()),
        }),
        [name, operator, ..] => {
            let set = text.split_once('(')?.1.strip_suffix(')')?;
            let values = set.split(',').map(|value| value.trim().to_owned()).collect();
            match operator.split('(').next()? {
                "in" => Some(Requirement::In((*name).to_owned(), values)),
                "notin" => Some(Requirement::NotIn((*name).to_owned(), values)),
                _ => None,
            }
        }
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_takes_what_kubernetes_would() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        let bare = json!({"metadata": {}});
        for (selector, labelled, unlabelled) in [
            ("", true, true),
            ("app=web", true, false),
            ("app==web,tier=front", true, false),
            ("app=web,tier=back", false, false),
            ("app!=web", false, true),
            ("app!=api", true, true),
            ("app in (api, web)", true, false),
            ("app notin (api,web),tier", false, false),
            ("app notin (api)", true, true),
            ("app", true, false),
            ("!app", false, true),
        ] {
            let parsed = Selector::parse(selector).unwrap();
            assert_eq!((parsed.matches(&object), parsed.matches(&bare)), (labelled, unlabelled), "{selector}");
        }
        assert_eq!(Selector::parse("app like web").unwrap_err().code, 400);
    }
}
