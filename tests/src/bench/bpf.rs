//! BPF routes from decoded resources to the map: the shipped cores, the real helper, the real
//! transport.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use calc::{Calculator, event::Event};
use ipc_proto::BpfRoute;
use ipnet::IpNet;
use tokio::time::sleep;

use super::{
    Figure, Metric,
    cluster::Cluster,
    floor::{self, Entries},
    median,
};
use crate::{agent::Agent, helper::Helper};

/// Longer than the kernel takes to free a map.
const PAUSE: Duration = Duration::from_millis(500);
/// How many changes of one route are measured.
pub(super) const CHANGES: u32 = 1000;

/// The cores of `calc` on one connection to a helper of their own.
struct Calculation {
    calculator: Calculator,
    agent: Agent,
    _helper: Helper,
    pins: PathBuf,
}

impl Calculation {
    async fn start() -> Self {
        let pins = PathBuf::from("/sys/fs/bpf/bench");
        let helper = Helper::start(&format!("pin_dir = '{}'\n", pins.display()));
        let agent = Agent::start(&helper).await;
        Self {
            calculator: Calculator::new(Cluster::node(0)),
            agent,
            _helper: helper,
            pins,
        }
    }

    /// Starts with the map as `events` ask for, and nothing left to do.
    async fn standing(events: Vec<Event>) -> Self {
        let mut calculation = Self::start().await;
        calculation.agent.in_sync();
        calculation.apply(events).await;
        calculation
    }

    /// Takes in events and applies all that follows from them.
    async fn apply(&mut self, events: Vec<Event>) {
        self.calculator.handle_all(events);
        self.agent.follow(&mut self.calculator).await;
    }

    fn pin(&self) -> PathBuf {
        self.pins.join(ebpf::MAP_V4)
    }

    fn holds(&self, entries: &Entries) {
        assert!(
            Entries::read(&self.pin()) == *entries,
            "the map is not as it should be"
        );
    }
}

impl Drop for Calculation {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.pins));
    }
}

fn label(blocks: u32) -> String {
    format!("{}k", blocks / 1000)
}

/// Measures the first filling of the map with `blocks` routes.
///
/// # Panics
///
/// If the map does not hold what it should in the end.
pub async fn initial(blocks: u32, runs: usize) -> Metric {
    let cluster = Cluster { blocks };
    let entries = Entries::of(&Cluster::wanted(&cluster.events()));
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        // Both in turn: what else the machine does changes from one second to the next. The kernel frees
        // the last map in the background, on a processor that is needed here.
        sleep(PAUSE).await;
        floors.push(floor::updates(&entries, 1));
        sleep(PAUSE).await;
        let mut calculation = Calculation::start().await;
        let events = cluster.events();
        let start = Instant::now();
        calculation.agent.in_sync();
        calculation.apply(events).await;
        times.push(start.elapsed());
        calculation.holds(&entries);
    }
    floors.sort_unstable();
    let floor = median(&floors);
    let name = format!("e2e.bpf_initial.{}", label(blocks));
    let metric = Metric::of_durations(name, times).with_floor(floor);
    // Felix: feed, calculation and one system call a route, in one process.
    match blocks {
        100_000 => metric
            .with_reference(755.0)
            .asked(Figure::XReference, 0.333),
        250_000 => metric
            .with_reference(2831.0)
            .asked(Figure::XReference, 0.25)
            .asked(Figure::XFloor, 2.2),
        _ => metric,
    }
}

/// Measures reading back a map with `blocks` routes of which all are right, beside one reading by
/// batches and nothing else.
///
/// # Panics
///
/// If anything is to be written.
pub async fn resync_noop(blocks: u32, runs: usize) -> Metric {
    let events = Cluster { blocks }.events();
    let entries = Entries::of(&Cluster::wanted(&events));
    let mut calculation = Calculation::standing(events).await;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        floors.push(floor::dump(&calculation.pin(), entries.len()));
        let start = Instant::now();
        calculation.agent.resync().await;
        times.push(start.elapsed());
    }
    calculation.holds(&entries);
    floors.sort_unstable();
    let name = format!("e2e.bpf_resync_noop.{}", label(blocks));
    let metric = Metric::of_durations(name, times)
        .with_floor(median(&floors))
        .asked(Figure::XFloor, 1.3);
    match blocks {
        100_000 => metric.with_reference(176.0),
        250_000 => metric.with_reference(507.0),
        _ => metric,
    }
}

/// Moves one block at a time to another node, with `blocks` routes in the map, each time from the
/// event to the answer.
///
/// # Panics
///
/// If the map does not hold what it should in the end.
pub async fn one_change(name: &str, blocks: u32, reference: f64) -> Metric {
    let cluster = Cluster { blocks };
    let mut events = cluster.events();
    let wanted = Cluster::wanted(&events);
    let mut calculation = Calculation::standing(events.clone()).await;
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let event = cluster.moved(number);
        events.push(event.clone());
        let start = Instant::now();
        calculation.apply(vec![event]).await;
        times.push(start.elapsed());
    }
    calculation.holds(&Entries::of(&Cluster::wanted(&events)));
    Metric::of_durations(format!("e2e.one_change.{name}"), times)
        .with_floor(one_update(&wanted))
        .with_reference(reference)
        .asked(Figure::Median, 0.2)
        .asked(Figure::P99, 1.0)
}

/// Returns what it takes to set one entry by itself.
pub(super) fn one_update(routes: &BTreeMap<IpNet, BpfRoute>) -> Duration {
    let one = |(prefix, route): (&IpNet, &BpfRoute)| {
        let one = BTreeMap::from([(*prefix, route.clone())]);
        floor::updates(&Entries::of(&one), 1)
    };
    let mut times: Vec<Duration> = routes.iter().take(100).map(one).collect();
    times.sort_unstable();
    median(&times)
}
