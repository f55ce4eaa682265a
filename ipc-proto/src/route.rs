//! Routes: those of the BPF maps and those of the kernel's tables.

use std::{fmt, net::IpAddr};

use ebpf::flags;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Link, net};

/// The flags of a BPF route; see [`ebpf::flags`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Flags(pub u32);

impl Flags {
    /// Returns whether all of `bits` are set.
    #[must_use]
    pub const fn contains(self, bits: u32) -> bool {
        self.0 & bits == bits
    }

    /// Returns whether the payload of an entry with these flags is an interface index.
    #[must_use]
    pub const fn names_link(self) -> bool {
        self.contains(flags::LOCAL | flags::WORKLOAD)
    }

    /// Returns the bits that have no meaning.
    #[must_use]
    pub fn unknown(self) -> u32 {
        self.0 & !flags::ALL.iter().fold(0, |known, (bit, _)| known | bit)
    }
}

impl fmt::Display for Flags {
    /// Writes the names of the bits, lowest first, joined by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (bit, name) in flags::ALL {
            if self.contains(bit) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        match self.unknown() {
            0 if self.0 == 0 => f.write_str("-"),
            0 => Ok(()),
            rest => write!(f, "{separator}{rest:#x}"),
        }
    }
}

/// Where a BPF route leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BpfTarget {
    /// Nowhere in particular: the payload is zero.
    #[default]
    None,
    /// To another node, of the family of the key.
    NextHop(#[serde(with = "net")] IpAddr),
    /// Out of a link of this node; only with [`Flags::names_link`].
    Link(Link),
}

/// The value of one entry of a BPF route map; its key is the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BpfRoute {
    /// What the destination is.
    pub flags: Flags,
    /// Where it is.
    pub target: BpfTarget,
}

/// A routing table, by role; the helper's policy has the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    /// The main table.
    Main,
    /// A table that is all ours.
    Second,
}

/// A route's protocol, by role; the helper's policy has the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// For routes that their interface marks as ours.
    Device,
    /// For routes that nothing but the protocol marks as ours.
    Safe,
    /// Another program's, on an interface where all routes are ours. No request may ask for it.
    Foreign,
    /// The same, and that program is BIRD, which may route to what speaks BGP with it there.
    Bird,
}

/// What the kernel tells routes apart by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    /// The table.
    pub table: Table,
    /// The destination.
    #[serde(with = "net")]
    pub prefix: IpNet,
    /// The type of service that a packet must have, 0 for any. None of ours has one; only IPv4 knows it.
    pub tos: u8,
    /// The priority; the lowest wins.
    pub metric: u32,
}

impl RouteKey {
    /// The metric that the kernel gives to an IPv6 route that asks for 0.
    pub const IPV6_DEFAULT_METRIC: u32 = 1024;

    /// Makes a key for packets of any type of service, as the kernel reports it: an IPv6 metric of 0
    /// is 1024.
    #[must_use]
    pub fn new(table: Table, prefix: IpNet, metric: u32) -> Self {
        let metric = match (prefix, metric) {
            (IpNet::V6(_), 0) => Self::IPV6_DEFAULT_METRIC,
            (IpNet::V4(_) | IpNet::V6(_), metric) => metric,
        };
        Self {
            table,
            prefix,
            tos: 0,
            metric,
        }
    }
}

/// Another program's route that may count in place of one of ours: it has the same prefix, or a longer one
/// that lies within.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rival {
    /// What the kernel knows it by.
    pub key: RouteKey,
    /// The prefix of ours, in the same table.
    #[serde(with = "net")]
    pub ours: IpNet,
    /// Who made it and where it leads, for the operator.
    pub way: String,
}

/// All of them, as far as they are told: of each prefix of ours at most one that has the same, the one that
/// comes first, and those that lie within it and no longer one of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rivals {
    /// Those that are told, at most [`MAX`](Self::MAX).
    pub told: Vec<Rival>,
    /// How many there are besides.
    pub more: u32,
}

impl Rivals {
    /// How many are told at most.
    pub const MAX: usize = 256;
}

/// One way out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hop {
    /// The output interface.
    pub link: Link,
    /// The next hop; without one the destination is on the link.
    #[serde(with = "net")]
    pub via: Option<IpAddr>,
    /// Whether the next hop counts as directly reachable although no route says so.
    pub onlink: bool,
}

/// How a kernel route disposes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RouteKind {
    /// Sent on.
    Unicast(Hop),
    /// Sent on by one of several ways, in this order, with equal weights.
    Multipath(Vec<Hop>),
    /// Taken in as the host's own.
    Local(Link),
    /// Dropped silently.
    Blackhole,
    /// Refused as forbidden.
    Prohibit,
    /// Refused as unreachable.
    Unreachable,
    /// Left to the next rule's table.
    Throw,
}

/// One route of the kernel's; its key is a [`RouteKey`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelRoute {
    /// What it does.
    pub kind: RouteKind,
    /// Whose it is.
    pub protocol: Protocol,
    /// The source address that it prefers.
    #[serde(with = "net")]
    pub source: Option<IpAddr>,
    /// The largest packet in bytes, if the route limits it.
    pub mtu: Option<u32>,
}

impl KernelRoute {
    /// Returns the ways out, of which a route that ends here has none.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        match &self.kind {
            RouteKind::Unicast(hop) => std::slice::from_ref(hop),
            RouteKind::Multipath(hops) => hops,
            RouteKind::Local(_)
            | RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw => &[],
        }
    }
}

/// A routing rule that leads to [`Table::Second`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Whether it is an IPv6 rule.
    pub ipv6: bool,
    /// Its priority; the lowest is asked first.
    pub priority: u32,
    /// The mark that it asks for, and the mask.
    pub mark: Option<(u32, u32)>,
    /// Whether the match is inverted.
    pub invert: bool,
}

/// A TC hook of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Hook {
    /// Packets coming in.
    Ingress,
    /// Packets going out.
    Egress,
}

/// What the packet programs are told about this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSettings {
    /// The tunnel device that flow-based encapsulation goes through.
    pub tunnel: Option<Link>,
    /// The VXLAN network identifier, below 2^24.
    pub vni: u32,
    /// The UDP port of VXLAN.
    pub port: u16,
}

/// Outgoing NAT: from `sources` to anything outside `exclusions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    /// Whose packets.
    #[serde(with = "net")]
    pub sources: Vec<IpNet>,
    /// The destinations that see the real source.
    #[serde(with = "net")]
    pub exclusions: Vec<IpNet>,
}
