//! A whole cluster, and what chance makes of its files.

use std::{collections::BTreeMap, fmt::Debug, fs, path::Path};

use calc::{
    datastore::Store,
    event::{Config, Event, RouteSource, ServiceLoopPrevention, WorkloadKey},
};
use proptest::prelude::*;

use super::{document, pool};

/// The files of a small cluster with three nodes.
pub(super) fn files() -> BTreeMap<String, String> {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/yaml");
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

fn store(node: &str) -> Store {
    let mut store = Store::new(node);
    for (name, text) in files() {
        store.set(&name, text.as_bytes());
    }
    store
}

#[test]
fn the_cluster_is_read_without_a_problem() {
    let update = store("node-2").update().unwrap();
    assert!(update.complete);
    assert_eq!(update.problems, Vec::<String>::new());

    let count = |kind: fn(&Event) -> bool| update.events.iter().filter(|event| kind(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Node(..))), 3);
    assert_eq!(count(|event| matches!(event, Event::Pool(..))), 6);
    assert_eq!(count(|event| matches!(event, Event::Block(..))), 10);
    assert_eq!(count(|event| matches!(event, Event::Workload(..))), 10);

    let config = Config {
        route_source: RouteSource::CalicoIpam,
        external_nodes: vec!["172.31.99.0/24".parse().unwrap()],
        dsr_optout: vec!["198.51.100.0/24".parse().unwrap()],
        service_loop_prevention: ServiceLoopPrevention::Reject,
        program_no_encap: true,
        vxlan_mtu: Some(1410),
        ..Config::default()
    };
    assert!(update.events.contains(&Event::Config(config)));
}

