//! A map by prefix, that finds what contains a prefix and what lies in it.

use std::{collections::BTreeMap, mem};

use ipnet::IpNet;

use super::key::{Key, V4, V6};
use crate::ordered::{self, Walk};

/// See the [module](self). Each family has a map of its own.
#[derive(Clone, Debug)]
pub(crate) struct PrefixMap<V> {
    v4: OfFamily<V4, V>,
    v6: OfFamily<V6, V>,
}

#[derive(Clone, Debug)]
struct OfFamily<K, V> {
    map: BTreeMap<K, V>,
    /// How many keys there are of each length.
    lengths: BTreeMap<u8, usize>,
}

/// Looks up prefixes that come in order, be it those of each family.
#[derive(Debug)]
pub(crate) struct PrefixWalk<'a, V> {
    v4: Walk<'a, V4, V>,
    v6: Walk<'a, V6, V>,
}

impl<'a, V> PrefixWalk<'a, V> {
    /// Returns the value of a prefix that comes after all that were asked for before.
    pub(crate) fn get(&mut self, net: &IpNet) -> Option<&'a V> {
        match *net {
            IpNet::V4(net) => self.v4.get(&V4(net)),
            IpNet::V6(net) => self.v6.get(&V6(net)),
        }
    }
}

/// Entries with keys of their own, in order.
#[derive(Clone, Debug)]
pub(crate) struct Run<V> {
    v4: Vec<(V4, V)>,
    v6: Vec<(V6, V)>,
}

impl<V> Default for Run<V> {
    fn default() -> Self {
        Self {
            v4: Vec::new(),
            v6: Vec::new(),
        }
    }
}

impl<V> Run<V> {
    /// Has room for so many more, of either family: what is not used costs nothing.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.v4.reserve(count);
        self.v6.reserve(count);
    }

    pub(crate) fn push(&mut self, net: IpNet, value: V) {
        match net {
            IpNet::V4(net) => self.v4.push((V4(net), value)),
            IpNet::V6(net) => self.v6.push((V6(net), value)),
        }
    }
}

impl<V> FromIterator<(IpNet, V)> for Run<V> {
    fn from_iter<I: IntoIterator<Item = (IpNet, V)>>(entries: I) -> Self {
        let mut run = Self::default();
        for (net, value) in entries {
            run.push(net, value);
        }
        run
    }
}

impl<V> Default for PrefixMap<V> {
    fn default() -> Self {
        Self {
            v4: OfFamily::default(),
            v6: OfFamily::default(),
        }
    }
}

impl<K, V> Default for OfFamily<K, V> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            lengths: BTreeMap::new(),
        }
    }
}

impl<V> PrefixMap<V> {
    pub(crate) fn len(&self) -> usize {
        self.v4.map.len() + self.v6.map.len()
    }

    pub(crate) fn get(&self, net: &IpNet) -> Option<&V> {
        match *net {
            IpNet::V4(net) => self.v4.map.get(&V4(net)),
            IpNet::V6(net) => self.v6.map.get(&V6(net)),
        }
    }

    pub(crate) fn get_mut(&mut self, net: &IpNet) -> Option<&mut V> {
        match *net {
            IpNet::V4(net) => self.v4.map.get_mut(&V4(net)),
            IpNet::V6(net) => self.v6.map.get_mut(&V6(net)),
        }
    }

    pub(crate) fn insert(&mut self, net: IpNet, value: V) -> Option<V> {
        match net {
            IpNet::V4(net) => self.v4.insert(V4(net), value),
            IpNet::V6(net) => self.v6.insert(V6(net), value),
        }
    }

    /// Takes in many entries. Where they are a good part of all, the map is made anew, which is faster
    /// and leaves no gaps in it.
    pub(crate) fn absorb(&mut self, entries: Run<V>) {
        self.v4.absorb(entries.v4);
        self.v6.absorb(entries.v6);
    }

    /// Takes no more room than it must.
    pub(crate) fn pack(&mut self) {
        self.v4.map = mem::take(&mut self.v4.map).into_iter().collect();
        self.v6.map = mem::take(&mut self.v6.map).into_iter().collect();
    }

    pub(crate) fn remove(&mut self, net: &IpNet) -> Option<V> {
        match *net {
            IpNet::V4(net) => self.v4.remove(V4(net)),
            IpNet::V6(net) => self.v6.remove(V6(net)),
        }
    }

