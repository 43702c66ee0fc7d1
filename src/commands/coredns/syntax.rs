//! The words, blocks and imports of a Corefile, read as CoreDNS' own parser (caddyfile) reads them.

use std::{collections::BTreeMap, ops::Range};

use super::faults::Fault;

/// Why a Corefile cannot be edited, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// A word outside of comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// Without quotes.
    pub(super) text: String,
    /// Where it is, with its quotes.
    pub(super) at: Range<usize>,
    /// The line on which it begins; the first one is 1.
    pub(super) line: usize,
    last_line: usize,
}

/// A plugin, or an option of one: a line, perhaps with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directive {
    /// The name and its arguments.
    pub(super) words: Vec<Word>,
    pub(super) block: Option<Block>,
}

/// What is between braces, with what is imported there from snippets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) open: Word,
    pub(super) directives: Vec<Directive>,
    pub(super) close: Word,
}

/// A server block, or a snippet, whose only address is its name in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) addresses: Vec<Word>,
    pub(super) block: Block,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Parsed {
    /// Its server blocks, with what they import from snippets.
    pub(super) servers: Vec<Server>,
    /// What is imported from other files: the patterns.
    pub(super) files: Vec<String>,
    /// What CoreDNS refuses, as far as it is about imports.
    pub(super) faults: Vec<Fault>,
}

/// Reads a whole file.
pub(super) fn parse(text: &str) -> Result<Parsed, Refusal> {
    let words = words(text)?;
    let mut parser = Parser { words: &words, next: 0, depth: 0 };
    let mut reader = Reader::default();
    while let Some(first) = parser.peek() {
        if first.text == "import" {
            parser.next += 1;
            let mut import = vec![first.clone()];
            while let Some(word) = parser.take_if(|word| word.line == first.line) {
                import.push(word.clone());
            }
            reader.top_level(Directive { words: import, block: None });
        } else {
            let server = parser.server()?;
            match snippet_name(&server) {
                Some(name) => reader.define(name.to_owned(), server),
                None => reader.serve(server),
            }
        }
    }
    for (line, name) in std::mem::take(&mut reader.unresolved) {
        if let Some(snippet) = reader.snippets.get(&name) {
            let below = snippet.block.open.line;
            let what =
                format!("the snippet ({name}) is below, on line {below}, so CoreDNS looks for a file of this name");
            reader.fault(line, &what, "put the snippet before the server blocks that import it".to_owned());
        }
    }
    Ok(reader.parsed)
}

fn snippet_name(server: &Server) -> Option<&str> {
    let [only] = &*server.addresses else { return None };
    only.text.strip_prefix('(')?.strip_suffix(')')
}

fn refuse<T>(line: usize, what: &str) -> Result<T, Refusal> {
    Err(Refusal(format!("the Corefile cannot be read: line {line}: {what}")))
}

/// Words are separated by white space. Quotes make one word of several, `#` begins a comment. A byte order mark at the
/// beginning of the file counts for nothing.
fn words(text: &str) -> Result<Vec<Word>, Refusal> {
    let mut words = Vec::new();
    let mut chars = text.char_indices().peekable();
    chars.next_if(|(_, c)| *c == '\u{feff}');
    let mut line = 1;
    let mut comment = false;
    let mut word: Option<Word> = None;
    while let Some((at, c)) = chars.next() {
        if c.is_whitespace() {
            if c == '\r' {
                continue;
            }
            // A comment that begins within a word ends where that word would have ended.
            comment &= c != '\n' && word.is_none();
            words.extend(word.take());
            line += usize::from(c == '\n');
            continue;
        }
        comment |= c == '#';
        if comment {
            continue;
        }
        match &mut word {
            Some(word) => {
                word.text.push(c);
                word.at.end = at + c.len_utf8();
            }
            None if c == '"' => {
                let first = line;
                let mut value = String::new();
                let mut escaped = false;
                let end = loop {
                    let Some((at, c)) = chars.next() else { return refuse(first, "a quotation mark is not closed") };
                    line += usize::from(c == '\n');
                    match c {
                        '"' if !escaped => break at + 1,
                        '\\' if !escaped => escaped = true,
                        c => {
                            if escaped && c != '"' {
                                value.push('\\');
                            }
                            value.push(c);
                            escaped = false;
                        }
                    }
                };
                words.push(Word { text: value, at: at..end, line: first, last_line: line });
            }
            None => word = Some(Word { text: c.into(), at: at..at + c.len_utf8(), line, last_line: line }),
        }
    }
    words.extend(word);
    Ok(words)
}

/// How deep braces may be in each other. Plugins have two levels.
const DEEPEST: usize = 32;

