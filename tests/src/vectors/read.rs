//! Files of vectors: one JSON document each, or one a line. Nothing in them is skipped unsaid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

use super::Error;

/// A script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Vector<C, S> {
    pub(super) name: String,
    /// What it shows.
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default, rename = "seed")]
    _seed: IgnoredAny,
    /// Where the reference implementation does otherwise.
    #[serde(default, rename = "deviation")]
    _deviation: IgnoredAny,
    pub(super) config: C,
    pub(super) steps: Vec<S>,
}

impl<C, S> Vector<C, S> {
    /// Says that a text in it means nothing.
    pub(super) fn error(&self, what: &'static str, text: &str) -> Error {
        Error::Text {
            vector: self.name.clone(),
            text: text.to_owned(),
            what,
        }
    }
}

/// Lists the files of a directory, by name; a file is its own.
pub(super) fn files(place: &Path) -> Result<Vec<PathBuf>, Error> {
    let error = |error| Error::Read(place.to_owned(), error);
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(place).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path
            .extension()
            .is_some_and(|end| end == "json" || end == "jsonl")
        {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::Empty(place.to_owned()));
    }
    Ok(files)
}

/// Reads all vectors of a file.
pub(super) fn vectors<C: DeserializeOwned, S: DeserializeOwned>(
    path: &Path,
) -> Result<Vec<Vector<C, S>>, Error> {
    let text = fs::read(path).map_err(|error| Error::Read(path.to_owned(), error))?;
    serde_json::Deserializer::from_slice(&text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Parse(path.to_owned(), error))
}
