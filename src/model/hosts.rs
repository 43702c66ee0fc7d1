//! What people write where a host name or an address belongs, and what to write instead.

use std::{fmt, net::IpAddr};

use super::{Excerpt, addresses::Range};

/// Maximum length of a host name, in bytes (RFC 1035, as text).
const MAX_NAME: usize = 253;
/// Maximum length of a label, in bytes (RFC 1035).
const MAX_LABEL: usize = 63;

/// Why a text is neither a host name nor an address. As a text it completes "the field is ..., which": what is wrong, and
/// the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoHost {
    /// Several names without commas between them.
    Several(Vec<String>),
    /// A URL, or a name with a path, with the host in it.
    Url(String),
    /// A host with a port.
    Port(String),
    /// An address in brackets.
    Brackets(String),
    /// A text in quotation marks.
    Quoted(String),
    /// A range of addresses.
    Range,
    /// A name in another script than DNS has, with the form that DNS has.
    Script(String),
    /// Numbers and dots that are no IPv4 address.
    Numbers,
    /// Anything else.
    Other,
}

impl NoHost {
    /// The names that were probably meant; none if that cannot be said.
    pub fn meant(&self) -> Vec<&str> {
        match self {
            Self::Several(names) => names.iter().map(String::as_str).collect(),
            Self::Url(name) | Self::Port(name) | Self::Brackets(name) | Self::Quoted(name) | Self::Script(name) => {
                vec![name]
            }
            Self::Range | Self::Numbers | Self::Other => Vec::new(),
        }
    }
}

impl NoHost {
    /// A hint for a field that takes one name, in parentheses after a space; empty if there is none.
    pub fn hint(&self) -> String {
        match (self, self.meant().as_slice()) {
            (Self::Several(_), _) => " (it looks like several names; write one)".to_owned(),
            (Self::Script(name), _) => format!(" (the form of this name in DNS is {})", Excerpt(name)),
            (_, [meant]) => format!(" (write only {})", Excerpt(meant)),
            _ => String::new(),
        }
    }
}

impl fmt::Display for NoHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Several(names) => {
                write!(f, "is several names in one: separate names by commas, as in {}", Excerpt(&names.join(",")))
            }
            Self::Url(host) => write!(f, "is a URL: write only {}", Excerpt(host)),
            Self::Port(host) => {
                let host = Excerpt(host);
                write!(f, "has a port: write only {host}; the port of an instance is that of the Service")
            }
            Self::Brackets(address) => write!(f, "has brackets: write only {}", Excerpt(address)),
            Self::Quoted(name) => write!(f, "has quotation marks in it: write only {}", Excerpt(name)),
            Self::Range => f.write_str("is a range of addresses: write single addresses"),
            Self::Script(name) => {
                write!(f, "is in a script that DNS does not have: write it as {} (Punycode)", Excerpt(name))
            }
            Self::Numbers => f.write_str(
                "is no IPv4 address: write four numbers from 0 to 255, without leading zeros, joined by dots",
            ),
            Self::Other => f.write_str(
                "is neither an address nor a host name: write labels of letters, digits, '_' and '-' joined by dots, each \
                 of at most 63 characters and neither starting nor ending with '-'",
            ),
        }
    }
}

/// Checks a host name or an address. Wildcards are labels like others here; a final dot counts as absent.
///
/// # Errors
/// What is wrong, with the remedy.
pub fn check(text: &str) -> Result<(), NoHost> {
    let text = text.trim().trim_end_matches('.');
    if text.parse::<IpAddr>().is_ok() || is_name(text) {
        return Ok(());
    }
    Err(wrong(text))
}