struct Parser<'w> {
    words: &'w [Word],
    next: usize,
    /// How many blocks are around the next word.
    depth: usize,
}

impl<'w> Parser<'w> {
    fn peek(&self) -> Option<&'w Word> {
        self.words.get(self.next)
    }

    fn take_if(&mut self, condition: impl Fn(&Word) -> bool) -> Option<&'w Word> {
        let word = self.peek().filter(|word| condition(word))?;
        self.next += 1;
        Some(word)
    }

    /// The line on which the previous word ends.
    fn line(&self) -> usize {
        self.next.checked_sub(1).map_or(1, |last| self.words[last].last_line)
    }

    /// Addresses are on one line, or on several, all of which but the last end in a comma.
    fn server(&mut self) -> Result<Server, Refusal> {
        let mut addresses: Vec<Word> = Vec::new();
        loop {
            let goes_on = addresses.last().is_none_or(|last| last.text.ends_with(','));
            let line = self.line();
            match self.take_if(|word| word.text != "{" && (goes_on || word.line == line)) {
                Some(word) => addresses.push(word.clone()),
                None => break,
            }
        }
        let Some(open) = self.take_if(|word| word.text == "{") else {
            return refuse(self.line(), "the plugins of this server block are not between braces: write them so");
        };
        let block = self.block(open)?;
        Ok(Server { addresses, block })
    }

    fn block(&mut self, open: &Word) -> Result<Block, Refusal> {
        if self.depth == DEEPEST {
            return refuse(open.line, "there are too many braces around this one");
        }
        self.depth += 1;
        let block = self.rest_of_block(open);
        self.depth -= 1;
        block
    }

    fn rest_of_block(&mut self, open: &Word) -> Result<Block, Refusal> {
        let mut directives = Vec::new();
        loop {
            let before = self.line();
            let Some(word) = self.peek() else { return refuse(open.line, "this brace is not closed") };
            self.next += 1;
            match &*word.text {
                // CoreDNS takes it for an argument of what is before it.
                "}" if word.line == before && !directives.is_empty() => {
                    return refuse(word.line, "the closing brace must be on a line of its own");
                }
                "}" => return Ok(Block { open: open.clone(), directives, close: word.clone() }),
                "{" => return refuse(word.line, "there is no plugin before this brace"),
                _ if word.line == before && !directives.is_empty() => {
                    return refuse(word.line, "what follows a closing brace must be on a line of its own");
                }
                _ => directives.push(self.directive(word)?),
            }
        }
    }

    fn directive(&mut self, name: &Word) -> Result<Directive, Refusal> {
        let mut words = vec![name.clone()];
        loop {
            let line = self.line();
            if let Some(open) = self.take_if(|word| word.text == "{" && word.line == line) {
                return Ok(Directive { words, block: Some(self.block(open)?) });
            }
            match self.take_if(|word| word.text != "}" && word.line == line) {
                Some(word) => words.push(word.clone()),
                None => return Ok(Directive { words, block: None }),
            }
        }
    }
}

/// How often snippets may be imported: CoreDNS' own limit.
const MOST_IMPORTS: usize = 10_000;
/// How much text may be imported, in bytes, however short the file is.
const MOST_IMPORTED: usize = 4 << 20;

/// Puts what snippets have where they are imported.
#[derive(Default)]
struct Reader {
    snippets: BTreeMap<String, Server>,
    /// Imports of what was not there yet, each with its line.
    unresolved: Vec<(usize, String)>,
    /// The snippets in which the reader is.
    inside: Vec<String>,
    imports: usize,
    /// The length of all that was imported.
    imported: usize,
    /// How many blocks and snippets the reader is in.
    depth: usize,
    parsed: Parsed,
}

impl Reader {
    fn define(&mut self, name: String, snippet: Server) {
        if let Some(first) = self.snippets.get(&name) {
            let first = first.block.open.line;
            self.fault(
                snippet.block.open.line,
                &format!("the snippet ({name}) is there already, on line {first}"),
                "remove one of the two".to_owned(),
            );
        }
        self.snippets.insert(name, snippet);
    }

    fn fault(&mut self, line: usize, what: &str, remedy: String) {
        self.parsed.faults.push(Fault { what: format!("line {line}: {what}"), remedy });
    }

    fn serve(&mut self, server: Server) {
        let block = self.expand_block(server.block);
        self.parsed.servers.push(Server { addresses: server.addresses, block });
    }

    /// A snippet that is imported outside of server blocks has server blocks.
    fn top_level(&mut self, import: Directive) {
        for directive in self.expand(vec![import]) {
            if let Some(block) = directive.block {
                self.parsed.servers.push(Server { addresses: directive.words, block });
            }
        }
    }

