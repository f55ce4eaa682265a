//! Prefixes: address families, and a map that finds what contains a prefix and what lies in it.
//!
//! Prefixes here have no host bits; who makes them sees to that. Order is by network address, wider
//! before narrower, so that what contains a prefix comes before it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use ipc_proto::Tunnel;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(crate) fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }

    /// The tunnel between nodes' addresses of this family, which carries workloads of this family.
    pub(crate) fn tunnel(self) -> Tunnel {
        match self {
            Self::V4 => Tunnel::VxlanV4,
            Self::V6 => Tunnel::VxlanV6,
        }
    }

    /// Returns its own of what there is of IPv4 and of IPv6.
    pub(crate) fn of_both<T>(self, [v4, v6]: &[T; 2]) -> &T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }

    /// The prefix that contains all others.
    pub(crate) fn whole(self) -> IpNet {
        match self {
            Self::V4 => Ipv4Net::default().into(),
            Self::V6 => Ipv6Net::default().into(),
        }
    }
}

impl From<Tunnel> for Family {
    fn from(tunnel: Tunnel) -> Self {
        match tunnel {
            Tunnel::VxlanV4 => Self::V4,
            Tunnel::VxlanV6 => Self::V6,
        }
    }
}

/// Returns the address of a single-address prefix.
pub(crate) fn single(net: &IpNet) -> Option<IpAddr> {
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// Returns the range that holds `net` and all that lies in it.
pub(crate) fn subtree(net: IpNet) -> RangeInclusive<IpNet> {
    net..=net.broadcast().into()
}

/// Returns whether packets can be sent to the address from anywhere: Go's `IsGlobalUnicast`, less
/// IPv4 addresses in IPv6 clothes.
pub(crate) fn is_global_unicast(address: IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && match address {
            IpAddr::V4(a) => !a.is_link_local() && a != Ipv4Addr::BROADCAST,
            IpAddr::V6(a) => !a.is_unicast_link_local() && a.to_ipv4_mapped().is_none(),
        }
}

/// A map by prefix.
#[derive(Clone, Debug)]
pub(crate) struct PrefixMap<V> {
    map: BTreeMap<IpNet, V>,
    /// How many keys there are of each family and length.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl<V> Default for PrefixMap<V> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            lengths: BTreeMap::new(),
        }
    }
}

impl<V> PrefixMap<V> {
    pub(crate) fn get(&self, net: &IpNet) -> Option<&V> {
        self.map.get(net)
    }

    pub(crate) fn get_mut(&mut self, net: &IpNet) -> Option<&mut V> {
        self.map.get_mut(net)
    }

    pub(crate) fn insert(&mut self, net: IpNet, value: V) -> Option<V> {
        let former = self.map.insert(net, value);
        if former.is_none() {
            *self.lengths.entry(length(&net)).or_default() += 1;
        }
        former
    }

    /// Takes in many entries with keys of their own, in order. Where they are a good part of all, the
    /// map is made anew, which is faster and leaves no gaps in it.
    pub(crate) fn absorb(&mut self, entries: Vec<(IpNet, V)>) {
        if entries.len() < self.map.len() / 8 {
            for (net, value) in entries {
                self.insert(net, value);
            }
            return;
        }
        self.map.append(&mut entries.into_iter().collect());
        self.lengths.clear();
        for net in self.map.keys() {
            *self.lengths.entry(length(net)).or_default() += 1;
        }
    }

    /// Makes the map anew, without the gaps that entries leave which came one by one.
    pub(crate) fn close_gaps(&mut self) {
        self.map = std::mem::take(&mut self.map).into_iter().collect();
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn remove(&mut self, net: &IpNet) -> Option<V> {
        let former = self.map.remove(net)?;
        let key = length(net);
        if let Some(count) = self.lengths.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&key);
            }
        }
        Some(former)
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&IpNet, &V)> {
        self.map.iter()
    }

    /// The entry of `net` and those that lie in it, in order.
    pub(crate) fn subtree(&self, net: IpNet) -> impl Iterator<Item = (&IpNet, &V)> {
        self.map.range(subtree(net))
    }

    /// As [`subtree`](Self::subtree).
    pub(crate) fn subtree_mut(&mut self, net: IpNet) -> impl Iterator<Item = (&IpNet, &mut V)> {
        self.map.range_mut(subtree(net))
    }

    /// The entries that contain `net` and are wider than it, narrowest first.
    pub(crate) fn covering(&self, net: IpNet) -> impl Iterator<Item = (&IpNet, &V)> {
        self.covering_from(net, 0)
    }

    /// As [`covering`](Self::covering), but none shorter than `shortest`.
    pub(crate) fn covering_from(
        &self,
        net: IpNet,
        shortest: u8,
    ) -> impl Iterator<Item = (&IpNet, &V)> {
        let (family, longest) = length(&net);
        // An empty range must not be handed over the wrong way round.
        self.lengths
            .range((family, shortest.min(longest))..(family, longest))
            .rev()
            .filter_map(move |(&(_, len), _)| {
                let wider = IpNet::new(net.addr(), len).ok()?.trunc();
                self.map.get_key_value(&wider)
            })
    }
}

/// Prefixes to look at later.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<IpNet>);

impl Marks {
    pub(crate) fn insert(&mut self, net: IpNet) {
        // Before it grows, see whether it must: some are marked over and over.
        if self.0.len() == self.0.capacity() {
            self.tidy();
        }
        self.0.push(net);
    }

    /// Returns all, each once and in order, and forgets them.
    pub(crate) fn take(&mut self) -> Vec<IpNet> {
        self.tidy();
        std::mem::take(&mut self.0)
    }

    fn tidy(&mut self) {
        // Mostly sorted already, which this makes use of.
        self.0.sort();
        self.0.dedup();
    }
}

impl Extend<IpNet> for Marks {
    fn extend<I: IntoIterator<Item = IpNet>>(&mut self, nets: I) {
        for net in nets {
            self.insert(net);
        }
    }
}

impl<'a> Extend<&'a IpNet> for Marks {
    fn extend<I: IntoIterator<Item = &'a IpNet>>(&mut self, nets: I) {
        self.extend(nets.into_iter().copied());
    }
}

fn length(net: &IpNet) -> (Family, u8) {
    (Family::of_net(net), net.prefix_len())
}

#[cfg(test)]
mod tests {
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

    proptest! {
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
            prop_assert!(map.iter().eq(&model));
            let inside: Vec<_> = model.keys().filter(|n| asked.contains(*n)).collect();
            prop_assert_eq!(map.subtree(asked).map(|(n, _)| n).collect::<Vec<_>>(), inside);
            let mut around: Vec<_> =
                model.keys().filter(|n| n.contains(&asked) && **n != asked).collect();
            around.reverse();
            prop_assert_eq!(map.covering(asked).map(|(n, _)| n).collect::<Vec<_>>(), around);
        }
    }

    #[test]
    fn only_addresses_that_can_be_reached_from_afar_are_global() {
        let cases = [
            ("10.0.0.1", true),
            ("0.0.0.0", false),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("fd00::1", true),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:10.0.0.1", false),
        ];
        for (address, global) in cases {
            assert_eq!(
                is_global_unicast(address.parse().unwrap()),
                global,
                "{address}"
            );
        }
    }
}
