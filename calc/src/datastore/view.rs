//! What the objects of a directory amount to, as the calculator shall see it, and the difference
//! between two such views.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::event::{Block, Config, Event, Node, Pool, Services, Workload, WorkloadKey};

/// Everything that the calculator is told, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) config: Config,
    pub(super) services: Services,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pools: BTreeMap<IpNet, Pool>,
    pub(super) blocks: BTreeMap<IpNet, Block>,
    pub(super) workloads: BTreeMap<WorkloadKey, Workload>,
}

impl View {
    /// All that it holds, as if nothing had been known before.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = vec![
            Event::Config(self.config.clone()),
            Event::Services(self.services.clone()),
        ];
        self.objects_since(&Self::default(), &mut events);
        events
    }

    /// What turns `former` into it.
    pub(super) fn events_since(&self, former: &Self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.config != former.config {
            events.push(Event::Config(self.config.clone()));
        }
        if self.services != former.services {
            events.push(Event::Services(self.services.clone()));
        }
        self.objects_since(former, &mut events);
        events
    }

    fn objects_since(&self, former: &Self, events: &mut Vec<Event>) {
        changes(&former.nodes, &self.nodes, Event::Node, events);
        changes(&former.pools, &self.pools, Event::Pool, events);
        changes(&former.blocks, &self.blocks, Event::Block, events);
        changes(&former.workloads, &self.workloads, Event::Workload, events);
    }
}

fn changes<K: Clone + Ord, V: Clone + PartialEq>(
    former: &BTreeMap<K, V>,
    current: &BTreeMap<K, V>,
    event: impl Fn(K, Option<V>) -> Event,
    events: &mut Vec<Event>,
) {
    for key in former.keys().filter(|key| !current.contains_key(key)) {
        events.push(event(key.clone(), None));
    }
    for (key, value) in current {
        if former.get(key) != Some(value) {
            events.push(event(key.clone(), Some(value.clone())));
        }
    }
}
