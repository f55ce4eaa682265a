//! The BPF route maps: for each prefix the one entry that packets to or from it meet.
//!
//! The programs see the entry of the longest prefix and none of those around it, so an entry
//! carries all that holds for its addresses, and a needless one would hide a wider one. The rules,
//! V8 to V20, are in [`value`]; here is which prefixes they are asked about, and when.

mod value;

use std::collections::BTreeSet;

use ipc_proto::{BpfRoute, Op};
use ipnet::IpNet;

use super::{Kind, World};
use crate::{
    event::{Bgp, Config, Event, ServiceLoopPrevention},
    index::{Index, NodeId},
    prefix::{Marks, PrefixMap, Run, single, subtree},
    route::Route,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BpfRoutes {
    settings: Settings,
    desired: PrefixMap<BpfRoute>,
    /// What was computed early, in order, and is not among those yet.
    early: Option<Run<BpfRoute>>,
    dirty: Marks,
    all_dirty: bool,
}

/// What the configuration says of prefixes.
#[derive(Debug, Default)]
struct Settings {
    external_nodes: BTreeSet<IpNet>,
    dsr_optout: BTreeSet<IpNet>,
    /// Empty where nothing is done about loops.
    services: BTreeSet<IpNet>,
    /// All of the above: these may have an entry that depends on a wider prefix.
    all: BTreeSet<IpNet>,
}

impl Settings {
    fn new(config: &Config, bgp: &Bgp) -> Self {
        let mut settings = Self {
            external_nodes: config.external_nodes.iter().copied().collect(),
            dsr_optout: config.dsr_optout.iter().copied().collect(),
            ..Self::default()
        };
        if config.service_loop_prevention != ServiceLoopPrevention::Disabled {
            settings.services.extend(&bgp.services);
        }
        let Self {
            external_nodes,
            dsr_optout,
            services,
            all,
        } = &mut settings;
        for set in [external_nodes, dsr_optout, services] {
            all.extend(set.iter());
        }
        settings
    }

    /// Returns whether the entry of a prefix depends on nothing but its route.
    fn is_early(&self, cidr: &IpNet) -> bool {
        single(cidr).is_none() && !self.all.contains(cidr)
    }
}

impl BpfRoutes {
    fn on_bgp(&mut self, bgp: &Bgp, before: &Index) {
        self.dirty.extend(&self.settings.services);
        self.settings = Settings::new(&before.config, bgp);
        self.dirty.extend(&self.settings.services);
    }

    /// Marks every prefix that has, or may have, an entry.
    fn mark_all(&mut self, world: &World<'_>) {
        let index = world.index;
        self.dirty.extend(self.desired.iter().map(|(cidr, _)| cidr));
        if !world.is_first {
            let routes = world.routes.routes();
            self.dirty.extend(routes.map(|(cidr, _)| cidr));
        }
        self.dirty.extend(&self.settings.all);
        self.dirty
            .extend(index.links.local_addresses().map(IpNet::from));
        for (_, workload) in index.workloads.local() {
            self.dirty.extend(&workload.nets);
        }
    }
}

impl Kind for BpfRoutes {
    fn on_event(&mut self, event: &Event, before: &Index) {
        match event {
            Event::Workload(key, workload) if before.workloads.is_local(key) => {
                for workload in before.workloads.get(key).into_iter().chain(workload) {
                    self.dirty.extend(&workload.nets);
                }
            }
            Event::Link(change) => {
                for state in before.links.before_and_after(change) {
                    let addresses = state.addresses.iter().map(|net| IpNet::from(net.addr()));
                    self.dirty.extend(addresses);
                    for (_, workload) in before.workloads.on(&state.link.name) {
                        self.dirty.extend(&workload.nets);
                    }
                }
            }
            Event::Config(config) => {
                self.settings = Settings::new(config, &before.bgp);
                self.all_dirty = true;
            }
            Event::Bgp(bgp) => self.on_bgp(bgp, before),
            // These come as changed routes.
            Event::Node(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Links(_) => {}
        }
    }

    fn follows_routes(&self) -> bool {
        true
    }

    fn resolve_early(
        &mut self,
        routes: &[(IpNet, Route<NodeId>)],
        left: usize,
        index: &Index,
        ops: &mut Vec<Op>,
    ) {
        let mut early = self.early.take().unwrap_or_default();
        early.reserve(routes.len() + left);
        for (cidr, route) in routes
            .iter()
            .filter(|(cidr, _)| self.settings.is_early(cidr))
        {
            if let Some(desired) = self.want_early(cidr, route, index) {
                early.push(*cidr, desired.clone());
                ops.push(Op::BpfRoute(*cidr, Some(desired)));
            }
        }
        self.early = Some(early);
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        if std::mem::take(&mut self.all_dirty) {
            self.mark_all(world);
        }
        let marked = self.dirty.take();
        let configured = self.configured(&marked, world);
        ops.reserve(world.changed().size_hint().0);
        self.resolve_unconfigured(marked, world, ops);
        // Wider prefixes come first: entries of narrower ones may follow from theirs.
        for cidr in configured {
            let desired = self.want(&cidr, world.routes.route(&cidr), world);
            if self.desired.get(&cidr) == desired.as_ref() {
                continue;
            }
            match &desired {
                Some(value) => self.desired.insert(cidr, value.clone()),
                None => self.desired.remove(&cidr),
            };
            ops.push(Op::BpfRoute(cidr, desired));
        }
    }
}

impl BpfRoutes {
    /// Returns the prefixes of the configuration that are in one of these, in order: only their
    /// entries may follow from those of wider prefixes.
    fn configured(&self, marked: &[IpNet], world: &World<'_>) -> BTreeSet<IpNet> {
        let all = &self.settings.all;
        if all.is_empty() {
            return BTreeSet::new();
        }
        let changed = world.changed().map(|(cidr, _)| cidr);
        let dirty = marked.iter().copied().chain(changed);
        dirty
            .flat_map(|cidr| all.range(subtree(cidr)))
            .copied()
            .collect()
    }

    /// Computes the entries of all that is dirty, but those that the configuration names.
    fn resolve_unconfigured(&mut self, marked: Vec<IpNet>, world: &World<'_>, ops: &mut Vec<Op>) {
        let mut fresh = Run::default();
        let early = self.early.take();
        let (has_early, settings) = (early.is_some(), &self.settings);
        self.desired.absorb(early.unwrap_or_default());
        let changed = world.changed();
        let changed = changed.filter(|(cidr, _)| !has_early || !settings.is_early(cidr));
        for (cidr, route) in world.dirty(marked, changed) {
            if self.settings.all.contains(&cidr) {
                continue;
            }
            let desired = self.want(&cidr, route, world);
            match (self.desired.get_mut(&cidr), &desired) {
                (None, None) => continue,
                (Some(former), Some(desired)) if former == desired => continue,
                (Some(former), Some(desired)) => *former = desired.clone(),
                (Some(_), None) => {
                    self.desired.remove(&cidr);
                }
                (None, Some(desired)) => fresh.push(cidr, desired.clone()),
            }
            ops.push(Op::BpfRoute(cidr, desired));
        }
        self.desired.absorb(fresh);
    }
}
