use std::fmt;

/// How many characters of a user's text a message repeats.
const LENGTH: usize = 100;

/// The beginning of a text that a user wrote, quoted, for messages. An annotation can have 256 KiB, and nobody reads
/// that in a condition.
#[derive(Debug, Clone, Copy)]
pub struct Excerpt<'a>(pub &'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(LENGTH) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}", format!("{}…", &self.0[..end])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_with_an_ellipsis() {
        assert_eq!(Excerpt("a \"b\"").to_string(), r#""a \"b\"""#);
        let cut = Excerpt(&"é".repeat(100_000)).to_string();
        assert_eq!((cut.chars().count(), cut.ends_with("é…\"")), (LENGTH + 3, true));
    }
}
