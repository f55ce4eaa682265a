//! Recorded behaviour of the reference implementation, and the shipped cores run on the same input.
//!
//! A vector is a script of steps, each with events and what must follow from them. Where Cairn
//! differs on purpose, a named [`Rule`] says so, checks that its own way holds, and is counted;
//! anything else that differs is a mismatch. What is in a file but unknown here is an error.

mod bpf;
mod calc;
mod read;
mod route;
mod routetable;
mod rule;
mod text;

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZero,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::Instant,
};

pub use self::rule::Rule;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Routes, endpoints, interfaces and settings in, a BPF route map out.
    Bpf,
    /// Resources in, the graph's routes out.
    Calc,
    /// Routes that are asked for, interfaces and accidents of the kernel in; the kernel's routes out.
    Routetable,
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "bpf" => Ok(Self::Bpf),
            "calc" => Ok(Self::Calc),
            "routetable" => Ok(Self::Routetable),
            other => Err(Error::Unknown(other.to_owned())),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "bpf",
            Self::Calc => "calc",
            Self::Routetable => "routetable",
        })
    }
}

/// Why vectors cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There are none of this kind.
    #[error("{0:?} is none of bpf, calc and routetable")]
    Unknown(String),
    /// A file or directory cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// There is nothing to read.
    #[error("{0} holds no .json or .jsonl file")]
    Empty(PathBuf),
    /// A file is not a vector of the kind.
    #[error("{0}: {1}")]
    Parse(PathBuf, serde_json::Error),
    /// A text within a vector means nothing.
    #[error("{vector}: {text:?} is not {what}")]
    Text {
        /// The vector.
        vector: String,
        /// The text.
        text: String,
        /// What it should be.
        what: &'static str,
    },
}

/// What came of running vectors.
#[derive(Debug)]
pub struct Report {
    kind: Kind,
    /// How many files were read.
    pub files: usize,
    /// How many vectors they held.
    pub vectors: usize,
    /// How many steps those had.
    pub steps: usize,
    /// How many steps differ by each rule.
    pub accepted: BTreeMap<Rule, usize>,
    /// What differs otherwise.
    pub mismatches: Vec<String>,
}

impl Report {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            files: 0,
            vectors: 0,
            steps: 0,
            accepted: BTreeMap::new(),
            mismatches: Vec::new(),
        }
    }

    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.vectors += other.vectors;
        self.steps += other.steps;
        for (rule, count) in other.accepted {
            *self.accepted.entry(rule).or_default() += count;
        }
        self.mismatches.extend(other.mismatches);
    }

    fn accept(&mut self, rule: Rule) {
        *self.accepted.entry(rule).or_default() += 1;
    }

    /// Notes what is wrong at a place, if anything is.
    fn check(&mut self, place: &dyn fmt::Display, checked: Result<(), String>) {
        if let Err(wrong) = checked {
            self.mismatches.push(format!("{place}: {wrong}"));
        }
    }

    /// The one line that tells all.
    #[must_use]
    pub fn verdict(&self) -> String {
        format!(
            "vectors {}: {} steps, {} mismatches",
            self.kind,
            self.steps,
            self.mismatches.len()
        )
    }
}

impl fmt::Display for Report {
    /// Writes all but the [`verdict`](Self::verdict), of many mismatches the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX: usize = 20;
        for mismatch in self.mismatches.iter().take(MAX) {
            writeln!(f, "{mismatch}")?;
        }
        let more = self.mismatches.len().saturating_sub(MAX);
        if more > 0 {
            writeln!(f, "and {more} more")?;
        }
        writeln!(
            f,
            "read {} files, {} vectors, {} steps",
            self.files, self.vectors, self.steps
        )?;
        for (rule, count) in &self.accepted {
            writeln!(f, "accepted {count} steps by {rule}")?;
        }
        Ok(())
    }
}

/// Runs the vectors of files, and of directories with such files.
///
/// # Errors
///
/// If one of them cannot be read or is not a vector of the kind.
///
/// # Panics
///
/// If the reconciler does what no kernel could make sense of; with [`Kind::Routetable`] also outside of
/// [`isolate`](crate::isolate), or if the kernel or the helper is not as expected.
pub fn run<P: AsRef<Path>>(kind: Kind, places: &[P]) -> Result<Report, Error> {
    let mut files = Vec::new();
    for place in places {
        files.extend(read::files(place.as_ref())?);
    }
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let started = Instant::now();
    thread::scope(|scope| {
        let shares: Vec<_> = (0..workers)
            .map(|worker| {
                let share = files.iter().skip(worker).step_by(workers);
                scope.spawn(move || {
                    let mut report = Report::new(kind);
                    for file in share {
                        run_file(file, started, &mut report)?;
                    }
                    Ok(report)
                })
            })
            .collect();
        let mut report = Report::new(kind);
        for share in shares {
            report.add(share.join().unwrap()?);
        }
        report.mismatches.sort();
        Ok(report)
    })
}

fn run_file(path: &Path, started: Instant, report: &mut Report) -> Result<(), Error> {
    report.files += 1;
    match report.kind {
        Kind::Bpf => {
            for vector in read::vectors(path)? {
                bpf::run(&vector, started, report)?;
            }
        }
        Kind::Calc => {
            for vector in read::vectors(path)? {
                calc::run(&vector, report)?;
            }
        }
        Kind::Routetable => {
            for vector in read::vectors(path)? {
                routetable::run(&vector, started, report)?;
            }
        }
    }
    Ok(())
}
