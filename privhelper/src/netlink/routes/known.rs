//! Which route of ours is under a key: the body of the report of it, or of the request for it.
//!
//! Routes are many, and read again and again, so they are kept in one piece as far as they come in
//! order, as they do in a reading and where many are made.

use std::{
    collections::BTreeMap,
    mem,
    ops::{Bound, Range},
};

use ipc_proto::{RouteKey, Table};
use ipnet::IpNet;

/// How many bytes may be wasted, however few are not.
const MAX_WASTE: usize = if cfg!(test) { 3 } else { 1 << 16 };

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Known {
    /// In the order of the keys, each once, with where its body is: nowhere where none is known.
    ordered: Vec<(RouteKey, Range<usize>)>,
    bodies: Vec<u8>,
    /// How many bytes of `bodies` belong to none.
    waste: usize,
    /// Those that have come out of order since the last reading.
    others: BTreeMap<RouteKey, Box<[u8]>>,
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
            ordered: read,
            bodies,
            waste: 0,
            others: BTreeMap::new(),
        };
    }

    /// Returns the prefixes of what was read, in order of table and prefix.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (Table, IpNet)> {
        self.ordered.iter().map(|(key, _)| (key.table, key.prefix))
    }

    /// Returns whether a route with that prefix was read.
    pub(super) fn has_prefix(&self, table: Table, prefix: IpNet) -> bool {
        let place = |key: &RouteKey| (key.table, key.prefix).cmp(&(table, prefix));
        self.ordered.binary_search_by(|(key, _)| place(key)).is_ok()
    }

    /// Takes in what is under a key now; nothing if that is not known.
    pub(super) fn set(&mut self, key: &RouteKey, body: Option<&[u8]>) {
        let place = self.place(key);
        let comes_last = place == Err(self.ordered.len()) && !self.others.contains_key(key);
        match (place, body) {
            (Ok(at), _) => {
                let body = self.keep(body.unwrap_or_default());
                if let Some((_, known)) = self.ordered.get_mut(at) {
                    self.waste += known.len();
                    *known = body;
                }
                if self.waste > MAX_WASTE.max(self.bodies.len() / 2) {
                    self.tidy();
                }
            }
            (Err(_), Some(body)) if comes_last => {
                let body = self.keep(body);
                self.ordered.push((key.clone(), body));
            }
            (Err(_), Some(body)) => drop(self.others.insert(key.clone(), body.into())),
            (Err(_), None) => drop(self.others.remove(key)),
        }
    }

    /// Keeps a body until the next reading, and returns where it is.
    fn keep(&mut self, body: &[u8]) -> Range<usize> {
        let start = self.bodies.len();
        self.bodies.extend(body);
        start..self.bodies.len()
    }

    /// Lets go of what belongs to none.
    fn tidy(&mut self) {
        let mut tidy = Reading::default();
        for (key, body) in mem::take(&mut self.ordered) {
            if let Some(body) = self.bodies.get(body).filter(|body| !body.is_empty()) {
                let body = tidy.keep(body);
                tidy.push(key, body);
            }
        }
        self.ordered = tidy.read;
        self.bodies = tidy.bodies;
        self.waste = 0;
    }

    fn place(&self, key: &RouteKey) -> Result<usize, usize> {
        // As where many are made.
        if self.ordered.last().is_none_or(|(last, _)| last < key) {
            return Err(self.ordered.len());
        }
        self.ordered.binary_search_by(|(other, _)| other.cmp(key))
    }

    /// Returns the body of what is under a key.
    pub(super) fn get(&self, key: &RouteKey) -> Option<&[u8]> {
        let Ok(at) = self.place(key) else {
            return self.others.get(key).map(Box::as_ref);
        };
        let (_, body) = self.ordered.get(at)?;
        let body = self.bodies.get(body.clone())?;
        (!body.is_empty()).then_some(body)
    }

    /// Returns whether there is a route that differs from one under this key by a greater metric.
    pub(super) fn has_greater_metric(&self, key: &RouteKey) -> bool {
        let differs_by_metric = |other: &RouteKey| {
            (other.table, other.prefix, other.tos) == (key.table, key.prefix, key.tos)
        };
        let start = self.ordered.partition_point(|(other, _)| other <= key);
        let ordered = self.ordered.iter().skip(start);
        let mut ordered = ordered.take_while(|(other, _)| differs_by_metric(other));
        let after = (Bound::Excluded(key), Bound::Unbounded);
        let mut others = self.others.range(after);
        ordered.any(|(_, body)| !body.is_empty())
            || others
                .next()
                .is_some_and(|(other, _)| differs_by_metric(other))
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
            known.set(&key(0, 0), Some(&[0]));
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
                known.set(&key(prefix, metric), body.as_ref().map(std::slice::from_ref));
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
