//! What the routes of a family have in common: by which link they leave, and as whose.

use std::{net::IpAddr, sync::Arc};

use ipc_proto::{Hop, KernelRoute, LinkState, Protocol, RouteKind, Table};

use super::{Shape, Wanted};
use crate::{
    conflict::{Candidate, Class},
    index::{Index, NodeId},
    kind::tunnel_devices,
    prefix::Family,
    route::{PoolKind, Route},
};

/// See the [module](self).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ways {
    /// The source address that all of them prefer.
    pub(super) source: Option<IpAddr>,
    /// To other nodes without a tunnel.
    pub(super) uplink: Uplink,
    /// To other nodes by their ends of the tunnel.
    pub(super) tunnel: Option<Way>,
    /// To the other ends of the tunnel themselves.
    pub(super) attached: Option<Way>,
    /// To nowhere.
    pub(super) blackhole: Way,
    /// Whether routes by the tunnel have next hops that the kernel looks up,
    looks_up: bool,
    /// and a pool has such routes to nodes of this one's subnet as well.
    always: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Uplink {
    /// No link has this node's address.
    Unknown,
    Down,
    Up(Way),
}

/// A route less its prefix and next hop.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The index of its link, 0 without one.
    link: u32,
    shared: Arc<KernelRoute>,
}

impl Ways {
    pub(super) fn new(family: Family, index: &Index) -> Self {
        let source = index.source(family);
        let out = |state: &LinkState, onlink, protocol, mtu| Way {
            link: state.link.index,
            shared: Arc::new(KernelRoute {
                kind: RouteKind::Unicast(Hop {
                    link: state.link.clone(),
                    via: None,
                    onlink,
                }),
                protocol,
                source,
                mtu,
            }),
        };
        let device = index.links.tunnel(family.tunnel()).filter(|state| state.up);
        let by_device = |onlink| {
            device.map(|state| {
                let mtu = tunnel_devices::mtu(family, index).unwrap_or(state.mtu);
                out(state, onlink, Protocol::Device, Some(mtu))
            })
        };
        Self {
            source,
            uplink: match index.uplink(family) {
                None => Uplink::Unknown,
                Some(state) if !state.up => Uplink::Down,
                Some(state) => Uplink::Up(out(state, true, Protocol::Safe, None)),
            },
            tunnel: by_device(true),
            attached: by_device(false),
            blackhole: Way {
                link: 0,
                shared: Arc::new(KernelRoute {
                    kind: RouteKind::Blackhole,
                    protocol: Protocol::Safe,
                    source,
                    mtu: None,
                }),
            },
            looks_up: family == Family::V6 && index.tunnels(family),
            always: index.pools.always_use_vxlan(family),
        }
    }

    /// Whether the other end of a tunnel, at this route, has to be attached for routes by it to be made:
    /// what is around it is reached without the tunnel. As a next hop on the tunnel device the kernel
    /// then takes it in IPv4 only; in IPv6 it looks the address up, also of a hop that is `onlink`, and
    /// refuses it (EINVAL).
    pub(super) fn must_attach(&self, end: &Route<NodeId>) -> bool {
        self.looks_up
            && match end.pool {
                PoolKind::Vxlan => end.same_subnet && self.always,
                // Be it this program that makes those routes or another one.
                PoolKind::NoEncap => true,
                PoolKind::None | PoolKind::Ipip => false,
            }
    }
}

impl Way {
    /// The route to a prefix, by a next hop.
    pub(super) fn to(&self, class: Class, via: Option<IpAddr>) -> Wanted {
        Candidate {
            class,
            link: self.link,
            // Of each class there is one way at most.
            carrier: true,
            route: Shape {
                table: Table::Main,
                metric: 0,
                shared: Arc::clone(&self.shared),
                via,
            },
        }
    }
}
