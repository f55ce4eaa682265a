//! Single changes while flows are flushed: the shipped cores, the real helper and transport, with both
//! lanes in use.

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use calc::{Calculator, Input, Output, Reading, Reconciler, event::Event};
use ipc_proto::{Ack, bus::DataplaneProxy, codec};

use super::{
    Figure, Metric,
    bpf::{CHANGES, one_update},
    cluster::Cluster,
    floor::Entries,
    flows::track_all,
};
use crate::{
    flows::{self, many},
    helper::{self, Helper},
};

/// How many routes there are.
const BLOCKS: u32 = 10_000;
/// How many flows there are.
const FLOWS: u32 = 100_000;
/// How many addresses are flushed at a time.
const ADDRESSES: u32 = 1000;

/// The state lane of `calc`; somebody else has the flows lane.
struct StateLane {
    calculator: Calculator,
    reconciler: Reconciler,
    proxy: DataplaneProxy<'static>,
}

impl StateLane {
    async fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.calculator.handle(event);
        }
        for op in self.calculator.resolve() {
            self.reconciler.want(op).unwrap();
        }
        while let Some(output) = self.reconciler.poll(Instant::now()) {
            let Output::Apply(batch) = output else {
                panic!("{output:?}")
            };
            let answer = self.proxy.apply(&helper::bytes(&batch)).await.unwrap();
            let ack: Ack = codec::decode(&answer).unwrap();
            assert!(ack.failed.is_empty(), "{:?}", ack.failed);
            self.reconciler.handle(Instant::now(), Input::Ack(ack));
        }
        assert!(self.reconciler.is_in_sync());
    }
}

/// Moves one block at a time to another node while flushes are under way, each time from the event
/// to the answer.
///
/// # Panics
///
/// If the map does not hold what it should in the end, or a flow is left.
pub async fn one_change() -> Metric {
    let pins = "/sys/fs/bpf/bench-flushing";
    let helper = Helper::start(&format!("pin_dir = '{pins}'\n"));
    let mut calc = helper.connect().await;
    let mut lane = StateLane {
        calculator: Calculator::new(Cluster::node(0)),
        reconciler: Reconciler::without_flows(),
        proxy: calc.proxy.clone(),
    };
    let now = Instant::now();
    lane.reconciler.handle(now, Input::Connected);
    assert_eq!(lane.reconciler.poll(now), Some(Output::Hello));
    let (welcome, pages) = calc.pages::<Reading>().await;
    let mut reading = Reading::default();
    for page in pages {
        reading.append(page);
    }
    let welcome = Input::Welcome(welcome, reading);
    lane.reconciler.handle(now, welcome);
    let in_sync = Input::InSync { complete: true };
    lane.reconciler.handle(now, in_sync);

    let cluster = Cluster { blocks: BLOCKS };
    let mut events = cluster.events();
    let wanted = Cluster::wanted(&events);
    lane.apply(events.clone()).await;
    let all = track_all(FLOWS);
    let asked: BTreeSet<IpAddr> = many(ADDRESSES).map(|flow| flow.original[0]).collect();
    let gone = || many(FLOWS).filter(|flow| flow.has(&asked));
    let mut times = Vec::new();
    let mut moves = (0..CHANGES).map(|number| cluster.moved(number));
    while moves.len() > 0 {
        let addresses = asked.clone();
        let flush = tokio::spawn(async move {
            assert_eq!(calc.flush(addresses).await, []);
            calc
        });
        tokio::task::yield_now().await;
        while !flush.is_finished() {
            let Some(event) = moves.next() else { break };
            events.push(event.clone());
            let start = Instant::now();
            lane.apply([event]).await;
            times.push(start.elapsed());
        }
        calc = flush.await.unwrap();
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