#[test]
fn the_cluster_holds_what_its_documents_say() {
    let update = store("node-1").update().unwrap();
    let mut found = 0;
    for event in &update.events {
        match event {
            Event::Node(name, Some(node)) if name == "node-3" => {
                assert_eq!(node.bgp_ipv4, Some("172.31.20.13/24".parse().unwrap()));
                assert_eq!(node.vxlan_v6, Some("fd60:0:0:1::10".parse().unwrap()));
                assert_eq!(
                    node.vxlan_mac_v4,
                    Some("66:0c:13:00:00:01".parse().unwrap())
                );
                assert_eq!(node.addresses.len(), 5);
            }
            Event::Block(cidr, Some(block)) if cidr.to_string() == "10.60.0.0/29" => {
                assert_eq!(block.owner.as_deref(), Some("node-1"));
                let nodes: Vec<(u32, &str)> = block
                    .allocations
                    .iter()
                    .map(|(at, node)| (*at, node.as_str()))
                    .collect();
                assert_eq!(
                    nodes,
                    [(0, "node-1"), (1, "node-1"), (2, "node-1"), (5, "node-2")]
                );
            }
            // 10.60.0.18 is in cooldown.
            Event::Block(cidr, Some(block)) if cidr.to_string() == "10.60.0.16/29" => {
                assert!(!block.allocations.contains_key(&2));
            }
            Event::Workload(key, Some(workload)) if key.workload == "shop/api.v2-7d4b9" => {
                let WorkloadKey {
                    node,
                    orchestrator,
                    endpoint,
                    ..
                } = key;
                assert_eq!([node, orchestrator, endpoint], ["node-1", "k8s", "eth0"]);
                assert_eq!(workload.interface.as_str(), "calicc0d8e6b07d");
            }
            Event::Bgp(services) => assert_eq!(services.services.len(), 4),
            Event::Node(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Config(_)
            | Event::Link(_)
            | Event::Links(_) => continue,
        }
        found += 1;
    }
    assert_eq!(found, 5);
    assert!(
        !update.events.iter().any(
            |event| matches!(event, Event::Workload(key, _) if key.workload == "batch/job-done")
        )
    );
}

#[test]
fn a_list_of_ten_thousand_blocks_is_read() {
    let block =
        "{\"metadata\":{\"name\":\"b\"},\"spec\":{\"cidr\":\"10.0.0.0/26\",\"allocations\":[";
    let mut text = String::from(
        "{\"apiVersion\":\"crd.projectcalico.org/v1\",\"kind\":\"IPAMBlockList\",\"items\":[",
    );
    for number in 0..10_000 {
        let (high, low) = (number / 256, number % 256);
        let name = format!("\"b-{number}\"");
        let cidr = format!("10.{high}.{low}.0/26");
        text += &block.replace("\"b\"", &name).replace("10.0.0.0/26", &cidr);
        text += &"0,".repeat(25);
        text += "0],\"attributes\":[{\"secondary\":{\"node\":\"n\"}}]}},\n";
    }
    text.truncate(text.len() - 2);
    text += "]}";
    let mut store = Store::new("node-1");
    store.set("blocks.json", text.as_bytes());
    let update = store.update().unwrap();
    assert_eq!(update.problems, Vec::<String>::new());
    assert_eq!(update.events.len(), 10_002);
}

/// One change of one file.
#[derive(Clone, Debug)]
enum Step {
    Set(usize, Vec<(u8, u8)>),
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let contents = prop::collection::vec((0..4_u8, 0..9_u8), 0..5);
    let step = prop_oneof![
        3 => (0..3_usize, contents).prop_map(|(file, contents)| Step::Set(file, contents)),
        1 => (0..3_usize).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..20)
}

/// What the events so far amount to, whatever their order.
fn apply(state: &mut BTreeMap<String, String>, events: &[Event]) {
    fn text<T: Debug>(value: Option<&T>) -> Option<String> {
        value.map(|value| format!("{value:?}"))
    }
    for event in events {
        let (key, value) = match event {
            Event::Node(key, value) => (key.clone(), text(value.as_ref())),
            Event::Pool(key, value) => (format!("pool {key}"), text(value.as_ref())),
            Event::Block(key, value) => (format!("block {key}"), text(value.as_ref())),
            Event::Workload(key, value) => (format!("{key:?}"), text(value.as_ref())),
            Event::Config(value) => ("config".to_owned(), text(Some(value))),
            Event::Bgp(value) => ("services".to_owned(), text(Some(value))),
            Event::Link(_) | Event::Links(_) => continue,
        };
        match value {
            Some(value) => state.insert(key, value),
            None => state.remove(&key),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_changed_at_random_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
        pick in any::<prop::sample::Index>(),
    ) {
        let files = files();
        let (name, text) = files.iter().nth(pick.index(files.len())).unwrap();
        let mut bytes = text.clone().into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let mut store = store("node-1");
        let before = store.update().unwrap();
        store.set(name, &bytes);
        let after = store.update();
        // Every way back leads to the same.
        store.set(name, text.as_bytes());
        let back = store.update();
        let mut state = BTreeMap::new();
        apply(&mut state, &before.events);
        let start = state.clone();
        for update in after.iter().chain(back.iter()) {
            apply(&mut state, &update.events);
        }
        prop_assert_eq!(state, start);
    }

    #[test]
    fn events_add_up_to_what_a_fresh_store_tells(steps in steps()) {
        let name = |file: usize| format!("{file}.yaml");
        let mut store = Store::new("node-1");
        let mut files = BTreeMap::new();
        let (mut state, mut told) = (BTreeMap::new(), (true, Vec::new()));
        store.set("settings.yaml", b"");
        for step in steps {
            match step {
                Step::Set(file, contents) => {
                    let mut text = String::new();
                    for (who, what) in contents {
                        text += &match what {
                            0 => document("Node", &format!("n-{who}"), ""),
                            1 => document("FelixConfiguration", "default", &format!("vxlanPort: {}", 1 + who)),
                            2 => pool("shared", &format!("10.{who}.0.0/20")),
                            3 => document("IPAMBlock", &format!("b-{who}"), "cidr: 10.9.0.0/26, affinity: 'host:n'"),
                            4 => document(
                                "WorkloadEndpoint",
                                &format!("n-k8s-p{who}-eth0"),
                                "interfaceName: cali1, ipNetworks: [10.0.0.1], allowSpoofedSourcePrefixes: [10.8.0.0/16]",
                            ),
                            5 => document("WorkloadEndpoint", &format!("n-k8s-p{who}-eth0"), "interfaceName: cali2, ipNetworks: [10.0.0.2]"),
                            6 => document(
                                "LiveMigration",
                                &format!("m-{who}"),
                                &format!("source: {{workload: {{name: p{who}}}}}, target: {{selector: all()}}"),
                            ),
                            7 => document("FelixConfiguration", "default", "workloadSourceSpoofing: Any"),
                            _ => pool(&format!("p-{who}"), "10.9.0.0/20"),
                        };
                    }
                    store.set(&name(file), text.as_bytes());
                    files.insert(file, text);
                }
                Step::Remove(file) => {
                    store.remove(&name(file));
                    files.remove(&file);
                }
            }
            if let Some(update) = store.update() {
                apply(&mut state, &update.events);
                told = (update.complete, update.problems);
            }

            let mut fresh = Store::new("node-1");
            fresh.set("settings.yaml", b"");
            for (file, text) in files.iter().rev() {
                fresh.set(&name(*file), text.as_bytes());
            }
            let mut expected = BTreeMap::new();
            let update = fresh.update().unwrap();
            apply(&mut expected, &update.events);
            prop_assert_eq!(&state, &expected);
            prop_assert_eq!(&told, &(update.complete, update.problems));
        }
    }
}
