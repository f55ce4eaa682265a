//! Resources in, the graph's routes out, and the entries of both BPF maps where a vector has them.
//!
//! The reference implementation, run step by step, may differ from itself fed afresh. Then the fresh
//! one is right, so nothing here may depend on history.

mod event;

use std::collections::{BTreeMap, BTreeSet};

use ::calc::{
    Calculator,
    event::{Config as Settings, Event as Input, RouteSource},
    route::Route,
};
use ipc_proto::{BpfRoute, BpfTarget, Op};
use ipnet::IpNet;
use serde::{Deserialize, de::IgnoredAny};

use super::{Error, Report, read::Vector, route::RouteUpdate, text};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    hostname: String,
    route_source: Source,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Source {
    #[serde(rename = "CalicoIPAM")]
    CalicoIpam,
    #[serde(rename = "WorkloadIPs")]
    WorkloadIps,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    events: Vec<event::Event>,
    /// All routes.
    routes: Option<Vec<RouteUpdate>>,
    /// The prefixes of those of `routes` that are history.
    #[serde(default)]
    stale: Vec<String>,
    /// The routes of those prefixes.
    #[serde(default)]
    fresh: Vec<RouteUpdate>,
    /// All entries of the BPF maps.
    want_bpf: Option<BTreeSet<String>>,
    #[serde(default, rename = "updated")]
    _updated: IgnoredAny,
    #[serde(default, rename = "removed")]
    _removed: IgnoredAny,
}

pub(super) fn run(vector: &Vector<Config, Step>, report: &mut Report) -> Result<(), Error> {
    report.vectors += 1;
    let mut calculator = Calculator::new(vector.config.hostname.clone());
    calculator.handle(Input::Config(Settings {
        route_source: match vector.config.route_source {
            Source::CalicoIpam => RouteSource::CalicoIpam,
            Source::WorkloadIps => RouteSource::WorkloadIps,
        },
        ..Settings::default()
    }));
    let mut entries = BTreeMap::new();
    for (number, step) in vector.steps.iter().enumerate() {
        report.steps += 1;
        let place = format!("{} ({}) step {number}", vector.name, vector.kind);
        for event in &step.events {
            let input = event
                .input()
                .map_err(|(what, text)| vector.error(what, text))?;
            calculator.handle(input);
        }
        for op in calculator.resolve() {
            if let Op::BpfRoute(cidr, value) = op {
                match value {
                    Some(value) => entries.insert(cidr, value),
                    None => entries.remove(&cidr),
                };
            }
        }
        if let Some(want) = step.want(vector)? {
            let routes = calculator.routes();
            let actual = routes.collect();
            report.check(&place, compare(&actual, &want));
        }
        if let Some(want) = &step.want_bpf {
            let actual = entries.iter().map(entry).collect();
            report.check(&place, compare_entries(&actual, want));
        }
        if step.routes.is_none() && step.want_bpf.is_none() {
            return Err(vector.error("a step that says what must follow", &place));
        }
    }
    Ok(())
}

impl Step {
    /// The routes that must be.
    fn want(&self, vector: &Vector<Config, Self>) -> Result<Option<BTreeMap<IpNet, Route>>, Error> {
        let Some(routes) = &self.routes else {
            return Ok(None);
        };
        let read = |text: &str| text::net(text).ok_or_else(|| vector.error("a prefix", text));
        let mut want = BTreeMap::new();
        for route in routes {
            want.insert(read(&route.dst)?, route.complete(vector)?);
        }
        for dst in &self.stale {
            want.remove(&read(dst)?);
        }
        for route in &self.fresh {
            want.insert(read(&route.dst)?, route.complete(vector)?);
        }
        Ok(Some(want))
    }
}

impl RouteUpdate {
    /// The route, of which nothing may be unreadable.
    fn complete(&self, vector: &Vector<Config, Step>) -> Result<Route, Error> {
        let route = self.route();
        if route.node_ip.is_none() && !self.dst_node_ip.is_empty() {
            return Err(vector.error("an address", &self.dst_node_ip));
        }
        Ok(route)
    }
}

/// An entry as the vectors write it.
fn entry((cidr, route): (&IpNet, &BpfRoute)) -> String {
    let target = match &route.target {
        BpfTarget::None => String::new(),
        BpfTarget::NextHop(node) => format!(" via {node}"),
        BpfTarget::Link(link) => format!(" on {}", link.index),
    };
    format!("{cidr} {:#x}{target}", route.flags.0)
}

fn compare(actual: &BTreeMap<IpNet, Route>, want: &BTreeMap<IpNet, Route>) -> Result<(), String> {
    let cidrs: BTreeSet<_> = actual.keys().chain(want.keys()).collect();
    let wrong: Vec<String> = cidrs
        .into_iter()
        .map(|cidr| (cidr, actual.get(cidr), want.get(cidr)))
        .filter(|(_, actual, want)| actual != want)
        .map(|(cidr, actual, want)| format!("{cidr} is {actual:?}, should be {want:?}"))
        .collect();
    nothing(&wrong)
}

fn compare_entries(actual: &BTreeSet<String>, want: &BTreeSet<String>) -> Result<(), String> {
    let more = actual.difference(want).map(|entry| format!("has {entry}"));
    let less = want
        .difference(actual)
        .map(|entry| format!("lacks {entry}"));
    nothing(&more.chain(less).collect::<Vec<_>>())
}

fn nothing(wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}
