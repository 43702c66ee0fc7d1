//! The bundle: files, and an index that says what could not be read.

use std::{fmt::Write as _, io};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use super::redact::{redact, without_secrets};
use base::{env, release};
use cluster::reader::Unread;

/// What was gathered.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    files: Vec<(String, Vec<u8>)>,
    missing: Vec<(String, String)>,
}

impl Bundle {
    /// A file as it is.
    pub(super) fn text(&mut self, path: impl Into<String>, text: Result<String, impl Into<Why>>) {
        let path = path.into();
        match text {
            Ok(text) => self.files.push((path, text.into_bytes())),
            Err(why) => self.missing.push((path, why.into().0)),
        }
    }

    /// An object without what looks secret.
    pub(super) fn object(&mut self, path: impl Into<String>, object: Result<Value, impl Into<Why>>) {
        let text = object.map(|mut object| {
            redact(&mut object);
            format!("{object:#}\n")
        });
        self.text(path, text);
    }

    /// What is in it, and what is not.
    pub(super) fn index(&self) -> String {
        let mut index = format!("Gathered by cloudmap-mcs {} at {}\n\n", release::version(), env::timestamp());
        for (path, bytes) in &self.files {
            let _ = writeln!(index, "{path}: {} bytes", bytes.len());
        }
        for (path, why) in &self.missing {
            let _ = writeln!(index, "{path}: NOT READ: {}", without_secrets(why));
        }
        index
    }

    /// Writes the archive, in a folder of its own.
    pub(super) fn write(&self, folder: &str, out: impl io::Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        let index = ("index.txt".to_owned(), self.index().into_bytes());
        for (path, bytes) in std::iter::once(&index).chain(&self.files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(super::MODE);
            header.set_mtime(env::since_epoch().as_secs());
            archive.append_data(&mut header, format!("{folder}/{path}"), bytes.as_slice())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

/// Why a file is missing.
pub(super) struct Why(String);

impl From<Unread> for Why {
    fn from(why: Unread) -> Self {
        Self(why.to_string())
    }
}

impl From<String> for Why {
    fn from(why: String) -> Self {
        Self(why)
    }
}
