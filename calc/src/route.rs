//! The graph's routes: for each prefix what is there and on which node. Values alone.

use std::{fmt, net::IpAddr, sync::Arc};

/// The name of a node, shared by all that refers to it.
pub type NodeName = Arc<str>;

/// What is at a prefix; none means that the prefix only tells of the pool around it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A workload, or a block, of another node.
    pub const REMOTE_WORKLOAD: Self = Self(0x01);
    /// Another node.
    pub const REMOTE_HOST: Self = Self(0x02);
    /// A workload, or a block, of this node.
    pub const LOCAL_WORKLOAD: Self = Self(0x04);
    /// This node.
    pub const LOCAL_HOST: Self = Self(0x08);
    /// Another node's end of a tunnel.
    pub const REMOTE_TUNNEL: Self = Self(0x10);
    /// This node's end of a tunnel.
    pub const LOCAL_TUNNEL: Self = Self(0x20);

    const NAMES: [(Self, &str); 6] = [
        (Self::REMOTE_WORKLOAD, "REMOTE_WORKLOAD"),
        (Self::REMOTE_HOST, "REMOTE_HOST"),
        (Self::LOCAL_WORKLOAD, "LOCAL_WORKLOAD"),
        (Self::LOCAL_HOST, "LOCAL_HOST"),
        (Self::REMOTE_TUNNEL, "REMOTE_TUNNEL"),
        (Self::LOCAL_TUNNEL, "LOCAL_TUNNEL"),
    ];

    /// Returns whether it has all of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether there is nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns it less `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns what has the name, by Calico's protocol.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (types, _) = Self::NAMES.into_iter().find(|(_, known)| *known == name)?;
        Some(types)
    }

    /// Returns the names, by Calico's protocol.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(bit, _)| self.contains(*bit))
            .map(|(_, name)| name)
    }
}

impl fmt::Debug for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// What an address is in, by the innermost pool that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolKind {
    /// In no pool, or one for load balancers alone.
    #[default]
    None,
    /// In one without encapsulation.
    NoEncap,
    /// In one that uses VXLAN.
    Vxlan,
    /// In one that uses IPIP.
    Ipip,
}

/// Which tunnels end at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnels {
    /// WireGuard.
    pub wireguard: bool,
    /// IPIP.
    pub ipip: bool,
    /// VXLAN.
    pub vxlan: bool,
}

/// A route of the graph. `N` is what tells nodes apart: where there are many routes, a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Route<N = NodeName> {
    /// What is there.
    pub types: Types,
    /// What it is in.
    pub pool: PoolKind,
    /// Where it is.
    pub node: Option<N>,
    /// The main address of `node` in the prefix's family, if that is known.
    pub node_ip: Option<IpAddr>,
    /// Whether `node` is reached without a tunnel although the pool has one.
    pub same_subnet: bool,
    /// Whether packets that leave the pools get the node's address.
    pub nat_outgoing: bool,
    /// Whether it is a workload's own prefix, here.
    pub local_workload: bool,
    /// Whether the block around it belongs to another node.
    pub borrowed: bool,
    /// The tunnels that end there.
    pub tunnels: Tunnels,
}

impl<N> Default for Route<N> {
    fn default() -> Self {
        Self {
            types: Types::NONE,
            pool: PoolKind::None,
            node: None,
            node_ip: None,
            same_subnet: false,
            nat_outgoing: false,
            local_workload: false,
            borrowed: false,
            tunnels: Tunnels::default(),
        }
    }
}

impl<N> Route<N> {
    /// Returns the same with its node told apart otherwise.
    pub(crate) fn map_node<M>(self, map: impl FnOnce(N) -> M) -> Route<M> {
        let Self {
            types,
            pool,
            node,
            node_ip,
            same_subnet,
            nat_outgoing,
            local_workload,
            borrowed,
            tunnels,
        } = self;
        Route {
            types,
            pool,
            node: node.map(map),
            node_ip,
            same_subnet,
            nat_outgoing,
            local_workload,
            borrowed,
            tunnels,
        }
    }
}
