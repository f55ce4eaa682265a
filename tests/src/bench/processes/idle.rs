//! What a node costs on which nothing happens.

use std::time::Duration;

use tokio::time::sleep;

use super::Cairn;
use crate::bench::{Figure, Metric};

/// How long is waited,
const TIME: Duration = Duration::from_mins(1);
/// and how often the kernel is read back meanwhile, in seconds,
const REFRESH: &str = "10.0";
/// which is at least so many times.
const RESYNCS: u64 = 5;

/// Measures the processor time of all three processes over a minute in which nothing happens but the
/// kernel is read back.
///
/// # Panics
///
/// If it is not read back, or is not as it should be.
pub async fn idle() -> Metric {
    let cairn = Cairn::with_routes(REFRESH, "").await;
    let (_, resyncs) = cairn.standing().await;
    let pids = cairn.pids().await;
    let before = pids.cpu();
    sleep(TIME).await;
    let used = pids.cpu().saturating_sub(before);
    let (in_sync, now) = cairn.standing().await;
    assert!(
        in_sync && now - resyncs >= RESYNCS,
        "{}",
        cairn.node.status()
    );
    cairn.remove();
    Metric::once("idle.cpu", "s", used.as_secs_f64()).asked(Figure::Median, 0.3)
}
