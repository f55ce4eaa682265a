//! The recorded behaviour of the reference implementation, with the rules' own answers where they
//! differ: what the maps must hold after each step.

use std::{collections::BTreeMap, fmt::Write, fs, net::IpAddr};

use ipc_proto::{BpfTarget, IfName, Link, LinkEvent, LinkRole, LinkState, Op};
use ipnet::IpNet;
use serde_json::Value;

use super::BpfRoutes;
use crate::{
    event::{Config, Event, ServiceLoopPrevention, Services, Workload, WorkloadKey},
    index::Index,
    kind::{Kind, World},
    prefix::Family,
    resolver::Resolver,
    route::{PoolKind, Route, Types},
};

/// One instance, fed with routes instead of resources.
struct Instance {
    index: Index,
    resolver: Resolver,
    kind: BpfRoutes,
    interfaces: BTreeMap<String, Interface>,
    /// For each made-up index, from 1, the one that the vector means.
    recorded_indexes: Vec<u32>,
    changed: Vec<IpNet>,
    map: BTreeMap<IpNet, ipc_proto::BpfRoute>,
}

#[derive(Default)]
struct Interface {
    /// Its index by the vector, where two interfaces may have the same.
    recorded: u32,
    /// A made-up index, another one whenever `recorded` changes.
    index: u32,
    up: bool,
    addresses: Vec<IpNet>,
}

impl Instance {
    fn new(config: &Value) -> Self {
        let mut instance = Self {
            index: Index::new(text(&config["hostname"]).to_owned()),
            resolver: Resolver::default(),
            kind: BpfRoutes::default(),
            interfaces: BTreeMap::new(),
            recorded_indexes: Vec::new(),
            changed: Vec::new(),
            map: BTreeMap::new(),
        };
        instance.event(Event::Config(Config {
            external_nodes: nets(&config["external_nodes_cidrs"]),
            dsr_optout: nets(&config["bpf_dsr_optout_cidrs"]),
            wireguard: config["wireguard_enabled"] == true
                || config["wireguard_enabled_v6"] == true,
            service_loop_prevention: match text(&config["service_loop_prevention"]) {
                "Reject" => ServiceLoopPrevention::Reject,
                "Disabled" => ServiceLoopPrevention::Disabled,
                _ => ServiceLoopPrevention::Drop,
            },
            ..Config::default()
        }));
        instance
    }

    fn event(&mut self, event: Event) {
        if !self.index.holds(&event) {
            self.kind.on_event(&event, &self.index);
            self.index.apply(event);
        }
    }

    fn recorded(&mut self, event: &Value) {
        match text(&event["type"]) {
            "iface_state" => {
                let up = event["state"] == "up";
                let index = u32::try_from(event["index"].as_u64().unwrap_or(0)).unwrap();
                self.interface(text(&event["name"]), |interface| {
                    interface.up = up && index != 0;
                    interface.recorded = index;
                });
            }
            "iface_addrs" => {
                let list = event["addrs"].as_array().into_iter().flatten();
                let addresses = list.filter_map(|one| untruncated(text(one))).collect();
                self.interface(text(&event["name"]), |interface| {
                    interface.addresses = addresses;
                });
            }
            "route_update" => {
                if let Some(cidr) = net(text(&event["dst"])) {
                    self.route(cidr, Some(route(event)));
                }
            }
            "route_remove" => {
                if let Some(cidr) = net(text(&event["dst"])) {
                    self.route(cidr, None);
                }
            }
            "wep_update" => {
                let mut all = nets(&event["ipv4_nets"]);
                all.retain(|net| Family::of_net(net) == Family::V4);
                let mut v6 = nets(&event["ipv6_nets"]);
                v6.retain(|net| Family::of_net(net) == Family::V6);
                all.append(&mut v6);
                let workload = Workload {
                    interface: name(text(&event["name"])),
                    nets: all,
                    mac: None,
                    skip_ingress_redirect: event["skip_redir_ingress"] == true,
                };
                self.event(Event::Workload(self.key(&event["id"]), Some(workload)));
            }
            "wep_remove" => self.event(Event::Workload(self.key(&event["id"]), None)),
            "bgp_config" => {
                let lists = [
                    "service_cluster_cidrs",
                    "service_external_cidrs",
                    "service_loadbalancer_cidrs",
                ];
                let prefixes = lists.iter().flat_map(|list| nets(&event[list])).collect();
                self.event(Event::Services(Services { prefixes }));
            }
            other => panic!("unknown event {other}"),
        }
    }

    fn key(&self, id: &Value) -> WorkloadKey {
        WorkloadKey {
            node: self.index.name.to_string(),
            orchestrator: text(&id["orchestrator_id"]).to_owned(),
            workload: text(&id["workload_id"]).to_owned(),
            endpoint: text(&id["endpoint_id"]).to_owned(),
        }
    }

    fn interface(&mut self, interface_name: &str, change: impl FnOnce(&mut Interface)) {
        let interface = self
            .interfaces
            .entry(interface_name.to_owned())
            .or_default();
        let (before, recorded) = (interface.index, interface.recorded);
        change(interface);
        if before == 0 || interface.recorded != recorded {
            self.recorded_indexes.push(interface.recorded);
            interface.index = u32::try_from(self.recorded_indexes.len()).unwrap();
        }
        let state = LinkState {
            link: Link {
                index: interface.index,
                name: name(interface_name),
            },
            role: LinkRole::Other,
            up: interface.up,
            mac: None,
            mtu: 1500,
            addresses: interface.addresses.clone(),
        };
        if before != 0 && before != state.link.index {
            let link = Link {
                index: before,
                ..state.link.clone()
            };
            self.event(Event::Link(LinkEvent::Gone(link)));
        }
        self.event(Event::Link(LinkEvent::Set(state)));
    }

