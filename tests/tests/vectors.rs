//! The recorded behaviour of the reference implementation, and that the runner sees what differs.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on panics"
)]

#[path = "vectors/routetable.rs"]
mod routetable;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use serde_json::{Value, json};
use tests::vectors::{self, Error, Kind, Report, Rule};

fn data(kind: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("data/vectors").join(kind)
}

#[test]
fn the_bpf_maps_are_those_of_the_vectors() {
    let report = vectors::run(Kind::Bpf, &[data("bpf")]).unwrap();
    assert!(report.mismatches.is_empty(), "{report}");
    assert_eq!((report.files, report.vectors, report.steps), (4, 391, 1935));
    let accepted = BTreeMap::from([(Rule::ReadWhenAsked, 61), (Rule::OrderWithinGroup, 31)]);
    assert_eq!(report.accepted, accepted);
}

#[test]
fn the_graphs_routes_are_those_of_the_vectors() {
    let report = vectors::run(Kind::Calc, &[data("calc")]).unwrap();
    assert!(report.mismatches.is_empty(), "{report}");
    assert_eq!((report.files, report.vectors, report.steps), (2, 240, 1669));
    assert_eq!(report.accepted, BTreeMap::new());
}

/// Runs one vector from a file.
fn run(kind: Kind, vector: &Value) -> Result<Report, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.json"), vector.to_string()).unwrap();
    vectors::run(kind, &[dir.path()])
}

/// A node comes up, is lost from the map, and a write fails: the next apply repairs both.
fn bpf() -> Value {
    let host = |last: u8| {
        let address = format!("192.168.7.{last}");
        json!({
            "type": "route_update", "dst": address, "types": ["REMOTE_HOST"],
            "dst_node_name": "node-b", "dst_node_ip": address,
        })
    };
    let [two, three, four] = [
        "20000000c0a80702 10000000c0a80702",
        "20000000c0a80703 10000000c0a80703",
        "20000000c0a80704 10000000c0a80704",
    ];
    json!({
        "name": "one",
        "config": { "hostname": "node-a", "ip_version": 4 },
        "steps": [
            {
                "events": [
                    host(2),
                    host(3),
                    { "type": "iface_addrs", "name": "eth0", "addrs": ["192.168.7.1/24"] },
                ],
                "want_map": ["20000000c0a80701 1800000000000000", two, three],
                "want_writes": {
                    "set": ["20000000c0a80701 1800000000000000", two, three], "resynced": true,
                },
                "want_order": [
                    "set 20000000c0a80701", "set 20000000c0a80702", "set 20000000c0a80703",
                ],
                "want_host_ips": ["192.168.7.1"],
            },
            {
                "events": [
                    host(4),
                    { "type": "route_remove", "dst": "192.168.7.3/32" },
                    { "type": "map_del", "key": "20000000c0a80702" },
                    { "type": "map_fault", "update_keys": ["20000000c0a80704"] },
                ],
                "want_map": ["20000000c0a80701 1800000000000000"],
                "want_writes": {
                    "del": ["20000000c0a80703"], "failed_set": ["20000000c0a80704"],
                },
                "want_order": ["set 20000000c0a80704", "del 20000000c0a80703"],
            },
            {
                "events": [],
                "want_map": ["20000000c0a80701 1800000000000000", two, four],
                "want_writes": { "set": [two, four], "resynced": true },
                "want_order": ["set 20000000c0a80702", "set 20000000c0a80704"],
            },
        ],
    })
}

fn calc() -> Value {
    let route = |node: &str, address: &str, types: &str| {
        json!({
            "dst": format!("{address}/32"), "types": [types], "ip_pool_type": "NONE",
            "dst_node_name": node, "dst_node_ip": address,
        })
    };
    json!({
        "name": "one",
        "config": { "hostname": "node-a", "route_source": "CalicoIPAM" },
        "steps": [{
            "events": [
                { "type": "node", "name": "node-a", "bgp_ipv4_address": "10.0.0.1/24" },
                { "type": "node", "name": "node-b", "bgp_ipv4_address": "10.0.0.2/24" },
            ],
            "routes": [
                route("node-a", "10.0.0.1", "LOCAL_HOST"),
                route("node-c", "10.0.0.2", "REMOTE_HOST"),
                route("node-c", "10.0.0.3", "REMOTE_HOST"),
            ],
            "stale": ["10.0.0.2/32", "10.0.0.3/32"],
            "fresh": [route("node-b", "10.0.0.2", "REMOTE_HOST")],
            "want_bpf": ["10.0.0.1/32 0x18", "10.0.0.2/32 0x10 via 10.0.0.2"],
        }],
    })
}

#[test]
fn a_right_vector_matches() {
    let report = run(Kind::Bpf, &bpf()).unwrap();
    assert!(report.mismatches.is_empty(), "{report}");
    assert_eq!(report.accepted, BTreeMap::from([(Rule::ReadWhenAsked, 1)]));
    let report = run(Kind::Calc, &calc()).unwrap();
    assert!(report.mismatches.is_empty(), "{report}");
}

/// Changes what is at a pointer and returns what came of the vector.
fn changed(kind: Kind, mut vector: Value, pointer: &str, value: Value) -> Result<Report, Error> {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = vector.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(fields), Value::Null) => drop(fields.remove(name).unwrap()),
        (Value::Object(fields), value) => drop(fields.insert(name.to_owned(), value)),
        (Value::Array(items), value) => items[name.parse::<usize>().unwrap()] = value,
        (other, _) => panic!("{other} has no {name}"),
    }
    run(kind, &vector)
}

