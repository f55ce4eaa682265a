//! Routes that producers ask for, interfaces and accidents in; routes, neighbours and forgotten flows
//! of the real kernel out.
//!
//! Each vector has a network namespace and a helper process of its own. Calc's reconciler and its
//! choice among conflicting routes are the shipped ones; time is the vector's. Whatever the recorded
//! program did, each step is checked against what Cairn must make of it; only then are the two
//! compared, and each difference has a [`Rule`].

mod check;
mod compare;
mod differ;
mod event;
mod graces;
mod kernel;
mod model;
mod node;
mod owners;
mod recorded;
mod writer;

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use serde::{Deserialize, de::IgnoredAny};

use self::{
    event::{Config, Event, Route},
    kernel::Neighbours,
    node::Node,
};
use super::{Error, Report, Rule, read};

type Vector = read::Vector<Config, Step>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    events: Vec<Event>,
    apply_ok: bool,
    #[serde(default, rename = "apply_error")]
    _apply_error: IgnoredAny,
    routes: Vec<Route>,
    permanent_neighbours: Vec<String>,
    conntrack_cleanups: BTreeSet<IpAddr>,
    /// How many times a route is made, replaced or deleted, in those that are made by hand.
    writes: Option<usize>,
    /// That there was no route to delete.
    #[serde(default, rename = "event_errors")]
    _event_errors: IgnoredAny,
    /// What differed between runs of the recorded program. By the rules both outcomes are accepted.
    #[serde(default, rename = "nondeterministic")]
    _nondeterministic: IgnoredAny,
}

impl Step {
    fn neighbours(&self, vector: &Vector) -> Result<Neighbours, Error> {
        let neighbours = self.permanent_neighbours.iter();
        neighbours
            .map(|text| {
                let words: Vec<&str> = text.split(' ').collect();
                let read = match words.as_slice() {
                    [address, "dev", dev, "lladdr", mac] => address
                        .parse()
                        .ok()
                        .zip(mac.parse().ok())
                        .map(|(address, mac)| (((*dev).to_owned(), address), mac)),
                    _ => None,
                };
                read.ok_or_else(|| vector.error("a neighbour", text))
            })
            .collect()
    }
}

/// What the recorded program was seen to do in a step.
#[derive(Debug)]
struct Outcome {
    ok: bool,
    routes: kernel::Routes,
    neighbours: Neighbours,
    flushed: BTreeSet<IpAddr>,
    writes: Option<usize>,
}

pub(super) fn run(vector: &Vector, started: Instant, report: &mut Report) -> Result<(), Error> {
    report.vectors += 1;
    if !matches!(vector.config.ip_version, 4 | 6) {
        return Err(vector.error("an IP version", &vector.config.ip_version.to_string()));
    }
    let mut outcomes = Vec::new();
    for step in &vector.steps {
        let routes = kernel::by_key(step.routes.iter().cloned());
        outcomes.push(Outcome {
            ok: step.apply_ok,
            routes: routes.map_err(|wrong| vector.error("a set of routes", &wrong))?,
            neighbours: step.neighbours(vector)?,
            flushed: step.conntrack_cleanups.clone(),
            writes: step.writes,
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut node = Node::start(&vector.name, &vector.config, started).await;
        for (number, (step, outcome)) in vector.steps.iter().zip(outcomes).enumerate() {
            report.steps += 1;
            let place = format!("{} ({}) step {number}", vector.name, vector.kind);
            for event in &step.events {
                node.take(event).await;
            }
            let applied = node.apply().await;
            for wrong in applied.check() {
                report.check(&place, Err(wrong));
            }
            let mut rules: BTreeSet<Rule> = BTreeSet::new();
            for difference in node.compare(&applied, outcome) {
                match difference {
                    Ok(rule) => drop(rules.insert(rule)),
                    Err(wrong) => report.check(&place, Err(wrong)),
                }
            }
            for rule in rules {
                report.accept(rule);
            }
        }
        let place = format!("{} ({}) read at the end", vector.name, vector.kind);
        for wrong in node.read_at_last().await.check() {
            report.check(&place, Err(wrong));
        }
    });
    Ok(())
}
