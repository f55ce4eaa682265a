//! The keys that can be asked for, by what it takes. Each is in one set at most; pure.

use std::collections::BTreeSet;

use crate::delta::Change;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Ready<K> {
    updates: BTreeSet<K>,
    inserts: BTreeSet<K>,
    clears: BTreeSet<K>,
    sweeps: BTreeSet<K>,
}

impl<K> Default for Ready<K> {
    fn default() -> Self {
        Self {
            updates: BTreeSet::new(),
            inserts: BTreeSet::new(),
            clears: BTreeSet::new(),
            sweeps: BTreeSet::new(),
        }
    }
}

impl<K> Ready<K> {
    /// Returns those with this change.
    pub(super) fn of(&self, change: Change) -> &BTreeSet<K> {
        match change {
            Change::Update => &self.updates,
            Change::Insert => &self.inserts,
            Change::Clear => &self.clears,
            Change::Sweep => &self.sweeps,
        }
    }

    /// Returns those with this change.
    pub(super) fn of_mut(&mut self, change: Change) -> &mut BTreeSet<K> {
        match change {
            Change::Update => &mut self.updates,
            Change::Insert => &mut self.inserts,
            Change::Clear => &mut self.clears,
            Change::Sweep => &mut self.sweeps,
        }
    }

    /// Returns how many there are; sweeps only if they are allowed.
    pub(super) fn len(&self, sweep: bool) -> usize {
        let sweeps = if sweep { self.sweeps.len() } else { 0 };
        self.updates.len() + self.inserts.len() + self.clears.len() + sweeps
    }
}

impl<K: Ord> Ready<K> {
    /// Removes keys that come in order.
    pub(super) fn remove_all<V>(&mut self, keys: &[(K, V)]) {
        let (Some((first, _)), Some((last, _))) = (keys.first(), keys.last()) else {
            return;
        };
        let sets = [
            &mut self.updates,
            &mut self.inserts,
            &mut self.clears,
            &mut self.sweeps,
        ];
        for set in sets {
            let mut keys = keys.iter().map(|(key, _)| key).peekable();
            let among = set.extract_if(first..=last, |key| {
                while keys.next_if(|other| *other < key).is_some() {}
                keys.next_if(|other| *other == key).is_some()
            });
            among.for_each(drop);
        }
    }
}
