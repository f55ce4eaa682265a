//! What one file holds, whatever the others do.

use std::collections::BTreeMap;

use super::packed::{Object, Packed};
use crate::datastore::{
    convert::{Flaw, convert},
    document::{Document, ObjectKey, documents},
    tree::Fault,
};

/// A file's content, read once.
#[derive(Debug, Default)]
pub(super) struct File {
    /// None for a file that could not be read.
    pub(super) digest: Option<[u8; 20]>,
    pub(super) objects: Packed,
    pub(super) broken: Vec<Broken>,
    /// What is wrong but costs no object.
    pub(super) notes: Vec<Note>,
}

/// A document that could not be decoded.
#[derive(Debug)]
pub(super) struct Broken {
    /// None if not even that could be read.
    pub(super) key: Option<ObjectKey>,
    pub(super) line: u64,
    pub(super) text: String,
}

/// A line of a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    pub(super) line: u64,
    pub(super) text: String,
}

impl File {
    /// Reads a file's documents.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut file = Self::default();
        let mut objects = BTreeMap::new();
        for document in documents(bytes) {
            match document {
                Document::Broken(fault) => file.broken.push(Broken::new(None, &fault)),
                Document::Foreign(fault) => file.notes.push(Note {
                    line: fault.line,
                    text: with_field(&fault.field, &fault.reason),
                }),
                Document::Object(key, tree) => {
                    let mut flaws = Vec::new();
                    match convert(&key, &tree, &mut flaws) {
                        Err(fault) => file.broken.push(Broken::new(Some(key), &fault)),
                        Ok(value) => {
                            let absent = value.is_none();
                            for Flaw { field, rule } in flaws {
                                let text = with_field(&field, &rule.to_string());
                                let fate = if absent {
                                    "; the object counts as absent"
                                } else {
                                    ""
                                };
                                file.notes.push(Note {
                                    line: tree.line_of(&field),
                                    text: format!("{key}: {text}{fate}"),
                                });
                            }
                            let line = tree.line();
                            file.add(&mut objects, key, Object { line, value });
                        }
                    }
                }
            }
        }
        match Packed::new(&objects) {
            Ok(packed) => file.objects = packed,
            Err(error) => file.broken.push(Broken {
                key: None,
                line: 0,
                text: format!("cannot be kept: {error}; split it"),
            }),
        }
        file
    }

    fn add(&mut self, objects: &mut BTreeMap<ObjectKey, Object>, key: ObjectKey, object: Object) {
        if let Some(first) = objects.get(&key) {
            let text = format!(
                "{key}: is already defined in line {}, which holds; remove one",
                first.line
            );
            let line = object.line;
            self.notes.push(Note { line, text });
        } else {
            objects.insert(key, object);
        }
    }
}

impl Broken {
    fn new(key: Option<ObjectKey>, fault: &Fault) -> Self {
        let text = with_field(&fault.field, &fault.reason);
        let text = match &key {
            Some(key) => format!("{key}: {text}"),
            None => text,
        };
        Self {
            key,
            line: fault.line,
            text,
        }
    }
}

fn with_field(field: &str, reason: &str) -> String {
    if field.is_empty() {
        reason.to_owned()
    } else {
        format!("{field}: {reason}")
    }
}
