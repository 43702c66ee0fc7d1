//! Corefiles, which people and other tools wrote, and what `coredns` makes of them.

use std::collections::HashMap;

use commands::{checked_corefile, edited_corefile};

use super::{Target, Verdict, holds, same};

pub(super) const TARGETS: &[Target] = &[Target {
    name: "corefile",
    corpus,
    words: &[
        "{",
        "}",
        "{\n",
        "}\n",
        " {\n",
        "\n}\n",
        "kubernetes",
        "kubernetes cluster.local {\n",
        "multicluster",
        "clusterset.local",
        "cluster.local",
        "cache",
        "cache 30",
        "disable success",
        "disable denial",
        "import",
        "import a\n",
        "(a) {\n",
        "import ../*.x",
        "{$A}",
        "{$A:b}",
        "{%A%}",
        "forward . 192.0.2.1",
        "bind 169.254.20.10",
        "template",
        "rewrite name regex (.*) {1}",
        "hosts",
        "dns://.:53",
        "tls://.",
        "10.0.0.0/8",
        "in-addr.arpa",
        "ip6.arpa",
        "reload",
        "errors",
        "ready",
        ":53",
        ".",
        ",",
        "#",
        "\"",
        "\\\"",
        "# cloudmap-mcs added clusterset.local",
        "namespace_labels a=b",
        "fallthrough",
        "zone",
        "\u{feff}",
    ],
    longest: 8 << 10,
    quick: 1_500,
    check,
}];

const ZONE: &str = "clusterset.local";

/// The files of the field, and what `coredns apply` makes of them.
fn corpus() -> Vec<Vec<u8>> {
    macro_rules! files {
        ($($name:literal),+ $(,)?) => {
            [$(include_str!(concat!("../../../src/commands/coredns/fixtures/", $name, ".corefile"))),+]
        };
    }
    let files = files![
        "addresses-on-lines",
        "answered-behind",
        "byte-order-mark",
        "helm-ports",
        "hosts-and-template",
        "namespace-labels",
        "node-local-all",
        "node-local-capitals",
        "node-local-elsewhere",
        "node-local-snippet",
        "node-local-stub",
        "node-local-transport",
        "options",
        "quotes",
        "reverse-range-twice",
        "rewrite-one-name",
        "rewrite-regex",
        "rewrite-suffix",
        "snippets",
        "stub-of-all",
        "stub-of-one-namespace",
        "variable-with-default",
        "variables",
        "windows",
        "zone-by-hand",
    ];
    let readable = files.into_iter().filter(|text| edited_corefile(text, ZONE, false).is_ok());
    let texts = readable.flat_map(|text| [Some(text.to_owned()), edited_corefile(text, ZONE, true).ok()]);
    texts.flatten().map(String::into_bytes).collect()
}

fn check(input: &[u8]) -> Verdict {
    let before = String::from_utf8_lossy(input);
    for said in checked_corefile(&before, ZONE) {
        holds(said.len() <= 4_000 + 8 * before.len(), || format!("a finding of {} bytes", said.len()))?;
    }
    let removed = edited_corefile(&before, ZONE, false);
    let Ok(after) = edited_corefile(&before, ZONE, true) else { return Ok(removed.is_ok()) };
    same("what is applied twice", &Ok(after.clone()), &edited_corefile(&after, ZONE, true))?;
    // A server block of a NodeLocal DNSCache is copied, with its snippets written out.
    holds(after.len() <= 4_000 + 40 * before.len(), || format!("{} bytes of {}", after.len(), before.len()))?;
    let is_new = !before.contains("clusterset") && !before.contains("cloudmap-mcs") && !before.contains("multicluster");
    if is_new {
        keeps_words(&before, &after)?;
        // A block that was empty goes, too.
        let removed = edited_corefile(&after, ZONE, false)?;
        same("what is applied and removed", &words(&before), &words(&removed))?;
    }
    Ok(true)
}

/// The words of a Corefile: a comment and a brace may touch the word before.
fn words(text: &str) -> Vec<&str> {
    let between = |letter: char| letter.is_whitespace() || "{}#".contains(letter);
    text.split(between).filter(|word| !word.is_empty()).collect()
}

/// All words that were there still are, as often.
fn keeps_words(before: &str, after: &str) -> Result<(), String> {
    let mut count = HashMap::<&str, i64>::new();
    let all = words(after).into_iter().zip([1].into_iter().cycle());
    for (word, more) in all.chain(words(before).into_iter().zip([-1].into_iter().cycle())) {
        *count.entry(word).or_default() += more;
    }
    match count.into_iter().find(|(_, more)| *more < 0) {
        Some((word, _)) => Err(format!("the word {word:?} is lost in {after:?}")),
        None => Ok(()),
    }
}
