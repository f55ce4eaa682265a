//! Keys that nobody wants and that stay for a while all the same.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Instant};

use super::{Kind, Table};
use crate::delta::{Actual, Change};

impl<K: Kind> Table<K> {
    /// Has what nobody wants stay until then.
    pub(crate) fn spare(&mut self, until: BTreeMap<K::Key, Instant>) {
        for (key, at) in until {
            if self.ready.of_mut(Change::Sweep).remove(&key) {
                self.timers.insert((at, key.clone()));
                self.spared.insert(key, at);
            }
        }
    }

    /// Lets go of those that are no longer to stay.
    pub(crate) fn spare_only(&mut self, stays: impl Fn(&K::Value) -> bool) {
        let is_over = |key: &&K::Key| match self.tracker.actual(key) {
            Actual::Is(value) => !stays(value),
            Actual::Absent | Actual::Wrong => true,
        };
        let over: Vec<K::Key> = self.spared.keys().filter(is_over).cloned().collect();
        for key in over {
            self.wake(key);
        }
    }

    /// Lets go of those with a key of this range.
    pub(crate) fn spare_none_of(&mut self, keys: RangeInclusive<K::Key>) {
        let spared = self.spared.range(keys);
        let over: Vec<K::Key> = spared.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.wake(key);
        }
    }

    /// Has a key be spared no longer, but does not file it. Returns whether it was.
    pub(super) fn release_spared(&mut self, key: &K::Key) -> bool {
        let until = self.spared.remove(key);
        until.is_some_and(|at| self.timers.remove(&(at, key.clone())))
    }
}