fn wrong(text: &str) -> NoHost {
    let parts: Vec<_> = text.split(is_separator).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if parts.len() > 1 {
        return NoHost::Several(parts);
    }
    let unquoted = text.trim_matches(['"', '\'', '`']);
    if unquoted != text {
        return NoHost::Quoted(unquoted.to_owned());
    }
    if Range::parse(text).is_some() {
        return NoHost::Range;
    }
    let after_scheme = text.split_once("://").map(|(_, rest)| rest);
    if after_scheme.is_some() || text.contains(['/', '?', '#', '@']) {
        let rest = after_scheme.unwrap_or(text);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let host = bracketed(host).or_else(|| Some(without_port(host)?.to_owned())).unwrap_or_else(|| host.to_owned());
        return NoHost::Url(in_dns(&host).unwrap_or(host));
    }
    if let Some(address) = bracketed(text) {
        return if text.ends_with(']') { NoHost::Brackets(address) } else { NoHost::Port(address) };
    }
    if let Some(host) = without_port(text) {
        return NoHost::Port(in_dns(host).unwrap_or_else(|| host.to_owned()));
    }
    if let Some(name) = in_dns(text) {
        return NoHost::Script(name);
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    if !last.is_empty() && last.bytes().all(|c| c.is_ascii_digit()) { NoHost::Numbers } else { NoHost::Other }
}

/// What people write between names instead of a comma, also on other keyboards.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || [',', ';', '|', '，', '、', '；'].contains(&c)
}

/// The address in `[address]` or `[address]:port`.
fn bracketed(text: &str) -> Option<String> {
    let (address, _) = text.strip_prefix('[')?.split_once(']')?;
    Some(address.to_owned())
}

/// What is before the port.
fn without_port(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    (!host.is_empty() && !host.contains(':') && !port.contains('.')).then_some(host)
}

/// Whether DNS has such names. A name whose last label is a number would be read as an IPv4 address (RFC 1123, 2.1).
fn is_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_NAME && text.split('.').all(is_label) && !last.bytes().all(|c| c.is_ascii_digit())
}

fn is_label(label: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || [b'_', b'-'].contains(&c);
    label == "*"
        || !label.is_empty()
            && label.len() <= MAX_LABEL
            && label.bytes().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
}

/// The form of a name in DNS (RFC 5891), if it is in another script and otherwise right. Only case is folded, because this
/// is a hint.
fn in_dns(name: &str) -> Option<String> {
    if name.is_ascii() {
        return None;
    }
    // The dots of other scripts that browsers take for dots.
    let name = name.replace(['。', '．', '｡'], ".").to_lowercase();
    let label = |label: &str| {
        if label.is_ascii() { Some(label.to_owned()) } else { Some(format!("xn--{}", punycode(label)?)) }
    };
    let name = name.split('.').map(label).collect::<Option<Vec<_>>>()?.join(".");
    let is_text = |c: char| c.is_alphanumeric() || c.is_ascii();
    (is_name(&name) && name.chars().all(is_text)).then_some(name)
}