    fn expand_block(&mut self, block: Block) -> Block {
        Block { directives: self.expand(block.directives), ..block }
    }

    /// Whether a snippet may be imported here.
    fn has_room(&self, snippet: &Block) -> bool {
        self.imports < MOST_IMPORTS && self.imported + snippet.length() <= MOST_IMPORTED && self.depth < 2 * DEEPEST
    }

    fn expand(&mut self, directives: Vec<Directive>) -> Vec<Directive> {
        self.depth += 1;
        let expanded = self.expand_all(directives);
        self.depth -= 1;
        expanded
    }

    fn expand_all(&mut self, directives: Vec<Directive>) -> Vec<Directive> {
        let mut expanded = Vec::new();
        for directive in directives {
            let line = directive.line();
            let import = (directive.name() == "import").then(|| directive.args());
            match import {
                Some([name]) => match self.snippets.get(&name.text).map(|snippet| snippet.block.clone()) {
                    Some(snippet) if self.inside.contains(&name.text) || !self.has_room(&snippet) => {
                        let what = format!("the snippet ({}) imports itself, or is imported too often", name.text);
                        self.fault(line, &what, "remove this line".to_owned());
                    }
                    Some(imported) => {
                        self.imports += 1;
                        self.imported += imported.length();
                        self.inside.push(name.text.clone());
                        expanded.extend(self.expand(imported.directives));
                        self.inside.pop();
                    }
                    None => {
                        self.unresolved.push((line, name.text.clone()));
                        if !self.parsed.files.contains(&name.text) {
                            self.parsed.files.push(name.text.clone());
                        }
                        expanded.push(directive);
                    }
                },
                Some(args) => {
                    let what = format!("`import` has {} arguments, and takes one", args.len());
                    self.fault(line, &what, "write one `import` for each of them".to_owned());
                }
                None => {
                    let Directive { words, block } = directive;
                    let block = block.map(|block| self.expand_block(block));
                    expanded.push(Directive { words, block });
                }
            }
        }
        expanded
    }
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        &self.words[0].text
    }

    pub(super) fn args(&self) -> &[Word] {
        &self.words[1..]
    }

    pub(super) fn line(&self) -> usize {
        self.words[0].line
    }

    /// Where it begins.
    pub(super) fn start(&self) -> usize {
        self.words[0].at.start
    }

    /// Where the last word before the block ends.
    pub(super) fn head_end(&self) -> usize {
        self.words[self.words.len() - 1].at.end
    }

    /// Where it ends, with its block.
    pub(super) fn end(&self) -> usize {
        self.block.as_ref().map_or(self.head_end(), |block| block.close.at.end)
    }

    /// Everything in its block.
    pub(super) fn all_options(&self) -> &[Self] {
        self.block.as_ref().map_or(&[], |block| &block.directives)
    }

    /// The options of this name in its block.
    pub(super) fn options<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.all_options().iter().filter(move |option| option.name() == name)
    }
}

impl Block {
    /// In bytes, with its braces.
    fn length(&self) -> usize {
        self.close.at.end - self.open.at.start
    }

    /// What is written in the block itself, and not imported.
    pub(super) fn written(&self) -> impl Iterator<Item = &Directive> {
        self.directives.iter().filter(|it| (self.open.at.end..self.close.at.start).contains(&it.start()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_braces_are_refused_before_the_stack_overflows() {
        let nested = |depth: usize| format!("{}{}", "a {\n".repeat(depth), "}\n".repeat(depth));
        assert!(parse(&nested(DEEPEST)).is_ok());
        let refusal = parse(&nested(100_000)).unwrap_err().to_string();
        assert!(refusal.contains("line 33: there are too many braces"), "{refusal}");
    }

    /// Of a file of 64 KiB, snippets that import each other could make gigabytes.
    #[test]
    fn snippets_that_import_each_other_are_read_up_to_a_limit() {
        let chain = (1..10_000)
            .fold("(s0) {\n errors\n}\n".to_owned(), |text, n| format!("{text}(s{n}) {{\n import s{}\n}}\n", n - 1));
        let large = format!("(s9999) {{\n{}}}\n", " log a b c d\n".repeat(2_000));
        let twice = "import s9999\n".repeat(5_000);
        for text in [format!("{chain}. {{\n import s9999\n}}\n"), format!("{large}. {{\n{twice}}}\n")] {
            let parsed = parse(&text).unwrap();
            assert!(parsed.faults.iter().any(|fault| fault.what.contains("imported too often")), "{:?}", parsed.faults);
            assert!(parsed.servers[0].block.directives.len() < 500_000);
        }
    }
}
