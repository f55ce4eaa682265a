//! BPF routes from decoded resources to the map: the shipped cores, the real helper, the real
//! transport.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::Path,
    time::{Duration, Instant},
};

use calc::{
    Calculator,
    event::{Block, Event, Node, Pool},
};
use ipc_proto::{BpfRoute, Op};
use ipnet::{IpNet, Ipv4Net};

use super::{
    Metric,
    floor::{self, Entries},
    median,
};
use crate::{agent::Agent, helper::Helper};

/// The size of a block, as a prefix length: the default of Calico.
const BLOCK: u8 = 26;
/// How many changes of one route are measured.
const CHANGES: u32 = 1000;

/// A cluster as Calico's IPAM makes it: a pool, nodes, and a block for each route.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) blocks: u32,
}

impl Cluster {
    /// How many nodes own the blocks.
    pub(super) const NODES: u32 = 1000;

    pub(super) fn node(number: u32) -> String {
        format!("node-{number}")
    }

    /// The address of a node.
    pub(super) fn address(number: u32) -> Ipv4Addr {
        Ipv4Addr::from((172 << 24) + (16 << 16) + 1 + number)
    }

    /// Returns block number `number` of the pool 10.0.0.0/8.
    pub(super) fn block(number: u32) -> IpNet {
        let first = (10 << 24) + (number << (32 - u32::from(BLOCK)));
        Ipv4Net::new_assert(Ipv4Addr::from(first), BLOCK).into()
    }

    /// Returns the block when it belongs to that node.
    fn owned(number: u32, node: u32) -> Event {
        let block = Block {
            owner: Some(Self::node(node % Self::NODES)),
            ..Block::default()
        };
        Event::Block(Self::block(number), Some(block))
    }

    /// Returns all resources, decoded.
    pub(super) fn events(&self) -> Vec<Event> {
        let pool = Pool::default();
        let nodes = (0..Self::NODES).map(|number| {
            let bgp_ipv4 = Some(Ipv4Net::new_assert(Self::address(number), 12).into());
            Event::Node(
                Self::node(number),
                Some(Node {
                    bgp_ipv4,
                    ..Node::default()
                }),
            )
        });
        let blocks = (0..self.blocks).map(|number| Self::owned(number, number + 1));
        [Event::Pool("10.0.0.0/8".parse().unwrap(), Some(pool))]
            .into_iter()
            .chain(nodes)
            .chain(blocks)
            .collect()
    }
}

/// The cores of `calc` on one connection to a helper.
struct Calculation {
    calculator: Calculator,
    agent: Agent,
    desired: BTreeMap<IpNet, BpfRoute>,
}

impl Calculation {
    async fn start(helper: &Helper) -> Self {
        Self {
            calculator: Calculator::new(Cluster::node(0)),
            agent: Agent::start(helper).await,
            desired: BTreeMap::new(),
        }
    }

    /// Takes in events and applies all that follows from them.
    async fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            self.calculator.handle(event);
        }
        self.agent.apply(self.calculator.resolve()).await;
    }

    /// Remembers what is wanted, for the comparison.
    fn note(&mut self, events: &[Event]) {
        let mut calculator = Calculator::new(Cluster::node(0));
        for event in events {
            calculator.handle(event.clone());
        }
        for op in calculator.resolve() {
            if let Op::BpfRoute(prefix, Some(route)) = op {
                self.desired.insert(prefix, route);
            }
        }
    }
}

/// Measures the first filling of the map with `blocks` routes, and, if asked, single changes then.
///
/// # Panics
///
/// If the map does not hold what it should in the end.
pub async fn initial(blocks: u32, runs: usize, changes: bool) -> Vec<Metric> {
    let label = format!("{}k", blocks / 1000);
    let mut times = Vec::new();
    let mut entries = Entries::default();
    let mut metrics = Vec::new();
    for run in 0..runs {
        let pins = format!("/sys/fs/bpf/bench-{label}-{run}");
        let helper = Helper::start(&format!("pin_dir = '{pins}'\n"));
        let mut calculation = Calculation::start(&helper).await;
        let events = Cluster { blocks }.events();
        if run == 0 {
            calculation.note(&events);
            entries = Entries::of(&calculation.desired);
        }
        let start = Instant::now();
        calculation.agent.in_sync();
        calculation.apply(events).await;
        times.push(start.elapsed());
        let pin = Path::new(&pins).join(ebpf::MAP_V4);
        assert!(
            Entries::read(&pin) == entries,
            "the map is not as it should be"
        );
        if changes && run == 0 {
            metrics.push(one_change(&mut calculation, &label).await);
        }
        drop(helper);
        std::fs::remove_dir_all(&pins).unwrap();
    }
    let floor = floor::updates(&entries, 5);
    let scale = floor::scale(floor, entries.len());
    let initial = Metric::of_durations(format!("e2e.bpf_initial.{label}"), times).with_floor(floor);
    // Felix: feed, calculation and one system call a route, in one process.
    let reference = [(100_000, 755.0), (250_000, 2831.0)]
        .into_iter()
        .find(|(n, _)| *n == blocks);
    let initial = match reference {
        Some((_, reference)) => initial.with_reference(reference, scale),
        None => initial,
    };
    let reference = |metric: Metric| metric.with_reference(2.35, scale);
    [initial]
        .into_iter()
        .chain(metrics.into_iter().map(reference))
        .collect()
}

/// Moves one block at a time to another node, each time from the event to the answer.
async fn one_change(calculation: &mut Calculation, label: &str) -> Metric {
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..CHANGES {
        let event = Cluster::owned(number * 17, number * 17 + 2);
        let start = Instant::now();
        calculation.apply(vec![event]).await;
        times.push(start.elapsed());
    }
    let floor = (0..CHANGES.min(100)).map(|number| {
        let route = calculation
            .desired
            .iter()
            .nth(usize::try_from(number).unwrap());
        let (prefix, route) = route.expect("there are more");
        floor::updates(&Entries::of(&BTreeMap::from([(*prefix, route.clone())])), 1)
    });
    let mut floor: Vec<Duration> = floor.collect();
    floor.sort_unstable();
    Metric::of_durations(format!("e2e.one_change.at_{label}"), times).with_floor(median(&floor))
}
