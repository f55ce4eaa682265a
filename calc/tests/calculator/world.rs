//! All resources and interfaces that there are, the events that lead from one such world to
//! another, and what ops amount to, as text.

use std::{collections::BTreeMap, fmt::Write};

use calc::{
    Calculator,
    event::{Bgp, Block, Config, Event, Node, Pool, Workload, WorkloadKey},
};
use ipc_proto::{BpfTarget, Hop, KernelRoute, LinkEvent, LinkState, Op, RouteKind};
use ipnet::IpNet;

/// The node that the calculator is for.
pub(crate) const OWN: &str = "node-a";

/// What is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pools: BTreeMap<IpNet, Pool>,
    pub(crate) blocks: BTreeMap<IpNet, Block>,
    pub(crate) workloads: BTreeMap<WorkloadKey, Workload>,
    pub(crate) links: BTreeMap<u32, LinkState>,
    pub(crate) config: Config,
    pub(crate) bgp: Bgp,
}

impl World {
    /// Takes over what the event says.
    pub(crate) fn apply(&mut self, event: Event) {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match event {
            Event::Node(name, node) => set(&mut self.nodes, name, node),
            Event::Pool(cidr, pool) => set(&mut self.pools, cidr, pool),
            Event::Block(cidr, block) => set(&mut self.blocks, cidr, block),
            Event::Workload(key, workload) => set(&mut self.workloads, key, workload),
            Event::Config(config) => self.config = config,
            Event::Bgp(bgp) => self.bgp = bgp,
            Event::Link(LinkEvent::Set(state)) => {
                self.links.insert(state.link.index, state);
            }
            Event::Link(LinkEvent::Gone(link)) => {
                self.links.remove(&link.index);
            }
            Event::Links(states) => {
                self.links = states
                    .into_iter()
                    .map(|state| (state.link.index, state))
                    .collect();
            }
        }
    }

    /// The events that lead to `to`: what is gone, and then what is new or has changed.
    pub(crate) fn changes(&self, to: &Self) -> Vec<Event> {
        fn diff<K: Ord + Clone, V: PartialEq + Clone>(
            from: &BTreeMap<K, V>,
            to: &BTreeMap<K, V>,
            event: impl Fn(K, Option<V>) -> Event,
        ) -> Vec<Event> {
            let gone = from.keys().filter(|key| !to.contains_key(key));
            let set = to
                .iter()
                .filter(|(key, value)| from.get(key) != Some(value));
            gone.map(|key| event(key.clone(), None))
                .chain(set.map(|(key, value)| event(key.clone(), Some(value.clone()))))
                .collect()
        }
        let mut events = diff(&self.nodes, &to.nodes, Event::Node);
        events.extend(diff(&self.pools, &to.pools, Event::Pool));
        events.extend(diff(&self.blocks, &to.blocks, Event::Block));
        events.extend(diff(&self.workloads, &to.workloads, Event::Workload));
        events.extend(diff(&self.links, &to.links, |index, state| {
            Event::Link(match state {
                Some(state) => LinkEvent::Set(state),
                None => LinkEvent::Gone(self.links[&index].link.clone()),
            })
        }));
        if self.config != to.config {
            events.push(Event::Config(to.config.clone()));
        }
        if self.bgp != to.bgp {
            events.push(Event::Bgp(to.bgp.clone()));
        }
        events
    }

    /// What a calculator wants that hears of this world and no other.
    pub(crate) fn desired(&self) -> Desired {
        let mut instance = Instance::default();
        for event in Self::default().changes(self) {
            instance.calculator.handle(event);
        }
        instance.resolve();
        instance.desired
    }
}

/// A calculator, and what its ops add up to.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) calculator: Calculator,
    pub(crate) desired: Desired,
}

impl Default for Instance {
    fn default() -> Self {
        Self {
            calculator: Calculator::new(OWN.to_owned()),
            desired: Desired::default(),
        }
    }
}

impl Instance {
    pub(crate) fn resolve(&mut self) {
        let ops = self.calculator.resolve();
        self.desired.take(ops);
    }

    /// As [`resolve`](Self::resolve) the first time, in parts of so many prefixes.
    pub(crate) fn resolve_early(&mut self, size: usize) {
        assert!(self.calculator.is_new());
        let Self {
            calculator,
            desired,
        } = self;
        desired.take(calculator.resolve_first());
        let mut last = None;
        let rest = calculator.resolve_early(size, |ops| {
            assert!(ops.len() <= size);
            for op in &ops {
                let Op::BpfRoute(prefix, Some(_)) = op else {
                    panic!("{op:?} comes early")
                };
                assert!(prefix.prefix_len() < prefix.max_prefix_len());
                assert!(last.replace(*prefix).is_none_or(|last| last < *prefix));
            }
            desired.take(ops);
        });
        assert!(!calculator.is_new());
        desired.take(rest);
    }
}

