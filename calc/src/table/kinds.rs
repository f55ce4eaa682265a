//! The kinds of kernel state that are tables: their keys, values, and how the wire puts them.

use std::{fmt::Debug, net::IpAddr};

use ipc_proto::{
    AttachmentKey, BpfRoute, Endpoint, FdbKey, KernelRoute, Link, LinkAddressKey, LinkProfile, Mac,
    NeighbourKey, Observed, Op, RouteKey, Rule, Tunnel, TunnelDevice,
};

use crate::prefix::Prefix;

/// A kind of state that the helper holds as a map.
pub(crate) trait Kind: Debug {
    /// What tells its entries apart.
    type Key: Ord + Clone + Debug;
    /// What an entry holds.
    type Value: Eq + Clone + Debug;
    /// Whether what nobody wants is cleared.
    const CLEARS: bool = true;
    /// Whether an entry is as it was after a change that failed.
    const ATOMIC: bool = false;
    /// Whether consumers are told of it.
    const TOLD: bool = false;
    /// Whether what others do to it is heard at once, so that what is not heard of is as it was.
    const WATCHED: bool = false;
    /// Wraps a change.
    fn op(key: Self::Key, value: Option<Self::Value>) -> Op;
    /// Wraps a reading, as far as the wire has a word for it.
    fn observed(key: Self::Key, value: Option<Self::Value>) -> Option<Observed>;
}

/// Sysctls of interfaces. They go away with their interface.
#[derive(Debug)]
pub(crate) struct LinkSettings;

impl Kind for LinkSettings {
    type Key = Link;
    type Value = LinkProfile;
    const CLEARS: bool = false;

    fn op(key: Link, value: Option<LinkProfile>) -> Op {
        Op::LinkSettings(key, value)
    }

    fn observed(key: Link, value: Option<LinkProfile>) -> Option<Observed> {
        Some(Observed::LinkSettings(key, value?))
    }
}

/// Tunnel devices.
#[derive(Debug)]
pub(crate) struct TunnelDevices;

impl Kind for TunnelDevices {
    type Key = Tunnel;
    type Value = TunnelDevice;
    const WATCHED: bool = true;

    fn op(key: Tunnel, value: Option<TunnelDevice>) -> Op {
        Op::TunnelDevice(key, value.map(Box::new))
    }

    fn observed(key: Tunnel, value: Option<TunnelDevice>) -> Option<Observed> {
        Some(Observed::TunnelDevice(key, value))
    }
}

/// Permanent neighbours.
#[derive(Debug)]
pub(crate) struct Neighbours;

impl Kind for Neighbours {
    type Key = NeighbourKey;
    type Value = Mac;
    const WATCHED: bool = true;

    fn op(key: NeighbourKey, value: Option<Mac>) -> Op {
        Op::Neighbour(key, value)
    }

    fn observed(key: NeighbourKey, value: Option<Mac>) -> Option<Observed> {
        Some(Observed::Neighbour(key, value?))
    }
}

/// Permanent forwarding entries.
#[derive(Debug)]
pub(crate) struct Fdb;

impl Kind for Fdb {
    type Key = FdbKey;
    type Value = IpAddr;
    const WATCHED: bool = true;

    fn op(key: FdbKey, value: Option<IpAddr>) -> Op {
        Op::Fdb(key, value)
    }

    fn observed(key: FdbKey, value: Option<IpAddr>) -> Option<Observed> {
        Some(Observed::Fdb(key, value))
    }
}

/// Addresses of this host on workloads' links.
#[derive(Debug)]
pub(crate) struct LinkAddresses;

impl Kind for LinkAddresses {
    type Key = LinkAddressKey;
    type Value = ();
    const WATCHED: bool = true;

    fn op(key: LinkAddressKey, value: Option<()>) -> Op {
        Op::LinkAddress(key, value.is_some())
    }

    fn observed(key: LinkAddressKey, value: Option<()>) -> Option<Observed> {
        Some(Observed::LinkAddress(key, value.is_some()))
    }
}

/// A BPF route map: there is one for each family.
#[derive(Debug)]
pub(crate) struct BpfRoutes;

impl Kind for BpfRoutes {
    type Key = Prefix;
    type Value = BpfRoute;
    const ATOMIC: bool = true;
    const TOLD: bool = true;

    fn op(Prefix(key): Prefix, value: Option<BpfRoute>) -> Op {
        Op::BpfRoute(key, value)
    }

    fn observed(Prefix(key): Prefix, value: Option<BpfRoute>) -> Option<Observed> {
        Some(Observed::BpfRoute(key, value))
    }
}

/// The kernel's routes.
#[derive(Debug)]
pub(crate) struct KernelRoutes;

impl Kind for KernelRoutes {
    type Key = RouteKey;
    type Value = KernelRoute;
    const WATCHED: bool = true;

    fn op(key: RouteKey, value: Option<KernelRoute>) -> Op {
        Op::KernelRoute(key, value.map(Box::new))
    }

    fn observed(key: RouteKey, value: Option<KernelRoute>) -> Option<Observed> {
        Some(Observed::KernelRoute(key, value))
    }
}

/// Routing rules.
#[derive(Debug)]
pub(crate) struct Rules;

impl Kind for Rules {
    type Key = Rule;
    type Value = ();
    const WATCHED: bool = true;

    fn op(key: Rule, value: Option<()>) -> Op {
        Op::Rule(key, value.is_some())
    }

    fn observed(key: Rule, value: Option<()>) -> Option<Observed> {
        value.map(|()| Observed::Rule(key))
    }
}

/// What the packet programs know of workloads' links.
#[derive(Debug)]
pub(crate) struct Endpoints;

impl Kind for Endpoints {
    type Key = Link;
    type Value = Endpoint;
    const ATOMIC: bool = true;

    fn op(key: Link, value: Option<Endpoint>) -> Op {
        Op::Endpoint(key, value.map(Box::new))
    }

    fn observed(key: Link, value: Option<Endpoint>) -> Option<Observed> {
        Some(Observed::Endpoint(key, value))
    }
}

/// Packet programs at hooks.
#[derive(Debug)]
pub(crate) struct Attachments;

impl Kind for Attachments {
    type Key = AttachmentKey;
    type Value = ();

    fn op(key: AttachmentKey, value: Option<()>) -> Op {
        Op::Attachment(key, value.is_some())
    }

    fn observed(key: AttachmentKey, value: Option<()>) -> Option<Observed> {
        value.map(|()| Observed::Attachment(key))
    }
}
