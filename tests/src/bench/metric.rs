//! One figure, what it is compared with, and what is asked of it.

use std::{fmt, time::Duration};

use serde::Serialize;

/// From how many measurements on one in a hundred is told.
const TAIL: usize = 100;

/// See the [module](self).
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
    /// What 99 of 100 do not exceed, where there are as many.
    pub p99: Option<f64>,
    /// How many measurements there were.
    pub n: usize,
    /// What the bare system calls for the same keys in the same order took in this run (median).
    pub floor: Option<f64>,
    /// What the reference implementation takes on a machine of this class.
    pub reference: Option<f64>,
    /// What it should be at most.
    pub asked: Vec<Asked>,
}

/// What one figure of a metric should be at most.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Asked {
    /// Which one.
    pub figure: Figure,
    /// The most that meets it.
    pub most: f64,
}

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The median.
    Median,
    /// The 99th percentile.
    P99,
    /// The median as a multiple of the floor.
    XFloor,
    /// The median as a multiple of the reference.
    XReference,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Median => "median",
            Self::P99 => "p99",
            Self::XFloor => "x floor",
            Self::XReference => "x ref",
        })
    }
}

impl Metric {
    /// Makes one of a single measurement.
    #[must_use]
    pub fn once(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            name: name.into(),
            unit,
            median: value,
            min: value,
            p99: None,
            n: 1,
            floor: None,
            reference: None,
            asked: Vec::new(),
        }
    }

    /// Makes one of durations, in milliseconds.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn of_durations(name: impl Into<String>, mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let n = durations.len();
        let tail = (n >= TAIL).then(|| durations.get((n * 99).div_ceil(100) - 1));
        Self {
            min: ms(*durations.first().expect("a measurement")),
            p99: tail.flatten().copied().map(ms),
            n,
            ..Self::once(name, "ms", ms(median(&durations)))
        }
    }

    /// Adds the floor.
    #[must_use]
    pub fn with_floor(mut self, floor: Duration) -> Self {
        self.floor = Some(ms(floor));
        self
    }

    /// Adds the reference, in this unit, as it was taken on a machine of this class.
    #[must_use]
    pub fn with_reference(mut self, reference: f64) -> Self {
        self.reference = Some(reference);
        self
    }

    /// Asks that a figure be at most this.
    #[must_use]
    pub fn asked(mut self, figure: Figure, most: f64) -> Self {
        self.asked.push(Asked { figure, most });
        self
    }

    /// Returns one of its figures, if it has it.
    #[must_use]
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::Median => Some(self.median),
            Figure::P99 => self.p99,
            Figure::XFloor => self.floor.map(|floor| self.median / floor),
            Figure::XReference => self.reference.map(|reference| self.median / reference),
        }
    }

    /// Returns whether all that is asked is met; `None` if nothing is asked.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        let meets = |asked: &Asked| self.figure(asked.figure).is_some_and(|is| is <= asked.most);
        (!self.asked.is_empty()).then(|| self.asked.iter().all(meets))
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
