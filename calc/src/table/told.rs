//! What consumers were last told of a table's entries.
//!
//! No copy of the entries is kept: they are what was told, but for the few keys noted here, which
//! have become something else since. Beyond [`MAX_CHANGES`] of those, what was told is forgotten.

use std::{collections::BTreeMap, ops::Bound};

use super::{Kind, Table};
use crate::{
    delta::{Actual, DeltaTracker},
    ordered::{beyond, merged},
};

/// How many changes are told one by one.
pub(crate) const MAX_CHANGES: usize = 1000;

/// Keys with what they have become.
pub(crate) type Changes<K> = Vec<(<K as Kind>::Key, Option<<K as Kind>::Value>)>;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Told<K: Kind> {
    /// What was told of keys that have changed since; nothing at all if that is forgotten, or if
    /// nothing was told yet.
    former: Option<BTreeMap<K::Key, Option<K::Value>>>,
}

impl<K: Kind> Default for Told<K> {
    fn default() -> Self {
        Self { former: None }
    }
}

impl<K: Kind> Told<K> {
    /// Takes in that `key` is no longer what it is known to have been.
    pub(super) fn note(&mut self, key: &K::Key, was: impl FnOnce() -> Option<K::Value>) {
        let Some(former) = self.former.as_mut().filter(|_| K::TOLD) else {
            return;
        };
        former.entry(key.clone()).or_insert_with(was);
        if former.len() > MAX_CHANGES {
            self.former = None;
        }
    }

    /// Takes in that more keys have changed than are told one by one.
    pub(super) fn note_many(&mut self) {
        self.former = None;
    }

    /// Returns what has changed since the last call, if that is known. A key of which it is not
    /// known what it is remains as it was told.
    pub(super) fn tell(&mut self, entries: &DeltaTracker<K::Key, K::Value>) -> Option<Changes<K>> {
        let Some(former) = &mut self.former else {
            self.former = Some(BTreeMap::new());
            return None;
        };
        let mut changes = Vec::new();
        former.retain(|key, was| {
            let actual = entries.actual(key);
            if actual == Actual::Wrong {
                return true;
            }
            let is = actual.known();
            if is != was.as_ref() {
                changes.push((key.clone(), is.cloned()));
            }
            false
        });
        Some(changes)
    }

    /// Returns what was told, in order from the key that follows `after`, if that is known.
    pub(super) fn after<'a>(
        &'a self,
        entries: &'a DeltaTracker<K::Key, K::Value>,
        after: Option<&K::Key>,
    ) -> Option<impl Iterator<Item = (&'a K::Key, &'a K::Value)> + use<'a, K>> {
        let former = self.former.as_ref()?;
        let unchanged = entries
            .after(after)
            .filter(|(key, ..)| !former.contains_key(key))
            .filter_map(|(key, _, actual)| Some((key, actual.known()?)));
        let changed = former
            .range((beyond(after), Bound::Unbounded))
            .filter_map(|(key, was)| Some((key, was.as_ref()?)));
        Some(merged(unchanged, changed, |(key, _)| *key))
    }
}

impl<K: Kind> Table<K> {
    /// Returns what the entries have become since the last call, or nothing if that is too much to
    /// tell one by one; then all of them are to be told anew.
    pub(crate) fn tell(&mut self) -> Option<Changes<K>> {
        self.told.tell(&self.tracker)
    }

    /// Returns the entries as they were last told, in order from the key that follows `after`; or
    /// nothing if they are to be told anew.
    pub(crate) fn told_after<'a>(
        &'a self,
        after: Option<&K::Key>,
    ) -> Option<impl Iterator<Item = (&'a K::Key, &'a K::Value)> + use<'a, K>> {
        self.told.after(&self.tracker, after)
    }

    /// Keeps what `key` is known to be, before that changes.
    pub(super) fn note(&mut self, key: &K::Key) {
        let was = || self.tracker.actual(key).known().cloned();
        self.told.note(key, was);
    }
}
