//! What a table tells: of each key what it should be, what it is, and why they differ.

use std::{
    hash::Hash,
    ops::{Add, RangeInclusive},
    time::Instant,
};

use ipc_proto::{
    Op, Sum,
    view::{Reason, Row},
};

use super::{Alarm, Kind, Table};
use crate::delta::{Actual, Change};

/// How many keys there are of some sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that should be there.
    pub desired: usize,
    /// Those that differ and can be asked for.
    pub pending: usize,
    /// Those whose last attempt failed.
    pub held: usize,
    /// Those that others have undone again and again, and that wait.
    pub contested: usize,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            desired: self.desired + other.desired,
            pending: self.pending + other.pending,
            held: self.held + other.held,
            contested: self.contested + other.contested,
        }
    }
}

/// What tables of all kinds have in common.
pub(crate) trait AnyTable {
    /// Returns when the next waiting is over.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Counts the keys; sweeps are pending only if they are allowed.
    fn counts(&self, sweep: bool) -> Counts;
    /// Returns what others undo again and again, by what would make it.
    fn contested(&self) -> Vec<(Op, &Alarm)>;
    /// Returns how much the last reading found that others have changed.
    fn drift(&self) -> u64;
}

/// A key with what should be, what is, and why they differ.
#[derive(Debug)]
pub(crate) struct Entry<'a, K: Kind> {
    pub(crate) key: &'a K::Key,
    pub(crate) desired: Option<&'a K::Value>,
    pub(crate) actual: Actual<&'a K::Value>,
    pub(crate) reason: Option<Reason>,
}

impl<K: Kind> Entry<'_, K> {
    /// Makes a row for the operator.
    pub(crate) fn row(self) -> Row {
        let Self {
            key,
            desired,
            actual,
            reason,
        } = self;
        Row {
            desired: desired.map(|value| K::op(key.clone(), Some(value.clone()))),
            actual: match actual {
                Actual::Absent => None,
                Actual::Is(value) => K::observed(key.clone(), Some(value.clone())),
                Actual::Wrong => K::observed(key.clone(), None),
            },
            reason,
        }
    }
}

impl<K: Kind> Table<K> {
    /// Returns whether it is known what there is.
    pub(crate) fn is_known(&self) -> bool {
        !self.unknown && self.tracker.is_known()
    }

    /// Sums up what there is; nothing where that is not known, or is nothing.
    pub(crate) fn sum(&self, seed: u64) -> Option<Sum>
    where
        K::Key: Hash,
        K::Value: Hash,
    {
        if !self.is_known() || self.present_len() == 0 {
            return None;
        }
        let mut sum = Sum::default();
        for (key, value) in self.tracker.present() {
            sum.add(seed, key, Some(value));
        }
        Some(sum)
    }

    /// Returns what is known to be there.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&K::Key, &K::Value)> {
        self.tracker.present()
    }

    /// Returns what is there and nobody wants.
    pub(crate) fn strays(&self) -> impl Iterator<Item = (&K::Key, &K::Value)> {
        self.tracker.strays()
    }

    /// Returns how many keys can be asked for with this change.
    #[must_use]
    pub(crate) fn ready_len(&self, change: Change) -> usize {
        self.ready.of(change).len()
    }

    /// Returns the changes of a sort that can be asked for, in the order of their keys.
    pub(crate) fn ready(&self, change: Change) -> impl Iterator<Item = Op> {
        let keys = self.ready.of(change).iter();
        let desired = self.tracker.desired_of(keys);
        desired.map(|(key, desired)| K::op(key.clone(), desired.cloned()))
    }

    /// Returns the op that makes `key` as it should be.
    pub(crate) fn op(&self, key: K::Key) -> Op {
        let desired = self.tracker.desired(&key).cloned();
        K::op(key, desired)
    }

    /// Returns whether `key` is neither wanted nor there.
    pub(crate) fn is_new(&self, key: &K::Key) -> bool {
        self.tracker.is_new(key)
    }

    /// Returns what `key` should be.
    pub(crate) fn desired(&self, key: &K::Key) -> Option<&K::Value> {
        self.tracker.desired(key)
    }

    /// Returns what `key` is.
    pub(crate) fn actual(&self, key: &K::Key) -> Actual<&K::Value> {
        self.tracker.actual(key)
    }

    /// Returns whether any key that is as `is_meant` says is there.
    pub(crate) fn has_any(&self, is_meant: impl Fn(&K::Key) -> bool) -> bool {
        let mut all = self.tracker.iter();
        all.any(|(key, _, actual)| actual != Actual::Absent && is_meant(key))
    }

    /// Returns what the keys of a range should be and what they are.
    pub(crate) fn range(
        &self,
        keys: RangeInclusive<K::Key>,
    ) -> impl Iterator<Item = (Option<&K::Value>, Actual<&K::Value>)> {
        self.tracker.range(keys)
    }

    /// Returns the keys of a range that should be there.
    pub(crate) fn wanted(&self, keys: RangeInclusive<K::Key>) -> impl Iterator<Item = &K::Key> {
        self.tracker.wanted(keys)
    }

    /// Returns the keys of a range that should be there and are not as they should be.
    pub(crate) fn due(&self, keys: RangeInclusive<K::Key>) -> impl Iterator<Item = &K::Key> {
        self.tracker.due(keys)
    }

    /// Returns how many keys should be there.
    #[must_use]
    pub(crate) fn desired_len(&self) -> usize {
        self.tracker.desired_len()
    }

    /// Returns how many keys are there.
    #[must_use]
    pub(crate) fn present_len(&self) -> usize {
        self.tracker.present_len()
    }

    /// Returns all keys in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_, K>> {
        self.tracker
            .iter()
            .filter(|(_, desired, _)| K::CLEARS || desired.is_some())
            .map(|(key, desired, actual)| Entry {
                key,
                desired,
                reason: self.reason(key),
                actual,
            })
    }

    /// Returns why a key is not as it should be, as far as this table knows.
    fn reason(&self, key: &K::Key) -> Option<Reason> {
        self.tracker.change(key)?;
        let failed = self.holds.get(key).map(|hold| &hold.error);
        Some(match failed {
            Some(error) => Reason::Failed(error.clone()),
            None if self.contests.waits(key) => Reason::Contested,
            None if self.spared.contains_key(key) => Reason::Grace,
            None => Reason::Pending,
        })
    }

    /// Returns whether a change of `key` is to be asked for, or is not answered yet.
    #[must_use]
    pub(crate) fn awaits(&self, key: &K::Key) -> bool {
        let change = self.tracker.change(key);
        change.is_some_and(|change| self.ready.of(change).contains(key))
    }
}

impl<K: Kind> AnyTable for Table<K> {
    fn poll_timeout(&self) -> Option<Instant> {
        let hold = self.timers.first().map(|(at, _)| *at);
        let timeouts = [hold, self.contests.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    fn counts(&self, sweep: bool) -> Counts {
        Counts {
            desired: self.tracker.desired_len(),
            pending: self.ready.len(sweep),
            held: self.holds.len(),
            contested: self.contests.waiting_len(),
        }
    }

    fn contested(&self) -> Vec<(Op, &Alarm)> {
        let alarms = self.contests.alarms();
        alarms
            .map(|(key, alarm)| (self.op(key.clone()), alarm))
            .collect()
    }

    fn drift(&self) -> u64 {
        self.drift_len()
    }
}
