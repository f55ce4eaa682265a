//! Outgoing NAT in miniature: a slice of the packet filter that follows from the pools alone.

use std::collections::BTreeSet;

use ipc_proto::Op;
use ipnet::IpNet;

use crate::{
    event::Event,
    index::Index,
    kind::{Kind, World},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Masquerade {
    sources: BTreeSet<IpNet>,
    marked: bool,
}

impl Kind for Masquerade {
    fn on_event(&mut self, event: &Event, _: &Index) {
        match event {
            Event::Pool(cidr, pool) => {
                self.marked = true;
                if pool.as_ref().is_some_and(|pool| pool.nat_outgoing) {
                    self.sources.insert(*cidr);
                } else {
                    self.sources.remove(cidr);
                }
            }
            Event::Node(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Config(_)
            | Event::Bgp(_)
            | Event::Link(_)
            | Event::Links(_) => {}
        }
    }

    fn resolve_batch(&mut self, _: &World<'_>, ops: &mut Vec<Op>) {
        if !std::mem::take(&mut self.marked) {
            return;
        }
        let sources: Vec<IpNet> = self.sources.iter().copied().collect();
        let masquerade = (!sources.is_empty()).then(|| ipc_proto::Masquerade {
            sources,
            exclusions: Vec::new(),
        });
        ops.push(Op::Masquerade(masquerade.map(Box::new)));
    }
}
