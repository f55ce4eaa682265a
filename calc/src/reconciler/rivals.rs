//! Other programs' routes that have prefixes of ours, or longer ones within, as they were last read, and what
//! they mean for a route that is wanted. For the operator: none is changed, and nothing is decided by them. Pure.

use std::collections::BTreeMap;

use ipc_proto::{Rival, Rivals, RouteKey, Table};
use ipnet::IpNet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct RivalsByPrefix {
    /// By the prefix of ours: first one that has the same, if there is one.
    by_prefix: BTreeMap<(Table, IpNet), Vec<Rival>>,
    /// How many there are of which nothing else is known.
    more: u32,
}

impl From<Rivals> for RivalsByPrefix {
    fn from(read: Rivals) -> Self {
        let mut by_prefix: BTreeMap<(Table, IpNet), Vec<Rival>> = BTreeMap::new();
        for rival in read.told {
            let place = (rival.key.table, rival.ours);
            by_prefix.entry(place).or_default().push(rival);
        }
        for rivals in by_prefix.values_mut() {
            rivals.sort_by_key(|rival| (rival.key.prefix != rival.ours, rival.key.clone()));
        }
        Self {
            by_prefix,
            more: read.more,
        }
    }
}

impl RivalsByPrefix {
    /// Says which may count in place of a route, if any, and what to do about it. One within it that has
    /// the very key of another route that `is_wanted` is told with that one, which it keeps from being made.
    pub(super) fn of(
        &self,
        key: &RouteKey,
        is_wanted: impl Fn(&RouteKey) -> bool,
    ) -> Option<String> {
        let rivals = self.by_prefix.get(&(key.table, key.prefix))?;
        let is_told = |rival: &&Rival| rival.key.prefix == key.prefix || !is_wanted(&rival.key);
        let rivals = rivals.iter().filter(is_told);
        let mut said = rivals.filter_map(|rival| said(rival, key));
        let first = said.next()?;
        Some(match said.count() {
            0 => first,
            more => format!(
                "{first} (and {more} more, see ip route show table all root {})",
                key.prefix
            ),
        })
    }

    /// Returns the prefixes of those that are known.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.by_prefix.keys().map(|(_, prefix)| *prefix)
    }

    /// Says how many more there are.
    pub(super) fn rest(&self) -> Option<String> {
        (self.more > 0).then(|| {
            format!(
                "{} more routes of other programs have prefixes of routes that are kept here, or lie within, \
                 and may win: see ip route show table all",
                self.more
            )
        })
    }
}

/// Says what one means for a route, if anything.
fn said(rival: &Rival, key: &RouteKey) -> Option<String> {
    let Rival {
        key: other,
        ours,
        way,
    } = rival;
    let packets = match other.tos {
        0 => String::new(),
        tos => format!(" for packets with type of service {tos:#x}"),
    };
    let metric = other.metric;
    if other.prefix != *ours {
        return Some(format!(
            "another program's route to {} within it wins there{packets}: metric {metric} {way}; it is left \
             alone: remove it, or its cause",
            other.prefix
        ));
    }
    let effect = if other.tos != 0 || metric < key.metric {
        format!("wins{packets}")
    } else if metric == key.metric {
        "is beside it, and which one counts is the kernel's choice".to_owned()
    } else {
        return None;
    };
    Some(format!(
        "another program's route {effect}: metric {metric} {way}; it is left alone: remove it, or give it a \
         greater metric"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tos: u8, metric: u32) -> RouteKey {
        let prefix = "10.1.0.9/32".parse().unwrap();
        RouteKey {
            tos,
            ..RouteKey::new(Table::Main, prefix, metric)
        }
    }

    #[test]
    fn what_counts_in_place_of_a_route_is_told_by_its_effect() {
        for (other, effect) in [
            (
                key(0, 6),
                Some("route wins: metric 6 protocol static dev eth0;"),
            ),
            (key(0, 7), Some("is beside it, and which one counts")),
            (key(0, 8), None),
            (
                key(16, 8),
                Some("wins for packets with type of service 0x10"),
            ),
        ] {
            let rival = Rival {
                key: other.clone(),
                ours: other.prefix,
                way: "protocol static dev eth0".to_owned(),
            };
            let rivals = RivalsByPrefix::from(Rivals {
                told: vec![rival],
                more: 0,
            });
            let said = rivals.of(&key(0, 7), |_| true);
            assert_eq!(said.is_some(), effect.is_some(), "{other:?}");
            let effect = effect.unwrap_or_default();
            assert!(said.unwrap_or_default().contains(effect), "{other:?}");
            let elsewhere = RouteKey::new(Table::Second, key(0, 7).prefix, 7);
            assert_eq!(rivals.of(&elsewhere, |_| true), None);
            assert_eq!(rivals.rest(), None);
        }
    }

    #[test]
    fn of_those_within_a_prefix_the_first_is_told_after_one_with_the_same_and_the_others_counted() {
        let within = |prefix: &str| Rival {
            key: RouteKey::new(Table::Main, prefix.parse().unwrap(), 9000),
            ours: "10.1.0.0/26".parse().unwrap(),
            way: "protocol static dev eth0".to_owned(),
        };
        let ours = RouteKey::new(Table::Main, "10.1.0.0/26".parse().unwrap(), 7);
        let rivals = |told: Vec<Rival>| RivalsByPrefix::from(Rivals { told, more: 0 });
        let one = rivals(vec![within("10.1.0.9/32")])
            .of(&ours, |_| false)
            .unwrap();
        assert!(
            one.starts_with(
                "another program's route to 10.1.0.9/32 within it wins there: metric 9000 protocol static"
            ),
            "{one}"
        );
        let mut same = within("10.1.0.0/26");
        same.key.metric = 3;
        let all = vec![within("10.1.0.9/32"), same, within("10.1.0.8/32")];
        let all = rivals(all).of(&ours, |_| false).unwrap();
        assert!(
            all.starts_with("another program's route wins: metric 3"),
            "{all}"
        );
        assert!(all.contains("and 2 more"), "{all}");
    }

    #[test]
    fn one_that_has_the_key_of_a_narrower_route_is_told_with_that_one_alone() {
        let within = |prefix: &str| Rival {
            key: RouteKey::new(Table::Main, prefix.parse().unwrap(), 0),
            ours: "10.1.0.0/26".parse().unwrap(),
            way: "protocol static dev eth0".to_owned(),
        };
        let [pods, strange] = ["10.1.0.8/32", "10.1.0.9/32"].map(within);
        let block = RouteKey::new(Table::Main, pods.ours, 0);
        let wanted = |key: &RouteKey| [&pods.key, &block].contains(&key);
        let told = |told: Vec<Rival>| {
            let rivals = RivalsByPrefix::from(Rivals { told, more: 0 });
            rivals.of(&block, wanted)
        };
        assert_eq!(told(vec![pods.clone()]), None);
        let both = told(vec![pods.clone(), strange]).unwrap();
        assert!(
            both.contains("10.1.0.9/32") && !both.contains("more"),
            "{both}"
        );
        // Of one that has the block's own key the block tells.
        let mut same = pods.clone();
        same.key = block.clone();
        assert!(told(vec![same]).unwrap().contains("is beside it"));
    }

    #[test]
    fn of_those_that_are_not_told_the_number_is() {
        let rivals = RivalsByPrefix::from(Rivals {
            told: Vec::new(),
            more: 3,
        });
        assert!(rivals.rest().unwrap().starts_with("3 more routes"));
    }
}