/// What is wanted, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired(pub(crate) BTreeMap<String, String>);

impl Desired {
    fn take(&mut self, ops: Vec<Op>) {
        let mut last = 0;
        for op in ops {
            let (kind, key, value) = text(&op);
            assert!(last <= kind, "kinds are out of order at {key}");
            last = kind;
            let former = match value.clone() {
                Some(value) => self.0.insert(key.clone(), value),
                None => self.0.remove(&key),
            };
            assert_ne!(former, value, "{key}: an op that changes nothing");
        }
    }

    /// One line for each key, in order.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(key, value)| format!("{key}: {value}"))
            .collect()
    }
}

/// The place of an op's kind in the order of kinds, its key and its value.
fn text(op: &Op) -> (u8, String, Option<String>) {
    match op {
        Op::LinkSettings(link, profile) => (
            1,
            format!("settings of {link}"),
            profile.map(|profile| format!("{profile:?}").to_lowercase()),
        ),
        Op::TunnelDevice(tunnel, device) => (
            2,
            format!("device {tunnel:?}"),
            device.as_ref().map(|d| {
                format!(
                    "{} {} mtu {}, from {} on {}, vni {} port {}",
                    d.address, d.mac, d.mtu, d.local, d.parent, d.vni, d.port
                )
            }),
        ),
        Op::Neighbour(key, mac) => (
            4,
            format!("neighbour {} on {}", key.address, key.link),
            mac.map(|mac| mac.to_string()),
        ),
        Op::Fdb(key, node) => (
            3,
            format!("fdb {} on {}", key.mac, key.link),
            node.map(|node| node.to_string()),
        ),
        Op::LinkAddress(key, set) => (
            5,
            format!("address {} of {}", key.address, key.link),
            set.then(|| "set".to_owned()),
        ),
        Op::Endpoint(link, endpoint) => (
            6,
            format!("endpoint {link}"),
            endpoint
                .as_ref()
                .map(|e| format!("{} behind {}", e.workload_mac, e.host_mac)),
        ),
        Op::BpfRoute(cidr, route) => (
            7,
            format!("bpf {cidr}"),
            route.as_ref().map(|route| match &route.target {
                BpfTarget::None => route.flags.to_string(),
                BpfTarget::NextHop(node) => format!("{} via {node}", route.flags),
                BpfTarget::Link(link) => format!("{} on {link}", route.flags),
            }),
        ),
        Op::KernelRoute(key, route) => (
            8,
            format!("route {} metric {}", key.prefix, key.metric),
            route.as_deref().map(kernel_route),
        ),
        Op::Attachment(key, attached) => (
            9,
            format!("program at {:?} of {}", key.hook, key.link).to_lowercase(),
            attached.then(|| "attached".to_owned()),
        ),
        Op::Rule(rule, wanted) => (
            10,
            format!(
                "rule {} IPv{}",
                rule.priority,
                if rule.ipv6 { 6 } else { 4 }
            ),
            wanted.then(|| "to the second table".to_owned()),
        ),
        Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) | Op::FlowFlush(_) => {
            panic!("not the calculator's: {op:?}")
        }
    }
}

fn kernel_route(route: &KernelRoute) -> String {
    let mut text = match &route.kind {
        RouteKind::Unicast(Hop {
            link,
            via: Some(via),
            onlink,
        }) => format!(
            "via {via} on {link}{}",
            if *onlink { " onlink" } else { "" }
        ),
        RouteKind::Unicast(Hop {
            link, via: None, ..
        }) => format!("on {link}"),
        RouteKind::Blackhole => "blackhole".to_owned(),
        RouteKind::Multipath(_)
        | RouteKind::Local(_)
        | RouteKind::Prohibit
        | RouteKind::Unreachable
        | RouteKind::Throw => panic!("not the calculator's: {route:?}"),
    };
    if let Some(source) = route.source {
        write!(text, " from {source}").unwrap();
    }
    if let Some(mtu) = route.mtu {
        write!(text, " mtu {mtu}").unwrap();
    }
    format!("{text}, {:?}", route.protocol).to_lowercase()
}
