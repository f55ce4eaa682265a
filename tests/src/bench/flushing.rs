//! Single changes while flows are flushed: the shipped cores, the real helper and transport, with both
//! lanes in use.

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use calc::Calculator;

use super::{
    Figure, Metric,
    bpf::{CHANGES, one_update},
    cluster::Cluster,
    floor::Entries,
    flows::track_all,
};
use crate::{
    agent::Agent,
    flows::{self, many},
    helper::Helper,
};

/// How many routes there are.
const BLOCKS: u32 = 10_000;
/// How many flows there are.
const FLOWS: u32 = 100_000;
/// How many addresses are flushed at a time.
const ADDRESSES: u32 = 1000;

/// Moves one block at a time to another node while flushes are under way, each time from the event
/// to the answer.
///
/// # Panics
///
/// If the map does not hold what it should in the end, or a flow is left.
pub async fn one_change() -> Metric {
    let pins = "/sys/fs/bpf/bench-flushing";
    let helper = Helper::start(&format!("pin_dir = '{pins}'\n"));
    let mut calculator = Calculator::new(Cluster::node(0));
    let mut agent = Agent::start(&helper).await;
    agent.in_sync();
    let cluster = Cluster { blocks: BLOCKS };
    let mut events = cluster.events();
    let wanted = Cluster::wanted(&events);
    calculator.handle_all(events.clone());
    agent.follow(&mut calculator).await;
    let all = track_all(FLOWS);
    let asked: BTreeSet<IpAddr> = many(ADDRESSES).map(|flow| flow.original[0]).collect();
    let gone = || many(FLOWS).filter(|flow| flow.has(&asked));
    let mut times = Vec::new();
    let mut moves = (0..CHANGES).map(|number| cluster.moved(number));
    while moves.len() > 0 {
        agent.flush(asked.clone());
        while !agent.has_flushed() {
            let Some(event) = moves.next() else { break };
            events.push(event.clone());
            let start = Instant::now();
            calculator.handle(event);
            agent.follow(&mut calculator).await;
            times.push(start.elapsed());
        }
        agent.flushed().await;
        assert_eq!(flows::tracked().len(), all - gone().count());
        flows::track(gone());
    }
    let pin = std::path::Path::new(pins).join(ebpf::MAP_V4);
    assert!(
        Entries::read(&pin) == Entries::of(&Cluster::wanted(&events)),
        "the map is not as it should be"
    );
    drop(helper);
    std::fs::remove_dir_all(pins).unwrap();
    Metric::of_durations("e2e.one_change_during_flush", times)
        .with_floor(one_update(&wanted))
        .asked(Figure::P99, 5.0)
}