/// Encodes a label (RFC 3492). `None` if a letter is no letter, digit or mark of a script, or the label is too long.
fn punycode(label: &str) -> Option<String> {
    const DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    const BASE: u32 = DIGITS.len() as u32;
    const T_MIN: u32 = 1;
    const T_MAX: u32 = 26;
    const SKEW: u32 = 38;
    const DAMP: u32 = 700;
    const FIRST_BIAS: u32 = 72;
    const FIRST: u32 = 128;
    let letters: Vec<u32> = label.chars().map(u32::from).collect();
    if letters.len() > MAX_LABEL || label.chars().any(|c| !c.is_ascii() && (c.is_control() || c.is_whitespace())) {
        return None;
    }
    let digit = |value: u32| DIGITS.get(value as usize).copied().map(char::from);
    let mut out: String = label.chars().filter(char::is_ascii).collect();
    let basic = out.len() as u32;
    if basic > 0 {
        out.push('-');
    }
    let (mut next, mut delta, mut bias, mut done) = (FIRST, 0_u32, FIRST_BIAS, basic);
    while (done as usize) < letters.len() {
        let lowest = letters.iter().copied().filter(|letter| *letter >= next).min()?;
        delta = delta.checked_add((lowest - next).checked_mul(done + 1)?)?;
        next = lowest;
        for &letter in &letters {
            if letter < next {
                delta = delta.checked_add(1)?;
            }
            if letter != next {
                continue;
            }
            let (mut rest, mut k) = (delta, BASE);
            loop {
                let threshold = k.saturating_sub(bias).clamp(T_MIN, T_MAX);
                if rest < threshold {
                    break;
                }
                out.push(digit(threshold + (rest - threshold) % (BASE - threshold))?);
                rest = (rest - threshold) / (BASE - threshold);
                k += BASE;
            }
            out.push(digit(rest)?);
            let mut step = if done == basic { delta / DAMP } else { delta / 2 };
            step += step / (done + 1);
            let mut k = 0;
            while step > (BASE - T_MIN) * T_MAX / 2 {
                step /= BASE - T_MIN;
                k += BASE;
            }
            bias = k + (BASE - T_MIN + 1) * step / (step + SKEW);
            (delta, done) = (0, done + 1);
        }
        (delta, next) = (delta + 1, next + 1);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_dns_are_hosts() {
        for text in [
            "10.0.0.1",
            "fd00::1",
            "lb.example.org",
            "lb.example.org.",
            " a ",
            "_http._tcp.web",
            "*.example.org",
            "xn--bcher-kva.example",
            "4you.example",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_named_with_what_to_write_instead() {
        for (text, kind, meant) in [
            ("10.9.0.6:443", "has a port", "10.9.0.6"),
            ("lb.example.org:https", "has a port", "lb.example.org"),
            ("[fd00::1]:443", "has a port", "fd00::1"),
            ("[fd00::1]", "has brackets", "fd00::1"),
            ("https://lb.example.org/", "is a URL", "lb.example.org"),
            ("https://user@lb.example.org:8443/a?b#c", "is a URL", "lb.example.org"),
            ("https://[fd00::1]:443/", "is a URL", "fd00::1"),
            ("lb.example.org/path", "is a URL", "lb.example.org"),
            ("tcp://10.0.0.1", "is a URL", "10.0.0.1"),
            ("10.0.0.0/24", "is a range", ""),
            ("fd00::/64", "is a range", ""),
            (
                "a.example.org b.example.org",
                "separate names by commas, as in \"a.example.org,b.example.org\"",
                "a.example.org b.example.org",
            ),
            ("a.example.org\n  b.example.org\n", "separate names by commas", "a.example.org b.example.org"),
            ("a.example.org;b.example.org", "separate names by commas", "a.example.org b.example.org"),
            ("a.example.org、b.example.org", "separate names by commas", "a.example.org b.example.org"),
            ("\"lb.example.org\"", "quotation marks", "lb.example.org"),
            ("bücher.example", "(Punycode)", "xn--bcher-kva.example"),
            ("BÜCHER.example", "(Punycode)", "xn--bcher-kva.example"),
            ("例え。テスト", "(Punycode)", "xn--r8jz45g.xn--zckzah"),
            ("пример.испытание", "(Punycode)", "xn--e1afmkfd.xn--80akhbyknj4f"),
            ("https://bücher.example/", "is a URL", "xn--bcher-kva.example"),
            ("10.9.0.256", "is no IPv4 address", ""),
            ("10.9.0", "is no IPv4 address", ""),
            ("010.0.0.1", "is no IPv4 address", ""),
            ("fe80::1%eth0", "is neither", ""),
            ("a..b", "is neither", ""),
            ("-a.example", "is neither", ""),
            ("a_b$.example", "is neither", ""),
            (&*"a".repeat(64), "is neither", ""),
            ("", "is neither", ""),
        ] {
            let wrong = check(text).unwrap_err();
            assert!(wrong.to_string().contains(kind), "{text}: {wrong}");
            assert_eq!(wrong.meant().join(" "), meant, "{text}");
        }
    }

    /// An annotation can have 256 KiB.
    #[test]
    fn a_long_text_is_repeated_only_in_part() {
        let several = format!("{}é", "a.example ".repeat(20_000));
        let script = "ü".repeat(100_000);
        for text in [&*several, &*script, &*format!("https://{}", "a".repeat(200_000))] {
            assert!(check(text).unwrap_err().to_string().len() < 400);
        }
    }
}
