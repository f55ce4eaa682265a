//! The simulator: the real cores of all three processes against a model of all else.
//!
//! A script from a seed does the worst: crashes, hangs, lost and late messages, drift, failing
//! writes, interfaces that come and go. What must hold is checked at each step, and at the end that
//! the kernel holds what it should. The same seed is the same run.
#![expect(
    clippy::unwrap_used,
    reason = "a simulator that cannot go on says where it stopped"
)]

mod bug;
mod check;
mod cluster;
mod datastore;
mod generate;
mod helper;
mod kernel;
mod node;
mod pace;
mod peers;
mod random;
mod rules;
mod shrink;
pub mod step;
mod supervision;
mod tally;
mod world;

use std::{
    any::Any,
    fmt,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

pub use self::{bug::Bug, rules::Broken, tally::Tally, world::Setup};
use self::{generate::Generator, step::Step, world::World};

/// A run that can be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// What does not change.
    pub setup: Setup,
    /// What happens.
    pub steps: Vec<Step>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        let mut steps = self.steps.iter();
        steps.try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rule was broken.
    Broken(Broken),
    /// A core panicked.
    Panicked(String),
}

impl Failure {
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Broken(one), Self::Broken(other)) => one.rule == other.rule,
            (Self::Panicked(_), Self::Panicked(_)) => true,
            (Self::Broken(_), Self::Panicked(_)) | (Self::Panicked(_), Self::Broken(_)) => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => broken.fmt(f),
            Self::Panicked(text) => write!(f, "a core panicked: {text}"),
        }
    }
}

/// Runs the script of a seed, and returns it with what came of it.
pub fn run(seed: u64, bug: Option<Bug>) -> (Script, Result<Tally, Failure>) {
    let mut generator = Generator::new(seed);
    let mut script = Script {
        setup: generator.setup(),
        steps: Vec::new(),
    };
    let outcome = guarded(|| {
        let mut world = World::new(script.setup, bug);
        let mut take = |world: &mut World, steps: Vec<Step>| {
            steps.into_iter().try_for_each(|step| {
                script.steps.push(step);
                world.take(step)
            })
        };
        let beginning = generator.beginning();
        take(&mut world, beginning)?;
        for _ in 0..generator.turns() {
            let steps = generator.turn(&world);
            take(&mut world, steps)?;
        }
        check::settle(&mut world)?;
        Ok(world.tally)
    });
    (script, outcome)
}

/// Runs a script again.
///
/// # Errors
///
/// If it breaks a rule.
pub fn replay(script: &Script, bug: Option<Bug>) -> Result<Tally, Failure> {
    guarded(|| {
        let mut world = World::new(script.setup, bug);
        script.steps.iter().try_for_each(|step| world.take(*step))?;
        check::settle(&mut world)?;
        Ok(world.tally)
    })
}

/// A script that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The seed that it came from.
    pub seed: u64,
    /// What is left of it.
    pub script: Script,
    /// How it fails.
    pub failure: Failure,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            script,
            failure,
        } = self;
        writeln!(f, "{failure}")?;
        writeln!(f, "CAIRN_SIM_SEED={seed} runs it again; this is enough:")?;
        script.fmt(f)
    }
}

/// Runs the scripts of these seeds on all processors, and returns how much happened in all.
///
/// # Errors
///
/// The failure of the lowest seed that was found to fail, made short.
///
/// # Panics
///
/// If a worker does, which is a bug of the simulator.
pub fn campaign(seeds: Range<u64>, bug: Option<Bug>) -> Result<Tally, Box<Found>> {
    let next = AtomicU64::new(seeds.start);
    let work = || -> Result<Tally, Box<Found>> {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(tally);
            }
            match run(seed, bug) {
                (_, Ok(one)) => tally.merge(&one),
                (script, Err(failure)) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    return Err(Box::new(Found {
                        seed,
                        script,
                        failure,
                    }));
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let outcomes = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    let mut all = Tally::default();
    let mut first: Option<Box<Found>> = None;
    for outcome in outcomes {
        match outcome {
            Ok(tally) => all.merge(&tally),
            Err(found) if first.as_ref().is_none_or(|first| found.seed < first.seed) => {
                first = Some(found);
            }
            Err(_) => {}
        }
    }
    match first {
        None => Ok(all),
        Some(found) => Err(Box::new(shrink::shrink(*found, bug))),
    }
}

fn guarded(run: impl FnOnce() -> Result<Tally, Broken>) -> Result<Tally, Failure> {
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.map_err(Failure::Broken),
        Err(payload) => Err(Failure::Panicked(text(&*payload))),
    }
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("no text").to_owned()
}
