//! A Corefile, parsed as CoreDNS parses it, with the place of every word in the text: an edit can then leave everything
//! else as it is, byte for byte.

use std::ops::Range;

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

/// What is between braces.
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

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Corefile<'a> {
    pub(super) text: &'a str,
    servers: Vec<Server>,
    snippets: Vec<Server>,
    /// What is imported outside of server blocks.
    imports: Vec<Word>,
}

/// A DNS name in the form in which names are compared: the root is empty.
pub(super) fn name(text: &str) -> String {
    text.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a zone is another one or a part of it.
pub(super) fn within(zone: &str, other: &str) -> bool {
    other.is_empty() || zone == other || zone.strip_suffix(other).is_some_and(|rest| rest.ends_with('.'))
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

    /// Where the last word before the block ends.
    pub(super) fn head_end(&self) -> usize {
        self.words[self.words.len() - 1].at.end
    }

    /// Where it ends, with its block.
    pub(super) fn end(&self) -> usize {
        self.block.as_ref().map_or(self.head_end(), |block| block.close.at.end)
    }

    /// The options of this name in its block.
    pub(super) fn options<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.block.iter().flat_map(|block| &block.directives).filter(move |option| option.name() == name)
    }
}

impl Server {
    pub(super) fn line(&self) -> usize {
        self.addresses.first().map_or(self.block.open.line, |address| address.line)
    }

    /// The zones that it answers for, each with transport and port: `dns://.:53`, `cluster.local:53`.
    pub(super) fn zones(&self) -> impl Iterator<Item = (String, String)> {
        self.addresses.iter().map(|address| {
            let text = address.text.trim_end_matches(',');
            let (transport, rest) = text.split_once("://").unwrap_or(("dns", text));
            // The port may be an environment variable.
            let is_port = |port: &str| port.starts_with("{$") || port.chars().all(|c| c.is_ascii_digit());
            let port = rest.rsplit_once(':').filter(|(_, port)| is_port(port));
            let (zone, port) = port.unwrap_or((rest, "53"));
            (name(zone), format!("{transport}:{port}"))
        })
    }
}

