//! Whom a route leads to, and which address it is of. Only routes of single addresses have an owner:
//! wider ones lead to many.

use std::{collections::BTreeSet, net::IpAddr};

use ebpf::flags;
use ipc_proto::{BpfRoute, BpfTarget, KernelRoute, Op, RouteKind};
use ipnet::IpNet;

use crate::{prefix::single, reading::Reading};

/// Who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A pod of this node, by the index of its link.
    Here(u32),
    /// A pod of another node, by whichever way.
    Elsewhere,
    /// It cannot be told.
    Unknown,
}

/// The indexes of the pods' links. None is ever another's.
pub(crate) type Pods = BTreeSet<u32>;

/// Returns whether an entry of a BPF route map is a pod's, which may have no link at the moment.
fn is_pods(route: &BpfRoute) -> bool {
    route.flags.contains(flags::WORKLOAD)
}

/// Returns whether an entry of a BPF route map says that an address is something else, as a node's own:
/// one that only says in what pool it is, says of nobody that he has it.
pub(crate) fn is_others(route: &BpfRoute) -> bool {
    !is_pods(route) && route.flags.0 & !(flags::IN_POOL | flags::NAT_OUT) != 0
}

/// Whom an entry of a BPF route map leads to.
pub(crate) fn of_bpf(route: &BpfRoute) -> Option<Owner> {
    match &route.target {
        BpfTarget::Link(link) if route.flags.names_link() => Some(Owner::Here(link.index)),
        BpfTarget::NextHop(_) if is_pods(route) => Some(Owner::Elsewhere),
        BpfTarget::Link(_) | BpfTarget::NextHop(_) | BpfTarget::None => None,
    }
}

/// Whom a kernel route leads to.
pub(crate) fn of_kernel(route: &KernelRoute, pods: &Pods) -> Option<Owner> {
    match &route.kind {
        RouteKind::Unicast(hop) if hop.via.is_none() && pods.contains(&hop.link.index) => {
            Some(Owner::Here(hop.link.index))
        }
        RouteKind::Unicast(_) | RouteKind::Multipath(_) => Some(Owner::Elsewhere),
        RouteKind::Local(_)
        | RouteKind::Blackhole
        | RouteKind::Prohibit
        | RouteKind::Unreachable
        | RouteKind::Throw => None,
    }
}

/// Returns the single address that a change is about a route of.
pub(super) fn address(op: &Op) -> Option<IpAddr> {
    prefix(op).and_then(single)
}

fn prefix(op: &Op) -> Option<&IpNet> {
    match op {
        Op::BpfRoute(prefix, _) => Some(prefix),
        Op::KernelRoute(key, _) => Some(&key.prefix),
        Op::LinkSettings(..)
        | Op::TunnelDevice(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => None,
    }
}

/// Returns the address of a route that is set, and whom it will lead to.
pub(super) fn set(op: &Op, pods: &Pods) -> Option<(IpAddr, Option<Owner>)> {
    let address = address(op)?;
    let owner = match op {
        Op::BpfRoute(_, route) => of_bpf(route.as_ref()?),
        Op::KernelRoute(_, route) => of_kernel(route.as_ref()?, pods),
        Op::LinkSettings(..)
        | Op::TunnelDevice(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => None,
    };
    Some((address, owner))
}

/// Returns the single addresses of which a route was read, and whom each leads to.
pub(super) fn read<'a>(
    reading: &'a Reading,
    pods: &'a Pods,
) -> impl Iterator<Item = (IpAddr, Owner)> + 'a {
    let maps = reading.bpf_v4.iter().chain(&reading.bpf_v6);
    let entries = maps.filter_map(|(prefix, route)| {
        let owner = route.as_ref().map_or(Some(Owner::Unknown), of_bpf);
        Some((single(&prefix.0)?, owner?))
    });
    let routes = reading.kernel_routes.iter().filter_map(|(key, route)| {
        let owner = route
            .as_ref()
            .map_or(Some(Owner::Unknown), |route| of_kernel(route, pods));
        Some((single(&key.prefix)?, owner?))
    });
    entries.chain(routes)
}
