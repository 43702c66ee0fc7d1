//! Patterns of names, in which `*` stands for any text.

/// Whether a pattern matches a name, in upper or lower case as in DNS.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*').map(str::as_bytes);
    let Some(mut rest) = parts.next().and_then(|begin| after(name.as_bytes(), begin)) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(found) = (0..=rest.len()).find_map(|at| after(&rest[at..], part)) else { return false };
        rest = found;
    }
    rest.len().checked_sub(end.len()).is_some_and(|at| rest[at..].eq_ignore_ascii_case(end))
}

/// What follows after the beginning of a text.
fn after<'a>(text: &'a [u8], begin: &[u8]) -> Option<&'a [u8]> {
    let (there, rest) = text.split_at_checked(begin.len())?;
    there.eq_ignore_ascii_case(begin).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in
            [("*", ""), ("*", "a"), ("a*", "a"), ("a*c", "abc"), ("*-x-*", "1-x-2"), ("Shop", "shop")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a", "ab"), ("a*", "ba"), ("a*bc", "abd"), ("ab*ba", "aba")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
