//! Kernel routes, from what is wanted to the kernel: the shipped core, the real helper and
//! transport, beside bare netlink messages of the same routes.

mod raw;

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use ipc_proto::{Hop, KernelRoute, Link, Op, Protocol, RouteKey, RouteKind, Table};
use ipnet::{IpNet, Ipv4Net};

use self::raw::Raw;
use super::{Figure, Metric, median};
use crate::{
    agent::Agent,
    helper::{Helper, link},
    netns::shell,
};

/// How many links of workloads there are.
const LINKS: u32 = 64;
/// The metric of a workload's route.
const METRIC: u32 = 1024;
/// The most routes.
const MOST: u32 = 65_536;

/// A route to an address on a link.
#[derive(Clone, Debug)]
struct Route {
    address: Ipv4Addr,
    link: Link,
}

impl Route {
    fn op(&self, wanted: bool) -> Op {
        let prefix = IpNet::V4(Ipv4Net::new_assert(self.address, 32));
        let route = KernelRoute {
            kind: RouteKind::Unicast(Hop {
                link: self.link.clone(),
                via: None,
                onlink: false,
            }),
            protocol: Protocol::Device,
            source: None,
            mtu: None,
        };
        let key = RouteKey::new(Table::Main, prefix, METRIC);
        Op::KernelRoute(key, wanted.then(|| Box::new(route)))
    }
}

/// What was measured of one thing: ours, and the floor.
#[derive(Default)]
struct Times {
    ours: Vec<Duration>,
    floor: Vec<Duration>,
}

impl Times {
    fn metric(mut self, name: &str) -> Metric {
        self.floor.sort_unstable();
        Metric::of_durations(name, self.ours).with_floor(median(&self.floor))
    }
}

/// Measures all: the first writing, reading back, small changes and clearing.
///
/// # Panics
///
/// If the kernel does not hold what it should.
pub async fn routes() -> Vec<Metric> {
    let links = links();
    let helper = Helper::start("pin_dir = '/sys/fs/bpf/bench-kernel'\n");
    let mut metrics = Vec::new();
    for (count, runs) in [(1000, 21), (10_000, 11), (MOST, 7)] {
        metrics.extend(with_routes(&helper, &links, count, runs).await);
    }
    metrics
}

/// Measures reading back the most routes, of which all are right, `runs` times.
///
/// # Panics
///
/// If the kernel does not hold what it should, or anything is to be written.
pub async fn resync_noop(runs: usize) -> Metric {
    let links = links();
    let helper = Helper::start("pin_dir = '/sys/fs/bpf/bench-kernel'\n");
    let all = some(&links, 0, MOST);
    let mut raw = Raw::open();
    let mut times = Times::default();
    let mut agent = Agent::start(&helper).await;
    agent.in_sync();
    apply(&mut agent, &all, true).await;
    for _ in 0..runs {
        times.floor.push(raw.dump(all.len()));
        times.ours.push(resync(&mut agent).await);
    }
    apply(&mut agent, &all, false).await;
    times
        .metric("e2e.kernel_resync_noop.65k")
        .with_reference(208.0)
        .asked(Figure::XFloor, 3.0)
}

/// Returns the links of workloads, which it makes at the first call.
fn links() -> Vec<Link> {
    let made = shell("ip -o link show").contains(" cali0@");
    let link = |number| {
        let name = format!("cali{number}");
        if !made {
            shell(&format!(
                "ip link add {name} type veth peer name pod{number} && ip link set {name} up \
                 && ip link set pod{number} up"
            ));
        }
        link(&name)
    };
    (0..LINKS).map(link).collect()
}

/// Returns `count` routes in the order of their keys, from number `first` on.
fn some(links: &[Link], first: u32, count: u32) -> Vec<Route> {
    (first..first + count)
        .map(|number| Route {
            address: Ipv4Addr::from((10 << 24) + number),
            link: links
                .get(usize::try_from(number % LINKS).unwrap())
                .unwrap()
                .clone(),
        })
        .collect()
}

async fn with_routes(helper: &Helper, links: &[Link], count: u32, runs: usize) -> Vec<Metric> {
    let all = some(links, 0, count);
    let (one, hundred) = (some(links, count, 1), some(links, count, 100));
    let mut raw = Raw::open();
    let [mut add, mut dump, mut plus_1, mut plus_100, mut delete] =
        std::array::from_fn(|_| Times::default());
    for _ in 0..runs {
        add.floor.push(raw.change(&all, true));
        dump.floor.push(raw.dump(all.len()));
        for (delta, times) in [(&one, &mut plus_1), (&hundred, &mut plus_100)] {
            for _ in 0..10 {
                times.floor.push(raw.change(delta, true));
                raw.change(delta, false);
            }
        }
        delete.floor.push(raw.change(&all, false));

        let mut agent = Agent::start(helper).await;
        agent.in_sync();
        add.ours.push(apply(&mut agent, &all, true).await);
        raw.dump(all.len());
        dump.ours.push(resync(&mut agent).await);
        for (delta, times) in [(&one, &mut plus_1), (&hundred, &mut plus_100)] {
            for _ in 0..10 {
                times.ours.push(apply(&mut agent, delta, true).await);
                apply(&mut agent, delta, false).await;
            }
        }
        delete.ours.push(apply(&mut agent, &all, false).await);
        raw.dump(0);
    }
    if count < MOST {
        let label = format!("{}k", count / 1000);
        let initial = add.metric(&format!("kernel.initial_add.{label}"));
        let noop = dump.metric(&format!("kernel.noop_resync.{label}"));
        return if count < 10_000 {
            vec![initial]
        } else {
            vec![initial, noop]
        };
    }
    vec![
        add.metric("kernel.initial_add.65k")
            .with_reference(1938.0)
            .asked(Figure::XReference, 0.2)
            .asked(Figure::XFloor, 2.0),
        dump.metric("kernel.noop_resync.65k")
            .with_reference(208.0)
            .asked(Figure::XFloor, 3.0),
        plus_1.metric("kernel.delta.1_at_65k"),
        plus_100
            .metric("kernel.delta.100_at_65k")
            .with_reference(3.3)
            .asked(Figure::Median, 1.0),
        delete
            .metric("kernel.delete_all.65k")
            .with_reference(2581.0)
            .asked(Figure::XFloor, 2.0),
    ]
}

/// Reads the kernel back, which needs no change.
async fn resync(agent: &mut Agent) -> Duration {
    let start = Instant::now();
    agent.resync().await;
    start.elapsed()
}

/// Sets or clears routes, from what is wanted to the last answer.
async fn apply(agent: &mut Agent, routes: &[Route], wanted: bool) -> Duration {
    let ops: Vec<Op> = routes.iter().map(|route| route.op(wanted)).collect();
    let start = Instant::now();
    agent.apply(ops).await;
    start.elapsed()
}
