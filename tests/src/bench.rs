//! The frame of `make bench`: what is measured, beside the raw kernel's floor of the same run and
//! the reference implementation's figure, which is scaled to this machine by that floor.

pub mod bpf;
pub mod calc;
pub mod floor;
pub mod flows;
pub mod kernel;

use std::{fmt::Write, fs, io, path::Path, time::Duration};

use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// What it is counted in.
    pub unit: &'static str,
    /// The middle one of all measurements.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// How many measurements there were.
    pub n: usize,
    /// What the bare system calls for the same keys in the same order took in this run (median).
    pub floor: Option<f64>,
    /// What the reference implementation takes, scaled to this machine.
    pub reference: Option<f64>,
}

impl Metric {
    /// Makes one of durations, in milliseconds.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn of_durations(name: impl Into<String>, mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self {
            name: name.into(),
            unit: "ms",
            median: ms(median(&durations)),
            min: ms(*durations.first().expect("a measurement")),
            n: durations.len(),
            floor: None,
            reference: None,
        }
    }

    /// Adds the floor.
    #[must_use]
    pub fn with_floor(mut self, floor: Duration) -> Self {
        self.floor = Some(ms(floor));
        self
    }

    /// Adds the reference, in milliseconds on the machine where it was taken; `scale` is how much
    /// slower the kernel of this one is.
    #[must_use]
    pub fn with_reference(mut self, reference: f64, scale: f64) -> Self {
        self.reference = Some(reference * scale);
        self
    }
}

/// Returns the middle one of sorted durations.
///
/// # Panics
///
/// If there are none.
#[must_use]
pub fn median(sorted: &[Duration]) -> Duration {
    *sorted.get(sorted.len() / 2).expect("a measurement")
}

/// Returns milliseconds.
#[must_use]
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Returns the figures as a table.
#[must_use]
pub fn table(metrics: &[Metric]) -> String {
    let mut table = format!(
        "{:32} {:>10} {:>10} {:>6} {:>10} {:>8} {:>10} {:>8}\n",
        "metric", "median", "min", "n", "floor", "x floor", "reference", "x ref"
    );
    for metric in metrics {
        let name = format!("{} ({})", metric.name, metric.unit);
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        let ratio = |base: Option<f64>| {
            base.map_or("-".into(), |base| format!("{:.2}", metric.median / base))
        };
        writeln!(
            table,
            "{name:32} {:>10.3} {:>10.3} {:>6} {:>10} {:>8} {:>10} {:>8}",
            metric.median,
            metric.min,
            metric.n,
            number(metric.floor),
            ratio(metric.floor),
            number(metric.reference),
            ratio(metric.reference),
        )
        .expect("a string takes all");
    }
    table
}

/// Writes the figures as a JSON list.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, metrics: &[Metric]) -> io::Result<()> {
    fs::write(path, serde_json::to_string_pretty(metrics)? + "\n")
}
