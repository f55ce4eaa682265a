//! Recorded routes of the kernel, and the scenarios of `scenarios.md`, on the real kernel.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests::{
    isolate,
    vectors::{self, Kind, Rule},
};

use super::{changed, data, run};

#[test]
fn the_kernels_routes_are_those_of_the_vectors_or_better_by_a_rule() {
    isolate::test(
        "routetable::the_kernels_routes_are_those_of_the_vectors_or_better_by_a_rule",
        || {
            let recorded = data("routetable").join("recorded.jsonl");
            let report = vectors::run(Kind::Routetable, &[recorded]).unwrap();
            assert!(report.mismatches.is_empty(), "{report}");
            assert_eq!((report.files, report.vectors, report.steps), (1, 120, 965));
            let accepted = BTreeMap::from([
                (Rule::ReadWhenAsked, 15),
                (Rule::OneRoutePerPrefix, 46),
                (Rule::SafeProtocol, 290),
                (Rule::ScopeOfKind, 23),
                (Rule::OthersRoutesStay, 142),
                (Rule::RepairsSooner, 59),
                (Rule::GraceSinceSeen, 4),
                (Rule::LinksAlwaysTold, 12),
                (Rule::BackOff, 4),
                (Rule::NeighbourGoes, 147),
                (Rule::FlushAtStart, 41),
                (Rule::OwedFlush, 40),
                (Rule::NothingToForget, 57),
                (Rule::SameOwner, 12),
            ]);
            assert_eq!(report.accepted, accepted);
        },
    );
}

#[test]
fn the_scenarios_come_out_as_written() {
    isolate::test("routetable::the_scenarios_come_out_as_written", || {
        let scenarios = data("routetable").join("scenarios.jsonl");
        let report = vectors::run(Kind::Routetable, &[scenarios]).unwrap();
        assert!(report.mismatches.is_empty(), "{report}");
        assert_eq!((report.files, report.vectors, report.steps), (1, 65, 130));
        assert_eq!(report.accepted, BTreeMap::new());
    });
}

/// A pod comes up, another program's route is in the way, and the pod's address moves.
fn vector() -> Value {
    let link = |name: &str, index: u32, kind: &str, addrs: &[&str]| json!({ "name": name, "index": index, "kind": kind, "up": true, "addrs": addrs });
    let pod = |dst: &str, dev: &str| {
        json!({
            "dst": dst, "type": "unicast", "scope": 253, "proto": 3, "dev": dev,
            "priority": 0, "tos": 0,
        })
    };
    let update = |iface: &str| {
        json!({
            "type": "route_update", "class": "local_workload", "iface": iface,
            "target": { "cidr": "10.65.0.1/32", "mac": "02:00:00:00:00:01" },
        })
    };
    let bird = json!({
        "dst": "10.65.1.0/26", "type": "blackhole", "scope": 0, "proto": 12, "priority": 0,
        "tos": 0,
    });
    json!({
        "name": "one",
        "config": {
            "ip_version": 4, "workload_iface_prefixes": ["cali"], "device_route_protocol": 3,
            "remove_external_routes": true, "vxlan_iface": "vxlan.calico",
            "cleanup_grace_period_s": 0, "device_route_source_address": "",
            "static_arp_entries": true, "conntrack_cleanup": true,
            "links": [
                link("eth0", 100, "veth", &["192.168.7.1/24"]),
                link("vxlan.calico", 110, "vxlan", &["10.66.0.1/32"]),
                link("cali1", 101, "veth", &[]),
                link("cali2", 102, "veth", &[]),
            ],
        },
        "steps": [
            {
                "events": [],
                "apply_ok": true, "routes": [], "permanent_neighbours": [],
                "conntrack_cleanups": [],
            },
            {
                "events": [
                    update("cali1"),
                    { "type": "kernel_route_add", "route": bird },
                    {
                        "type": "route_update", "class": "blackhole_vxlan", "iface": "none",
                        "target": { "cidr": "10.65.2.0/26", "type": "blackhole", "protocol": 80 },
                    },
                ],
                "apply_ok": true, "writes": 2,
                "routes": [pod("10.65.0.1/32", "cali1"), bird, {
                    "dst": "10.65.2.0/26", "type": "blackhole", "scope": 0, "proto": 80,
                    "priority": 0, "tos": 0,
                }],
                "permanent_neighbours": ["10.65.0.1 dev cali1 lladdr 02:00:00:00:00:01"],
                "conntrack_cleanups": [],
            },
            {
                "events": [
                    {
                        "type": "set_routes", "class": "local_workload", "iface": "cali1",
                        "targets": [],
                    },
                    update("cali2"),
                    {
                        "type": "set_routes", "class": "blackhole_vxlan", "iface": "none",
                        "targets": [],
                    },
                ],
                "apply_ok": true,
                "routes": [pod("10.65.0.1/32", "cali2"), bird],
                "permanent_neighbours": [
                    "10.65.0.1 dev cali1 lladdr 02:00:00:00:00:01",
                    "10.65.0.1 dev cali2 lladdr 02:00:00:00:00:01",
                ],
                "conntrack_cleanups": ["10.65.0.1"],
            },
        ],
    })
}