#[test]
fn whatever_differs_is_a_mismatch() {
    let key = "20000000c0a80702";
    for (pointer, value) in [
        (
            "/steps/0/want_map/1",
            json!(format!("{key} 1000000000000000")),
        ),
        ("/steps/1/want_map", json!([])),
        (
            "/steps/2/want_map",
            json!(["20000000c0a80701 1800000000000000"]),
        ),
        ("/steps/0/want_writes/set", json!([])),
        ("/steps/1/want_writes/del", json!([])),
        ("/steps/1/want_writes/failed_set", json!([])),
        ("/steps/1/want_writes/failed_del", json!([key])),
        // Nothing failed before this step.
        ("/steps/1/want_writes/resynced", json!(true)),
        ("/steps/0/want_writes/resynced", Value::Null),
        ("/steps/2/want_writes/resynced", Value::Null),
        // Not within a group.
        (
            "/steps/1/want_order",
            json!(["del 20000000c0a80703", "set 20000000c0a80704"]),
        ),
        ("/steps/0/want_order", json!([])),
        ("/steps/0/want_host_ips", Value::Null),
        ("/steps/0/want_host_ips", json!([])),
        ("/steps/1/want_host_ips", json!(["192.168.7.1"])),
        ("/steps/0/events/0/dst_node_ip", json!("192.168.7.9")),
        ("/config/service_loop_prevention", json!("Reject")),
    ] {
        // The last is the control: it makes no difference.
        let differs = pointer != "/config/service_loop_prevention";
        let report = changed(Kind::Bpf, bpf(), pointer, value).unwrap();
        assert_eq!(
            !report.mismatches.is_empty(),
            differs,
            "{pointer}: {report}"
        );
    }
    for (pointer, value) in [
        ("/steps/0/fresh", Value::Null),
        ("/steps/0/stale", Value::Null),
        ("/steps/0/routes/0/types", json!([])),
        ("/steps/0/routes/0/nat_outgoing", json!(true)),
        ("/steps/0/fresh/0/dst_node_ip", json!("10.0.0.9")),
        ("/steps/0/want_bpf", json!([])),
        (
            "/steps/0/want_bpf/1",
            json!("10.0.0.2/32 0x10 via 10.0.0.9"),
        ),
    ] {
        let report = changed(Kind::Calc, calc(), pointer, value).unwrap();
        assert!(!report.mismatches.is_empty(), "{pointer}");
    }
}

#[test]
fn what_is_unknown_is_an_error() {
    for (pointer, value) in [
        ("/new", json!(1)),
        ("/config/new", json!(1)),
        ("/config/ip_version", json!(5)),
        ("/config/service_loop_prevention", json!("Perhaps")),
        ("/steps/0/new", json!(1)),
        ("/steps/0/want_map", Value::Null),
        ("/steps/0/want_writes/new", json!(1)),
        ("/steps/0/events/0", json!({ "type": "new" })),
        ("/steps/0/events/0/new", json!(1)),
        ("/steps/0/events/0/types/0", json!("NEW")),
        ("/steps/0/events/0/ip_pool_type", json!("NEW")),
        ("/steps/0/events/0/tunnel_type", json!({ "new": true })),
        ("/steps/0/events/2/new", json!(1)),
        ("/steps/1/events/2/key", json!("2000")),
        ("/steps/1/events/3/new", json!(1)),
    ] {
        let result = changed(Kind::Bpf, bpf(), pointer, value);
        assert!(result.is_err(), "{pointer}");
    }
    for (pointer, value) in [
        ("/config/route_source", json!("new")),
        ("/steps/0/new", json!(1)),
        ("/steps/0/events/0", json!({ "type": "new" })),
        ("/steps/0/events/0/new", json!(1)),
        ("/steps/0/events/0/ipip_tunnel_addr", json!("10.0.0.999")),
        ("/steps/0/routes/0/new", json!(1)),
        ("/steps/0/routes/0/dst_node_ip", json!("10.0.0.999")),
        ("/steps/0/stale/0", json!("10.0.0.999")),
    ] {
        let result = changed(Kind::Calc, calc(), pointer, value);
        assert!(result.is_err(), "{pointer}");
    }
}

#[test]
fn the_command_says_what_it_read_and_how_it_went() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut wrong = bpf();
    wrong["steps"][0]["want_map"] = json!([]);
    fs::write(path("right.json"), bpf().to_string()).unwrap();
    fs::write(path("wrong.json"), wrong.to_string()).unwrap();
    fs::create_dir(path("empty")).unwrap();
    let read = "read 1 files, 1 vectors, 3 steps";
    for (kind, name, code, said) in [
        (
            "bpf",
            "right.json",
            0,
            [read, "vectors bpf: 3 steps, 0 mismatches"],
        ),
        (
            "bpf",
            "wrong.json",
            1,
            [read, "vectors bpf: 3 steps, 1 mismatches"],
        ),
        ("bpf", "empty", 2, ["holds no .json", "empty"]),
        ("bpf", "absent", 2, ["cannot read", "absent"]),
        ("calc", "right.json", 2, ["unknown field", "ip_version"]),
        ("routetable", "right.json", 2, ["unknown field", "hostname"]),
        ("new", "right.json", 2, ["new", "none of"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_vectors"))
            .arg(kind)
            .arg(path(name))
            .output()
            .unwrap();
        let mut text = String::from_utf8(output.stdout).unwrap();
        if code < 2 {
            assert_eq!(text.lines().last(), Some(said[1]));
        }
        text.push_str(&String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(code), "{kind} {name}: {text}");
        assert!(said.iter().all(|part| text.contains(part)), "{text}");
    }
}
