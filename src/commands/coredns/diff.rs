//! The difference of two texts, as `diff -u` shows it.

use std::fmt::Write as _;

/// How many unchanged lines surround a change.
const CONTEXT: usize = 3;

/// The difference, with the name of the object for both sides; empty if there is none.
pub(super) fn unified(name: &str, before: &str, after: &str) -> String {
    let (old, new) = (lines(before), lines(after));
    let steps = steps(&old, &new);
    let changed: Vec<usize> = (0..steps.len()).filter(|at| steps[*at].0 != ' ').collect();
    let mut out = String::new();
    let mut rest = changed.as_slice();
    while let [first, ..] = rest {
        let joined = rest.windows(2).take_while(|pair| pair[1] - pair[0] <= 2 * CONTEXT + 1).count();
        let (start, end) = (first.saturating_sub(CONTEXT), (rest[joined] + CONTEXT + 1).min(steps.len()));
        let hunk = &steps[start..end];
        let count = |without: char| hunk.iter().filter(|(kind, _)| *kind != without).count();
        let before = |without: char| steps[..start].iter().filter(|(kind, _)| *kind != without).count();
        if out.is_empty() {
            let _ = writeln!(out, "--- {name}\n+++ {name}");
        }
        // An empty side is named by the line before it.
        let side = |without: char| match (before(without), count(without)) {
            (before, 0) => format!("{before},0"),
            (before, count) => format!("{},{count}", before + 1),
        };
        let _ = writeln!(out, "@@ -{} +{} @@", side('+'), side('-'));
        for (kind, line) in hunk {
            let _ = write!(out, "{kind}{line}");
            if !line.ends_with('\n') {
                out.push_str("\n\\ No newline at end of file\n");
            }
        }
        rest = &rest[joined + 1..];
    }
    out
}

/// With their line breaks.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// The shortest way from one to the other: every line with a blank, `-` or `+`. Corefiles are short, so that a table of all
/// pairs of lines is good enough.
fn steps<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
    // How many lines the rests from here have in common.
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for o in (0..old.len()).rev() {
        for n in (0..new.len()).rev() {
            common[o][n] =
                if old[o] == new[n] { common[o + 1][n + 1] + 1 } else { common[o + 1][n].max(common[o][n + 1]) };
        }
    }
    let (mut o, mut n, mut steps) = (0, 0, Vec::new());
    while o < old.len() || n < new.len() {
        if o < old.len() && n < new.len() && old[o] == new[n] {
            steps.push((' ', old[o]));
            (o, n) = (o + 1, n + 1);
        } else if o < old.len() && (n == new.len() || common[o + 1][n] >= common[o][n + 1]) {
            steps.push(('-', old[o]));
            o += 1;
        } else {
            steps.push(('+', new[n]));
            n += 1;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(lines: impl IntoIterator<Item = u32>) -> String {
        lines.into_iter().fold(String::new(), |text, n| text + &n.to_string() + "\n")
    }

    #[test]
    fn changes_have_three_lines_around_them_and_near_ones_share_a_hunk() {
        let before = numbered(1..=20);
        let after = before.replace("5\n6\n", "five\n6\n").replace("9\n10\n", "9\n9a\n10\n").replace("20\n", "");
        let expected = "--- it\n+++ it\n@@ -2,11 +2,12 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n+9a\n 10\n 11\n 12\n\
                        @@ -17,4 +18,3 @@\n 17\n 18\n 19\n-20\n";
        assert_eq!(unified("it", &before, &after), expected);
        assert_eq!(unified("it", &before, &before), "");
    }

    #[test]
    fn a_missing_line_break_and_an_empty_side_are_said() {
        let expected = "--- it\n+++ it\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n";
        assert_eq!(unified("it", "a", "a\n"), expected);
        assert_eq!(unified("it", "", "a\n"), "--- it\n+++ it\n@@ -0,0 +1,1 @@\n+a\n");
    }
}
