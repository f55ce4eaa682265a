//! What should be, what is, and the difference.
//!
//! It does no I/O: "actual" is whatever its owner last learned. A key that is absent on both sides is
//! not kept.

mod sides;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, btree_map},
    iter::{self, Peekable},
    mem,
    ops::{Bound, RangeInclusive},
};

pub(crate) use self::sides::{Actual, Change, Turn};
use self::sides::{Counts, Entry, Sides};
use crate::ordered::{self, Walk, beyond};

/// To search for a key takes as long as to pass by so many.
const SEARCH: usize = 64;

/// Keys that are absent on both sides, in order, with what they should be.
#[derive(Clone, Debug)]
pub(crate) struct Fresh<K, V>(Vec<(K, Entry<V>)>);

impl<K, V> Default for Fresh<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K, V> Fresh<K, V> {
    /// Starts with room for so many: what is not used costs nothing.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Adds a key that comes after all others.
    pub(crate) fn push(&mut self, key: K, value: V) {
        self.0.push((key, Entry::Wanted(value)));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }
}

/// Tracks where a desired map and an actual map disagree. See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct DeltaTracker<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    counts: Counts,
}

impl<K, V> Default for DeltaTracker<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            counts: Counts::default(),
        }
    }
}

impl<K: Ord + Clone, V: Eq + Clone> DeltaTracker<K, V> {
    /// Says what `key` should be; `None` is absent. Returns nothing if that is known already.
    pub(crate) fn set_desired(&mut self, key: K, desired: Option<V>) -> Option<Turn> {
        if self.desired(&key) == desired.as_ref() {
            return None;
        }
        Some(self.update(key, |sides| {
            sides.claimed |= desired.is_some();
            sides.desired = desired;
        }))
    }

    /// Says what keys should be that are absent on both sides.
    pub(crate) fn set_new(&mut self, all: Fresh<K, V>) {
        self.counts.desired += all.len();
        ordered::absorb(&mut self.entries, all.0.into_iter());
    }

    /// Says what `key` was found to be.
    pub(crate) fn set_actual(&mut self, key: K, actual: Actual<V>) -> Turn {
        self.update(key, |sides| sides.actual = actual)
    }

    /// Says what `key` is, as this process has made it.
    pub(crate) fn settle(&mut self, key: K, actual: Actual<V>) -> Turn {
        self.update(key, |sides| {
            // What was there and never wanted stays what may be swept, also where that was tried in vain.
            sides.claimed |= !sides.is_present() || matches!(actual, Actual::Is(_));
            sides.actual = actual;
        })
    }

    /// Returns whether so many keys are best taken in together: all that lie between them are passed by.
    pub(crate) fn are_many(&self, keys: usize) -> bool {
        keys >= self.entries.len() / SEARCH
    }

    /// Says that keys are so, as this process has made them; they come in order. Returns those that should
    /// be otherwise by now, of which nothing is taken in.
    pub(crate) fn settle_all(&mut self, made: Vec<(K, Option<V>)>) -> Vec<(K, Option<V>)> {
        let (Some((first, _)), Some((last, _))) = (made.first(), made.last()) else {
            return made;
        };
        let range = first.clone()..=last.clone();
        let mut made = made.into_iter().peekable();
        let mut others = Vec::new();
        let Self { entries, counts } = self;
        let gone = entries.extract_if(range, |key, entry| {
            others.extend(iter::from_fn(|| made.next_if(|(other, _)| other < key)));
            match made.next_if(|(other, _)| other == key) {
                Some((_, value)) if value.as_ref() == entry.desired() => {
                    counts.leave(entry);
                    *entry = value.map_or(Entry::Nowhere, Entry::Settled);
                    counts.enter(entry);
                    entry.is_nowhere()
                }
                Some(other) => {
                    others.push(other);
                    false
                }
                None => false,
            }
        });
        gone.for_each(drop);
        others.extend(made);
        others
    }

    /// Says that all keys of a range that should be there and are absent are there now, as this process has
    /// made them: so many. Returns whether there are so many; if not, nothing is taken in.
    pub(crate) fn settle_wanted(&mut self, keys: RangeInclusive<K>, count: usize) -> bool {
        let wanted = |entry: &&mut Entry<V>| matches!(entry, Entry::Wanted(_));
        let entries = self.entries.range_mut(keys.clone()).map(|(_, entry)| entry);
        if entries.filter(wanted).count() != count {
            return false;
        }
        let entries = self.entries.range_mut(keys).map(|(_, entry)| entry);
        entries.filter(wanted).for_each(Entry::settle);
        self.counts.present += count;
        true
    }

    /// Says what every key is: those that are not listed are absent, and those that are listed
    /// with several values, or with none, are wrong. The order does not matter. Tells `changed` of
    /// each key that is not what it was, with what it was.
    pub(crate) fn replace_actual(
        &mut self,
        mut all: Vec<(K, Option<V>)>,
        mut changed: impl FnMut(&K, Actual<V>),
    ) {
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut all = Collapsed(all.into_iter().peekable()).peekable();
        // Both are in order, so that one pass finds what is no longer as it was.
        let mut fresh = Vec::new();
        let Self { entries, counts } = self;
        let gone = entries.extract_if(.., |key, entry| {
            fresh.extend(iter::from_fn(|| all.next_if(|(other, _)| other < key)));
            let found = all.next_if(|(other, _)| other == key);
            let found = found.map_or(Actual::Absent, |(_, actual)| actual);
            if entry.actual() != found.as_ref() {
                counts.leave(entry);
                entry.update(|sides| {
                    changed(key, mem::replace(&mut sides.actual, found));
                });
                counts.enter(entry);
            }
            entry.is_nowhere()
        });
        gone.for_each(drop);
        fresh.extend(all);
        let fresh = fresh.into_iter().map(|(key, actual)| {
            changed(&key, Actual::Absent);
            let entry = Entry::from(Sides {
                actual,
                ..Sides::default()
            });
            counts.enter(&entry);
            (key, entry)
        });
        ordered::absorb(entries, fresh);
    }

