//! What should be, what is, and the difference.
//!
//! It does no I/O: "actual" is whatever its owner last learned. A key whose two sides agree is
//! held once, in `settled`; any other is in `differing`. No key is in both, and one that is absent
//! on both sides is in neither.

mod sides;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    iter::Peekable,
    mem,
    ops::{Bound, RangeInclusive},
};

pub(crate) use self::sides::{Actual, Change, Turn};
use self::sides::{Place, Sides, Unsettled};

/// How many keys are passed by one by one before one is searched for.
const NEAR: usize = 4;

/// Tracks where a desired map and an actual map disagree. See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct DeltaTracker<K, V> {
    settled: BTreeMap<K, V>,
    differing: BTreeMap<K, Sides<V>>,
    unsettled: Unsettled,
}

impl<K, V> Default for DeltaTracker<K, V> {
    fn default() -> Self {
        Self {
            settled: BTreeMap::new(),
            differing: BTreeMap::new(),
            unsettled: Unsettled::default(),
        }
    }
}

impl<K: Ord + Clone, V: Eq + Clone> DeltaTracker<K, V> {
    /// Says what `key` should be; `None` is absent. Returns nothing if that is known already.
    pub(crate) fn set_desired(&mut self, key: K, desired: Option<V>) -> Option<Turn> {
        let settled = self.settled.get(&key);
        let is_settled = settled.is_some();
        if is_settled && settled == desired.as_ref() {
            return None;
        }
        if !is_settled {
            let sides = self.differing.get(&key);
            if sides.and_then(|sides| sides.desired.as_ref()) == desired.as_ref() {
                return None;
            }
        }
        Some(self.update(key, is_settled, Sides::present, |sides| {
            sides.claimed |= desired.is_some();
            sides.desired = desired;
        }))
    }

    /// Says what keys should be that are absent on both sides; they come in order.
    pub(crate) fn set_new(&mut self, all: Vec<(K, V)>) {
        self.unsettled.desired += all.len();
        let all = all.into_iter();
        let mut all = all
            .map(|(key, value)| (key, Sides::wanted(value)))
            .collect();
        self.differing.append(&mut all);
    }

    /// Says what `key` was found to be.
    pub(crate) fn set_actual(&mut self, key: K, actual: Actual<V>) -> Turn {
        self.update(key, true, Sides::wanted, |sides| sides.actual = actual)
    }

    /// Says what `key` is, as this process has made it.
    pub(crate) fn settle(&mut self, key: K, actual: Actual<V>) -> Turn {
        self.update(key, true, Sides::wanted, |sides| {
            // What was there and never wanted stays what may be swept, also where that was tried in vain.
            sides.claimed |= !sides.is_present() || matches!(actual, Actual::Is(_));
            sides.actual = actual;
        })
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
        let mut before = BTreeMap::new();
        for (key, sides) in &mut self.differing {
            let actual = mem::take(&mut sides.actual);
            if actual != Actual::Absent {
                before.insert(key.clone(), actual);
            }
        }
        self.unsettled.present = 0;

        // Both are in order, so that one pass finds what is no longer settled.
        let mut found = Vec::new();
        let unsettled: Vec<(K, V)> = self
            .settled
            .extract_if(.., |key, value| {
                while let Some(other) = all.next_if(|(other, _)| other < key) {
                    found.push(other);
                }
                match all.next_if(|(other, _)| other == key) {
                    Some((_, Actual::Is(actual))) if actual == *value => false,
                    Some(differs) => {
                        found.push(differs);
                        true
                    }
                    None => true,
                }
            })
            .collect();
        for (key, value) in unsettled {
            before.insert(key.clone(), Actual::Is(value.clone()));
            let sides = Sides::wanted(value);
            self.unsettled.enter(&sides);
            self.differing.insert(key, sides);
        }
        for (key, actual) in found.into_iter().chain(all) {
            let was = before.remove(&key).unwrap_or_default();
            if was != actual {
                changed(&key, was);
            }
            self.set_actual(key, actual);
        }
        for (key, was) in before {
            changed(&key, was);
        }
        self.differing
            .retain(|_, sides| sides.desired.is_some() || sides.actual != Actual::Absent);
    }

    /// Returns what `key` should be.
    #[must_use]
    pub(crate) fn desired(&self, key: &K) -> Option<&V> {
        // Whoever asks mostly asks for those that differ.
        match self.differing.get(key) {
            Some(sides) => sides.desired.as_ref(),
            None => self.settled.get(key),
        }
    }

