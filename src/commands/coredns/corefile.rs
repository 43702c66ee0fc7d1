//! A Corefile with the place of every word in the text: an edit can then leave everything else as it is, byte for byte.

use super::{
    faults::Fault,
    syntax::{self, Directive, Parsed, Refusal, Server, Word},
};

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Corefile<'a> {
    pub(super) text: &'a str,
    parsed: Parsed,
}

/// An address of a server block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address<'a> {
    /// As it is written: the transport with `://`, or nothing.
    pub(super) prefix: &'a str,
    written: &'a str,
    /// As it is written: the port with its colon, or nothing.
    pub(super) suffix: &'a str,
}

/// The transports of CoreDNS, each with its default port.
const TRANSPORTS: [(&str, &str); 6] =
    [("dns", "53"), ("tls", "853"), ("quic", "853"), ("grpc", "443"), ("https", "443"), ("https3", "443")];

/// A DNS name in the form in which names are compared: the root is empty.
pub(super) fn name(text: &str) -> String {
    text.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a zone is another one or a part of it.
pub(super) fn within(zone: &str, other: &str) -> bool {
    other.is_empty() || zone == other || zone.strip_suffix(other).is_some_and(|rest| rest.ends_with('.'))
}

/// Whether something depends on an environment variable.
pub(super) fn is_variable(text: &str) -> bool {
    text.contains("{$") || text.contains("{%")
}

/// Whether two sockets may be the same.
pub(super) fn may_be(one: &str, other: &str) -> bool {
    one == other || is_variable(one) || is_variable(other)
}

pub(super) fn is_reverse(zone: &str) -> bool {
    within(zone, "in-addr.arpa") || within(zone, "ip6.arpa") || zone.contains('/')
}

pub(super) fn is(word: &Word, zone: &str) -> bool {
    name(&word.text) == zone
}

pub(super) fn covers<'w>(zones: impl IntoIterator<Item = &'w Word>, zone: &str) -> bool {
    zones.into_iter().any(|word| within(zone, &name(&word.text)))
}

/// For how many seconds a plugin `cache` keeps an answer of a zone at most; `None`: it keeps none.
pub(super) fn caches_for(cache: &Directive, zone: &str) -> Option<u64> {
    let number = |word: Option<&Word>| word.and_then(|word| word.text.parse::<u64>().ok());
    let kept = |(kind, default): (&str, u64)| {
        let about = |option: &&Directive| option.args().first().is_some_and(|arg| arg.text == kind);
        let disabled = cache.options("disable").filter(about).last();
        if disabled.is_some_and(|option| option.args().len() == 1 || covers(&option.args()[1..], zone)) {
            return None;
        }
        let of_kind = cache.options(kind).last().and_then(|option| number(option.args().get(1)));
        of_kind.or_else(|| number(cache.args().first())).or(Some(default))
    };
    // The defaults of CoreDNS.
    [("success", 3600), ("denial", 1800)].into_iter().filter_map(kept).max()
}

impl<'a> Address<'a> {
    fn of(word: &'a Word) -> Self {
        let text = word.text.strip_suffix(',').unwrap_or(&word.text);
        let known = |&(transport, _): &(&str, &str)| text.strip_prefix(transport)?.strip_prefix("://").map(str::len);
        let rest = TRANSPORTS.iter().find_map(known).unwrap_or(text.len());
        let (prefix, rest) = text.split_at(text.len() - rest);
        let port = rest.rmatch_indices(':').map(|(at, _)| &rest[at..]).find(|port| {
            let open = port.matches('{').count() == port.matches('}').count();
            open && (is_variable(port) || port[1..].parse::<u64>().is_ok())
        });
        let suffix = port.unwrap_or_default();
        Self { prefix, written: &rest[..rest.len() - suffix.len()], suffix }
    }

    /// The zone, as names are compared.
    pub(super) fn zone(&self) -> String {
        name(self.written)
    }

    /// The transport and the port, such as `dns:53`.
    pub(super) fn socket(&self) -> String {
        let transport = self.prefix.strip_suffix("://").unwrap_or("dns");
        let default = TRANSPORTS.iter().find(|(name, _)| *name == transport).map_or("53", |(_, port)| port);
        let port = self.suffix.strip_prefix(':').unwrap_or(default);
        let port = port.parse::<u64>().map_or_else(|_| port.to_owned(), |number| number.to_string());
        format!("{transport}:{port}")
    }
}

impl Server {
    pub(super) fn line(&self) -> usize {
        self.addresses.first().map_or(self.block.open.line, |address| address.line)
    }

    /// Its addresses; CoreDNS skips empty ones.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Address<'_>> {
        self.addresses.iter().filter(|address| !address.text.is_empty()).map(Address::of)
    }

    /// The zones that it answers for, each with transport and port.
    pub(super) fn zones(&self) -> impl Iterator<Item = (String, String)> {
        self.addresses().map(|address| (address.zone(), address.socket()))
    }

    /// Its plugins of a name.
    pub(super) fn plugins<'s>(&'s self, plugin: &'s str) -> impl Iterator<Item = &'s Directive> {
        self.block.directives.iter().filter(move |directive| directive.name() == plugin)
    }

    /// Its plugin of a name: in the block itself, or in a snippet that it imports.
    pub(super) fn plugin(&self, plugin: &str) -> Option<&Directive> {
        self.block.directives.iter().find(|directive| directive.name() == plugin)
    }

    /// Whether it has exactly this zone among its addresses.
    pub(super) fn is_of(&self, zone: &str) -> bool {
        self.zones().any(|(served, _)| served == zone)
    }
}

impl<'a> Corefile<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Refusal> {
        Ok(Self { text, parsed: syntax::parse(text)? })
    }

    pub(super) fn servers(&self) -> &[Server] {
        &self.parsed.servers
    }

    /// What is imported from other files.
    pub(super) fn files(&self) -> &[String] {
        &self.parsed.files
    }

    pub(super) fn import_faults(&self) -> &[Fault] {
        &self.parsed.faults
    }

    /// The server blocks that answer for a zone: for each transport and port, those with the longest address.
    pub(super) fn serving(&self, zone: &str) -> Vec<&Server> {
        let matching = |server: &Server| -> Vec<(String, usize)> {
            let zones = server.zones().filter(|(served, _)| within(zone, served));
            zones.map(|(served, socket)| (socket, served.len())).collect()
        };
        let all: Vec<(String, usize)> = self.servers().iter().flat_map(matching).collect();
        let longest = |(socket, length): &(String, usize)| !all.iter().any(|(s, l)| s == socket && l > length);
        self.servers().iter().filter(|server| matching(server).iter().any(longest)).collect()
    }

    /// The server blocks that have a plugin.
    pub(super) fn having<'s>(&'s self, plugin: &'s str) -> impl Iterator<Item = &'s Server> {
        self.servers().iter().filter(move |server| server.plugin(plugin).is_some())
    }

    /// The white space that begins the line of a place.
    pub(super) fn indentation(&self, at: usize) -> &'a str {
        let line = &self.text[self.line_start(at)..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |end| end + 1)
    }

    /// Whether nothing but white space is before a place on its line.
    pub(super) fn begins_line(&self, at: usize) -> bool {
        self.text[self.line_start(at)..at].trim().is_empty()
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
