//! Prefixes: address families, and a map that finds what contains a prefix and what lies in it.
//!
//! Prefixes here have no host bits; who makes them sees to that. Order is by network address, wider
//! before narrower, so that what contains a prefix comes before it.

mod key;
mod map;
mod marks;

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use ipc_proto::Tunnel;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(crate) use self::{
    key::Prefix,
    map::{PrefixMap, PrefixWalk, Run},
    marks::Marks,
};

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

    /// Its lowest address and its highest.
    pub(crate) fn ends(self) -> [IpAddr; 2] {
        [self.whole().network(), self.whole().broadcast()]
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

#[cfg(test)]
mod tests {
    use super::*;

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
