//! The state of a directory of documents: its files, their objects, and what was last told.
//!
//! Holds that a document which cannot be read deletes nothing: what it may have been stays in
//! force until it can be read or its file is gone. No I/O and no clock.

mod contents;
mod effect;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sha1::{Digest, Sha1};

use self::contents::{Broken, File, Note, Object};
use super::{Update, document::ObjectKey, view::View};

/// Files turned into objects turned into updates.
#[derive(Debug)]
pub struct Store {
    node: String,
    files: BTreeMap<String, File>,
    /// What holds at present, and from which file.
    held: BTreeMap<ObjectKey, Held>,
    /// Files with a broken document that was never known, as long as they have broken ones.
    unknown: BTreeSet<String>,
    /// Whether there ever was a file.
    seen: bool,
    trouble: Option<String>,
    told: Option<(View, bool, Vec<String>)>,
}

#[derive(Clone, Debug)]
struct Held {
    file: String,
    object: Arc<Object>,
}

impl Store {
    /// An empty store for the node of that name.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            files: BTreeMap::new(),
            held: BTreeMap::new(),
            unknown: BTreeSet::new(),
            seen: false,
            trouble: None,
            told: None,
        }
    }

    /// The names of its files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Takes the content of a file. The same content again costs nothing.
    pub fn set(&mut self, file: &str, bytes: &[u8]) {
        self.seen = true;
        let digest = Some(Sha1::digest(bytes).into());
        if self
            .files
            .get(file)
            .is_none_or(|known| known.digest != digest)
        {
            let read = File {
                digest,
                ..File::read(bytes)
            };
            self.files.insert(file.to_owned(), read);
        }
    }

    /// Takes that a file is there but cannot be read: all that it held stays in force.
    pub fn set_unreadable(&mut self, file: &str, reason: &str) {
        let broken = Broken {
            key: None,
            line: 0,
            text: reason.to_owned(),
        };
        let unread = File {
            broken: vec![broken],
            ..File::default()
        };
        self.files.insert(file.to_owned(), unread);
    }

    /// Takes that a file is gone, and with it what it held.
    pub fn remove(&mut self, file: &str) {
        self.files.remove(file);
    }

    /// Takes what is wrong with the directory as a whole, if anything.
    pub fn set_trouble(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    /// Whether something is wrong with the directory as a whole.
    #[must_use]
    pub fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// What has changed since the last call, all files taken together; everything at the first
    /// call. None if nothing has.
    pub fn update(&mut self) -> Option<Update> {
        let mut report = Report::default();
        self.merge(&mut report);
        let view = self.view(&mut report);
        let complete = self.unknown.is_empty() && (self.trouble.is_none() || self.seen);
        let problems: Vec<String> = self.trouble.iter().cloned().chain(report.lines()).collect();
        let events = match &self.told {
            None => view.events(),
            Some((former, was_complete, known)) => {
                let events = view.events_since(former);
                if events.is_empty() && *was_complete == complete && *known == problems {
                    return None;
                }
                events
            }
        };
        self.told = Some((view, complete, problems.clone()));
        Some(Update {
            events,
            complete,
            problems,
        })
    }

    /// Finds what holds.
    fn merge(&mut self, report: &mut Report) {
        let mut fresh: BTreeMap<ObjectKey, Held> = BTreeMap::new();
        for (file, content) in &self.files {
            for note in &content.notes {
                report.note(file, note.line, note.text.clone());
            }
            for (key, object) in &content.objects {
                if let Some(first) = fresh.get(key) {
                    let (other, line) = (&first.file, first.object.line);
                    let text = format!(
                        "{key}: is already defined in {other}:{line}, which holds; remove one"
                    );
                    report.note(file, object.line, text);
                } else {
                    let (file, object) = (file.clone(), Arc::clone(object));
                    fresh.insert(key.clone(), Held { file, object });
                }
            }
        }
        let mut kept = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        for (file, content) in self
            .files
            .iter()
            .filter(|(_, content)| !content.broken.is_empty())
        {
            // What a document without a name may have been: any that its file no longer shows.
            let missing: BTreeMap<ObjectKey, Held> = self
                .held
                .iter()
                .filter(|(key, held)| held.file == *file && !fresh.contains_key(key))
                .map(|(key, held)| (key.clone(), held.clone()))
                .collect();
            for broken in &content.broken {
                let former = broken
                    .key
                    .as_ref()
                    .and_then(|key| self.held.get_key_value(key));
                let fate = match (&broken.key, former) {
                    (Some(key), _) if fresh.contains_key(key) => "the other definition of it holds",
                    (Some(_), Some((key, Held { object, .. }))) => {
                        let (file, object) = (file.clone(), Arc::clone(object));
                        kept.insert(key.clone(), Held { file, object });
                        "what it was before stays in force"
                    }
                    (None, _) if !missing.is_empty() => {
                        kept.extend(missing.clone());
                        "what its file held before stays in force"
                    }
                    (Some(_), None) | (None, _) => {
                        unknown.insert(file.clone());
                        "nothing is removed from the kernel until it can be read"
                    }
                };
                report.note(file, broken.line, format!("{}; {fate}", broken.text));
            }
            if self.unknown.contains(file) {
                unknown.insert(file.clone());
            }
        }
        self.unknown = unknown;
        fresh.extend(kept);
        self.held = fresh;
    }
}

/// Problems, in the order of their places.
#[derive(Default)]
struct Report {
    notes: Vec<(String, Note)>,
}

impl Report {
    fn note(&mut self, file: &str, line: u64, text: String) {
        self.notes.push((file.to_owned(), Note { line, text }));
    }

    fn lines(mut self) -> impl Iterator<Item = String> {
        self.notes.sort();
        self.notes.into_iter().map(|(file, Note { line, text })| {
            if line == 0 {
                format!("{file}: {text}")
            } else {
                format!("{file}:{line}: {text}")
            }
        })
    }
}
