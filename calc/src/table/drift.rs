//! What a reading finds otherwise than it was known to be: what others have changed.

use super::{Kind, Table, contest::MAX};
use crate::delta::Actual;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Found<K: Kind> {
    /// How many keys have another value than was known, or none.
    changed: u64,
    /// Keys that have a value where there was none; at most [`MAX`].
    appeared: Vec<K::Key>,
}

impl<K: Kind> Default for Found<K> {
    fn default() -> Self {
        Self {
            changed: 0,
            appeared: Vec::new(),
        }
    }
}

impl<K: Kind> Found<K> {
    /// Takes in a key that is not what it was.
    pub(super) fn note(&mut self, key: &K::Key, was: &Actual<K::Value>) {
        match was {
            Actual::Is(_) => self.changed = self.changed.saturating_add(1),
            Actual::Absent if self.appeared.len() < MAX => self.appeared.push(key.clone()),
            // What was not known has not changed.
            Actual::Absent | Actual::Wrong => {}
        }
    }
}

impl<K: Kind> Table<K> {
    /// Returns how many keys the last reading found otherwise than they were known to be, or there
    /// where nobody wants them, unless they are spared.
    pub(super) fn drift_len(&self) -> u64 {
        let Found { changed, appeared } = &self.found;
        let stray = |key: &&K::Key| {
            K::CLEARS && self.tracker.desired(key).is_none() && !self.spared.contains_key(key)
        };
        let strays = u64::try_from(appeared.iter().filter(stray).count());
        changed.saturating_add(strays.unwrap_or(u64::MAX))
    }
}