    /// Returns what each of these keys should be; they come in order.
    pub(crate) fn desired_of<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a K>,
    ) -> impl Iterator<Item = (&'a K, Option<&'a V>)> {
        // The next one is mostly near; it is searched for only where it is not.
        let mut rest = self.differing.range::<K, _>(..).peekable();
        keys.map(move |key| {
            for _ in 0..NEAR {
                if rest.next_if(|(other, _)| *other < key).is_none() {
                    break;
                }
            }
            if rest.peek().is_some_and(|(other, _)| *other < key) {
                rest = self.differing.range(key..).peekable();
            }
            let desired = match rest.peek() {
                Some((other, sides)) if *other == key => sides.desired.as_ref(),
                Some(_) | None => self.settled.get(key),
            };
            (key, desired)
        })
    }

    /// Returns what `key` is.
    #[must_use]
    pub(crate) fn actual(&self, key: &K) -> Actual<&V> {
        if let Some(value) = self.settled.get(key) {
            return Actual::Is(value);
        }
        let sides = self.differing.get(key);
        sides.map_or(Actual::Absent, |sides| sides.actual.as_ref())
    }

    /// Returns whether it is known of every key what it is.
    #[must_use]
    pub(crate) fn is_known(&self) -> bool {
        let mut differing = self.differing.values();
        !differing.any(|sides| matches!(sides.actual, Actual::Wrong))
    }

    /// Returns what is known to be there, in no particular order.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&K, &V)> {
        let differing = self.differing.iter();
        let present =
            differing.filter_map(|(key, sides)| Some((key, sides.actual.as_ref().known()?)));
        self.settled.iter().chain(present)
    }

    /// Returns what is known to be there and should not.
    pub(crate) fn strays(&self) -> impl Iterator<Item = (&K, &V)> {
        let differing = self.differing.iter();
        differing
            .filter(|(_, sides)| sides.desired.is_none())
            .filter_map(|(key, sides)| Some((key, sides.actual.as_ref().known()?)))
    }

    /// Returns what the keys of a range should be and what they are, in no particular order.
    pub(crate) fn range(
        &self,
        keys: RangeInclusive<K>,
    ) -> impl Iterator<Item = (Option<&V>, Actual<&V>)> {
        let settled = self.settled.range(keys.clone());
        let differing = self.differing.range(keys);
        settled
            .map(|(_, value)| (Some(value), Actual::Is(value)))
            .chain(differing.map(|(_, sides)| (sides.desired.as_ref(), sides.actual.as_ref())))
    }

    /// Returns the keys of a range that should be there.
    pub(crate) fn wanted(&self, keys: RangeInclusive<K>) -> impl Iterator<Item = &K> {
        let settled = self.settled.range(keys.clone()).map(|(key, _)| key);
        settled.chain(self.due(keys))
    }

    /// Returns the keys of a range that should be there and are not as they should be, in order.
    pub(crate) fn due(&self, keys: RangeInclusive<K>) -> impl Iterator<Item = &K> {
        let differing = self.differing.range(keys);
        differing
            .filter(|(_, sides)| sides.desired.is_some())
            .map(|(key, _)| key)
    }

    /// Returns what it takes for `key` to be as desired, if it is not.
    #[must_use]
    pub(crate) fn change(&self, key: &K) -> Option<Change> {
        Some(self.differing.get(key)?.change())
    }

    /// Returns the keys that are not as desired, in order, with what it takes.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (&K, Change)> {
        self.differing
            .iter()
            .map(|(key, sides)| (key, sides.change()))
    }

    /// Returns all keys in order with what they should be and what they are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Option<&V>, Actual<&V>)> {
        self.after(None)
    }

    /// As [`iter`](Self::iter), from the key that follows `after`.
    pub(crate) fn after(
        &self,
        after: Option<&K>,
    ) -> impl Iterator<Item = (&K, Option<&V>, Actual<&V>)> {
        let settled = self.settled.range((beyond(after), Bound::Unbounded));
        let differing = self.differing.range((beyond(after), Bound::Unbounded));
        merged(
            settled.map(|(key, value)| (key, Some(value), Actual::Is(value))),
            differing.map(|(key, sides)| (key, sides.desired.as_ref(), sides.actual.as_ref())),
            |(key, ..)| *key,
        )
    }

    /// Packs what is settled: keys that came in order have left half of the room between them empty.
    pub(crate) fn pack(&mut self) {
        self.settled = mem::take(&mut self.settled).into_iter().collect();
    }

    /// Returns how many keys should be there.
    #[must_use]
    pub(crate) fn desired_len(&self) -> usize {
        self.settled.len() + self.unsettled.desired
    }

    /// Returns how many keys are there.
    #[must_use]
    pub(crate) fn present_len(&self) -> usize {
        self.settled.len() + self.unsettled.present
    }

    /// Makes a change of a key and puts it where it belongs then. A settled one has but one value,
    /// for `side`. Keys are many, so none is looked up more often than it takes.
    fn update(
        &mut self,
        key: K,
        may_be_settled: bool,
        side: impl FnOnce(V) -> Sides<V>,
        change: impl FnOnce(&mut Sides<V>),
    ) -> Turn {
        match self.differing.entry(key) {
            Entry::Occupied(mut entry) => {
                let before = Some(entry.get().change());
                self.unsettled.leave(entry.get());
                change(entry.get_mut());
                let after = match entry.get().place() {
                    Place::Differing => {
                        self.unsettled.enter(entry.get());
                        Some(entry.get().change())
                    }
                    Place::Settled => {
                        let (key, sides) = entry.remove_entry();
                        self.settled.extend(sides.desired.map(|value| (key, value)));
                        None
                    }
                    Place::Nowhere => {
                        entry.remove();
                        None
                    }
                };
                Turn { before, after }
            }
            Entry::Vacant(entry) => {
                let settled = may_be_settled.then(|| self.settled.remove(entry.key()));
                let mut sides = settled.flatten().map(side).unwrap_or_default();
                change(&mut sides);
                let after = match sides.place() {
                    Place::Differing => {
                        self.unsettled.enter(&sides);
                        Some(entry.insert(sides).change())
                    }
                    Place::Settled => {
                        let key = entry.into_key();
                        self.settled.extend(sides.desired.map(|value| (key, value)));
                        None
                    }
                    Place::Nowhere => None,
                };
                Turn {
                    before: None,
                    after,
                }
            }
        }
    }
}

/// Returns where to start for what follows `after`.
pub(crate) fn beyond<K>(after: Option<&K>) -> Bound<&K> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

/// Makes one of two sequences that are each in the order of `key`.
pub(crate) fn merged<T, K: Ord>(
    a: impl Iterator<Item = T>,
    b: impl Iterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || {
        let first = match (a.peek(), b.peek()) {
            (Some(a), Some(b)) => key(a) < key(b),
            (a, _) => a.is_some(),
        };
        if first { a.next() } else { b.next() }
    })
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
