//! A full map: what it takes in memory, and what it costs to lose the helper.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use tokio::time::{sleep, timeout};

use super::{Cairn, PATIENCE, PAUSE, pid, resident};
use crate::{
    bench::{
        Figure, Metric,
        cluster::Cluster,
        floor::{self, Entries},
        median,
    },
    world,
};

const BLOCKS: u32 = 250_000;
/// How often the helper is killed. Each time the supervisor waits longer.
const RUNS: usize = 3;
/// What the reference's route manager grows by at 250,000 routes, in MiB.
const REFERENCE: f64 = 122.0;
/// When what was used on the way to the first answer has been given back.
const SETTLED: Duration = Duration::from_secs(3);

/// Measures memory, and the time from the helper's end to when all is known to be right again, over
/// what the start of its process takes.
///
/// # Panics
///
/// If the map is not as it should be.
pub async fn full_map() -> Vec<Metric> {
    let cluster = Cluster { blocks: BLOCKS };
    let entries = Entries::of(&Cluster::wanted(&cluster.events()));
    let node = world::lone_node(&Cluster::node(0), Cluster::interface(0));
    node.refresh_never();
    cluster.write(&node.directory.join("datastore"), false);
    let cairn = Cairn::start(node).await;
    let pin = cairn.node.pin_dir().join(ebpf::MAP_V4);
    assert!(
        Entries::read(&pin) == entries,
        "the map is not as it should be"
    );
    sleep(SETTLED).await;
    let pids = cairn.pids().await;
    let memory = |name: &str, id, most| {
        Metric::once(format!("e2e.rss.{name}_at_250k"), "MiB", resident(id))
            .with_reference(REFERENCE)
            .asked(Figure::Median, most)
    };
    let mut metrics = vec![
        memory("calc", pids.calc, 80.0),
        memory("helper", pids.helper, 16.0),
    ];

    let (mut times, mut starts, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        floors.push(floor::dump(&pin, entries.len()));
        let (start, rest) = timeout(PATIENCE, restart(&cairn)).await.unwrap();
        starts.push(start);
        times.push(rest);
        assert!(
            Entries::read(&pin) == entries,
            "the map is not as it should be"
        );
    }
    floors.sort_unstable();
    let restart = Metric::of_durations("e2e.restart_full_map.250k", times)
        .with_floor(median(&floors))
        .asked(Figure::Median, 400.0);
    let start = Metric::of_durations("e2e.restart_full_map.process_start", starts);
    metrics.extend([restart, start]);
    cairn.remove();
    metrics
}

/// Kills the helper, and returns how long it takes until another one is up, and from then until all
/// is known to be right.
async fn restart(cairn: &Cairn) -> (Duration, Duration) {
    let (_, resyncs) = cairn.standing().await;
    let before = cairn.helper().await.unwrap();
    let start = Instant::now();
    kill(pid(before), Signal::SIGKILL).unwrap();
    while cairn.helper().await.is_none_or(|now| now == before) {
        sleep(PAUSE).await;
    }
    let up = Instant::now();
    cairn.in_sync_again(resyncs).await;
    (up.duration_since(start), up.elapsed())
}
