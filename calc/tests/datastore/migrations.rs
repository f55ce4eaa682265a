//! Which part an endpoint has in a live migration.

use std::collections::BTreeMap;

use calc::{
    datastore::Store,
    event::{Event, MigrationRole},
};

use super::{all_are_absent, document, objects, read};

const DB: &str = "vmi.kubevirt.io/id: db, kubevirt.io/migrationJobUID: 7f1e";

/// The pod `name` on a node, which may or may not be ours.
fn pod(node: &str, name: &str, labels: &str) -> String {
    endpoint(&format!("{node}-k8s-{name}-eth0"), labels)
}

fn endpoint(name: &str, labels: &str) -> String {
    let spec = "interfaceName: cali1, ipNetworks: [10.0.0.1]";
    document("WorkloadEndpoint", name, spec)
        .replace("shop}", &format!("shop, labels: {{{labels}}}}}"))
}

fn migration(name: &str, source: &str, target: &str) -> String {
    let spec = format!("source: {source}, target: {target}");
    document("LiveMigration", name, &spec)
}

/// What changed: the part of each endpoint, by its node and workload.
fn roles(events: &[Event]) -> BTreeMap<String, Option<MigrationRole>> {
    events
        .iter()
        .filter_map(|event| {
            let Event::Workload(key, workload) = event else {
                return None;
            };
            let role = workload.as_ref().map(|workload| workload.migration);
            Some((
                format!("{} {} {}", key.node, key.workload, key.endpoint),
                role,
            ))
        })
        .collect()
}

/// The part of the one endpoint in these documents.
fn role(text: &str) -> MigrationRole {
    #![expect(clippy::panic, reason = "a test that cannot go on panics")]
    let update = read(text);
    assert_eq!(update.problems, Vec::<String>::new(), "{text}");
    let [Event::Workload(_, Some(workload))] = objects(&update)[..] else {
        panic!("{update:?}");
    };
    workload.migration
}

/// The one endpoint's part in a migration of that source and target, whichever comes first.
fn has(endpoint: &str, source: &str, target: &str, expected: MigrationRole) {
    let migration = migration("m", source, target);
    for text in [
        format!("{endpoint}{migration}"),
        format!("{migration}{endpoint}"),
    ] {
        assert_eq!(role(&text), expected, "{text}");
    }
}

/// A machine that is no pod.
fn machine() -> String {
    endpoint("n1-openstack-vm-tap0", "a: b")
}

/// How a migration names an endpoint of that machine, or all of them.
fn named(node: &str, workload: &str, endpoint: &str) -> String {
    format!(
        "{{hostname: {node}, orchestratorID: openstack, workloadID: {workload}, endpointID: {endpoint}}}"
    )
}

#[test]
fn a_pod_is_known_without_its_host() {
    use MigrationRole::{None, Source, Target};
    let pod = pod("node--1", "db", DB);
    for (name, expected) in [
        ("orchestratorID: k8s, workloadID: shop/db", Source),
        (
            "orchestratorID: k8s, workloadID: shop/db, hostname: elsewhere",
            Source,
        ),
        (
            "OrchestratorID: k8s, WorkloadID: shop/db, Hostname: ''",
            Source,
        ),
        ("orchestratorID: k8s, workloadID: vms/db", None),
        ("orchestratorID: cni, workloadID: shop/db", None),
        ("", None),
    ] {
        has(&pod, &format!("{{workload: {{{name}}}}}"), "{}", expected);
        has(&pod, &format!("{{Workload: {{{name}}}}}"), "null", expected);
    }
    let endpoint =
        "{workloadEndpoint: {orchestratorID: k8s, workloadID: shop/db, endpointID: eth0}}";
    has(&pod, endpoint, "{}", Source);
    has(&pod, "{}", endpoint, Target);
    has(&pod, "{}", &endpoint.replace("eth0", "eth1"), None);
}

