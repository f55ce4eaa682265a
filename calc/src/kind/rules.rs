//! The routing rules that lead to the second table, where the routes to workloads are in it and no VRF
//! leads there.

use std::collections::BTreeSet;

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
    desired: BTreeSet<Family>,
}

impl Kind for Rules {
    /// There is one for each family at most: those that are wanted are compared each time.
    fn on_event(&mut self, _: &Event, _: &Index) {}

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        let WorkloadTable::Second {
            rule: Some(priority),
        } = world.index.workload_table
        else {
            return;
        };
        for family in Family::ALL {
            let wanted = world.index.wants(family);
            let changed = if wanted {
                self.desired.insert(family)
            } else {
                self.desired.remove(&family)
            };
            if changed {
                let rule = Rule {
                    ipv6: family == Family::V6,
                    priority,
                    mark: None,
                    invert: false,
                };
                ops.push(Op::Rule(rule, wanted));
            }
        }
    }
}
