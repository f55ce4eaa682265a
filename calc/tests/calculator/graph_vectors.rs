//! The recorded behaviour of the reference implementation's route resolver: resources in, routes
//! out. Where the reference, run step by step, differs from itself fed afresh, the vectors hold
//! what the fresh one says, so these also show that nothing here depends on history.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
};

use calc::{
    Calculator,
    event::{
        Block, Config, Event, Node, NodeAddress, NodeAddressKind, Pool, RouteSource, TunnelMode,
        Workload, WorkloadKey,
    },
    route::{PoolKind, Route},
};
use ipnet::IpNet;
use serde_json::{Value, json};

#[test]
fn the_routes_are_those_of_the_vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/graph.jsonl");
    let mut wrong = Vec::new();
    let mut steps = 0;
    for line in fs::read_to_string(path).unwrap().lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let mut calculator = Calculator::new(text(&vector["config"]["hostname"]).to_owned());
        calculator.handle(Event::Config(Config {
            route_source: match text(&vector["config"]["route_source"]) {
                "WorkloadIPs" => RouteSource::WorkloadIps,
                _ => RouteSource::CalicoIpam,
            },
            ..Config::default()
        }));
        for (number, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
            for recorded in step["events"].as_array().unwrap() {
                calculator.handle(event(recorded));
            }
            calculator.resolve();
            steps += 1;
            let actual: BTreeMap<String, Value> = calculator
                .routes()
                .map(|(cidr, route)| (cidr.to_string(), json(cidr, route)))
                .collect();
            let desired: BTreeMap<String, Value> = step["routes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|route| (text(&route["dst"]).to_owned(), complete(route)))
                .collect();
            let cidrs: BTreeSet<_> = actual.keys().chain(desired.keys()).collect();
            for cidr in cidrs {
                let (actual, desired) = (actual.get(cidr), desired.get(cidr));
                if actual != desired {
                    wrong.push(format!(
                        "{} step {number} {cidr}: {actual:?}\nshould be {desired:?}",
                        vector["name"]
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong: {}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert_eq!(steps, 1579, "some vectors were not read");
}

/// A route as the vectors write it.
pub(crate) fn json(cidr: &IpNet, route: &Route) -> Value {
    json!({
        "dst": cidr,
        "types": route.types.names().collect::<Vec<_>>(),
        "ip_pool_type": match route.pool {
            PoolKind::None => "NONE",
            PoolKind::NoEncap => "NO_ENCAP",
            PoolKind::Vxlan => "VXLAN",
            PoolKind::Ipip => "IPIP",
        },
        "dst_node_name": route.node.as_deref().unwrap_or(""),
        "dst_node_ip": route.node_ip.map_or_else(String::new, |address| address.to_string()),
        "same_subnet": route.same_subnet,
        "nat_outgoing": route.nat_outgoing,
        "local_workload": route.local_workload,
        "borrowed": route.borrowed,
        "tunnel_type": {
            "ipip": route.tunnels.ipip,
            "vxlan": route.tunnels.vxlan,
            "wireguard": route.tunnels.wireguard,
        },
    })
}

/// Fills in what the vectors leave out.
pub(crate) fn complete(route: &Value) -> Value {
    let mut full = json!({
        "dst_node_name": "",
        "dst_node_ip": "",
        "same_subnet": false,
        "nat_outgoing": false,
        "local_workload": false,
        "borrowed": false,
        "tunnel_type": { "ipip": false, "vxlan": false, "wireguard": false },
    });
    for (key, value) in route.as_object().unwrap() {
        full[key] = value.clone();
    }
    full
}

pub(crate) fn event(recorded: &Value) -> Event {
    match text(&recorded["type"]) {
        "node" => Event::Node(text(&recorded["name"]).to_owned(), Some(node(recorded))),
        "node_remove" => Event::Node(text(&recorded["name"]).to_owned(), None),
        "ip_pool" => Event::Pool(
            cidr(recorded),
            Some(Pool {
                vxlan: mode(&recorded["vxlan_mode"]),
                ipip: mode(&recorded["ipip_mode"]),
                nat_outgoing: recorded["masquerade"] == true,
                load_balancer_only: recorded["allowed_uses"] == json!(["LoadBalancer"]),
            }),
        ),
        "ip_pool_remove" => Event::Pool(cidr(recorded), None),
        "block" => Event::Block(cidr(recorded), Some(block(recorded))),
        "block_remove" => Event::Block(cidr(recorded), None),
        "wep" => {
            let mut nets = Vec::new();
            for list in ["ipv4_nets", "ipv6_nets"] {
                for net in recorded[list].as_array().into_iter().flatten() {
                    nets.push(text(net).parse::<IpNet>().unwrap().trunc());
                }
            }
            let workload = Workload {
                interface: recorded["interface"]
                    .as_str()
                    .unwrap_or("cali0")
                    .parse()
                    .unwrap(),
                nets,
                mac: None,
                skip_ingress_redirect: false,
            };
            Event::Workload(key(recorded), Some(workload))
        }
        "wep_remove" => Event::Workload(key(recorded), None),
        other => panic!("unknown event {other}"),
    }
}

fn node(recorded: &Value) -> Node {
    let addresses = recorded["addresses"].as_array().into_iter().flatten();
    Node {
        bgp_ipv4: subnet(&recorded["bgp_ipv4_address"]),
        bgp_ipv6: subnet(&recorded["bgp_ipv6_address"]),
        addresses: addresses
            .filter_map(|one| {
                Some(NodeAddress {
                    address: address(&one["address"])?,
                    kind: match text(&one["type"]) {
                        "InternalIP" => NodeAddressKind::Internal,
                        "ExternalIP" => NodeAddressKind::External,
                        _ => NodeAddressKind::Other,
                    },
                })
            })
            .collect(),
        ipip: address(&recorded["ipip_tunnel_addr"]),
        vxlan_v4: address(&recorded["vxlan_tunnel_addr_v4"]),
        vxlan_v6: address(&recorded["vxlan_tunnel_addr_v6"]),
        wireguard_v4: address(&recorded["wireguard_addr_v4"]),
        wireguard_v6: address(&recorded["wireguard_addr_v6"]),
        ..Node::default()
    }
}

fn block(recorded: &Value) -> Block {
    let allocations = recorded["allocations"].as_object().into_iter().flatten();
    Block {
        owner: text(&recorded["affinity"])
            .split_once(':')
            .map(|(_, node)| node.to_owned()),
        allocations: allocations
            .filter(|(_, node)| !text(node).is_empty())
            .map(|(ordinal, node)| (ordinal.parse().unwrap(), text(node).to_owned()))
            .collect(),
    }
}

fn key(recorded: &Value) -> WorkloadKey {
    WorkloadKey {
        node: text(&recorded["host"]).to_owned(),
        orchestrator: text(&recorded["orchestrator_id"]).to_owned(),
        workload: text(&recorded["workload_id"]).to_owned(),
        endpoint: text(&recorded["endpoint_id"]).to_owned(),
    }
}

fn cidr(recorded: &Value) -> IpNet {
    text(&recorded["cidr"]).parse().unwrap()
}

fn mode(value: &Value) -> TunnelMode {
    match text(value) {
        "always" => TunnelMode::Always,
        "cross-subnet" => TunnelMode::CrossSubnet,
        _ => TunnelMode::Never,
    }
}

fn address(value: &Value) -> Option<IpAddr> {
    text(value).parse().ok()
}

fn subnet(value: &Value) -> Option<IpNet> {
    text(value)
        .parse()
        .ok()
        .or_else(|| Some(address(value)?.into()))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
