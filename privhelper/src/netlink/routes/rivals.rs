//! Other programs' routes that may count in place of routes of ours: those with the same prefix that the
//! kernel prefers, those under the same key, of which it chooses, and those with a longer prefix that lies
//! within.
//!
//! Of one prefix at most one is told, the first by type of service and metric, and none is ever changed. The kernel
//! tells routes with one prefix one after the other, by rising metric, and one that contains others before or
//! after them: only once all are read is it known what lies within ours. However many others have, little is kept.

use std::{collections::BTreeSet, ops::Range};

use ipc_proto::{Rival, Rivals, RouteKey, Table};
use ipnet::IpNet;

use super::known::Known;

/// How many are put in words in a reading, some of them in parts of it that are read again.
const MAX_IN_WORDS: usize = 4 * Rivals::MAX;
/// How many routes are looked at that may lie within ours: a router's may be a million.
const MAX_STRANGERS: usize = 1 << 16;

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
    /// Others' routes that may lie within ours, and where their reports are: those of the parts that were
    /// read, and then those of this one.
    strangers: Vec<(RouteKey, Range<usize>)>,
    bodies: Vec<u8>,
    /// How many of them, and how many bytes, are of parts that were read to their end.
    kept: (usize, usize),
}

impl Search {
    /// Takes in that a part is read from its beginning: what was seen of it before counts for nothing.
    pub(super) fn begin(&mut self) {
        (self.at, self.ours, self.other, self.found) = (None, None, None, false);
        let (strangers, bytes) = self.kept;
        self.strangers.truncate(strangers);
        self.bodies.truncate(bytes);
    }

    /// Takes in that it was read to its end.
    pub(super) fn commit(&mut self) {
        self.kept = (self.strangers.len(), self.bodies.len());
    }

    /// Takes in a route of others that may lie within one of ours.
    pub(super) fn suspect(&mut self, key: &RouteKey, body: &[u8]) {
        if self.strangers.len() < MAX_STRANGERS {
            let start = self.bodies.len();
            self.bodies.extend(body);
            self.strangers.push((key.clone(), start..self.bodies.len()));
        }
    }

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
        let ours = key.prefix;
        Some(Box::new(Rival { key, ours, way }))
    }

    /// Takes in what was found in a part that was read to its end.
    pub(super) fn keep(&mut self, rival: Rival) {
        if self.rivals.told.len() < Rivals::MAX && !rival.way.is_empty() {
            self.rivals.told.push(rival);
        } else {
            self.rivals.more = self.rivals.more.saturating_add(1);
        }
    }

    /// Looks for those that lie within routes of `ours`, once all are read, and returns all.
    pub(super) fn end(mut self, ours: &Known, describe: impl Fn(&[u8]) -> String) -> Rivals {
        if self.strangers.is_empty() {
            return self.rivals;
        }
        let place = |table, prefix: IpNet| (table, prefix.max_prefix_len(), prefix.prefix_len());
        let lengths = ours.prefixes().map(|(table, prefix)| place(table, prefix));
        let lengths: BTreeSet<(Table, u8, u8)> = lengths.collect();
        let strangers = std::mem::take(&mut self.strangers);
        let of_one = |(a, _): &(RouteKey, _), (b, _): &(RouteKey, _)| {
            (a.table, a.prefix) == (b.table, b.prefix)
        };
        let first = |of_one: &[(RouteKey, Range<usize>)]| {
            let first = of_one.iter().min_by_key(|(key, _)| rank(key));
            first.cloned()
        };
        for (key, body) in strangers.chunk_by(of_one).filter_map(first) {
            let (table, prefix) = (key.table, key.prefix);
            // One that ours has as well was found before.
            if ours.has_prefix(table, prefix) {
                continue;
            }
            let (_, width, length) = place(table, prefix);
            let mut wider = lengths
                .range((table, width, 0)..(table, width, length))
                .rev()
                .filter_map(|(.., length)| Some(IpNet::new(prefix.addr(), *length).ok()?.trunc()));
            let Some(within) = wider.find(|net| ours.has_prefix(table, *net)) else {
                continue;
            };
            let way = if self.rivals.told.len() < Rivals::MAX {
                self.bodies.get(body).map_or_else(String::new, &describe)
            } else {
                String::new()
            };
            self.keep(Rival {
                key,
                ours: within,
                way,
            });
        }
        self.rivals
    }
}

/// Which of several with one prefix most packets meet: the least.
fn rank(key: &RouteKey) -> (bool, u32) {
    (key.tos != 0, key.metric)
}

#[cfg(test)]
mod tests {
    use super::{super::known::Reading, *};

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
        let words = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
        search.begin();
        let mut reading = Reading::default();
        for (key, ours, other) in routes {
            if ours {
                let body = reading.keep(&[]);
                reading.push(key.clone(), body);
            } else {
                search.suspect(&key, other.as_bytes());
            }
            if let Some(rival) = search.see(&key, ours, other.as_bytes(), words) {
                search.keep(*rival);
            }
        }
        search.commit();
        let mut known = Known::default();
        known.replace(reading);
        search.end(&known, words)
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
    fn what_lies_within_ours_is_told_with_the_longest_of_ours_that_contains_it() {
        let key = |prefix: &str| RouteKey::new(Table::Main, prefix.parse().unwrap(), 0);
        let second = RouteKey::new(Table::Second, "10.1.0.7/32".parse().unwrap(), 0);
        let with_tos = RouteKey {
            tos: 16,
            ..key("10.1.0.10/32")
        };
        // Whatever comes first.
        let routes = [
            (key("10.1.0.0/26"), true, ""),
            (key("10.1.0.0/28"), true, ""),
            (key("10.1.0.0/24"), true, ""),
            (key("10.1.0.9/32"), false, "a"),
            (key("10.1.0.9/32"), false, "hidden by the one before"),
            (
                with_tos,
                false,
                "for few packets, though the kernel lists it first",
            ),
            (key("10.1.0.10/32"), false, "e"),
            (key("10.1.0.32/28"), false, "b"),
            (key("10.1.0.0/25"), false, "c"),
            (key("10.0.0.0/8"), false, "wider"),
            (key("10.1.1.0/26"), false, "beside"),
            (second, false, "in another table"),
            (key("fd00:1::9/128"), false, "d"),
            (key("fd00:1::/122"), true, ""),
            (key("::/64"), false, "of the other family"),
        ];
        let rivals = read(routes);
        let told: Vec<(&str, String)> = rivals
            .told
            .iter()
            .map(|rival| (rival.way.as_str(), rival.ours.to_string()))
            .collect();
        let expected = [
            ("a", "10.1.0.0/28"),
            ("e", "10.1.0.0/28"),
            ("b", "10.1.0.0/26"),
            ("c", "10.1.0.0/24"),
            ("d", "fd00:1::/122"),
        ];
        assert_eq!(told, expected.map(|(way, ours)| (way, ours.to_owned())));
        assert_eq!(rivals.more, 0);
    }

    #[test]
    fn what_was_seen_of_a_part_that_is_read_again_counts_for_nothing() {
        let key = key(1, 0, 7);
        let mut search = Search::default();
        let mut told = Vec::new();
        for _ in 0..2 {
            search.begin();
            told.clear();
            for ours in [true, false] {
                told.extend(search.see(&key, ours, b"x", |_| "x".to_owned()));
            }
            search.suspect(&key, b"x");
        }
        assert_eq!(told.len(), 1, "the same rival, though it was there before");
        search.commit();
        assert_eq!((search.strangers.len(), search.bodies.len()), (1, 1));
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