#[test]
fn a_right_vector_of_the_kernels_routes_matches_and_whatever_differs_is_a_mismatch() {
    isolate::test(
        "routetable::a_right_vector_of_the_kernels_routes_matches_and_whatever_differs_is_a_mismatch",
        || {
            let report = run(Kind::Routetable, &vector()).unwrap();
            assert!(report.mismatches.is_empty(), "{report}");
            let accepted = BTreeMap::from([(Rule::NeighbourGoes, 1)]);
            assert_eq!(report.accepted, accepted);
            let mac = |dev: &str, last: u8| {
                json!(format!("10.65.0.1 dev {dev} lladdr 02:00:00:00:00:0{last}"))
            };
            for (pointer, value) in [
                ("/steps/1/routes/0/dev", json!("cali2")),
                ("/steps/1/routes/0/proto", json!(80)),
                ("/steps/1/routes/0/scope", json!(0)),
                ("/steps/1/routes/0/mtu", json!(1400)),
                ("/steps/1/routes/0/src", json!("192.168.7.1")),
                ("/steps/1/routes/0/priority", json!(1024)),
                ("/steps/1/routes/1/proto", json!(3)),
                ("/steps/1/routes/2/type", json!("throw")),
                ("/steps/1/routes/2/proto", json!(3)),
                ("/steps/1/routes", json!([])),
                ("/steps/1/permanent_neighbours", json!([])),
                ("/steps/1/permanent_neighbours/0", mac("cali1", 2)),
                ("/steps/1/apply_ok", json!(false)),
                ("/steps/2/permanent_neighbours/0", mac("cali1", 2)),
                ("/steps/2/permanent_neighbours/1", mac("cali2", 2)),
                ("/steps/2/routes/0/dev", json!("cali1")),
                ("/steps/1/events/2/target/type", json!("throw")),
                ("/steps/2/events/1/iface", json!("cali1")),
                ("/steps/1/writes", json!(3)),
            ] {
                let report = changed(Kind::Routetable, vector(), pointer, value).unwrap();
                assert!(!report.mismatches.is_empty(), "{pointer}");
            }
            let cleanups = |number| format!("/steps/{number}/conntrack_cleanups");
            for (pointer, value, rule) in [
                (cleanups(1), json!(["10.65.0.1"]), Rule::SameOwner),
                (cleanups(2), json!([]), Rule::OwedFlush),
                (
                    cleanups(2),
                    json!(["10.65.0.1", "10.65.0.2"]),
                    Rule::NothingToForget,
                ),
            ] {
                let report = changed(Kind::Routetable, vector(), &pointer, value).unwrap();
                assert!(report.mismatches.is_empty(), "{report}");
                assert_eq!(report.accepted.get(&rule), Some(&1), "{report}");
            }
            for (pointer, value) in [
                ("/new", json!(1)),
                ("/config/new", json!(1)),
                ("/config/ip_version", json!(5)),
                ("/config/device_route_source_address", json!("new")),
                ("/steps/0/new", json!(1)),
                ("/steps/0/routes", Value::Null),
                ("/steps/1/events/0", json!({ "type": "new" })),
                ("/steps/1/events/0/class", json!("new")),
                ("/steps/1/events/0/target/new", json!(1)),
                ("/steps/1/events/0/target/mac", json!("new")),
                ("/steps/1/routes/0/new", json!(1)),
                ("/steps/1/permanent_neighbours/0", json!("new")),
                ("/steps/2/conntrack_cleanups/0", json!("new")),
            ] {
                let result = changed(Kind::Routetable, vector(), pointer, value);
                assert!(result.is_err(), "{pointer}");
            }
        },
    );
}
