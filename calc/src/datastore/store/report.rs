//! What the operator is told of the documents, in the order of their places.

use std::sync::Arc;

use super::{super::convert::Flaw, FileName, ObjectKey, Store, contents::Note};

/// Problems so far.
#[derive(Default)]
pub(super) struct Report {
    notes: Vec<(FileName, Note)>,
}

impl Report {
    pub(super) fn note(&mut self, file: &FileName, line: u64, text: String) {
        self.notes.push((Arc::clone(file), Note { line, text }));
    }

    pub(super) fn lines(mut self) -> impl Iterator<Item = String> {
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

impl Store {
    /// Tells what is wrong at present, besides what cannot be read.
    pub(super) fn review(&self, report: &mut Report) {
        for name in &self.noted {
            let file = self.objects.files.get(name);
            for note in file.iter().flat_map(|file| &file.notes) {
                report.note(name, note.line, note.text.clone());
            }
        }
        for key in self.objects.doubled() {
            let definitions = self.objects.files.definitions(key);
            let objects = definitions
                .into_iter()
                .map(|(file, record)| (file, record.object()));
            let mut definitions = objects.filter_map(|(file, object)| Some((file, object?)));
            let Some((first, holds)) = definitions.next() else {
                continue;
            };
            for (file, object) in definitions {
                let text = format!(
                    "{key}: is already defined in {first}:{}, which holds; remove one",
                    holds.line
                );
                report.note(file, object.line, text);
            }
        }
        // Of several with the same CIDR the one with the smallest name counts.
        for key in self.objects.outdone() {
            let text = format!(
                "{key}: spec.cidr: is that of another object too, whose name comes first and \
                 which holds; remove one"
            );
            self.object(report, key, text);
        }
        let (effective, clashes) = self.settings();
        for (key, Flaw { field, rule }) in clashes {
            self.object(report, &key, format!("{key}: {field}: {rule}"));
        }
        if !effective.spoofing {
            for key in self.objects.spoofers() {
                let text = format!(
                    "{key}: spec.allowSpoofedSourcePrefixes: needs workloadSourceSpoofing Any \
                     in the FelixConfiguration; the object counts as absent"
                );
                self.object(report, key, text);
            }
        }
    }

    /// Tells of an object that holds.
    fn object(&self, report: &mut Report, key: &ObjectKey, text: String) {
        if let Some(held) = self.objects.held(key) {
            report.note(&held.file, held.object.line, text);
        }
    }
}
