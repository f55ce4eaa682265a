//! Workload endpoints, by key, by prefix and by interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use ipc_proto::IfName;
use ipnet::IpNet;

use crate::event::{Workload, WorkloadKey};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Workloads {
    /// This node.
    node: String,
    by_key: BTreeMap<Arc<WorkloadKey>, Workload>,
    /// The endpoints with each prefix, ascending.
    by_net: BTreeMap<IpNet, Vec<Arc<WorkloadKey>>>,
    /// The prefixes that several have.
    shared: BTreeSet<IpNet>,
    /// The endpoints of this node that name each interface.
    by_interface: BTreeMap<IfName, BTreeSet<Arc<WorkloadKey>>>,
}

impl Workloads {
    pub(super) fn new(node: String) -> Self {
        Self {
            node,
            by_key: BTreeMap::new(),
            by_net: BTreeMap::new(),
            shared: BTreeSet::new(),
            by_interface: BTreeMap::new(),
        }
    }

    pub(crate) fn get(&self, key: &WorkloadKey) -> Option<&Workload> {
        self.by_key.get(key)
    }

    /// Returns whether the endpoint is on this node.
    pub(crate) fn is_local(&self, key: &WorkloadKey) -> bool {
        key.node == self.node
    }

    pub(super) fn set(&mut self, key: WorkloadKey, workload: Option<Workload>) {
        let local = self.is_local(&key);
        if let Some(former) = self.by_key.remove(&key) {
            for net in &former.nets {
                if let Some(keys) = self.by_net.get_mut(net) {
                    keys.retain(|other| **other != key);
                    if keys.len() < 2 {
                        self.shared.remove(net);
                    }
                    if keys.is_empty() {
                        self.by_net.remove(net);
                    }
                }
            }
            if let Some(keys) = self.by_interface.get_mut(&former.interface) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.by_interface.remove(&former.interface);
                }
            }
        }
        let Some(workload) = workload else { return };
        let key = Arc::new(key);
        for net in &workload.nets {
            let keys = self
                .by_net
                .entry(*net)
                .or_insert_with(|| Vec::with_capacity(1));
            if let Err(at) = keys.binary_search(&key) {
                keys.insert(at, Arc::clone(&key));
            }
            if keys.len() > 1 {
                self.shared.insert(*net);
            }
        }
        if local {
            self.by_interface
                .entry(workload.interface.clone())
                .or_default()
                .insert(Arc::clone(&key));
        }
        self.by_key.insert(key, workload);
    }

    /// Takes no more room than it must.
    pub(super) fn pack(&mut self) {
        self.by_key = mem::take(&mut self.by_key).into_iter().collect();
        self.by_net = mem::take(&mut self.by_net).into_iter().collect();
    }

    /// The endpoints, of any node, with exactly this prefix, ascending.
    pub(crate) fn with_net<'a>(
        &'a self,
        net: &IpNet,
    ) -> impl Iterator<Item = (&'a WorkloadKey, &'a Workload)> + use<'a> {
        self.resolve(self.by_net.get(net).into_iter().flatten())
    }

    /// The endpoints of this node with exactly this prefix, ascending.
    pub(crate) fn local_with_net<'a>(
        &'a self,
        net: &IpNet,
    ) -> impl Iterator<Item = (&'a WorkloadKey, &'a Workload)> + use<'a> {
        self.with_net(net).filter(|(key, _)| self.is_local(key))
    }

    /// The prefixes that several endpoints of this node have, ascending.
    pub(crate) fn claimed_by_several(&self) -> impl Iterator<Item = &IpNet> {
        let shared = self.shared.iter();
        shared.filter(|net| self.local_with_net(net).nth(1).is_some())
    }

    /// The endpoints of this node that name the interface, ascending.
    pub(crate) fn on(&self, interface: &IfName) -> impl Iterator<Item = (&WorkloadKey, &Workload)> {
        self.resolve(self.by_interface.get(interface).into_iter().flatten())
    }

    /// All endpoints, of any node.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&WorkloadKey, &Workload)> {
        self.by_key.iter().map(|(key, workload)| (&**key, workload))
    }

    /// All endpoints of this node.
    pub(crate) fn local(&self) -> impl Iterator<Item = (&WorkloadKey, &Workload)> {
        self.resolve(self.by_interface.values().flatten())
    }

    fn resolve<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a Arc<WorkloadKey>>,
    ) -> impl Iterator<Item = (&'a WorkloadKey, &'a Workload)> {
        keys.filter_map(|key| Some((&**key, self.by_key.get(key)?)))
    }
}