    /// Starts to look up prefixes that come in order.
    pub(crate) fn walk(&self) -> PrefixWalk<'_, V> {
        PrefixWalk {
            v4: Walk::new(&self.v4.map),
            v6: Walk::new(&self.v6.map),
        }
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpNet, &V)> {
        let v4 = self.v4.map.iter().map(|(key, value)| (key.into(), value));
        v4.chain(self.v6.map.iter().map(|(key, value)| (key.into(), value)))
    }

    /// The entry of `net` and those that lie in it, in order.
    pub(crate) fn subtree(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &V)> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(self.v4.map.range(V4(net).subtree())), None),
            IpNet::V6(net) => (None, Some(self.v6.map.range(V6(net).subtree()))),
        };
        both(v4, v6)
    }

    /// As [`subtree`](Self::subtree).
    pub(crate) fn subtree_mut(&mut self, net: IpNet) -> impl Iterator<Item = (IpNet, &mut V)> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(self.v4.map.range_mut(V4(net).subtree())), None),
            IpNet::V6(net) => (None, Some(self.v6.map.range_mut(V6(net).subtree()))),
        };
        both(v4, v6)
    }

    /// The entries that contain `net` and are wider than it, narrowest first.
    pub(crate) fn covering(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &V)> {
        self.covering_from(net, 0)
    }

    /// As [`covering`](Self::covering), but none shorter than `shortest`.
    pub(crate) fn covering_from(
        &self,
        net: IpNet,
        shortest: u8,
    ) -> impl Iterator<Item = (IpNet, &V)> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(self.v4.covering(V4(net), shortest)), None),
            IpNet::V6(net) => (None, Some(self.v6.covering(V6(net), shortest))),
        };
        both(v4, v6)
    }
}

/// Makes one of what there is of IPv4 and of IPv6.
fn both<A: Into<IpNet>, B: Into<IpNet>, V>(
    v4: Option<impl Iterator<Item = (A, V)>>,
    v6: Option<impl Iterator<Item = (B, V)>>,
) -> impl Iterator<Item = (IpNet, V)> {
    let v4 = v4.into_iter().flatten();
    let v6 = v6.into_iter().flatten();
    v4.map(|(key, value)| (key.into(), value))
        .chain(v6.map(|(key, value)| (key.into(), value)))
}

/// Returns how many keys there are of each length.
fn lengths<K: Key>(keys: impl Iterator<Item = K>) -> BTreeMap<u8, usize> {
    let mut counts = [0_usize; 256];
    for key in keys {
        if let Some(count) = counts.get_mut(usize::from(key.len())) {
            *count += 1;
        }
    }
    let counts = (0..=u8::MAX).zip(counts);
    counts.filter(|(_, count)| *count > 0).collect()
}

impl<K: Key, V> OfFamily<K, V> {
    fn insert(&mut self, key: K, value: V) -> Option<V> {
        let former = self.map.insert(key, value);
        if former.is_none() {
            *self.lengths.entry(key.len()).or_default() += 1;
        }
        former
    }

