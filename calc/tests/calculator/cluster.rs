//! A whole cluster from its files to the routes of each of its nodes, as the reference computes
//! them from the same resources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use calc::{
    Calculator,
    datastore::Store,
    event::Event,
    route::{PoolKind, Route},
};
use ipc_proto::{Link, LinkEvent, LinkRole, LinkState, Tunnel};
use ipnet::IpNet;
use serde_json::{Value, json};

#[test]
fn the_files_of_a_cluster_give_the_routes_of_each_node() {
    let data = data();
    for (node, desired) in recorded_routes() {
        let mut store = Store::new(&node);
        for entry in fs::read_dir(data.join("yaml")).unwrap() {
            let entry = entry.unwrap();
            store.set(
                &entry.file_name().to_string_lossy(),
                &fs::read(entry.path()).unwrap(),
            );
        }
        let mut calculator = Calculator::new(node.clone());
        for event in store.update().unwrap().events {
            calculator.handle(event);
        }
        calculator.resolve();
        assert_eq!(desired.len(), 35);
        assert_eq!(routes(&calculator), desired, "{node}");
    }
}

#[test]
fn a_tunnel_is_awaited_until_it_is_up_with_its_address() {
    let mut store = Store::new("node-1");
    let data = data().join("yaml");
    for file in ["nodes.yaml", "ippools.yaml"] {
        store.set(file, &fs::read(data.join(file)).unwrap());
    }
    let mut calculator = Calculator::new("node-1".to_owned());
    for event in store.update().unwrap().events {
        calculator.handle(event);
    }
    let mut see = |name: &str, index, role, up, addresses: &[&str]| {
        calculator.handle(Event::Link(LinkEvent::Set(LinkState {
            link: Link {
                index,
                name: name.parse().unwrap(),
            },
            role,
            up,
            carrier: up,
            mac: None,
            mtu: 1500,
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
        })));
        calculator.resolve();
        calculator.awaits_tunnel()
    };
    let (v4, v6) = (
        LinkRole::Tunnel(Tunnel::VxlanV4),
        LinkRole::Tunnel(Tunnel::VxlanV6),
    );
    let own = ["172.31.10.11/24", "fd10:31:10::11/64"];
    assert!(
        !see("lo", 1, LinkRole::Other, true, &[]),
        "without an uplink nothing is asked for"
    );
    assert!(see("eth0", 2, LinkRole::Uplink, true, &own));
    assert!(
        see("vxlan.calico", 3, v4, true, &["10.60.0.0/32"]),
        "the other family's is missing"
    );
    assert!(see("vxlan-v6.calico", 4, v6, true, &[]));
    assert!(see("vxlan-v6.calico", 4, v6, false, &["fd60:0:0:1::/128"]));
    assert!(!see("vxlan-v6.calico", 4, v6, true, &["fd60:0:0:1::/128"]));
}

/// Routes by their prefix.
pub(crate) type Routes = BTreeMap<String, Value>;

/// Where the cluster is.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The routes of each node at the start.
pub(crate) fn recorded_routes() -> BTreeMap<String, Routes> {
    let recorded = fs::read_to_string(data().join("cluster-routes.json")).unwrap();
    let recorded: BTreeMap<String, Vec<Value>> = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded.len(), 3);
    let by_prefix = |routes: Vec<Value>| routes.iter().map(recorded_route).collect();
    recorded
        .into_iter()
        .map(|(node, routes)| (node, by_prefix(routes)))
        .collect()
}

/// The routes that a node has.
pub(crate) fn routes(calculator: &Calculator) -> Routes {
    calculator
        .routes()
        .map(|(cidr, route)| (cidr.to_string(), json(&cidr, &route)))
        .collect()
}

/// A route as it is recorded.
fn json(cidr: &IpNet, route: &Route) -> Value {
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

/// A recorded route and its prefix, with what is not recorded filled in.
pub(crate) fn recorded_route(route: &Value) -> (String, Value) {
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
    (route["dst"].as_str().unwrap().to_owned(), full)
}
