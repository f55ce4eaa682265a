//! The datastore of files: rules, kept values, a whole cluster, and a real directory.

#[path = "datastore/aliases.rs"]
mod aliases;
#[path = "datastore/blocks.rs"]
mod blocks;
#[path = "datastore/cluster.rs"]
mod cluster;
#[path = "datastore/directory.rs"]
mod directory;
#[path = "datastore/kept.rs"]
mod kept;
#[path = "datastore/migrations.rs"]
mod migrations;
#[path = "datastore/nodes.rs"]
mod nodes;
#[path = "datastore/pools.rs"]
mod pools;
#[path = "datastore/selections.rs"]
mod selections;
#[path = "datastore/settings.rs"]
mod settings;
#[path = "datastore/workloads.rs"]
mod workloads;

use calc::{
    datastore::{Store, Update},
    event::Event,
};

/// The first update of a store that holds one file.
fn read(text: &str) -> Update {
    let mut store = Store::new("node-1");
    store.set("a.yaml", text.as_bytes());
    store.update().unwrap_or_default()
}

/// The events about objects, without the settings that every first update has.
fn objects(update: &Update) -> Vec<&Event> {
    update
        .events
        .iter()
        .filter(|event| !matches!(event, Event::Config(_) | Event::Bgp(_)))
        .collect()
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    let namespace = if matches!(kind, "LiveMigration" | "WorkloadEndpoint") {
        ", namespace: shop"
    } else {
        ""
    };
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: {name}{namespace}}}\n\
         spec: {{{spec}}}\n"
    )
}

fn pool(name: &str, cidr: &str) -> String {
    document("IPPool", name, &format!("cidr: '{cidr}'"))
}

/// Each breach makes the object absent and is reported at its line, by its field.
fn all_are_absent(kind: &str, name: &str, cases: &[(&str, &str, &str)]) {
    for (spec, field, reason) in cases {
        let update = read(&document(kind, name, spec));
        assert_eq!(objects(&update), Vec::<&Event>::new(), "{spec}");
        assert!(update.complete, "{spec}");
        assert_eq!(update.problems.len(), 1, "{spec}: {:?}", update.problems);
        let problem = update.problems.concat();
        assert!(problem.starts_with("a.yaml:"), "{problem}");
        for part in [kind, name, field, reason, "absent"] {
            assert!(problem.contains(part), "{spec}: no {part:?} in {problem}");
        }
    }
}

/// Each is one object, without any problem.
fn all_are_present(kind: &str, name: &str, cases: &[&str]) {
    for spec in cases {
        let update = read(&document(kind, name, spec));
        assert_eq!(update.problems, Vec::<String>::new(), "{spec}");
        assert_eq!(objects(&update).len(), 1, "{spec}");
    }
}
