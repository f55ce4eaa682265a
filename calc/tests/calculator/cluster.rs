//! A whole cluster from its files to the routes of each of its nodes, as the reference computes
//! them from the same resources.

use std::{collections::BTreeMap, fs, path::Path};

use calc::{Calculator, datastore::Store};
use serde_json::Value;

use super::graph_vectors::{complete, json, text};

#[test]
fn the_files_of_a_cluster_give_the_routes_of_each_node() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let recorded = fs::read_to_string(data.join("cluster-routes.json")).unwrap();
    let recorded: BTreeMap<String, Vec<Value>> = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded.len(), 3);
    for (node, routes) in recorded {
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
        let actual: BTreeMap<String, Value> = calculator
            .routes()
            .map(|(cidr, route)| (cidr.to_string(), json(cidr, route)))
            .collect();
        let desired: BTreeMap<String, Value> = routes
            .iter()
            .map(|route| (text(&route["dst"]).to_owned(), complete(route)))
            .collect();
        assert_eq!(desired.len(), 35);
        assert_eq!(actual, desired, "{node}");
    }
}
