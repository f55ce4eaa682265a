//! The kinds of kernel state, each computed by a slice of its own.
//!
//! A slice hears of each event, marks what it may change, and computes what is marked when asked.
//! What it wants follows from the world as it is then, so the order of events leaves no trace. A
//! new kind is one file and one line in [`all`], where those of Calico's that have yet to come have
//! their places.

mod attachments;
mod bpf_routes;
mod endpoints;
mod fdb;
mod kernel_routes;
mod link_addresses;
mod link_settings;
mod neighbours;
mod rules;
#[cfg(test)]
mod tests;
mod tunnel_devices;

use std::{collections::BTreeSet, fmt::Debug};

use ipc_proto::{Link, Op};
use ipnet::IpNet;

pub(crate) use self::kernel_routes::waiting_for_links;
pub(crate) use self::tunnel_devices::{
    awaited as tunnel_awaited, tunnels, unknown as tunnel_unknown,
};
use self::{
    attachments::Attachments, bpf_routes::BpfRoutes, endpoints::Endpoints, fdb::Fdb,
    kernel_routes::KernelRoutes, link_addresses::LinkAddresses, link_settings::LinkSettings,
    neighbours::Neighbours, rules::Rules, tunnel_devices::TunnelDevices,
};
use crate::{
    event::Event,
    index::{HeldBlock, Index, NodeId},
    resolver::{Changes, Resolver},
    route::Route,
};

/// A kind of kernel state.
pub(crate) trait Kind: Debug {
    /// Marks what the event may change; `before` does not include it. An event that tells nothing
    /// new does not come here, nor does [`Event::Links`], which is told link by link, nor
    /// [`Event::Block`].
    fn on_event(&mut self, event: &Event, before: &Index);

    /// As [`on_event`](Self::on_event), of blocks, which are many and matter to most by routes alone.
    fn on_blocks(&mut self, _blocks: &[(IpNet, Option<HeldBlock>)], _before: &Index) {}

    /// Computes what is marked and what depends on a changed route, and adds an op for each key
    /// whose desired value has changed.
    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>);

    /// Returns whether any of it depends on routes.
    fn follows_routes(&self) -> bool {
        false
    }

    /// Of the first routes that there are, given part by part and in order, computes ahead of
    /// [`resolve_batch`](Self::resolve_batch) what depends on nothing but the route of a prefix of more than one
    /// address, if it does so; those come in order. So many prefixes are left.
    fn resolve_early(
        &mut self,
        _routes: &[(IpNet, Route<NodeId>)],
        _left: usize,
        _index: &Index,
        _ops: &mut Vec<Op>,
    ) {
    }
}

/// All that a kind may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    /// The resources.
    pub(crate) index: &'a Index,
    /// The graph's routes.
    pub(crate) routes: &'a Resolver,
    /// Which routes changed since the last time.
    pub(crate) changes: &'a Changes,
    /// Whether this is the first time: nothing has been wanted so far.
    pub(crate) is_first: bool,
}

impl<'a> World<'a> {
    /// Returns the routes that changed since the last time, as they are now, in order.
    fn changed(&self) -> impl Iterator<Item = (IpNet, Option<&'a Route<NodeId>>)> + use<'a> {
        let (all, these) = match self.changes {
            Changes::All => (Some(self.routes.routes()), [].as_slice()),
            Changes::These(changed) => (None, changed.as_slice()),
        };
        let all = all.into_iter().flatten();
        let these = these.iter().map(|(cidr, route)| (*cidr, route.as_ref()));
        all.map(|(cidr, route)| (cidr, Some(route))).chain(these)
    }

    /// Returns what is marked, in order, or `changed`: each prefix once and in order, with its route.
    fn dirty<C: Iterator<Item = (IpNet, Option<&'a Route<NodeId>>)>>(
        &self,
        marked: Vec<IpNet>,
        changed: C,
    ) -> impl Iterator<Item = (IpNet, Option<&'a Route<NodeId>>)> + use<'a, C> {
        let (routes, mut changed) = (self.routes, changed.peekable());
        let mut marked = marked.into_iter().peekable();
        std::iter::from_fn(move || match (marked.peek(), changed.peek()) {
            (Some(first), next) if next.is_none_or(|(cidr, _)| first < cidr) => {
                let cidr = marked.next()?;
                Some((cidr, routes.route(&cidr)))
            }
            (first, _) => {
                let (cidr, route) = changed.next()?;
                if first == Some(&cidr) {
                    marked.next();
                }
                Some((cidr, route))
            }
        })
    }
}

/// Marks the interfaces that may come to be, or cease to be, what a workload of this node is on.
fn mark_workload_links(links: &mut BTreeSet<Link>, event: &Event, before: &Index) {
    // Of all else there may be many.
    if matches!(event, Event::Link(_) | Event::Workload(..)) {
        links.extend(workload_links(event, before));
    }
}

fn workload_links(event: &Event, before: &Index) -> BTreeSet<Link> {
    let mut links = BTreeSet::new();
    let mut add_named = |name| {
        let namesakes = before.links.all_named(name);
        links.extend(namesakes.map(|state| state.link.clone()));
    };
    match event {
        Event::Link(change) => {
            for state in before.links.before_and_after(change) {
                add_named(&state.link.name);
            }
            let changed = before.links.before_and_after(change);
            links.extend(changed.map(|state| state.link.clone()));
        }
        Event::Workload(key, workload) if before.workloads.is_local(key) => {
            for workload in before.workloads.get(key).into_iter().chain(workload) {
                add_named(&workload.interface);
            }
        }
        Event::Node(..)
        | Event::Workload(..)
        | Event::Pool(..)
        | Event::Block(..)
        | Event::Config(_)
        | Event::Bgp(_)
        | Event::Links(_) => {}
    }
    links
}

/// All kinds, in the order in which their changes are made: a link is set up before what uses it,
/// a forwarding entry is there before the neighbour that leads to it, a neighbour before the route,
/// and what a packet program goes by before the program. What is cleared goes in reverse, so what
/// refers to something goes before it.
///
/// The places of those that have yet to come: whatever names something comes after it, and what
/// lets packets through after what holds them back.
pub(crate) fn all() -> Vec<Box<dyn Kind>> {
    vec![
        Box::new(LinkSettings::default()),
        Box::new(TunnelDevices::default()),
        // IP sets: before the tables that match them, and so cleared after those.
        Box::new(Fdb::default()),
        Box::new(Neighbours::default()),
        Box::new(LinkAddresses::default()),
        Box::new(Endpoints::default()),
        Box::new(BpfRoutes::default()),
        Box::new(KernelRoutes::default()),
        Box::new(Rules::default()),
        // IPVS: virtual servers, once there are routes to those behind them.
        // Packet filter: each table, once its sets are there.
        // XDP: the maps by which it drops, then its attachment, like any other program's.
        Box::new(Attachments::default()),
    ]
}
