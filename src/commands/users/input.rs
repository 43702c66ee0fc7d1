//! The files of `users`: which there are, and their content without compression.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;

/// How much of a file is in memory.
const BUFFER: usize = 256 << 10;
/// How deep folders are searched.
const DEEPEST: usize = 32;

/// How files that are no text begin, and what to do with them.
const OTHERS: [(&[u8], &str); 7] = [
    (b"PAR1", "it is in the format Parquet: deliver flow logs as text"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it"),
    (b"BZh", "it is compressed with bzip2: unpack it"),
    (b"\xfd7zXZ", "it is compressed with xz: unpack it"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"\xff\xfe", "it is text in UTF-16: write it in UTF-8"),
    (b"\xfe\xff", "it is text in UTF-16: write it in UTF-8"),
];

/// All files that are named or in folders that are named, in a fixed order.
///
/// # Errors
/// What was named does not exist, or cannot be listed.
pub(super) fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in named {
        if is_standard_input(path) {
            found.push(path.clone());
        } else {
            add(path, 0, &mut found).map_err(|(path, error)| format!("failed to read {}: {error}", path.display()))?;
        }
    }
    Ok(found)
}

fn add(path: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (path.to_owned(), error);
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    if depth > DEEPEST {
        return Err(failed(io::Error::other("its folders are too deep, or lead back to themselves")));
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        entries.push(entry.map_err(failed)?);
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if !entry.file_name().to_string_lossy().starts_with('.') {
            add(&entry.path(), depth + 1, found)?;
        }
    }
    Ok(())
}

pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file, or the standard input.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if is_standard_input(path) { plain(io::stdin()) } else { plain(File::open(path)?) }
}

/// Text as it is, or unpacked if it is compressed with gzip, also in several parts.
///
/// # Errors
/// It cannot be read, or is no text.
pub(super) fn plain(raw: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut raw = BufReader::with_capacity(BUFFER, raw);
    if raw.fill_buf()?.starts_with(b"\x1f\x8b") {
        let unpacked = BufReader::with_capacity(BUFFER, MultiGzDecoder::new(raw));
        return text(unpacked);
    }
    text(raw)
}

fn text(mut input: impl BufRead + 'static) -> io::Result<Box<dyn BufRead>> {
    let begin = input.fill_buf()?;
    if let Some((_, why)) = OTHERS.iter().find(|(magic, _)| begin.starts_with(magic)) {
        return Err(io::Error::other(*why));
    }
    if begin.starts_with("\u{feff}".as_bytes()) {
        input.consume(3);
    }
    Ok(Box::new(input))
}
