//! Settings for a selection of nodes.

use calc::{
    datastore::Store,
    event::{Config, Event},
};

use super::{all_are_absent, document, read, settings::config};

/// Settings for the nodes that `selector` selects.
fn selected(name: &str, created: &str, selector: &str, spec: &str) -> String {
    let spec = format!("nodeSelector: \"{selector}\", {spec}");
    document("FelixConfiguration", name, &spec).replace(
        &format!("name: {name}"),
        &format!("name: {name}, creationTimestamp: {created}"),
    )
}

/// Our node.
fn node(labels: &str) -> String {
    document("Node", "node-1", "addresses: [{address: 10.0.0.1}]")
        .replace("node-1}", &format!("node-1, labels: {{{labels}}}}}"))
}

#[test]
fn workloads_of_our_node_that_a_peer_selects_are_peers() {
    let endpoint = |node: &str, role: &str| {
        let name = format!("{node}-k8s-{role}-eth0").replace("node-", "node--");
        let spec = "ipNetworks: [10.1.0.1/32], interfaceName: cali1";
        document("WorkloadEndpoint", "x", spec).replace(
            "name: x",
            &format!("name: {name}, labels: {{role: {role}}}"),
        )
    };
    let all = [
        endpoint("node-1", "router"),
        endpoint("node-1", "web"),
        endpoint("node-2", "router"),
        node("rack: b"),
    ]
    .concat();
    let workloads = "asNumber: 65000, localWorkloadSelector: \"role == 'router'\"";
    for (spec, count) in [
        (workloads.to_owned(), 1),
        (format!("{workloads}, node: node-1"), 1),
        (format!("{workloads}, node: node-2"), 0),
        (format!("{workloads}, nodeSelector: \"rack == 'b'\""), 1),
        (format!("{workloads}, nodeSelector: \"rack == 'a'\""), 0),
        ("peerIP: 10.0.0.9, asNumber: 65000".to_owned(), 0),
    ] {
        let update = read(&format!("{all}{}", document("BGPPeer", "p", &spec)));
        assert_eq!(update.problems, Vec::<String>::new(), "{spec}");
        let is_peer = |event: &&Event| {
            matches!(event, Event::Workload(key, Some(workload))
                if workload.bgp_peer && key.node == "node-1" && key.workload == "shop/router")
        };
        let others = |event: &&Event| matches!(event, Event::Workload(_, Some(workload)) if workload.bgp_peer);
        assert_eq!(
            update.events.iter().filter(is_peer).count(),
            count,
            "{spec}"
        );
        assert_eq!(update.events.iter().filter(others).count(), count, "{spec}");
    }
    for (spec, field) in [
        (
            "localWorkloadSelector: \"role ==\"".to_owned(),
            "spec.localWorkloadSelector",
        ),
        (
            format!("{workloads}, node: node-1, nodeSelector: all()"),
            "spec.nodeSelector",
        ),
    ] {
        let update = read(&format!("{all}{}", document("BGPPeer", "p", &spec)));
        assert!(update.problems[0].contains(field), "{:?}", update.problems);
    }
}

#[test]
fn settings_for_a_selection_of_nodes_are_between_ours_and_the_clusters() {
    let default = document(
        "FelixConfiguration",
        "default",
        "vxlanMTU: 1000, vxlanPort: 1000, vxlanVNI: 1000",
    );
    let rack = selected(
        "rack-b",
        "2026-08-20T08:00:00Z",
        "rack == 'b'",
        "vxlanMTU: 2000, vxlanPort: 2000",
    );
    let ours = document("FelixConfiguration", "node.node-1", "vxlanMTU: 3000");
    for (documents, expected) in [
        // All of them, in any order.
        ([&default, &rack, &ours], (3000, 2000, 1000)),
        ([&ours, &rack, &default], (3000, 2000, 1000)),
        ([&default, &rack, &String::new()], (2000, 2000, 1000)),
        ([&rack, &String::new(), &String::new()], (2000, 2000, 4096)),
    ] {
        let documents = documents.map(String::as_str).concat();
        for text in [
            format!("{documents}{}", node("rack: b")),
            format!("{}{documents}", node("rack: b")),
        ] {
            let (found, problems) = config(&text);
            let found = (found.vxlan_mtu.unwrap(), found.vxlan_port, found.vxlan_vni);
            assert_eq!(found, expected, "{text}");
            assert_eq!(problems, Vec::<String>::new());
        }
    }
    // They are not for nodes of another rack, nor as long as nothing is known of ours.
    let other = node("rack: b").replace("node-1", "node-2");
    for nodes in [node("rack: a"), node(""), String::new(), other] {
        let (found, problems) = config(&format!("{default}{rack}{nodes}"));
        assert_eq!(found.vxlan_mtu, Some(1000), "{nodes}");
        assert_eq!(problems, Vec::<String>::new());
    }
    let anywhere_else = rack.replace("== 'b'", "!= 'b'");
    assert_eq!(config(&anywhere_else).0.vxlan_mtu, None);
}

