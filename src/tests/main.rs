//! What the repository must hold about itself: its documents and its folders.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chart;
mod documents;
mod image;
mod layers;
mod manifests;
mod metrics;
mod reference;
mod samples;
mod scripts;
mod sizes;
mod vocabulary;

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::repository as root;

/// All files in a folder of the repository whose names end in `.<extension>`, in a fixed order. What cargo builds and
/// hidden folders are left out.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if path.is_dir() && !hidden && entry.file_name() != "target" {
                folders.push(path);
            } else if path.is_file() && path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
