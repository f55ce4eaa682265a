//! Routes of the graph, endpoints, interfaces and settings in; the writes to one BPF route map out.
//!
//! The shipped calculator is told the routes, and the shipped reconciler writes the map, once a
//! step. All of the map counts, also what others put there.

mod bytes;
mod check;
mod event;
mod kernel;
mod links;
mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    net::IpAddr,
    time::{Duration, Instant},
};

use ::calc::{
    Calculator,
    event::{
        Bgp, Config as Settings, Event as Input, MigrationRole, ServiceLoopPrevention, Workload,
        WorkloadKey,
    },
};
use ipc_proto::{IfName, LinkEvent, Op};
use ipnet::IpNet;
use serde::{Deserialize, de::IgnoredAny};

use self::{
    check::{Unasked, WantWrites},
    event::{Event, MapFault, State},
    kernel::{Kernel, Outcome},
    links::Links,
    writer::Writer,
};
use super::{Error, Report, Rule, read, text};

/// Longer than the reconciler ever waits before it tries again.
const STEP: Duration = Duration::from_secs(31);

pub(super) type Vector = read::Vector<Config, Step>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    hostname: String,
    ip_version: u8,
    #[serde(default)]
    external_nodes_cidrs: Vec<String>,
    #[serde(default)]
    bpf_dsr_optout_cidrs: Vec<String>,
    #[serde(default)]
    wireguard_enabled: bool,
    #[serde(default)]
    wireguard_enabled_v6: bool,
    #[serde(default)]
    service_loop_prevention: LoopPrevention,
    /// What is in the map before the start.
    #[serde(default)]
    initial_map: Vec<(String, String)>,
    #[serde(default = "default_max_entries")]
    max_entries: u32,
}