    /// Returns what `key` should be.
    #[must_use]
    pub(crate) fn desired(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.desired()
    }

    /// Returns what each of these keys should be; they come in order.
    pub(crate) fn desired_of<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a K>,
    ) -> impl Iterator<Item = (&'a K, Option<&'a V>)> {
        let mut entries = Walk::new(&self.entries);
        keys.map(move |key| (key, entries.get(key).and_then(Entry::desired)))
    }

    /// Returns whether `key` is absent on both sides.
    #[must_use]
    pub(crate) fn is_new(&self, key: &K) -> bool {
        // Many come in order, each after all that there are.
        let last = self.entries.last_key_value();
        last.is_none_or(|(last, _)| last < key) || !self.entries.contains_key(key)
    }

    /// Returns what `key` is.
    #[must_use]
    pub(crate) fn actual(&self, key: &K) -> Actual<&V> {
        let entry = self.entries.get(key);
        entry.map_or(Actual::Absent, Entry::actual)
    }

    /// Returns whether it is known of every key what it is.
    #[must_use]
    pub(crate) fn is_known(&self) -> bool {
        self.counts.wrong == 0
    }

    /// Returns what is known to be there.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.entries.iter();
        entries.filter_map(|(key, entry)| Some((key, entry.actual().known()?)))
    }

    /// Returns what is known to be there and should not.
    pub(crate) fn strays(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.entries.iter();
        entries
            .filter(|(_, entry)| entry.desired().is_none())
            .filter_map(|(key, entry)| Some((key, entry.actual().known()?)))
    }

    /// Returns what the keys of a range should be and what they are.
    pub(crate) fn range(
        &self,
        keys: RangeInclusive<K>,
    ) -> impl Iterator<Item = (Option<&V>, Actual<&V>)> {
        let entries = self.entries.range(keys);
        entries.map(|(_, entry)| (entry.desired(), entry.actual()))
    }

    /// Returns the keys of a range that should be there, in order.
    pub(crate) fn wanted(&self, keys: RangeInclusive<K>) -> impl Iterator<Item = &K> {
        let entries = self.entries.range(keys);
        let wanted = entries.filter(|(_, entry)| entry.desired().is_some());
        wanted.map(|(key, _)| key)
    }

    /// Returns the keys of a range that should be there and are not as they should be, in order.
    pub(crate) fn due(&self, keys: RangeInclusive<K>) -> impl Iterator<Item = &K> {
        let entries = self.entries.range(keys);
        let due = entries.filter(|(_, entry)| entry.change().is_some_and(Change::sets));
        due.map(|(key, _)| key)
    }

    /// Returns what it takes for `key` to be as desired, if it is not.
    #[must_use]
    pub(crate) fn change(&self, key: &K) -> Option<Change> {
        self.entries.get(key)?.change()
    }

    /// Returns the keys that are not as desired, in order, with what it takes.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (&K, Change)> {
        let entries = self.entries.iter();
        entries.filter_map(|(key, entry)| Some((key, entry.change()?)))
    }

    /// Returns all keys in order with what they should be and what they are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Option<&V>, Actual<&V>)> {
        self.after(None)
    }

    /// As [`iter`](Self::iter), from the key that follows `after`.
    pub(crate) fn after<'a>(
        &'a self,
        after: Option<&K>,
    ) -> impl Iterator<Item = (&'a K, Option<&'a V>, Actual<&'a V>)> + use<'a, K, V> {
        let entries = self.entries.range((beyond(after), Bound::Unbounded));
        entries.map(|(key, entry)| (key, entry.desired(), entry.actual()))
    }

    /// Takes no more room than it must: keys that came in order have left half of the room between them
    /// empty.
    pub(crate) fn pack(&mut self) {
        self.entries = mem::take(&mut self.entries).into_iter().collect();
    }

    /// Returns how many keys should be there.
    #[must_use]
    pub(crate) fn desired_len(&self) -> usize {
        self.counts.desired
    }

    /// Returns how many keys are there.
    #[must_use]
    pub(crate) fn present_len(&self) -> usize {
        self.counts.present
    }

    /// Makes a change of a key. Keys are many, so none is looked up more often than it takes.
    fn update(&mut self, key: K, change: impl FnOnce(&mut Sides<V>)) -> Turn {
        match self.entries.entry(key) {
            btree_map::Entry::Occupied(mut slot) => {
                self.counts.leave(slot.get());
                let turn = slot.get_mut().update(change);
                self.counts.enter(slot.get());
                if slot.get().is_nowhere() {
                    slot.remove();
                }
                turn
            }
            btree_map::Entry::Vacant(slot) => {
                let mut entry = Entry::Nowhere;
                let turn = entry.update(change);
                self.counts.enter(&entry);
                if !entry.is_nowhere() {
                    slot.insert(entry);
                }
                turn
            }
        }
    }
}

/// Makes one of each run of entries with the same key.
struct Collapsed<I: Iterator>(Peekable<I>);

impl<K: Eq, V: Eq, I: Iterator<Item = (K, Option<V>)>> Iterator for Collapsed<I> {
    type Item = (K, Actual<V>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.0.next()?;
        let mut actual = value.map_or(Actual::Wrong, Actual::Is);
        while let Some((_, again)) = self.0.next_if(|(other, _)| *other == key) {
            if actual.as_ref() != again.as_ref().map_or(Actual::Wrong, Actual::Is) {
                actual = Actual::Wrong;
            }
        }
        Some((key, actual))
    }
}