#[test]
fn another_workload_is_known_by_its_host_as_well() {
    use MigrationRole::{None, Source, Target};
    for (name, expected) in [
        (named("n1", "shop/vm", "tap0"), true),
        (named("n1", "shop/vm", "''"), true),
        (named("n1", "shop/vm", "tap1"), false),
        (named("n2", "shop/vm", "tap0"), false),
        (named("n2", "shop/vm", "''"), false),
        (named("''", "shop/vm", "tap0"), false),
        (named("n1", "shop/other", "tap0"), false),
    ] {
        let one = format!("{{workloadEndpoint: {name}}}");
        has(&machine(), &one, "{}", if expected { Source } else { None });
        has(&machine(), "{}", &one, if expected { Target } else { None });
    }
    // A workload is all of its endpoints, whatever else is said.
    let all = format!("{{workload: {}}}", named("n1", "shop/vm", "tap1"));
    has(&machine(), &all, "{}", Source);
    let elsewhere = format!("{{workload: {}}}", named("n2", "shop/vm", "''"));
    has(&machine(), &elsewhere, "{}", None);
}

#[test]
fn a_target_is_known_by_its_labels_and_comes_before_a_source() {
    use MigrationRole::{None, Target};
    let pod = pod("node--1", "db", DB);
    for (selector, expected) in [
        (
            "(vmi.kubevirt.io/id == 'db' || vm.kubevirt.io/name == 'db') && kubevirt.io/migrationJobUID == '7f1e'",
            Target,
        ),
        ("vmi.kubevirt.io/id == 'other'", None),
        ("all()", Target),
        ("", None),
    ] {
        for field in ["selector", "Selector"] {
            has(
                &pod,
                "{}",
                &format!("{{{field}: \"{selector}\"}}"),
                expected,
            );
        }
    }
    has(&pod, "{}", "{}", None);
    let same = "{workload: {orchestratorID: k8s, workloadID: shop/db}}";
    has(&pod, same, "{selector: all()}", Target);
    let same = format!("{{workloadEndpoint: {}}}", named("n1", "shop/vm", "tap0"));
    has(&machine(), &same, &same, Target);
}

#[test]
fn of_several_migrations_the_one_to_an_endpoint_counts() {
    let pod = pod("node--1", "db", DB);
    let from = migration(
        "a",
        "{workload: {orchestratorID: k8s, workloadID: shop/db}}",
        "{}",
    );
    let to = migration("b", "{}", "{selector: has(vmi.kubevirt.io/id)}");
    let other = migration("c", "{}", "{selector: has(other)}");
    assert_eq!(
        role(&format!("{pod}{from}{to}{other}")),
        MigrationRole::Target
    );
    assert_eq!(role(&format!("{pod}{from}{other}")), MigrationRole::Source);
    assert_eq!(role(&format!("{pod}{other}")), MigrationRole::None);
}

