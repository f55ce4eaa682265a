//! Other programs' routes that have prefixes of ours, as they were last read, and what they mean for
//! a route that is wanted. For the operator: none is changed, and nothing is decided by them. Pure.

use std::collections::BTreeMap;

use ipc_proto::{self as wire, Rival, RouteKey, Table};
use ipnet::IpNet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// At most one of each prefix.
    by_prefix: BTreeMap<(Table, IpNet), Rival>,
    /// How many there are of which nothing else is known.
    more: u32,
}

impl From<wire::Rivals> for Rivals {
    fn from(read: wire::Rivals) -> Self {
        let by_prefix = |rival: Rival| ((rival.key.table, rival.key.prefix), rival);
        Self {
            by_prefix: read.told.into_iter().map(by_prefix).collect(),
            more: read.more,
        }
    }
}

impl Rivals {
    /// Says which one may count in place of a route, if any, and what to do about it.
    pub(super) fn of(&self, key: &RouteKey) -> Option<String> {
        let rival = self.by_prefix.get(&(key.table, key.prefix))?;
        let Rival { key: other, way } = rival;
        let effect = if other.tos != 0 {
            format!("wins for packets with type of service {:#x}", other.tos)
        } else if other.metric < key.metric {
            "wins".to_owned()
        } else if other.metric == key.metric {
            "is beside it, and which one counts is the kernel's choice".to_owned()
        } else {
            return None;
        };
        Some(format!(
            "another program's route {effect}: metric {} {way}; it is left alone: remove it, or give \
             it a greater metric",
            other.metric
        ))
    }

    /// Returns the prefixes of those that are known.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.by_prefix.keys().map(|(_, prefix)| *prefix)
    }

    /// Says how many more there are.
    pub(super) fn rest(&self) -> Option<String> {
        (self.more > 0).then(|| {
            format!(
                "{} more routes of other programs have prefixes of routes that are kept here, and may \
                 win: see ip route show table all",
                self.more
            )
        })
    }
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
            (key(0, 6), Some("route wins: metric 6 protocol 4 dev eth0;")),
            (key(0, 7), Some("is beside it, and which one counts")),
            (key(0, 8), None),
            (
                key(16, 8),
                Some("wins for packets with type of service 0x10"),
            ),
        ] {
            let rival = Rival {
                key: other.clone(),
                way: "protocol 4 dev eth0".to_owned(),
            };
            let rivals = Rivals::from(wire::Rivals {
                told: vec![rival],
                more: 0,
            });
            let said = rivals.of(&key(0, 7));
            assert_eq!(said.is_some(), effect.is_some(), "{other:?}");
            let effect = effect.unwrap_or_default();
            assert!(said.unwrap_or_default().contains(effect), "{other:?}");
            let elsewhere = RouteKey::new(Table::Second, key(0, 7).prefix, 7);
            assert_eq!(rivals.of(&elsewhere), None);
            assert_eq!(rivals.rest(), None);
        }
    }

    #[test]
    fn of_those_that_are_not_told_the_number_is() {
        let rivals = Rivals::from(wire::Rivals {
            told: Vec::new(),
            more: 3,
        });
        assert!(rivals.rest().unwrap().starts_with("3 more routes"));
    }
}