impl<'a> Corefile<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Refusal> {
        let words = words(text)?;
        let mut parser = Parser { words: &words, next: 0 };
        let (mut servers, mut snippets, mut imports) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(first) = parser.peek() {
            if first.text == "import" {
                parser.next += 1;
                imports.extend(parser.take_if(|word| word.line == first.line).cloned());
                continue;
            }
            let server = parser.server()?;
            let snippet = matches!(&*server.addresses, [one] if one.text.starts_with('(') && one.text.ends_with(')'));
            if snippet { snippets.push(server) } else { servers.push(server) }
        }
        Ok(Self { text, servers, snippets, imports })
    }

    /// The server blocks that answer for a zone: for each transport and port, those with the longest address.
    pub(super) fn serving(&self, zone: &str) -> Vec<&Server> {
        let matching = |server: &Server| -> Vec<(String, usize)> {
            let zones = server.zones().filter(|(served, _)| within(zone, served));
            zones.map(|(served, socket)| (socket, served.len())).collect()
        };
        let all: Vec<(String, usize)> = self.servers.iter().flat_map(matching).collect();
        let longest = |(socket, length): &(String, usize)| !all.iter().any(|(s, l)| s == socket && l > length);
        self.servers.iter().filter(|server| matching(server).iter().any(longest)).collect()
    }

    /// The server blocks that have a plugin.
    pub(super) fn having(&self, plugin: &str) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(move |server| self.plugin(server, plugin).is_some())
    }

    /// A plugin of a server block: in the block itself, or in a snippet that it imports.
    pub(super) fn plugin<'s>(&'s self, server: &'s Server, plugin: &str) -> Option<&'s Directive> {
        self.plugin_within(server, plugin, 0)
    }

    fn plugin_within<'s>(&'s self, server: &'s Server, plugin: &str, depth: usize) -> Option<&'s Directive> {
        let directives = &server.block.directives;
        directives.iter().find(|directive| directive.name() == plugin).or_else(|| {
            let imported = directives.iter().filter(|directive| directive.name() == "import");
            let mut imported = imported.filter_map(|import| self.snippet(&import.args().first()?.text));
            // A snippet cannot import itself, not even through another one.
            if depth < self.snippets.len() {
                imported.find_map(|it| self.plugin_within(it, plugin, depth + 1))
            } else {
                None
            }
        })
    }

    fn snippet(&self, name: &str) -> Option<&Server> {
        let named = |snippet: &&Server| snippet.addresses[0].text.trim_matches(['(', ')']) == name;
        self.snippets.iter().find(named)
    }

    /// What is imported from other files.
    pub(super) fn files(&self) -> Vec<&str> {
        let in_blocks = self.servers.iter().flat_map(|server| &server.block.directives);
        let in_blocks = in_blocks.filter(|directive| directive.name() == "import").filter_map(|it| it.args().first());
        let all = self.imports.iter().chain(in_blocks).map(|word| &*word.text);
        all.filter(|name| self.snippet(name).is_none()).collect()
    }

    /// The white space that begins the line of a place.
    pub(super) fn indentation(&self, at: usize) -> &'a str {
        let line = &self.text[self.text[..at].rfind('\n').map_or(0, |end| end + 1)..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    /// Whether nothing but white space is before a place on its line.
    pub(super) fn begins_line(&self, at: usize) -> bool {
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.text[start..at].trim().is_empty()
    }

    /// Where the line of a place ends, without its line break.
    pub(super) fn line_end(&self, at: usize) -> usize {
        let end = self.text[at..].find('\n').map_or(self.text.len(), |end| at + end);
        end - usize::from(self.text[at..end].ends_with('\r'))
    }

    /// Where the line before that of a place ends, without its line break; `None` on the first line.
    pub(super) fn previous_line_end(&self, at: usize) -> Option<usize> {
        let end = self.text[..at].rfind('\n')?;
        Some(end - usize::from(self.text[..end].ends_with('\r')))
    }

    /// The line break that the file uses.
    pub(super) fn line_break(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

fn refuse<T>(line: usize, what: &str) -> Result<T, Refusal> {
    Err(Refusal(format!("the Corefile cannot be read: line {line}: {what}")))
}

/// Words are separated by white space. Quotes make one word of several, `#` begins a comment.
fn words(text: &str) -> Result<Vec<Word>, Refusal> {
    let mut words = Vec::new();
    let mut chars = text.char_indices().peekable();
    let mut line = 1;
    while let Some((start, c)) = chars.next() {
        let first = line;
        match c {
            '\n' => line += 1,
            '#' => while chars.next_if(|(_, c)| *c != '\n').is_some() {},
            c if c.is_whitespace() => {}
            '"' => {
                let (mut value, mut escaped) = (String::new(), false);
                loop {
                    let Some((_, c)) = chars.next() else { return refuse(first, "a quotation mark is not closed") };
                    line += usize::from(c == '\n');
                    match c {
                        '"' if !escaped => break,
                        '\\' if !escaped => escaped = true,
                        c => {
                            if escaped && c != '"' {
                                value.push('\\');
                            }
                            value.push(c);
                            escaped = false;
                        }
                    }
                }
                let end = chars.peek().map_or(text.len(), |(at, _)| *at);
                words.push(Word { text: value, at: start..end, line: first, last_line: line });
            }
            _ => {
                while chars.next_if(|(_, c)| !c.is_whitespace() && *c != '#').is_some() {}
                let end = chars.peek().map_or(text.len(), |(at, _)| *at);
                words.push(Word { text: text[start..end].to_owned(), at: start..end, line, last_line: line });
            }
        }
    }
    Ok(words)
}

struct Parser<'w> {
    words: &'w [Word],
    next: usize,
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
        let mut directives = Vec::new();
        loop {
            let Some(word) = self.peek() else { return refuse(open.line, "this brace is not closed") };
            self.next += 1;
            match &*word.text {
                "}" => return Ok(Block { open: open.clone(), directives, close: word.clone() }),
                "{" => return refuse(word.line, "there is no plugin before this brace"),
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
