//! The calculation alone: no process, no transport, no kernel. So the reference's figures are as they
//! were taken, on a machine like those of our CI: the kernel's speed says nothing of them.

use std::{
    hint::black_box,
    net::Ipv4Addr,
    process::Command,
    time::{Duration, Instant},
};

use calc::{
    Calculator,
    event::{Event, MigrationRole, Workload, WorkloadKey},
    route::{NodeName, PoolKind, Route, Types},
};
use ipc_proto::{BpfRoute, Op};
use ipnet::IpNet;

use super::{Metric, cluster::Cluster, resident};

/// How many changes of one route are measured.
const CHANGES: u32 = 1000;
/// How many workloads the node has: Felix's bound.
const WORKLOADS: u32 = 250;
/// The argument that has the program measure its own memory.
pub const MEMORY: &str = "memory";
/// For how many routes that is measured.
const MEMORY_ROUTES: u32 = 250_000;

/// Returns the routes of the graph: as Felix's would tell them for a cluster with a VXLAN pool.
fn routes(count: u32) -> Vec<(IpNet, Route)> {
    let nodes: Vec<(NodeName, Ipv4Addr)> = (0..Cluster::NODES)
        .map(|number| (Cluster::node(number).into(), Cluster::address(number)))
        .collect();
    // In no order, as they come from Felix: the step has no factor in common with any count here.
    (0..count)
        .map(|number| u32::try_from(u64::from(number) * 7919 % u64::from(count)).unwrap_or(0))
        .map(|number| (Cluster::block(number), route(number + 1, &nodes)))
        .collect()
}

fn route(node: u32, nodes: &[(NodeName, Ipv4Addr)]) -> Route {
    let (name, address) = nodes
        .get(usize::try_from(node % Cluster::NODES).expect("a small number"))
        .expect("one of the nodes");
    Route {
        types: if node.is_multiple_of(Cluster::NODES) {
            Types::LOCAL_WORKLOAD
        } else {
            Types::REMOTE_WORKLOAD
        },
        pool: PoolKind::Vxlan,
        node: Some(NodeName::clone(name)),
        node_ip: Some((*address).into()),
        nat_outgoing: true,
        ..Route::default()
    }
}

fn told(routes: Vec<(IpNet, Route)>) -> (Calculator, Vec<Op>) {
    let mut calculator = Calculator::told_routes(Cluster::node(0));
    for (cidr, route) in routes {
        calculator.tell(cidr, Some(route));
    }
    let ops = calculator.resolve();
    (calculator, ops)
}

fn entries(ops: &[Op]) -> usize {
    let entries = ops
        .iter()
        .filter(|op| matches!(op, Op::BpfRoute(_, Some(BpfRoute { .. }))));
    entries.count()
}

/// Measures from told routes to desired entries.
///
/// # Panics
///
/// If entries are missing.
#[must_use]
pub fn feed_and_calculate(count: u32, runs: usize) -> Metric {
    let all = routes(count);
    let mut times = Vec::new();
    for _ in 0..runs {
        let routes = all.clone();
        let start = Instant::now();
        let (calculator, ops) = told(routes);
        times.push(start.elapsed());
        // All but the blocks of this node, which need none.
        let local = all
            .iter()
            .filter(|(_, route)| route.types == Types::LOCAL_WORKLOAD);
        assert_eq!(entries(&ops), all.len() - local.count());
        drop((calculator, ops));
    }
    let name = format!("calc.feed_and_calculate.{}k", count / 1000);
    let metric = Metric::of_durations(name, times);
    // Felix's BPF route manager, from route messages to its desired map.
    match count {
        100_000 => metric.with_reference(312.0),
        250_000 => metric.with_reference(1403.0),
        _ => metric,
    }
}

/// Measures from decoded resources to desired entries.
///
/// # Panics
///
/// If entries are missing.
#[must_use]
pub fn resolver(blocks: u32, runs: usize) -> Metric {
    let cluster = Cluster { blocks };
    let mut times = Vec::new();
    for _ in 0..runs {
        let mut events = cluster.events();
        events.extend((0..WORKLOADS).map(workload));
        let mut calculator = Calculator::new(Cluster::node(0));
        let start = Instant::now();
        for event in events {
            calculator.handle(event);
        }
        let ops = calculator.resolve();
        times.push(start.elapsed());
        assert!(entries(&ops) >= usize::try_from(blocks).expect("a small number"));
        drop((calculator, ops));
    }
    Metric::of_durations(format!("calc.resolver.{}k", blocks / 1000), times)
}

/// A workload of this node, in one of its blocks.
fn workload(number: u32) -> Event {
    let key = WorkloadKey {
        node: Cluster::node(0),
        orchestrator: "k8s".into(),
        workload: format!("default/pod-{number}"),
        endpoint: "eth0".into(),
    };
    let block = Cluster::block(Cluster::NODES * (number / 60) + Cluster::NODES - 1);
    let IpNet::V4(block) = block else {
        panic!("{block} is IPv4")
    };
    let address = Ipv4Addr::from(u32::from(block.addr()) + number % 60);
    let workload = Workload {
        interface: format!("cali{number}").parse().expect("a name"),
        nets: vec![IpNet::from(std::net::IpAddr::from(address))],
        mac: None,
        skip_ingress_redirect: false,
        bgp_peer: false,
        migration: MigrationRole::None,
    };
    Event::Workload(key, Some(workload))
}

/// Measures one route that goes to another node, among 250,000.
#[must_use]
pub fn one_change() -> Metric {
    let all = routes(250_000);
    let nodes: Vec<(NodeName, Ipv4Addr)> = (0..Cluster::NODES)
        .map(|number| (Cluster::node(number).into(), Cluster::address(number)))
        .collect();
    let (mut calculator, ops) = told(all);
    drop(ops);
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..CHANGES {
        let changed = route(number * 17 + 2, &nodes);
        let start = Instant::now();
        calculator.tell(Cluster::block(number * 17), Some(changed));
        let ops = calculator.resolve();
        times.push(start.elapsed());
        black_box(ops);
    }
    Metric::of_durations("calc.one_change_at_250k", times).with_reference(2.35)
}

/// Measures what a route takes, in a process of its own, which is started as calc is.
///
/// # Panics
///
/// If that process fails.
#[must_use]
pub fn memory() -> Metric {
    let program = std::env::current_exe().expect("the program");
    let (tunables, values) = supervisor::TUNABLES;
    let output = Command::new(program)
        .arg(MEMORY)
        .env(tunables, values)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes: f64 = text.trim().parse().expect("a number");
    Metric::once("calc.rss_per_route", "B", bytes).with_reference(512.0)
}

/// Returns how many bytes this process has grown by for each route. Each is told and forgotten,
/// one by one, as from a feed.
///
/// # Panics
///
/// If `/proc` cannot be read.
#[must_use]
pub fn own_memory() -> f64 {
    let before = resident("self");
    let mut calculator = Calculator::told_routes(Cluster::node(0));
    let nodes: Vec<(NodeName, Ipv4Addr)> = (0..Cluster::NODES)
        .map(|number| (Cluster::node(number).into(), Cluster::address(number)))
        .collect();
    for number in 0..MEMORY_ROUTES {
        calculator.tell(Cluster::block(number), Some(route(number + 1, &nodes)));
    }
    drop(calculator.resolve());
    let grown = resident("self") - before;
    black_box(&calculator);
    grown / f64::from(MEMORY_ROUTES)
}