/// A migration from its start to its end, as its documents come.
#[test]
fn every_change_of_an_endpoints_part_is_told() {
    let mut store = Store::new("node-1");
    let mut after = |file: &str, text: Option<&str>| {
        match text {
            Some(text) => store.set(file, text.as_bytes()),
            None => store.remove(file),
        }
        roles(&store.update().unwrap_or_default().events)
    };
    let told = |changes: &[(&str, Option<MigrationRole>)]| -> BTreeMap<_, _> {
        let changes = changes.iter().map(|(key, role)| ((*key).to_owned(), *role));
        changes.collect()
    };
    let (old, new) = ("node-1 shop/db-1 eth0", "node-2 shop/db-2 eth0");
    let (none, source, target) = (
        Some(MigrationRole::None),
        Some(MigrationRole::Source),
        Some(MigrationRole::Target),
    );
    let target_selector = "{selector: kubevirt.io/migrationJobUID == '7f1e'}";
    let begun = migration("m", "{}", target_selector);
    let under_way = migration(
        "m",
        "{workload: {orchestratorID: k8s, workloadID: shop/db-1}}",
        target_selector,
    );
    let (here, there) = (pod("node--1", "db--1", "a: b"), pod("node--2", "db--2", DB));

    assert_eq!(after("old.yaml", Some(&here)), told(&[(old, none)]));
    assert_eq!(after("m.yaml", Some(&begun)), told(&[]));
    assert_eq!(after("new.yaml", Some(&there)), told(&[(new, target)]));
    assert_eq!(after("m.yaml", Some(&under_way)), told(&[(old, source)]));

    // The labels of an endpoint decide as well, whenever they come.
    let unlabelled = pod("node--2", "db--2", "");
    assert_eq!(after("new.yaml", Some(&unlabelled)), told(&[(new, none)]));
    assert_eq!(after("new.yaml", Some(&there)), told(&[(new, target)]));

    // A migration that cannot be read is none that has ended.
    let broken = under_way.replace("k8s, workloadID", "[k8s], workloadID");
    assert_ne!(broken, under_way);
    for broken in [broken.as_str(), "kind: ["] {
        assert_eq!(after("m.yaml", Some(broken)), told(&[]), "{broken}");
    }
    // Nor is an endpoint gone that cannot be read, and its part may change meanwhile.
    assert_eq!(after("new.yaml", Some("kind: [")), told(&[]));
    assert_eq!(
        after("m.yaml", Some(&migration("m", "{}", "{}"))),
        told(&[(old, none), (new, none)])
    );
    assert_eq!(
        after("m.yaml", Some(&under_way)),
        told(&[(old, source), (new, target)])
    );
    assert_eq!(after("new.yaml", Some(&there)), told(&[]));

    // One that is wrong by the rules counts as absent.
    let wrong = under_way.replace("== '7f1e'", "= '7f1e'");
    assert_eq!(
        after("m.yaml", Some(&wrong)),
        told(&[(old, none), (new, none)])
    );
    assert_eq!(
        after("m.yaml", Some(&under_way)),
        told(&[(old, source), (new, target)])
    );
    // The machine has moved, and what is left of the migration goes.
    assert_eq!(after("old.yaml", None), told(&[(old, None)]));
    assert_eq!(after("m.yaml", None), told(&[(new, none)]));
}

#[test]
fn in_whatever_order_documents_come_they_end_in_the_same_parts() {
    let documents = [
        pod("node--1", "db--1", "a: b"),
        pod("node--2", "db--2", DB),
        migration(
            "a",
            "{workload: {orchestratorID: k8s, workloadID: shop/db-1}}",
            "{}",
        ),
        migration("b", "{}", "{selector: has(vmi.kubevirt.io/id)}"),
    ];
    let mut orders = 0;
    for order in 0..4_usize.pow(4) {
        let order = [0, 1, 2, 3].map(|place| order / 4_usize.pow(place) % 4);
        if (0..4).any(|document| !order.contains(&document)) {
            continue;
        }
        orders += 1;
        let mut store = Store::new("node-1");
        let mut found = BTreeMap::new();
        for document in order {
            store.set(&format!("{document}.yaml"), documents[document].as_bytes());
            found.extend(roles(&store.update().unwrap_or_default().events));
        }
        let found: Vec<_> = found.into_values().collect();
        let expected = [Some(MigrationRole::Source), Some(MigrationRole::Target)];
        assert_eq!(found, expected, "{order:?}");
    }
    assert_eq!(orders, 24);
}

#[test]
fn a_migration_that_was_never_known_holds_back_the_sweep() {
    let update = read(&document("LiveMigration", "m", "target: [x]"));
    assert!(!update.complete);
    assert!(
        update.problems[0].starts_with("a.yaml:5: LiveMigration shop/m: spec.target: invalid type"),
        "{:?}",
        update.problems
    );
}

#[test]
fn a_migration_that_breaks_the_rules_is_absent() {
    all_are_absent(
        "LiveMigration",
        "m",
        &[
            (
                "target: {selector: has(}",
                "spec.target.selector",
                "at character 5",
            ),
            (
                "target: {selector: all(), workloadEndpoint: {orchestratorID: k8s}}",
                "spec.target.workloadEndpoint",
                "is combined with selector",
            ),
            (
                "source: {workload: {orchestratorID: k8s}, workloadEndpoint: {orchestratorID: k8s}}",
                "spec.source.workloadEndpoint",
                "is combined with workload",
            ),
        ],
    );
    let nowhere = document("LiveMigration", "m", "").replace(", namespace: shop", "");
    let update = read(&nowhere);
    assert!(update.complete);
    assert!(
        update.problems[0].contains("metadata.namespace: is missing"),
        "{:?}",
        update.problems
    );
}
