//! Other programs' routes under our keys, told in the log once for as long as they are there.
//!
//! Which of those under one key counts is the kernel's choice, and none of another program's is ever
//! changed: what is ours stays beside it. The kernel tells routes with one prefix one after the other.

use std::collections::BTreeSet;

use ipc_proto::RouteKey;

/// How many are remembered: others are told at each reading.
const MAX: usize = 1000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// The key that was seen last.
    last: Option<RouteKey>,
    /// Whether a route of ours has it.
    ours: bool,
    /// The report of another program's that has it, or nothing: routes of others are many, few of
    /// them rivals, and only those are put in words.
    other: Vec<u8>,
    found: BTreeSet<(RouteKey, String)>,
    told: BTreeSet<(RouteKey, String)>,
}

impl Rivals {
    /// Begins a reading.
    pub(super) fn begin(&mut self) {
        (self.last, self.found) = (None, BTreeSet::new());
    }

    /// Takes in the report of a route; `describe` makes words of one.
    pub(super) fn see(
        &mut self,
        key: &RouteKey,
        ours: bool,
        body: &[u8],
        describe: impl Fn(&[u8]) -> String,
    ) {
        if self.last.as_ref() != Some(key) {
            self.last = Some(key.clone());
            self.ours = false;
            self.other.clear();
        }
        self.ours |= ours;
        if !ours {
            self.other.clear();
            self.other.extend(body);
        }
        if self.ours && !self.other.is_empty() && self.found.len() < MAX {
            self.found.insert((key.clone(), describe(&self.other)));
            self.other.clear();
        }
    }

    /// Ends a reading, tells what is new, and returns it.
    pub(super) fn end(&mut self) -> Vec<(RouteKey, String)> {
        let new: Vec<_> = self.found.difference(&self.told).cloned().collect();
        for (key, other) in &new {
            tracing::warn!(
                "{} metric {}: another program's route has this key as well: {other}; both are left \
                 alone, and which one counts is the kernel's choice: remove it, or give it another \
                 metric",
                key.prefix,
                key.metric
            );
        }
        self.told = std::mem::take(&mut self.found);
        new
    }
}

#[cfg(test)]
mod tests {
    use ipc_proto::Table;

    use super::*;

    fn key(metric: u32) -> RouteKey {
        RouteKey::new(Table::Main, "10.1.0.9/32".parse().unwrap(), metric)
    }

    /// What a reading of routes, ours or not, tells.
    fn read(rivals: &mut Rivals, routes: &[(u32, bool, &str)]) -> Vec<(u32, String)> {
        rivals.begin();
        for (metric, ours, other) in routes {
            let words = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
            rivals.see(&key(*metric), *ours, other.as_bytes(), words);
        }
        let told = rivals.end().into_iter();
        told.map(|(key, other)| (key.metric, other)).collect()
    }

    #[test]
    fn one_beside_ours_is_told_once_for_as_long_as_it_is_there() {
        let mut rivals = Rivals::default();
        for other_first in [true, false] {
            let mut both = vec![(7, true, ""), (7, false, "x")];
            if other_first {
                both.reverse();
            }
            assert_eq!(read(&mut rivals, &both), [(7, "x".to_owned())]);
            assert_eq!(read(&mut rivals, &both), []);
            assert_eq!(read(&mut rivals, &[(7, true, "")]), []);
        }
    }

    #[test]
    fn one_with_another_key_is_no_rival() {
        let mut rivals = Rivals::default();
        let apart = [(7, false, "x"), (8, true, ""), (9, false, "y")];
        assert_eq!(read(&mut rivals, &apart), []);
    }
}
