//! Reads what changed in a directory into the store.
//!
//! What cannot be read is told from what is gone: only the latter is forgotten.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::watch::{Batch, Links, Stamp, is_document};
use crate::datastore::Store;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("cannot be read: {0}; correct its permissions or remove it")]
    Io(#[from] io::Error),
    #[error("is a link to nothing; correct or remove it")]
    Dangling,
    #[error("is not a regular file; remove it")]
    NotFile,
    #[error("is larger than {} MiB; split it", MAX_FILE >> 20)]
    TooLarge,
}

/// Brings `store` up to date with what `batch` names, and `links` with which of it are links.
pub(super) fn scan(dir: &Path, batch: &Batch, store: &mut Store, links: &mut Links) {
    let mut names = batch.names.clone();
    let was_in_trouble = store.is_in_trouble();
    if batch.all || was_in_trouble {
        match list(dir) {
            Err(error) => {
                let dir = dir.display();
                let trouble = format!("{dir}: cannot be listed: {error}; correct its permissions");
                return store.set_trouble(Some(trouble));
            }
            // More likely a mount that is missing than a cluster without nodes.
            Ok(present) if present.is_empty() && (batch.first || was_in_trouble) => {
                let dir = dir.display();
                let trouble = format!(
                    "{dir}: holds no *.yaml, *.yml or *.json; mount it, fill it or correct its path"
                );
                return store.set_trouble(Some(trouble));
            }
            Ok(present) => {
                store.set_trouble(None);
                names.extend(store.files().map(str::to_owned));
                names.extend(present);
            }
        }
    }
    for name in names.difference(&batch.unclosed) {
        let path = dir.join(name);
        if path.is_symlink() {
            // Before it is read: what changes meanwhile is seen later.
            links.insert(name.clone(), Stamp::of(&path));
        } else {
            links.remove(name);
        }
        match read(&path) {
            Ok(Some(bytes)) => store.set(name, &bytes),
            Ok(None) => store.remove(name),
            Err(error) => store.set_unreadable(name, &error.to_string()),
        }
    }
}

fn list(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        if let Ok(name) = entry?.file_name().into_string()
            && is_document(&name)
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// The content of a file; None if there is none, or a directory in its place.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Unreadable> {
    let is_link = match fs::symlink_metadata(path) {
        Ok(entry) => entry.is_symlink(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let gone = |error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            Err(error.into())
        } else if is_link {
            Err(Unreadable::Dangling)
        } else {
            Ok(None)
        }
    };
    // Opening a pipe would wait for its writer.
    match fs::metadata(path) {
        Ok(file) if file.is_dir() => return Ok(None),
        Ok(file) if !file.is_file() => return Err(Unreadable::NotFile),
        Ok(_) => {}
        Err(error) => return gone(error),
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return gone(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_FILE) {
        Ok(Some(bytes))
    } else {
        Err(Unreadable::TooLarge)
    }
}