fn default_max_entries() -> u32 {
    ebpf::DEFAULT_MAX_ENTRIES
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum LoopPrevention {
    #[default]
    Drop,
    Reject,
    Disabled,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    events: Vec<Event>,
    want_map: Vec<String>,
    want_writes: WantWrites,
    want_order: Option<Vec<String>>,
    want_host_ips: Option<Vec<String>>,
    /// The rules by which the reference implementation differs, and what it did.
    #[serde(default, rename = "differs")]
    _differs: IgnoredAny,
    #[serde(default, rename = "felix_map")]
    _felix_map: IgnoredAny,
    #[serde(default, rename = "nondet")]
    _nondet: IgnoredAny,
    #[serde(default, rename = "writes")]
    _writes: IgnoredAny,
    #[serde(default, rename = "host_ips")]
    _host_ips: IgnoredAny,
}

pub(super) fn run(vector: &Vector, started: Instant, report: &mut Report) -> Result<(), Error> {
    report.vectors += 1;
    let mut node = Node::new(vector, started)?;
    for (number, step) in vector.steps.iter().enumerate() {
        report.steps += 1;
        let place = format!("{} ({}) step {number}", vector.name, vector.kind);
        for event in &step.events {
            node.take(vector, event)?;
        }
        node.step(&place, number == 0, step, report);
    }
    let place = format!("{} ({}) read at the end", vector.name, vector.kind);
    report.check(&place, node.read_at_last());
    Ok(())
}

/// A node, with two writers that differ in nothing but that one is asked to read.
struct Node {
    v6: bool,
    calculator: Calculator,
    links: Links,
    /// What the map should be.
    desired: BTreeMap<IpNet, ipc_proto::BpfRoute>,
    host_ips: Vec<String>,
    asked: Writer,
    unasked: Writer,
    /// What others have changed since the unasked writer read the map.
    disturbed: BTreeSet<IpNet>,
    /// The keys of the unasked writer's failed writes.
    failed: BTreeSet<IpNet>,
    now: Instant,
}

impl Node {
    fn new(vector: &Vector, now: Instant) -> Result<Self, Error> {
        let config = &vector.config;
        let v6 = match config.ip_version {
            4 => false,
            6 => true,
            other => return Err(vector.error("an IP version", &other.to_string())),
        };
        let mut calculator = Calculator::told_routes(config.hostname.clone());
        calculator.handle(Input::Config(Settings {
            external_nodes: text::nets(&config.external_nodes_cidrs).collect(),
            dsr_optout: text::nets(&config.bpf_dsr_optout_cidrs).collect(),
            wireguard: config.wireguard_enabled || config.wireguard_enabled_v6,
            service_loop_prevention: match config.service_loop_prevention {
                LoopPrevention::Drop => ServiceLoopPrevention::Drop,
                LoopPrevention::Reject => ServiceLoopPrevention::Reject,
                LoopPrevention::Disabled => ServiceLoopPrevention::Disabled,
            },
            ..Settings::default()
        }));
        let writer = || {
            let mut kernel = Kernel::new(usize::try_from(config.max_entries).unwrap());
            for (key, value) in &config.initial_map {
                kernel.disturb(map_key(vector, key)?, map_value(vector, value)?);
            }
            Ok(Writer::new(now, kernel))
        };
        Ok(Self {
            v6,
            calculator,
            links: Links::default(),
            desired: BTreeMap::new(),
            host_ips: Vec::new(),
            asked: writer()?,
            unasked: writer()?,
            disturbed: BTreeSet::new(),
            failed: BTreeSet::new(),
            now,
        })
    }

    /// Takes in one event.
    fn take(&mut self, vector: &Vector, event: &Event) -> Result<(), Error> {
        match event {
            Event::IfaceState(iface) => {
                let (name, up) = (if_name(vector, &iface.name)?, iface.state == State::Up);
                let events = self.links.set_state(&name, iface.index, up);
                self.tell_links(events);
            }
            Event::IfaceAddrs(iface) => {
                let name = if_name(vector, &iface.name)?;
                let addresses = iface.addrs.iter().filter_map(|one| text::untruncated(one));
                let events = self.links.set_addresses(&name, addresses.collect());
                self.tell_links(events);
            }
            Event::RouteUpdate(update) => {
                if let Some(cidr) = text::net(&update.dst) {
                    self.calculator.tell(cidr, Some(update.route()));
                }
            }
            Event::RouteRemove(remove) => {
                if let Some(cidr) = text::net(&remove.dst) {
                    self.calculator.tell(cidr, None);
                }
            }
            Event::WepUpdate(update) => {
                // A prefix in the list of the other family is a bad one.
                let v4 = text::nets(&update.ipv4_nets).filter(|net| net.addr().is_ipv4());
                let v6 = text::nets(&update.ipv6_nets).filter(|net| net.addr().is_ipv6());
                let workload = Workload {
                    interface: if_name(vector, &update.name)?,
                    nets: v4.chain(v6).collect(),
                    mac: None,
                    skip_ingress_redirect: update.skip_redir_ingress,
                    bgp_peer: false,
                    migration: MigrationRole::None,
                };
                let key = workload_key(vector, &update.id);
                self.calculator.handle(Input::Workload(key, Some(workload)));
            }
            Event::WepRemove(remove) => {
                let key = workload_key(vector, &remove.id);
                self.calculator.handle(Input::Workload(key, None));
            }
            Event::BgpConfig(config) => {
                let lists = [&config.cluster, &config.external, &config.load_balancer];
                let prefixes = lists.into_iter().flat_map(|list| text::nets(list));
                let services = prefixes.collect();
                self.calculator.handle(Input::Bgp(Bgp {
                    services,
                    ..Bgp::default()
                }));
            }
            Event::MapFault(fault) => {
                self.set_fault(fault);
            }
            Event::MapSet(set) => {
                let (key, value) = (map_key(vector, &set.key)?, map_value(vector, &set.value)?);
                for writer in [&mut self.asked, &mut self.unasked] {
                    writer.kernel.disturb(key, value.clone());
                }
                self.disturbed.insert(key.trunc());
            }
            Event::MapDel(del) => {
                let key = map_key(vector, &del.key)?;
                for writer in [&mut self.asked, &mut self.unasked] {
                    writer.kernel.remove(key);
                }
                self.disturbed.insert(key.trunc());
            }
        }
        Ok(())
    }

    fn tell_links(&mut self, events: Vec<LinkEvent>) {
        for event in events {
            self.calculator.handle(Input::Link(event));
        }
    }

    fn set_fault(&mut self, fault: &MapFault) {
        for writer in [&mut self.asked, &mut self.unasked] {
            writer.kernel.fault.clone_from(fault);
        }
    }

    /// Applies what was taken in, and checks what follows.
    fn step(&mut self, place: &dyn Display, first: bool, step: &Step, report: &mut Report) {
        self.now += STEP;
        let mut changed = BTreeSet::new();
        for op in self.calculator.resolve() {
            let Op::BpfRoute(cidr, value) = op else {
                continue;
            };
            if cidr.addr().is_ipv6() != self.v6 {
                continue;
            }
            changed.insert(cidr);
            for writer in [&mut self.asked, &mut self.unasked] {
                writer.want(Op::BpfRoute(cidr, value.clone()));
            }
            match value {
                Some(value) => self.desired.insert(cidr, value),
                None => self.desired.remove(&cidr),
            };
        }
        let resynced = step.want_writes.resynced;
        let doubtful = first || self.asked.doubts;
        report.check(place, check::reading(resynced, doubtful));
        if resynced && !first {
            self.asked.ask_to_read(self.now);
            report.accept(Rule::ReadWhenAsked);
        }
        let done = self.asked.apply(self.now, &self.links);
        report.check(
            place,
            check::map(&self.asked.kernel.lines(), &step.want_map),
        );
        report.check(place, step.want_writes.check(&done));
        report.check(place, check::groups(&done));
        if let Some(want) = &step.want_order {
            match check::order(&done, want) {
                Ok(true) => report.accept(Rule::OrderWithinGroup),
                Ok(false) => {}
                Err(wrong) => report.check(place, Err(wrong)),
            }
        }
        report.check(place, self.check_host_ips(step.want_host_ips.as_deref()));
        if first {
            self.disturbed.clear();
        }
        let checked = self.apply_unasked(first, &changed);
        report.check(
            place,
            checked.map_err(|wrong| format!("not asked to read: {wrong}")),
        );
        self.set_fault(&MapFault::default());
    }

    /// Applies what was taken in without being asked to read, and checks what follows.
    fn apply_unasked(&mut self, first: bool, changed: &BTreeSet<IpNet>) -> Result<(), String> {
        let done = self.unasked.apply(self.now, &self.links);
        let checked = Unasked {
            first,
            changed,
            failed: &self.failed,
            disturbed: &self.disturbed,
            done: &done,
            map: &self.unasked.kernel.map(),
            desired: &self.desired_bytes(),
        }
        .check();
        self.failed = done
            .writes
            .iter()
            .filter(|write| write.outcome == Outcome::Failed)
            .map(|write| write.key)
            .collect();
        checked
    }

    /// Checks that the writer that was never asked repairs everything once it is.
    fn read_at_last(&mut self) -> Result<(), String> {
        self.now += STEP;
        self.unasked.ask_to_read(self.now);
        self.unasked.apply(self.now, &self.links);
        let (map, desired) = (self.unasked.kernel.map(), self.desired_bytes());
        if map == desired {
            Ok(())
        } else {
            Err(format!("the map is {map:?}, should be {desired:?}"))
        }
    }

    fn desired_bytes(&self) -> BTreeMap<IpNet, Vec<u8>> {
        let entries = self.desired.iter();
        entries
            .map(|(cidr, route)| (*cidr, bytes::value(cidr, route, &self.links)))
            .collect()
    }

    /// Checks that the host's addresses are announced if they have changed, and only then (V25).
    fn check_host_ips(&mut self, want: Option<&[String]>) -> Result<(), String> {
        let addresses = self.calculator.host_addresses();
        let mut addresses: Vec<String> = addresses
            .filter(|address: &IpAddr| address.is_ipv6() == self.v6)
            .map(|address| address.to_string())
            .collect();
        addresses.sort();
        let news = (addresses != self.host_ips).then(|| addresses.clone());
        self.host_ips = addresses;
        if news.as_deref() == want {
            Ok(())
        } else {
            Err(format!("announced addresses {news:?}, should be {want:?}"))
        }
    }
}

fn if_name(vector: &Vector, text: &str) -> Result<IfName, Error> {
    text.parse()
        .map_err(|_too_long| vector.error("the name of an interface", text))
}

fn workload_key(vector: &Vector, id: &event::WepId) -> WorkloadKey {
    WorkloadKey {
        node: vector.config.hostname.clone(),
        orchestrator: id.orchestrator.clone(),
        workload: id.workload.clone(),
        endpoint: id.endpoint.clone(),
    }
}

fn map_key(vector: &Vector, digits: &str) -> Result<IpNet, Error> {
    text::unhex(digits)
        .and_then(|bytes| bytes::read_key(&bytes))
        .ok_or_else(|| vector.error("a key of the map", digits))
}

fn map_value(vector: &Vector, digits: &str) -> Result<Vec<u8>, Error> {
    text::unhex(digits).ok_or_else(|| vector.error("a value of the map", digits))
}