#[test]
fn of_several_settings_for_a_node_the_oldest_hold() {
    let new = selected(
        "a",
        "2026-08-20T08:00:01Z",
        "all()",
        "vxlanMTU: 1001, vxlanPort: 1",
    );
    let old = selected("b", "'2026-08-20T08:00:00Z'", "has(rack)", "vxlanMTU: 1002");
    let same = selected("c", "2026-08-20T08:00:00Z", "all()", "vxlanMTU: 1003");
    let oldest = selected("d", "2025-12-31T23:59:59Z", "rack == 'x'", "vxlanMTU: 1004");
    let undated = selected("e", "null", "rack == 'y'", "vxlanMTU: 1005");
    for (labels, mtu, port) in [
        // Only one counts: what it does not set is not taken from the next.
        ("rack: b", 1002, 4789),
        ("rack: x", 1004, 4789),
        ("rack: y", 1005, 4789),
        ("", 1003, 4789),
    ] {
        let ours = node(labels);
        let all = [&new, &old, &same, &oldest, &undated, &ours].map(String::as_str);
        let mut turned = all;
        turned.reverse();
        for text in [all.concat(), turned.concat()] {
            let (found, problems) = config(&text);
            assert_eq!(
                (found.vxlan_mtu, found.vxlan_port),
                (Some(mtu), port),
                "{labels}"
            );
            assert_eq!(problems, Vec::<String>::new());
        }
    }
    let (found, _) = config(&format!("{new}{}", node("")));
    assert_eq!((found.vxlan_mtu, found.vxlan_port), (Some(1001), 1));

    // Where an API server keeps Calico's metadata in an annotation, its time counts.
    let annotated = |json: &str| {
        new.replace(
            "creationTimestamp",
            &format!("annotations: {{projectcalico.org/metadata: '{json}'}}, creationTimestamp"),
        )
    };
    let before = annotated(r#"{"creationTimestamp":"2020-01-01T00:00:00Z"}"#);
    let none = annotated(r#"{"creationTimestamp":null}"#);
    for (first, mtu) in [(before, 1001), (none, 1003)] {
        let (found, problems) = config(&format!("{first}{same}{}", node("")));
        assert_eq!(found.vxlan_mtu, Some(mtu), "{first}");
        assert_eq!(problems, Vec::<String>::new());
    }
}

#[test]
fn other_labels_on_our_node_are_other_settings() {
    let rack = selected("rack-b", "null", "rack == 'b'", "vxlanMTU: 2000");
    let mut store = Store::new("node-1");
    store.set("felix.yaml", rack.as_bytes());
    let mut mtu = |labels: Option<&str>| {
        match labels {
            Some(labels) => store.set("node.yaml", node(labels).as_bytes()),
            None => store.remove("node.yaml"),
        }
        let update = store.update().unwrap_or_default();
        update.events.iter().find_map(|event| {
            if let Event::Config(config) = event {
                Some(config.vxlan_mtu)
            } else {
                None
            }
        })
    };
    assert_eq!(mtu(Some("rack: a")), Some(None));
    assert_eq!(mtu(Some("rack: b")), Some(Some(2000)));
    assert_eq!(mtu(Some("rack: b, more: c")), None, "no change");
    assert_eq!(
        mtu(Some("rack: [")),
        None,
        "what was known of the node stays"
    );
    assert_eq!(mtu(Some("more: c")), Some(None));
    assert_eq!(mtu(Some("rack: b")), Some(Some(2000)));
    assert_eq!(mtu(None), Some(None));
}

#[test]
fn settings_for_a_selection_are_taken_whole_or_not_at_all() {
    all_are_absent(
        "FelixConfiguration",
        "rack-b",
        &[
            ("vxlanMTU: 1400", "spec.nodeSelector", "is missing"),
            (
                "nodeSelector: '', vxlanMTU: 1400",
                "spec.nodeSelector",
                "is missing",
            ),
            (
                "nodeSelector: rack = 'b'",
                "spec.nodeSelector",
                "at character 6",
            ),
            (
                "nodeSelector: all(), vxlanMTU: -1",
                "spec.vxlanMTU",
                "not within",
            ),
        ],
    );
    let undated = selected("rack-b", "yesterday", "all()", "vxlanMTU: 1400");
    let (found, problems) = config(&format!("{undated}{}", node("")));
    assert_eq!(found, Config::default());
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains("metadata.creationTimestamp"),
        "{problems:?}"
    );
    all_are_absent(
        "FelixConfiguration",
        "default",
        &[(
            "nodeSelector: all(), vxlanMTU: 1400",
            "spec.nodeSelector",
            "not allowed",
        )],
    );
}
