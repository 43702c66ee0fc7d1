//! Documents name files, headings and tests that exist.

use std::{collections::BTreeSet, fs, path::Path};

use super::{files, root};
use base::release;
use cli::Cli;

/// The text without fenced blocks of code, in which `](` means nothing and `#` begins no heading.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// Where the links of a document lead: what is between `](` and `)`.
fn links(text: &str) -> Vec<String> {
    prose(text)
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()))
        .collect()
}

/// Why a link does not lead anywhere; links to other sites are not followed.
fn broken(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { document.to_owned() } else { document.parent()?.join(path) };
    if !target.exists() {
        return Some(format!("there is no {}", target.display()));
    }
    let anchor = anchor?;
    let text = fs::read_to_string(&target).ok()?;
    (!anchors(&text).contains(anchor)).then(|| format!("{} has no heading #{anchor}", target.display()))
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for document in files(root(), "md") {
        for link in links(&fs::read_to_string(&document).unwrap()) {
            seen += 1;
            wrong.extend(broken(&document, &link).map(|why| format!("{}: {why}", document.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "{seen}");
}

#[test]
fn a_link_to_a_file_or_heading_that_there_is_not_is_found() {
    let readme = root().join("README.md");
    assert_eq!(broken(&readme, "docs/glossary.md#glossary"), None);
    assert!(broken(&readme, "docs/nothing.md").is_some());
    assert!(broken(&readme, "docs/glossary.md#nothing").is_some());
    assert!(broken(&readme, "#nothing").is_some());
}

/// The site has exactly these pages: what is not in its table of contents, nobody finds.
#[test]
fn the_table_of_contents_has_every_document_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let mut listed: Vec<_> =
        links(&fs::read_to_string(&summary).unwrap()).into_iter().map(|link| docs.join(link)).collect();
    listed.retain(|path| !path.strip_prefix(&docs).unwrap().starts_with(".."));
    listed.sort();
    let documents: Vec<_> = files(&docs, "md").into_iter().filter(|path| *path != summary).collect();
    assert_eq!(listed, documents, "in docs/SUMMARY.md on the left, in docs on the right");
}

/// The commands of this program in blocks of code, without comments and what a shell does with them.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut fenced = false;
    let mut code = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            code += line;
            code.push('\n');
        }
    }
    let code = code.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in code.lines() {
        let line = line.trim_start().trim_start_matches("$ ");
        // `mcs` is a shell function that the documents define.
        let given = ["cloudmap-mcs ", "kubectl mcs ", "mcs "].iter().find_map(|program| line.strip_prefix(program));
        let Some(given) = given.or_else(|| line.split_once(" -- cloudmap-mcs ").map(|(_, given)| given)) else {
            continue;
        };
        let words = given.split_whitespace().take_while(|word| !word.starts_with(['#', '|', '>', '<', '&', '"']));
        let words: Vec<_> = words.map(|word| word.trim_end_matches(';').trim_matches('\'').to_owned()).collect();
        // A shell function has its arguments elsewhere.
        if !words.is_empty() {
            found.push(words);
        }
    }
    found
}

#[test]
fn every_command_that_the_documents_show_can_be_typed() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for document in files(root(), "md") {
        if document.ends_with("docs/reference/commands.md") {
            continue;
        }
        for words in commands(&fs::read_to_string(&document).unwrap()) {
            seen += 1;
            // Help and the version are no errors.
            if let Err(error) = Cli::of([release::NAME.to_owned()].into_iter().chain(words.clone()))
                && error.use_stderr()
            {
                wrong.push(format!("{}: {}: {error}", document.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 15, "{seen}");
}

/// A document that names a test that was renamed proves nothing. Where a module is in front of it, the test is there.
#[test]
fn every_test_that_the_documents_name_exists() {
    let sources: Vec<(String, String)> = [root().join("src"), root().join("integration")]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .map(|path| {
            let relative = path.strip_prefix(root()).unwrap().display().to_string();
            (relative, fs::read_to_string(path).unwrap())
        })
        .collect();
    // Names of tests have several words, and neither dots nor paths.
    let is_test = |name: &str| {
        name.matches('_').count() > 2
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':')
    };
    let (mut named, mut placed) = (0, 0);
    for document in ["architecture.md", "ledger.md", "imports.md", "registrations.md", "testing.md"] {
        let text = fs::read_to_string(root().join("docs").join(document)).unwrap();
        for line in text.lines().filter(|line| line.starts_with('|')) {
            let (mut last, mut module) = ("", "");
            let parts: Vec<&str> = line.split('`').collect();
            for (before, name) in parts.chunks_exact(2).map(|pair| (pair[0], pair[1])) {
                module = match before {
                    " " => last,
                    ", " => module,
                    _ => "",
                };
                last = name;
                if !is_test(name) {
                    continue;
                }
                (named, placed) = (named + 1, placed + usize::from(!module.is_empty()));
                let function = format!("fn {}(", name.rsplit("::").next().unwrap());
                let there =
                    if module.is_empty() { String::new() } else { format!("src/{}", module.replace("::", "/")) };
                let found = sources.iter().any(|(path, code)| path.starts_with(&there) && code.contains(&function));
                assert!(found, "{document} names {module} {name}, which there is not");
            }
        }
    }
    assert!(named > 60 && placed > 30, "{named}, {placed}");
}
