//! In what order changes are made: what a packet needs is set before what leads to it, and cleared
//! after.

use ipc_proto::Op;

use super::{Tables, keys_of};
use crate::{
    delta::{Actual, Change},
    flows::{Flows, Gate, Owner, Pods, of_bpf, of_kernel},
    prefix::Prefix,
    reconciler::steps::{At, Steps},
    table::{BpfRoutes, Kind, Table},
};

impl Tables {
    /// Adds to `steps` what there is room for.
    ///
    /// The entries of a BPF route map that are there are brought up to date first. New ones come
    /// before the end of old ones, so that no address is without an entry; where the map has no
    /// room for both, only as many end before as must. What waits for `flows` is left out, and what leads to a former owner cleared.
    pub(in crate::reconciler) fn offer(
        &self,
        bpf_max_entries: usize,
        sweep: bool,
        flows: &Flows,
        steps: &mut Steps,
    ) {
        const SETS: [Change; 2] = [Change::Update, Change::Insert];
        let clears: &[Change] = if sweep {
            &[Change::Clear, Change::Sweep]
        } else {
            &[Change::Clear]
        };
        let maps = [&self.bpf_v4, &self.bpf_v6];
        let in_the_way = |map: &Table<BpfRoutes>| match map.ready_len(Change::Insert) {
            0 => 0,
            inserts => (map.present_len() + inserts).saturating_sub(bpf_max_entries),
        };

        offer(&self.link_settings, &SETS, steps);
        offer(&self.tunnel_devices, &SETS, steps);
        offer(&self.fdb, &SETS, steps);
        offer(&self.neighbours, &SETS, steps);
        offer(&self.link_addresses, &SETS, steps);
        offer(&self.endpoints, &SETS, steps);
        let gate = |op: &Op| flows.gate(op, |pods| self.leads_to(op, pods));
        let is_open = |op: &Op| gate(op) == Gate::Open;
        let breaks = |op: &Op| gate(op) == Gate::Break;
        for map in maps {
            steps.extend(map.ready(Change::Update).filter(is_open));
            steps.extend(ready(map, clears).take(in_the_way(map)));
            steps.extend(map.ready(Change::Insert).filter(is_open));
        }
        if let Some(routes) = self.routes() {
            for change in SETS {
                steps.extend(routes.ready(change).filter(is_open));
            }
        }
        offer(&self.rules, &SETS, steps);
        offer(&self.attachments, &SETS, steps);

        offer(&self.attachments, clears, steps);
        offer(&self.rules, clears, steps);
        if let Some(routes) = self.routes() {
            let routes = routes.ready(Change::Update);
            steps.extend(routes.filter(breaks).map(cleared));
            self.offer_clears_of_routes(clears, is_open, steps);
        }
        for map in maps {
            steps.extend(map.ready(Change::Update).filter(breaks).map(cleared));
        }
        for map in maps {
            steps.extend(ready(map, clears).skip(in_the_way(map)));
        }
        offer(&self.endpoints, clears, steps);
        offer(&self.link_addresses, clears, steps);
        offer(&self.neighbours, clears, steps);
        offer(&self.fdb, clears, steps);
        offer(&self.tunnel_devices, clears, steps);
    }

    /// Adds the ends of kernel routes. One in whose place another is wanted ends only once that is made,
    /// be it that the kernel takes it only later; where it leads to another owner, that waits for the
    /// end of this one.
    fn offer_clears_of_routes(
        &self,
        clears: &[Change],
        is_open: impl Fn(&Op) -> bool,
        steps: &mut Steps,
    ) {
        let set = if clears
            .iter()
            .any(|change| self.kernel_routes.ready_len(*change) > 0)
        {
            steps.routes()
        } else {
            return;
        };
        let ended = |op: Op| {
            let Op::KernelRoute(cleared, _) = &op else {
                return Some((op, None));
            };
            let mut after: Option<At> = None;
            for keys in keys_of(cleared.prefix) {
                for key in self.kernel_routes.due(keys) {
                    if is_open(&self.kernel_routes.op(key.clone())) {
                        after = after.max(Some(*set.get(key)?));
                    }
                }
            }
            Some((op, after))
        };
        for change in clears {
            steps.extend_after(self.kernel_routes.ready(*change).filter_map(ended));
        }
    }

    /// Returns the routes that are to be set.
    pub(in crate::reconciler) fn sets_of_routes(&self) -> impl Iterator<Item = Op> {
        let changes = [Change::Update, Change::Insert];
        let maps = [&self.bpf_v4, &self.bpf_v6];
        let bpf = maps.map(|map| changes.map(|change| map.ready(change)));
        let kernel = self.routes().into_iter();
        let kernel = kernel.flat_map(move |table| changes.map(|change| table.ready(change)));
        bpf.into_iter().flatten().flatten().chain(kernel.flatten())
    }

    /// Returns whom the route under the key of an op leads to.
    pub(super) fn leads_to(&self, op: &Op, pods: &Pods) -> Actual<Option<Owner>> {
        match op {
            Op::BpfRoute(prefix, _) => {
                let actual = self.map(prefix).actual(&Prefix(*prefix));
                actual.map(of_bpf)
            }
            Op::KernelRoute(key, _) => {
                let actual = self.kernel_routes.actual(key);
                actual.map(|route| of_kernel(route, pods))
            }
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
            | Op::FlowFlush(_) => Actual::Absent,
        }
    }
}

/// Returns the op that clears what another one sets.
fn cleared(op: Op) -> Op {
    match op {
        Op::BpfRoute(prefix, _) => Op::BpfRoute(prefix, None),
        Op::KernelRoute(key, _) => Op::KernelRoute(key, None),
        op @ (Op::LinkSettings(..)
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
        | Op::FlowFlush(_)) => op,
    }
}

/// Adds changes of a table to `steps`, as many as there is room for.
fn offer<K: Kind>(table: &Table<K>, changes: &[Change], steps: &mut Steps) {
    steps.extend(ready(table, changes));
}

/// Returns what can be made of these changes, in their order.
fn ready<K: Kind>(table: &Table<K>, changes: &[Change]) -> impl Iterator<Item = Op> {
    changes.iter().flat_map(|change| table.ready(*change))
}
