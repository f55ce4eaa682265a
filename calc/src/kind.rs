//! The kinds of kernel state, each computed by a slice of its own.
//!
//! A slice hears of each event, marks what it may change, and computes what is marked when asked.
//! What it wants follows from the world as it is then, so the order of events leaves no trace. A
//! new kind is one file and one line in [`all`]; of Calico's, IP sets, the packet filter, XDP and
//! IPVS have yet to come.

mod bpf_routes;
mod fdb;
mod kernel_routes;
mod link_settings;
mod neighbours;
mod tunnel_devices;

use std::fmt::Debug;

use ipc_proto::Op;
use ipnet::IpNet;

pub(crate) use self::tunnel_devices::awaited as tunnel_awaited;
use self::{
    bpf_routes::BpfRoutes, fdb::Fdb, kernel_routes::KernelRoutes, link_settings::LinkSettings,
    neighbours::Neighbours, tunnel_devices::TunnelDevices,
};
use crate::{event::Event, index::Index, resolver::Resolver};

/// A kind of kernel state.
pub(crate) trait Kind: Debug {
    /// Marks what the event may change; `before` does not include it. An event that tells nothing
    /// new does not come here, nor does [`Event::Links`], which is told link by link.
    fn on_event(&mut self, event: &Event, before: &Index);

    /// Computes what is marked and what depends on a changed route, and adds an op for each key
    /// whose desired value has changed.
    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>);
}

/// All that a kind may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    /// The resources.
    pub(crate) index: &'a Index,
    /// The graph's routes.
    pub(crate) routes: &'a Resolver,
    /// The prefixes of the routes that changed since the last time, in order.
    pub(crate) changed: &'a [IpNet],
}

/// All kinds, in the order in which their changes are made: a link is set up before neighbours and
/// routes use it.
pub(crate) fn all() -> Vec<Box<dyn Kind>> {
    vec![
        Box::new(LinkSettings::default()),
        Box::new(TunnelDevices::default()),
        Box::new(Neighbours::default()),
        Box::new(Fdb::default()),
        Box::new(BpfRoutes::default()),
        Box::new(KernelRoutes::default()),
    ]
}
