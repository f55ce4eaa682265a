//! Prefixes of one family as keys: as small as they can be, and compared as numbers.

use std::{cmp::Ordering, ops::RangeInclusive};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A prefix of one family. The order is that of [`IpNet`].
pub(super) trait Key: Copy + Ord + Into<IpNet> {
    fn len(self) -> u8;

    /// Returns the prefix of that length that contains it, if it is as long.
    fn around(self, len: u8) -> Option<Self>;

    /// Returns the range that holds it and all that lies in it.
    fn subtree(self) -> RangeInclusive<Self>;
}

/// A prefix of either family as a key. The order is that of [`IpNet`], which compares byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prefix(pub(crate) IpNet);

impl Ord for Prefix {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (IpNet::V4(a), IpNet::V4(b)) => V4(*a).cmp(&V4(*b)),
            (IpNet::V6(a), IpNet::V6(b)) => V6(*a).cmp(&V6(*b)),
            (IpNet::V4(_), IpNet::V6(_)) => Ordering::Less,
            (IpNet::V6(_), IpNet::V4(_)) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An IPv4 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct V4(pub(super) Ipv4Net);

/// An IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct V6(pub(super) Ipv6Net);

impl V4 {
    fn number(self) -> u64 {
        u64::from(u32::from(self.0.addr())) << 8 | u64::from(self.0.prefix_len())
    }
}

impl V6 {
    fn number(self) -> (u128, u8) {
        (self.0.addr().into(), self.0.prefix_len())
    }
}

impl Ord for V4 {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl Ord for V6 {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for V4 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialOrd for V6 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<V4> for IpNet {
    fn from(key: V4) -> Self {
        Self::V4(key.0)
    }
}

impl From<V6> for IpNet {
    fn from(key: V6) -> Self {
        Self::V6(key.0)
    }
}

impl From<&V4> for IpNet {
    fn from(key: &V4) -> Self {
        Self::V4(key.0)
    }
}

impl From<&V6> for IpNet {
    fn from(key: &V6) -> Self {
        Self::V6(key.0)
    }
}

impl Key for V4 {
    fn len(self) -> u8 {
        self.0.prefix_len()
    }

    fn around(self, len: u8) -> Option<Self> {
        let wider = Ipv4Net::new(self.0.addr(), len).ok()?;
        (len <= self.len()).then(|| Self(wider.trunc()))
    }

    fn subtree(self) -> RangeInclusive<Self> {
        self..=Self(self.0.broadcast().into())
    }
}

impl Key for V6 {
    fn len(self) -> u8 {
        self.0.prefix_len()
    }

    fn around(self, len: u8) -> Option<Self> {
        let wider = Ipv6Net::new(self.0.addr(), len).ok()?;
        (len <= self.len()).then(|| Self(wider.trunc()))
    }

    fn subtree(self) -> RangeInclusive<Self> {
        self..=Self(self.0.broadcast().into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net() -> impl Strategy<Value = IpNet> {
        // Mostly near each other, so that each part of a prefix decides now and then.
        let v4 = (any::<u32>(), 0..4_u32, 0..=32_u8).prop_map(|(far, near, len)| {
            let address = if len % 2 == 0 { near << 24 } else { far };
            Ipv4Net::new_assert(address.into(), len).trunc().into()
        });
        let v6 = (any::<u128>(), 0..4_u128, 0..=128_u8).prop_map(|(far, near, len)| {
            let address = if len % 2 == 0 { near << 120 } else { far };
            Ipv6Net::new_assert(address.into(), len).trunc().into()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn prefixes_are_in_their_own_order(a in net(), b in net()) {
            prop_assert_eq!(Prefix(a).cmp(&Prefix(b)), a.cmp(&b));
        }
    }
}
