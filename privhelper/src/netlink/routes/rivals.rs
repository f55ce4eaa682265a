//! Other programs' routes that have the prefix of a route of ours and may count in its place: those
//! that the kernel prefers, and those under the same key, of which it chooses.
//!
//! At most one is told of each prefix, the first by type of service and metric, and none is ever changed. The kernel tells
//! routes with one prefix one after the other, by rising metric. However many others have, little is kept.

use ipc_proto::{Rival, Rivals, RouteKey, Table};
use ipnet::IpNet;

/// How many are put in words in a reading, some of them in parts of it that are read again.
const MAX_IN_WORDS: usize = 4 * Rivals::MAX;

/// Looks for them while routes are read. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The table and the prefix that were seen last.
    at: Option<(Table, IpNet)>,
    /// The greatest metric that a route of ours has there.
    ours: Option<u32>,
    /// Another program's route there that none comes before.
    other: Option<RouteKey>,
    /// The report of it: routes of others are many, few of them rivals, and only those are put in
    /// words.
    body: Vec<u8>,
    /// Whether a rival was found there.
    found: bool,
    in_words: usize,
    rivals: Rivals,
}

impl Search {
    /// Takes in the report of a route, and returns the rival that it shows; `describe` makes words of
    /// a report.
    pub(super) fn see(
        &mut self,
        key: &RouteKey,
        ours: bool,
        body: &[u8],
        describe: impl Fn(&[u8]) -> String,
    ) -> Option<Box<Rival>> {
        let at = (key.table, key.prefix);
        if self.at != Some(at) {
            self.at = Some(at);
            (self.ours, self.other, self.found) = (None, None, false);
        }
        if self.found {
            return None;
        }
        let rank = |key: &RouteKey| (key.tos != 0, key.metric);
        if ours {
            self.ours = self.ours.max(Some(key.metric));
        } else if self
            .other
            .as_ref()
            .is_none_or(|other| rank(key) < rank(other))
        {
            self.other = Some(key.clone());
            self.body.clear();
            self.body.extend(body);
        }
        let (ours, other) = (self.ours?, self.other.as_ref()?);
        // It has packets of its own, or comes first, or has the same key.
        if other.tos == 0 && other.metric > ours {
            return None;
        }
        self.found = true;
        let way = if self.in_words < MAX_IN_WORDS {
            self.in_words += 1;
            describe(&self.body)
        } else {
            String::new()
        };
        let key = other.clone();
        Some(Box::new(Rival { key, way }))
    }

    /// Takes in what was found in a part that was read to its end.
    pub(super) fn keep(&mut self, rival: Rival) {
        if self.rivals.told.len() < Rivals::MAX && !rival.way.is_empty() {
            self.rivals.told.push(rival);
        } else {
            self.rivals.more = self.rivals.more.saturating_add(1);
        }
    }

    /// Returns all.
    pub(super) fn end(self) -> Rivals {
        self.rivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of the prefix with that number.
    fn key(number: usize, tos: u8, metric: u32) -> RouteKey {
        let prefix = format!("10.{}.{}.9/32", number >> 8, number & 255);
        RouteKey {
            tos,
            ..RouteKey::new(Table::Main, prefix.parse().unwrap(), metric)
        }
    }

    /// What a reading of routes, ours or not, tells.
    fn read(routes: impl IntoIterator<Item = (RouteKey, bool, &'static str)>) -> Rivals {
        let mut search = Search::default();
        for (key, ours, other) in routes {
            let words = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
            if let Some(rival) = search.see(&key, ours, other.as_bytes(), words) {
                search.keep(*rival);
            }
        }
        search.end()
    }

    #[test]
    fn of_a_prefix_the_one_that_comes_first_is_told_unless_ours_does() {
        for (routes, told) in [
            (vec![(0, 7, true), (0, 7, false)], Some((0, 7))),
            (vec![(0, 7, false), (0, 7, true)], Some((0, 7))),
            (
                vec![(0, 3, false), (0, 5, false), (0, 7, true)],
                Some((0, 3)),
            ),
            (vec![(0, 7, true), (0, 8, false)], None),
            (vec![(16, 9, false), (0, 7, true)], Some((16, 9))),
            (
                vec![(16, 9, false), (0, 3, false), (0, 7, true)],
                Some((0, 3)),
            ),
            (
                vec![(0, 2, true), (0, 5, false), (0, 7, true)],
                Some((0, 5)),
            ),
            (vec![(0, 7, false)], None),
            (vec![(0, 7, true)], None),
        ] {
            let seen = routes.iter();
            let seen = seen.map(|(tos, metric, ours)| (key(1, *tos, *metric), *ours, "x"));
            let rivals = read(seen);
            let keys = rivals
                .told
                .iter()
                .map(|rival| (rival.key.tos, rival.key.metric));
            assert_eq!(keys.collect::<Vec<_>>(), Vec::from_iter(told), "{routes:?}");
            assert_eq!(rivals.more, 0);
        }
    }

    #[test]
    fn one_with_another_prefix_is_no_rival() {
        let apart = [
            (key(1, 0, 7), false, "x"),
            (key(2, 0, 7), true, ""),
            (key(3, 0, 7), false, "y"),
        ];
        assert_eq!(read(apart), Rivals::default());
    }

    #[test]
    fn of_very_many_some_are_told_and_the_others_counted() {
        let all =
            (0..3000).flat_map(|number| [false, true].map(|ours| (key(number, 0, 7), ours, "x")));
        let rivals = read(all);
        assert_eq!(rivals.told.len(), Rivals::MAX);
        assert_eq!(rivals.more, 3000 - 256);
        assert!(rivals.told.iter().all(|rival| rival.way == "x"));
    }
}
