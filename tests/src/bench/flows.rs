//! Flow flushes in a table of 100,000, through the real helper, beside the leanest way to do the same:
//! one dump, and a request for each flow found.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Figure, Metric, median};
use crate::{
    flows::{self, many},
    helper::{Calc, Helper},
    netns::shell,
};

/// How many flows there are.
const FLOWS: u32 = 100_000;
/// Has connections tracked in the namespace that it runs in.
pub(super) const TRACKING: &str = "nft 'add table ip t; flush table ip t; \
    add chain ip t c { type filter hook input priority 0; }; add rule ip t c ct state new'";

/// Measures flushes of 1, 100 and 1,000 addresses, `runs` times each.
///
/// # Panics
///
/// If something is left, or gone that was not asked for.
pub async fn flushes(runs: usize) -> Vec<Metric> {
    let helper = Helper::start("");
    let mut calc = helper.connect().await;
    calc.hello().await;
    let all = track_all(FLOWS);
    let mut metrics = Vec::new();
    for count in [1, 100, 1_000] {
        let asked: BTreeSet<IpAddr> = many(count).map(|flow| flow.original[0]).collect();
        let gone = || many(FLOWS).filter(|flow| flow.has(&asked));
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            ours.push(flush(&mut calc, &asked).await);
            assert_eq!(flows::tracked().len(), all - gone().count());
            flows::track(gone());
            let start = Instant::now();
            flows::forget(&asked);
            floors.push(start.elapsed());
            flows::track(gone());
        }
        floors.sort_unstable();
        let metric = Metric::of_durations(format!("conntrack.flush.{count}_of_100k"), ours);
        let metric = metric.with_floor(median(&floors));
        metrics.push(match count {
            // Two runs of a tool for each.
            100 => metric.with_reference(50_000.0),
            1000 => metric.asked(Figure::XFloor, 1.5),
            _ => metric,
        });
    }
    metrics
}

/// Has the kernel track this many flows in this namespace, if it does not yet, and returns how many it
/// tracks then.
pub(super) fn track_all(count: u32) -> usize {
    // Connections are tracked in a namespace once something there asks for it.
    shell(TRACKING);
    let known = flows::tracked();
    flows::track(many(count).filter(|flow| !known.contains(flow)));
    flows::tracked().len()
}

async fn flush(calc: &mut Calc, asked: &BTreeSet<IpAddr>) -> Duration {
    let start = Instant::now();
    assert_eq!(calc.flush(asked.iter().copied()).await, []);
    start.elapsed()
}
