//! Pages: `NextToken` names the operation and the key that the page before it ended with, so that a page costs no more
//! than its items, and what is added or removed meanwhile shifts nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;

use super::error::{Answer, ApiError};

/// Some items with their keys, and the token of the next page.
type Page<'a, V> = (Vec<(&'a String, &'a V)>, Option<String>);

/// The items of several maps after the token's key, at most `size`, in the order of their keys.
pub(crate) fn page<'a, V>(
    operation: &str,
    maps: &[&'a BTreeMap<String, V>],
    size: usize,
    token: Option<&String>,
) -> Answer<Page<'a, V>> {
    let after = token.map(|token| decode(operation, token)).transpose()?;
    let start = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
    let rest = |items: &&'a BTreeMap<String, V>| items.range::<String, _>((start, Bound::Unbounded)).take(size + 1);
    let mut page: Vec<_> = maps.iter().flat_map(rest).collect();
    if maps.len() > 1 {
        page.sort_unstable_by_key(|(key, _)| *key);
    }
    let more = page.len() > size;
    page.truncate(size);
    let next = page.last().filter(|_| more).map(|(last, _)| encode(operation, last));
    Ok((page, next))
}

pub(crate) fn encode(operation: &str, key: &str) -> String {
    format!("{operation}/{key}").bytes().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    })
}

pub(crate) fn decode(operation: &str, token: &str) -> Answer<String> {
    let byte = |at| token.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..token.len()).step_by(2).map(byte).collect();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.strip_prefix(operation)?.strip_prefix('/').map(str::to_owned))
        .ok_or_else(|| ApiError::invalid("NextToken is not valid."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_everything_once() {
        let (even, odd): (BTreeMap<String, usize>, _) =
            (0..25).map(|n| (format!("{n:03}"), n)).partition(|(_, n)| n % 2 == 0);
        let (mut seen, mut token, mut pages) = (Vec::new(), None, 0);
        loop {
            let (found, next) = page("ListServices", &[&even, &odd], 10, token.as_ref()).unwrap();
            seen.extend(found.iter().map(|(_, n)| **n));
            pages += 1;
            token = next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!((seen, pages), ((0..25).collect(), 3));
    }

    #[test]
    fn tokens_of_other_operations_and_nonsense_are_refused() {
        let items = BTreeMap::from([("a".to_owned(), 1)]);
        for token in [encode("ListServices", "a"), "zz".into(), "é1".into(), "abc".into()] {
            assert!(page("ListNamespaces", &[&items], 10, Some(&token)).is_err(), "{token}");
        }
    }
}
