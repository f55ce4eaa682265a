//! Which route of ours is under a key: the body of the report of it, or of the request for it.
//!
//! A reading of a whole table is kept in one piece, and what has changed since beside it: routes are
//! many, and read again and again.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
};

use ipc_proto::{RouteKey, Table};
use ipnet::IpNet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Known {
    /// What was read, in the order of the keys, each once.
    read: Vec<(RouteKey, Range<usize>)>,
    bodies: Vec<u8>,
    /// What is otherwise since then; nothing where none is known.
    changed: BTreeMap<RouteKey, Option<Box<[u8]>>>,
}

/// A reading that goes on.
#[derive(Debug, Default)]
pub(super) struct Reading {
    read: Vec<(RouteKey, Range<usize>)>,
    bodies: Vec<u8>,
}

impl Reading {
    /// Keeps a body, and returns where it is.
    pub(super) fn keep(&mut self, body: &[u8]) -> Range<usize> {
        let start = self.bodies.len();
        self.bodies.extend(body);
        start..self.bodies.len()
    }

    /// Says whose body that is.
    pub(super) fn push(&mut self, key: RouteKey, body: Range<usize>) {
        self.read.push((key, body));
    }
}

impl Known {
    /// Takes over a reading. Of a key that comes more than once none is known.
    pub(super) fn replace(&mut self, reading: Reading) {
        let Reading { mut read, bodies } = reading;
        let is_in_order = |read: &[(RouteKey, _)]| read.is_sorted_by(|(a, _), (b, _)| a < b);
        if !is_in_order(&read) {
            read.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        if !is_in_order(&read) {
            let runs = read.chunk_by(|(a, _), (b, _)| a == b);
            read = runs
                .filter(|run| run.len() == 1)
                .flatten()
                .cloned()
                .collect();
        }
        *self = Self {
            read,
            bodies,
            changed: BTreeMap::new(),
        };
    }

    /// Returns the prefixes of what was read, in order of table and prefix.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (Table, IpNet)> {
        self.read.iter().map(|(key, _)| (key.table, key.prefix))
    }

    /// Returns whether a route with that prefix was read.
    pub(super) fn has_prefix(&self, table: Table, prefix: IpNet) -> bool {
        let place = |key: &RouteKey| (key.table, key.prefix).cmp(&(table, prefix));
        self.read.binary_search_by(|(key, _)| place(key)).is_ok()
    }

    /// Takes in what is under a key now; nothing if that is not known.
    pub(super) fn set(&mut self, key: &RouteKey, body: Option<Vec<u8>>) {
        self.changed
            .insert(key.clone(), body.map(Vec::into_boxed_slice));
    }

    /// Returns the body of what is under a key.
    pub(super) fn get(&self, key: &RouteKey) -> Option<&[u8]> {
        if let Some(body) = self.changed.get(key) {
            return body.as_deref();
        }
        let at = self
            .read
            .binary_search_by(|(other, _)| other.cmp(key))
            .ok()?;
        let (_, body) = self.read.get(at)?;
        self.bodies.get(body.clone())
    }

    /// Returns whether there is a route that differs from one under this key by a greater metric.
    pub(super) fn has_greater_metric(&self, key: &RouteKey) -> bool {
        let differs_by_metric = |other: &RouteKey| {
            (other.table, other.prefix, other.tos) == (key.table, key.prefix, key.tos)
        };
        let start = self.read.partition_point(|(other, _)| other <= key);
        let read = self.read.iter().skip(start).map(|(other, _)| other);
        let mut read = read.take_while(|other| differs_by_metric(other));
        let after = (Bound::Excluded(key), Bound::Unbounded);
        let changed = self.changed.range(after);
        let mut changed = changed.take_while(|(other, _)| differs_by_metric(other));
        read.any(|other| !self.changed.contains_key(other))
            || changed.any(|(_, body)| body.is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(prefix: u8, metric: u32) -> RouteKey {
        let prefix = format!("10.0.0.{prefix}/32").parse().unwrap();
        RouteKey::new(Table::Main, prefix, metric)
    }

    proptest! {
        /// A plain map is the specification.
        #[test]
        fn it_knows_what_a_map_would(
            read in proptest::collection::vec((0..4_u8, 0..3_u32, any::<u8>()), 0..12),
            changes in proptest::collection::vec((0..4_u8, 0..3_u32, any::<Option<u8>>()), 0..12),
        ) {
            let mut known = Known::default();
            known.set(&key(0, 0), Some(vec![0]));
            let mut reading = Reading::default();
            let mut model: BTreeMap<RouteKey, Option<u8>> = BTreeMap::new();
            for (prefix, metric, body) in read {
                let at = reading.keep(&[body]);
                reading.push(key(prefix, metric), at);
                let entry = model.entry(key(prefix, metric));
                entry.and_modify(|several| *several = None).or_insert(Some(body));
            }
            known.replace(reading);
            for (prefix, metric, body) in changes {
                known.set(&key(prefix, metric), body.map(|body| vec![body]));
                model.insert(key(prefix, metric), body);
            }
            for (prefix, metric) in (0..4).flat_map(|prefix| (0..3).map(move |m| (prefix, m))) {
                let own = key(prefix, metric);
                let body = model.get(&own).copied().flatten();
                prop_assert_eq!(known.get(&own), body.as_ref().map(std::slice::from_ref));
                let greater = (metric + 1..3).any(|metric| {
                    model.get(&key(prefix, metric)).is_some_and(Option::is_some)
                });
                prop_assert_eq!(known.has_greater_metric(&own), greater);
            }
        }
    }
}
