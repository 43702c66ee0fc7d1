//! Inputs: valid ones, and what becomes of them by changes that a seed decides.

use super::Target;
use crate::ledger_sim::rng::Rng;

/// Words that trouble decoders of all kinds.
const WORDS: [&[u8]; 36] = [
    b"",
    b"\0",
    b"\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xff\xfe\xfd",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\r\n",
    b"\n",
    b"\t",
    b" ",
    b"\x1b[31m",
    b"\\",
    b"\"",
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"=",
    b":",
    b"%",
    b"#",
    "\u{85}".as_bytes(),
    "\u{2028}".as_bytes(),
    "\u{202e}".as_bytes(),
    "\u{fffd}".as_bytes(),
    "\u{130}".as_bytes(),
    "\u{1e9e}".as_bytes(),
    "\u{1f600}".as_bytes(),
    "e\u{301}".as_bytes(),
];

/// Numbers at which something ends.
const NUMBERS: [&str; 22] = [
    "0",
    "-0",
    "1",
    "-1",
    "9",
    "63",
    "64",
    "99",
    "100",
    "101",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e309",
    "0x10",
    "NaN",
];

/// Numbers of a few bytes at which something ends.
const INTEGERS: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// What makes the inputs of a target.
#[derive(Debug, Clone)]
pub struct Generator {
    target: Target,
    corpus: Vec<Vec<u8>>,
}

impl Generator {
    /// With the corpus of the target.
    pub fn new(target: Target) -> Self {
        Self { target, corpus: (target.corpus)() }
    }

    /// How many inputs are valid: the first ones, whatever the seed.
    pub fn valid(&self) -> u64 {
        self.corpus.len() as u64
    }

    /// The input with this number.
    pub fn input(&self, seed: u64, number: u64) -> Vec<u8> {
        if let Some(valid) = usize::try_from(number).ok().and_then(|number| self.corpus.get(number)) {
            return valid.clone();
        }
        let mut rng = Rng::new(self.target.name, seed ^ number.wrapping_mul(0xd129_0d3a_93a5_5f1d));
        let mut bytes = rng.pick(&self.corpus).clone();
        // Mostly a few changes: what is far from valid is refused at its beginning.
        let changes = 1 + [0, 0, 1, 2, 3, 6, 12, 24][rng.below(8)];
        for _ in 0..changes {
            self.change(&mut rng, &mut bytes);
            bytes.truncate(self.target.longest);
        }
        bytes
    }

    fn change(&self, rng: &mut Rng, bytes: &mut Vec<u8>) {
        match rng.below(16) {
            0 | 1 => {
                if let Some(byte) = some_byte(rng, bytes) {
                    *byte ^= 1 << (rng.next() % 8);
                }
            }
            2 => {
                let value = rng.next() as u8;
                if let Some(byte) = some_byte(rng, bytes) {
                    *byte = value;
                }
            }
            3 => bytes.truncate(rng.below(bytes.len() + 1)),
            4 => drop(bytes.drain(range(rng, bytes.len()))),
            5 => {
                let copied = bytes[range(rng, bytes.len())].to_vec();
                self.repeat(rng, bytes, &copied);
            }
            6 => self.splice(rng, bytes),
            7 => {
                let word = self.word(rng);
                insert(bytes, rng, &word);
            }
            8 => {
                let word = self.word(rng);
                let at = range(rng, bytes.len());
                bytes.splice(at, word);
            }
            9 => {
                let word = self.word(rng);
                self.repeat(rng, bytes, &word);
            }
            10 => {
                let width = [1, 2, 4, 8][rng.below(4)];
                let number = rng.pick(&INTEGERS).to_be_bytes();
                let at = rng.below(bytes.len() + 1);
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number[8 - width..].iter().copied());
            }
            11 => number(rng, bytes),
            12 | 13 => pieces(rng, bytes, |byte| byte == b'\n'),
            14 => pieces(rng, bytes, |byte| byte.is_ascii_whitespace() || b",;:=\"'{}[]()<>/.".contains(&byte)),
            _ => {
                let at = range(rng, bytes.len());
                let upper = rng.chance(0.5);
                let part = &mut bytes[at];
                if upper { part.make_ascii_uppercase() } else { part.make_ascii_lowercase() }
            }
        }
    }

    /// One of the words of the target, or of those of all.
    fn word(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(4) {
            0 | 1 if !self.target.words.is_empty() => rng.pick(self.target.words).as_bytes().to_vec(),
            2 => rng.pick(&NUMBERS).as_bytes().to_vec(),
            _ => rng.pick(&WORDS).to_vec(),
        }
    }

    /// Puts copies of some bytes somewhere: a few, or as many as there is room for.
    fn repeat(&self, rng: &mut Rng, bytes: &mut Vec<u8>, copied: &[u8]) {
        let room = self.target.longest.saturating_sub(bytes.len()) / copied.len().max(1);
        let times = if rng.chance(0.02) { room } else { (1 << rng.below(9)).min(room) };
        insert(bytes, rng, &copied.repeat(times));
    }

    /// Puts a part of another valid input somewhere, or replaces the end by it.
    fn splice(&self, rng: &mut Rng, bytes: &mut Vec<u8>) {
        let other = rng.pick(&self.corpus);
        let part = &other[range(rng, other.len())];
        if rng.chance(0.5) {
            insert(bytes, rng, part);
        } else {
            bytes.truncate(rng.below(bytes.len() + 1));
            bytes.extend_from_slice(part);
        }
    }
}

fn some_byte<'b>(rng: &mut Rng, bytes: &'b mut [u8]) -> Option<&'b mut u8> {
    let at = rng.below(bytes.len());
    bytes.get_mut(at)
}

/// A part, more often a short one.
fn range(rng: &mut Rng, length: usize) -> std::ops::Range<usize> {
    let from = rng.below(length + 1);
    let most = if rng.chance(0.7) { 16 } else { length };
    from..(from + rng.below(most + 1)).min(length)
}

fn insert(bytes: &mut Vec<u8>, rng: &mut Rng, part: &[u8]) {
    let at = rng.below(bytes.len() + 1);
    bytes.splice(at..at, part.iter().copied());
}

/// Replaces one of the numbers in a text.
fn number(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let begins = |at: &usize| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[*at - 1].is_ascii_digit());
    let numbers: Vec<usize> = (0..bytes.len()).filter(begins).collect();
    if numbers.is_empty() {
        return;
    }
    let at = *rng.pick(&numbers);
    let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.splice(at..at + length, rng.pick(&NUMBERS).bytes());
}

/// Exchanges, repeats or removes pieces of a text: its lines or its words.
fn pieces(rng: &mut Rng, bytes: &mut Vec<u8>, ends: fn(u8) -> bool) {
    let mut pieces: Vec<Vec<u8>> = bytes.split_inclusive(|byte| ends(*byte)).map(<[u8]>::to_vec).collect();
    if pieces.is_empty() {
        return;
    }
    let (one, other) = (rng.below(pieces.len()), rng.below(pieces.len()));
    match rng.below(4) {
        0 => pieces.swap(one, other),
        1 => drop(pieces.remove(one)),
        2 => pieces.insert(other, pieces[one].clone()),
        _ => {
            let copied = pieces[other].clone();
            pieces[one] = copied;
        }
    }
    *bytes = pieces.concat();
}