    fn route(&mut self, cidr: IpNet, route: Option<Route>) {
        self.resolver.put(cidr, route);
        self.changed.push(cidr);
    }

    fn resolve(&mut self) {
        let world = World {
            index: &self.index,
            routes: &self.resolver,
            changed: &self.changed,
        };
        let mut ops = Vec::new();
        self.kind.resolve_batch(&world, &mut ops);
        self.changed.clear();
        for op in ops {
            let Op::BpfRoute(cidr, value) = op else {
                panic!("{op:?}")
            };
            let former = self.map.get(&cidr).cloned();
            assert_ne!(former, value, "{cidr}: an op that changes nothing");
            match value {
                Some(value) => self.map.insert(cidr, value),
                None => self.map.remove(&cidr),
            };
        }
    }

    /// The map of one family, as the vectors write it.
    fn map(&self, family: Family) -> Vec<String> {
        let entries = self
            .map
            .iter()
            .filter(|(cidr, _)| Family::of_net(cidr) == family);
        let mut lines: Vec<String> = entries
            .map(|(cidr, route)| {
                let width = usize::from(cidr.max_prefix_len()) / 8;
                let mut payload = match &route.target {
                    BpfTarget::None => Vec::new(),
                    BpfTarget::NextHop(address) => octets(*address),
                    BpfTarget::Link(link) => {
                        let at = usize::try_from(link.index).unwrap() - 1;
                        self.recorded_indexes[at].to_le_bytes().to_vec()
                    }
                };
                payload.resize(width, 0);
                format!(
                    "{}{} {}{}",
                    hex(&u32::from(cidr.prefix_len()).to_le_bytes()),
                    hex(&octets(cidr.addr())),
                    hex(&route.flags.0.to_le_bytes()),
                    hex(&payload),
                )
            })
            .collect();
        lines.sort();
        lines
    }
}

fn route(event: &Value) -> Route {
    let types = event["types"].as_array().into_iter().flatten();
    Route {
        types: types.fold(Types::NONE, |all, one| {
            all.with(match text(one) {
                "REMOTE_WORKLOAD" => Types::REMOTE_WORKLOAD,
                "REMOTE_HOST" => Types::REMOTE_HOST,
                "LOCAL_WORKLOAD" => Types::LOCAL_WORKLOAD,
                "LOCAL_HOST" => Types::LOCAL_HOST,
                "REMOTE_TUNNEL" => Types::REMOTE_TUNNEL,
                "LOCAL_TUNNEL" => Types::LOCAL_TUNNEL,
                other => panic!("unknown type {other}"),
            })
        }),
        pool: match text(&event["ip_pool_type"]) {
            "NO_ENCAP" => PoolKind::NoEncap,
            "VXLAN" => PoolKind::Vxlan,
            "IPIP" => PoolKind::Ipip,
            _ => PoolKind::None,
        },
        node: event["dst_node_name"].as_str().map(Into::into),
        node_ip: address(text(&event["dst_node_ip"])),
        same_subnet: event["same_subnet"] == true,
        nat_outgoing: event["nat_outgoing"] == true,
        local_workload: event["local_workload"] == true,
        borrowed: event["borrowed"] == true,
        ..Route::default()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn name(text: &str) -> IfName {
    text.parse().unwrap_or_else(|_| "invalid".parse().unwrap())
}

/// V1: an IPv4 address in IPv6 clothes is none.
fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        IpAddr::V4(_) | IpAddr::V6(_) => Some(address),
    }
}

/// V1: without a length it is a single address; host bits are cleared.
fn net(text: &str) -> Option<IpNet> {
    Some(untruncated(text)?.trunc())
}

fn untruncated(text: &str) -> Option<IpNet> {
    match text.split_once('/') {
        None => Some(address(text)?.into()),
        Some((start, length)) if length.bytes().all(|b| b.is_ascii_digit()) => {
            IpNet::new(address(start)?, length.parse().ok()?).ok()
        }
        Some(_) => None,
    }
}

/// V2: what cannot be read is left out.
fn nets(list: &Value) -> Vec<IpNet> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| net(text(one)))
        .collect()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|one| text(one).to_owned())
        .collect()
}

#[test]
fn the_maps_are_those_of_the_vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bpf.jsonl");
    let mut wrong = Vec::new();
    let mut steps = 0;
    for line in fs::read_to_string(path).unwrap().lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let mut instance = Instance::new(&vector["config"]);
        let family = if vector["config"]["ip_version"] == 6 {
            Family::V6
        } else {
            Family::V4
        };
        for (number, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
            for event in step["events"].as_array().unwrap() {
                instance.recorded(event);
            }
            instance.resolve();
            steps += 1;
            let at = format!("{} step {number}", vector["name"]);
            let (desired, want) = (instance.map(family), strings(&step["want_map"]));
            if desired != want {
                wrong.push(format!("{at}: {desired:#?}\nshould be {want:#?}"));
            }
            if let Some(want) = step.get("want_host_ips") {
                let mut addresses: Vec<_> = instance
                    .index
                    .links
                    .local_addresses()
                    .filter(|address| Family::of(*address) == family)
                    .map(|address| address.to_string())
                    .collect();
                addresses.sort();
                if addresses != strings(want) {
                    wrong.push(format!("{at}: {addresses:?} should be {want}"));
                }
            }
        }
    }
    assert_eq!(steps, 1548, "some vectors were not read");
    assert!(
        wrong.is_empty(),
        "{} of {steps} wrong: {}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
