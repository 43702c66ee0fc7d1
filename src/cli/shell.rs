//! Words of commands that are printed for a shell.

/// A word as a shell takes it. Others choose some of them: who registers instances, creates pods, or exports names.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        for plain in ["orders", "deployment/web-1", "arn:aws:eks:eu-central-1:123456789012:cluster/a_b.c"] {
            assert_eq!(quoted(plain), plain);
        }
        for (word, expected) in [
            ("", "''"),
            ("x; reboot", "'x; reboot'"),
            ("$(reboot)", "'$(reboot)'"),
            ("My Files/config", "'My Files/config'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
