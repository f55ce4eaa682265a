//! What becomes of a cluster, change by change, from its directory to the routes of each of its
//! nodes. After each change they are what the reference computes from the same resources.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use calc::{
    Calculator,
    datastore::{FileDatastore, Told},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use super::cluster::{Routes, data, recorded_route, recorded_routes, routes};

/// How long the outside world may take.
const DEADLINE: Duration = Duration::from_mins(1);

/// A change as it is recorded.
#[derive(Deserialize)]
struct Change {
    name: String,
    /// The operations on Calico's keys in etcd.
    etcd: Vec<Operation>,
    /// What is different afterwards, by node.
    expected: BTreeMap<String, Difference>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Put { key: String, value: String },
    Delete { key: String },
}

#[derive(Deserialize)]
struct Difference {
    changed: Vec<Value>,
    removed: Vec<String>,
}

#[tokio::test]
async fn the_routes_of_each_node_follow_each_change_of_the_directory() {
    let changes = fs::read_to_string(data().join("cluster-changes.json")).unwrap();
    let changes: Vec<Change> = serde_json::from_str(&changes).unwrap();
    assert_eq!(changes.len(), 9);

    let dir = TempDir::new().unwrap();
    for object in objects() {
        write(dir.path(), &object);
    }
    let mut nodes: Vec<(Node, Routes)> = recorded_routes()
        .into_iter()
        .map(|(name, desired)| (Node::new(dir.path(), name), desired))
        .collect();
    for (node, desired) in &mut nodes {
        node.hears_all().await;
        assert_eq!(
            routes(&node.calculator),
            *desired,
            "{} at the start",
            node.name
        );
    }
    for change in changes {
        for operation in &change.etcd {
            apply(dir.path(), operation);
        }
        for (node, desired) in &mut nodes {
            let Difference { changed, removed } = &change.expected[&node.name];
            for prefix in removed {
                assert!(
                    desired.remove(prefix).is_some(),
                    "{}: {prefix}",
                    change.name
                );
            }
            desired.extend(changed.iter().map(recorded_route));
            node.hears_all().await;
            assert_eq!(
                routes(&node.calculator),
                *desired,
                "{}: {}",
                node.name,
                change.name
            );
        }
    }
}

/// The calculation of one node, with its datastore.
struct Node {
    name: String,
    calculator: Calculator,
    asked: watch::Sender<u64>,
    told: mpsc::Receiver<Told>,
    datastore: JoinHandle<Result<(), calc::datastore::Error>>,
}

impl Node {
    fn new(dir: &Path, name: String) -> Self {
        let (asked, asked_receiver) = watch::channel(0);
        let (sender, told) = mpsc::channel(1);
        let datastore = FileDatastore::run(dir.to_owned(), name.clone(), asked_receiver, sender);
        Self {
            calculator: Calculator::new(name.clone()),
            name,
            asked,
            told,
            datastore: tokio::spawn(datastore),
        }
    }

    /// Takes in all that has been written. There is no problem with it.
    async fn hears_all(&mut self) {
        self.asked.send_modify(|asked| *asked += 1);
        loop {
            let heard = timeout(DEADLINE, self.told.recv()).await;
            match heard.unwrap().unwrap() {
                Told::Update(update) => {
                    for event in update.events {
                        self.calculator.handle(event);
                    }
                    self.calculator.resolve();
                    assert!(update.complete);
                    assert_eq!(update.problems, Vec::<String>::new());
                }
                Told::Answer(number) if number == *self.asked.borrow() => return,
                Told::Answer(_) => {}
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.datastore.abort();
    }
}

/// The objects of the cluster, one by one, so that each can change by itself.
fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(data().join("yaml")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for document in text.split("---\n").filter(|document| !document.is_empty()) {
            let document: Value = serde_saphyr::from_str(document).unwrap();
            match document.get("items").and_then(Value::as_array) {
                None => objects.push(document),
                Some(items) => objects.extend(items.iter().cloned()),
            }
        }
    }
    objects
}

fn write(dir: &Path, object: &Value) {
    let metadata = &object["metadata"];
    let file = file(
        object["kind"].as_str().unwrap(),
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap(),
    );
    fs::write(dir.join(file), object.to_string()).unwrap();
}

/// The file of an object. Each has one of its own.
fn file(kind: &str, namespace: Option<&str>, name: &str) -> String {
    format!("{kind}.{}.{name}.json", namespace.unwrap_or_default())
}

/// Does to the directory what is done to etcd.
fn apply(dir: &Path, operation: &Operation) {
    let (key, value): (_, Option<Value>) = match operation {
        Operation::Put { key, value } => (key, serde_json::from_str(value).unwrap()),
        Operation::Delete { key } => (key, None),
    };
    let path: Vec<&str> = key.split('/').collect();
    // The name is part of the key, and so is the namespace where there is one.
    let (kind, namespace, name) = match path[..] {
        [
            "",
            "calico",
            "resources",
            "v3",
            "projectcalico.org",
            plural,
            name,
        ] => (kind(plural), None, name.to_owned()),
        [
            "",
            "calico",
            "resources",
            "v3",
            "projectcalico.org",
            plural,
            namespace,
            name,
        ] => (kind(plural), Some(namespace), name.to_owned()),
        [
            "",
            "calico",
            "ipam",
            "v2",
            "assignment",
            "ipv4" | "ipv6",
            "block",
            prefix,
        ] => ("IPAMBlock", None, prefix.replace(['.', ':'], "-")),
        // Handles, and which blocks a node has claimed, which its blocks say themselves.
        ["", "calico", "ipam", "v2", "handle" | "host", ..] => return,
        _ => panic!("{key}"),
    };
    match value {
        None => fs::remove_file(dir.join(file(kind, namespace, &name))).unwrap(),
        // A block is stored without what makes it an object.
        Some(spec) if kind == "IPAMBlock" => {
            let object = json!({
                "apiVersion": "projectcalico.org/v3",
                "kind": kind,
                "metadata": {"name": name},
                "spec": spec,
            });
            let there = dir.join(file(kind, namespace, &name));
            assert!(there.exists(), "{key} is not in the cluster yet");
            write(dir, &object);
        }
        Some(object) => {
            assert_eq!(object["kind"], kind);
            assert_eq!(object["metadata"]["name"], name);
            assert_eq!(object["metadata"]["namespace"].as_str(), namespace);
            write(dir, &object);
        }
    }
}

fn kind(plural: &str) -> &'static str {
    match plural {
        "ippools" => "IPPool",
        "nodes" => "Node",
        "workloadendpoints" => "WorkloadEndpoint",
        _ => panic!("{plural}"),
    }
}
