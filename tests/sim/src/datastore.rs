//! The model datastore: documents in variants, some of which cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::Doc;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Datastore {
    pub(super) documents: BTreeMap<Doc, u16>,
    /// Those that cannot be read.
    garbled: BTreeSet<Doc>,
}

impl Datastore {
    pub(super) fn set(&mut self, doc: Doc, variant: Option<u16>) {
        self.garbled.remove(&doc);
        match variant {
            Some(variant) => self.documents.insert(doc, variant),
            None => self.documents.remove(&doc),
        };
    }

    /// Has a document unreadable, if it is there. Settings always have a value.
    pub(super) fn garble(&mut self, doc: Doc) -> bool {
        let there =
            self.documents.contains_key(&doc) && !matches!(doc, Doc::Config | Doc::Services);
        there && self.garbled.insert(doc)
    }

    /// Has everything readable.
    pub(super) fn mend(&mut self) {
        self.garbled.clear();
    }

    /// Returns whether anything differs from what is known.
    pub(super) fn has_news(&self, known: &BTreeMap<Doc, u16>) -> bool {
        if self.garbled.is_empty() {
            self.documents != *known
        } else {
            self.news(known, 0).next().is_some()
        }
    }

    /// What differs from what is known, from one document on and around. What cannot be read says
    /// nothing.
    pub(super) fn news(
        &self,
        known: &BTreeMap<Doc, u16>,
        from: u8,
    ) -> impl Iterator<Item = (Doc, Option<u16>)> {
        let docs: BTreeSet<Doc> = self.documents.keys().chain(known.keys()).copied().collect();
        let mut news: Vec<(Doc, Option<u16>)> = docs
            .into_iter()
            .filter(|doc| !self.garbled.contains(doc))
            .map(|doc| (doc, self.documents.get(&doc).copied()))
            .filter(|(doc, variant)| known.get(doc) != variant.as_ref())
            .collect();
        let from = usize::from(from) % news.len().max(1);
        news.rotate_left(from);
        news.into_iter()
    }

    /// Returns whether who knows these documents knows something of each.
    pub(super) fn is_complete(&self, known: &BTreeMap<Doc, u16>) -> bool {
        self.garbled.iter().all(|doc| known.contains_key(doc))
    }
}
