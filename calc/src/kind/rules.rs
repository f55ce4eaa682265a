//! The routing rules that lead to the second table, where the routes to workloads are in it and no VRF
//! leads there.

use ipc_proto::{Op, Rule};

use super::{Kind, World};
use crate::{
    event::Event,
    index::{Index, WorkloadTable},
    prefix::Family,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// Nothing changes them as long as this process lives.
    told: bool,
}

impl Kind for Rules {
    fn on_event(&mut self, _: &Event, _: &Index) {}

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        if let WorkloadTable::Second {
            rule: Some(priority),
        } = world.index.workload_table
            && !std::mem::replace(&mut self.told, true)
        {
            ops.extend(Family::ALL.map(|family| {
                let rule = Rule {
                    ipv6: family == Family::V6,
                    priority,
                    mark: None,
                    invert: false,
                };
                Op::Rule(rule, true)
            }));
        }
    }
}
