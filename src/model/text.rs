//! Texts for people.

/// The text with a capital letter at its beginning.
pub fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_letter_changes() {
        assert_eq!(["", "a b", "über", "1 of 2"].map(capitalized), ["", "A b", "Über", "1 of 2"]);
    }
}