    fn absorb(&mut self, entries: Vec<(K, V)>) {
        if entries.len() < self.map.len() / 8 {
            for (key, value) in entries {
                self.insert(key, value);
            }
            return;
        }
        if self.map.is_empty() {
            // They are nearer to each other here than in the map.
            self.lengths = lengths(entries.iter().map(|(key, _)| *key));
            ordered::absorb(&mut self.map, entries.into_iter());
        } else {
            ordered::absorb(&mut self.map, entries.into_iter());
            self.lengths = lengths(self.map.keys().copied());
        }
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let former = self.map.remove(&key)?;
        if let Some(count) = self.lengths.get_mut(&key.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&key.len());
            }
        }
        Some(former)
    }

    fn covering(&self, key: K, shortest: u8) -> impl Iterator<Item = (K, &V)> {
        // An empty range must not be handed over the wrong way round.
        let wider = shortest.min(key.len())..key.len();
        self.lengths.range(wider).rev().filter_map(move |(len, _)| {
            let around = key.around(*len)?;
            Some((around, self.map.get(&around)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn net() -> impl Strategy<Value = IpNet> {
        // Few addresses, so that prefixes contain each other.
        let v4 = (0..8u32, 24..=32u8).prop_map(|(a, len)| {
            Ipv4Net::new_assert(Ipv4Addr::from(a << 3), len)
                .trunc()
                .into()
        });
        let v6 = (0..8u128, 120..=128u8)
            .prop_map(|(a, len)| Ipv6Net::new_assert((a << 3).into(), len).trunc().into());
        prop_oneof![v4, v6]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(IpNet, usize),
        Remove(IpNet),
        Absorb(BTreeMap<IpNet, usize>),
        Pack,
    }

    fn step() -> impl Strategy<Value = Step> {
        let many = proptest::collection::btree_map(net(), any::<usize>(), 0..10);
        prop_oneof![
            4 => (net(), any::<usize>()).prop_map(|(net, value)| Step::Insert(net, value)),
            3 => net().prop_map(Step::Remove),
            1 => many.prop_map(Step::Absorb),
            2 => Just(Step::Pack),
        ]
    }

    /// All that can be seen of a map that has to do with `net`.
    fn seen(map: &mut PrefixMap<usize>, net: IpNet) -> impl PartialEq + std::fmt::Debug + use<> {
        let all: Vec<_> = map.iter().map(|(net, value)| (net, *value)).collect();
        let inside: Vec<_> = map.subtree(net).map(|(net, value)| (net, *value)).collect();
        let mutable: Vec<_> = map
            .subtree_mut(net)
            .map(|(net, value)| (net, *value))
            .collect();
        let around: Vec<_> = map
            .covering(net)
            .map(|(net, value)| (net, *value))
            .collect();
        let near = map.covering_from(net, 26).count();
        let (one, same) = (map.get(&net).copied(), map.get_mut(&net).copied());
        (map.len(), all, inside, mutable, around, near, one, same)
    }

    proptest! {
        #[test]
        fn to_pack_at_any_point_changes_nothing_that_can_be_seen(
            steps in proptest::collection::vec(step(), 0..30),
            asked in proptest::collection::vec(net(), 2),
        ) {
            let (mut map, mut never) = (PrefixMap::default(), PrefixMap::default());
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(net, value) => {
                        let former = model.insert(net, value);
                        prop_assert_eq!(map.insert(net, value), former);
                        prop_assert_eq!(never.insert(net, value), former);
                    }
                    Step::Remove(net) => {
                        let former = model.remove(&net);
                        prop_assert_eq!(map.remove(&net), former);
                        prop_assert_eq!(never.remove(&net), former);
                    }
                    Step::Absorb(many) => {
                        map.absorb(many.clone().into_iter().collect());
                        never.absorb(many.clone().into_iter().collect());
                        model.extend(many);
                    }
                    Step::Pack => map.pack(),
                }
                prop_assert!(map.iter().eq(model.iter().map(|(net, value)| (*net, value))));
                for net in &asked {
                    prop_assert_eq!(map.get(net), model.get(net));
                    prop_assert_eq!(seen(&mut map, *net), seen(&mut never, *net));
                }
            }
        }

        #[test]
        fn what_contains_a_prefix_and_what_lies_in_it_are_as_a_scan_finds_them(
            present in proptest::collection::vec(net(), 0..40),
            absent in proptest::collection::vec(net(), 0..20),
            many in proptest::collection::btree_map(net(), any::<usize>(), 0..20),
            asked in net(),
        ) {
            let mut map = PrefixMap::default();
            let mut model = BTreeMap::new();
            for (i, n) in present.iter().enumerate() {
                prop_assert_eq!(map.insert(*n, i), model.insert(*n, i));
            }
            for n in &absent {
                prop_assert_eq!(map.remove(n), model.remove(n));
            }
            map.absorb(many.clone().into_iter().collect());
            model.extend(many);
            prop_assert!(map.iter().eq(model.iter().map(|(n, v)| (*n, v))));
            let inside: Vec<_> =
                model.keys().copied().filter(|n| asked.contains(n)).collect();
            prop_assert_eq!(map.subtree(asked).map(|(n, _)| n).collect::<Vec<_>>(), inside);
            let mut around: Vec<_> =
                model.keys().copied().filter(|n| n.contains(&asked) && *n != asked).collect();
            around.reverse();
            prop_assert_eq!(map.covering(asked).map(|(n, _)| n).collect::<Vec<_>>(), around);
        }
    }
}
