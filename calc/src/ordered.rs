//! Maps and sequences in order of their keys: many keys at once are passed by, not searched for.

use std::{
    collections::{BTreeMap, btree_map},
    iter::{self, Peekable},
    ops::Bound,
};

/// How many keys are passed by one by one before one is searched for.
const NEAR: usize = 4;

/// Looks up keys that come in order.
#[derive(Debug)]
pub(crate) struct Walk<'a, K, V> {
    map: &'a BTreeMap<K, V>,
    rest: Peekable<btree_map::Range<'a, K, V>>,
}

impl<'a, K: Ord, V> Walk<'a, K, V> {
    pub(crate) fn new(map: &'a BTreeMap<K, V>) -> Self {
        Self {
            map,
            rest: map.range::<K, _>(..).peekable(),
        }
    }

    /// Returns the value of a key that comes after all that were asked for before.
    pub(crate) fn get(&mut self, key: &K) -> Option<&'a V> {
        // The next one is mostly near; it is searched for only where it is not.
        for _ in 0..NEAR {
            if self.rest.next_if(|(other, _)| *other < key).is_none() {
                break;
            }
        }
        if self.rest.peek().is_some_and(|(other, _)| *other < key) {
            self.rest = self.map.range(key..).peekable();
        }
        let (other, value) = self.rest.peek()?;
        (*other == key).then_some(*value)
    }
}

/// Takes in entries, which come in order. Where they are a good part of all, the map is made anew, which is
/// faster and leaves no gaps in it.
pub(crate) fn absorb<K: Ord, V>(
    map: &mut BTreeMap<K, V>,
    entries: impl ExactSizeIterator<Item = (K, V)>,
) {
    if entries.len() < map.len() / 8 {
        map.extend(entries);
    } else {
        map.append(&mut entries.collect());
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
    iter::from_fn(move || {
        let first = match (a.peek(), b.peek()) {
            (Some(a), Some(b)) => key(a) < key(b),
            (a, _) => a.is_some(),
        };
        if first { a.next() } else { b.next() }
    })
}
