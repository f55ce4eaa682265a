//! The rules for settings and for the prefixes of services.

use std::{net::IpAddr, time::Duration};

use calc::{
    datastore::Store,
    event::{Config, Event, RouteSource, ServiceLoopPrevention},
};
use ipnet::IpNet;

use super::{all_are_absent, document, read};

fn config(text: &str) -> (Config, Vec<String>) {
    let update = read(text);
    let config = update.events.iter().find_map(|event| {
        if let Event::Config(config) = event {
            Some(config.clone())
        } else {
            None
        }
    });
    (config.unwrap_or_default(), update.problems)
}

#[test]
fn every_setting_is_taken() {
    let cases: [Case; 28] = [
        ("", |_| {}),
        ("routeSource: workloadips", |c| {
            c.route_source = RouteSource::WorkloadIps;
        }),
        ("externalNodesList: [10.9.9.1/24]", |c| {
            c.external_nodes = nets("10.9.9.0/24");
        }),
        ("externalNodesList: [10.0.0.1]", |c| {
            c.external_nodes = nets("10.0.0.1/32");
        }),
        ("bpfDSROptoutCIDRs: ['fd00::/64']", |c| {
            c.dsr_optout = nets("fd00::/64");
        }),
        ("wireguardEnabled: true", |c| c.wireguard = true),
        ("wireguardEnabledV6: true, wireguardEnabled: false", |c| {
            c.wireguard = true;
        }),
        ("serviceLoopPrevention: Reject", |c| {
            c.service_loop_prevention = ServiceLoopPrevention::Reject;
        }),
        ("serviceLoopPrevention: Disabled", |c| {
            c.service_loop_prevention = ServiceLoopPrevention::Disabled;
        }),
        ("programClusterRoutes: Enabled", |c| {
            c.program_no_encap = true;
        }),
        ("programClusterRoutes: EnabledNoEncapOnly", |c| {
            c.program_no_encap = true;
        }),
        ("programClusterRoutes: EnabledIPIPOnly", |_| {}),
        ("bpfRedirectToPeer: Disabled", |c| {
            c.redirect_to_peer = false;
        }),
        ("bpfRedirectToPeer: L2Only", |_| {}),
        ("vxlanVNI: 5, vxlanPort: 8472", |c| {
            (c.vxlan_vni, c.vxlan_port) = (5, 8472);
        }),
        ("vxlanMTU: 1400, vxlanMTUV6: 0", |c| {
            c.vxlan_mtu = Some(1400);
        }),
        ("vxlanMTUV6: 1380", |c| c.vxlan_mtu_v6 = Some(1380)),
        ("deviceRouteSourceAddress: 10.0.0.1", |c| {
            c.route_source_v4 = address("10.0.0.1");
        }),
        ("deviceRouteSourceAddressIPv6: 'fd00::1'", |c| {
            c.route_source_v6 = address("fd00::1");
        }),
        ("deviceRouteSourceAddress: none", |_| {}),
        ("ipv4NormalRoutePriority: 7", |c| c.workload_metric_v4 = 7),
        ("ipv6NormalRoutePriority: 8", |c| c.workload_metric_v6 = 8),
        ("ipv4ElevatedRoutePriority: 1", |c| c.elevated_metric_v4 = 1),
        ("ipv6ElevatedRoutePriority: 2147483646", |c| {
            c.elevated_metric_v6 = 2_147_483_646;
        }),
        ("liveMigrationRouteConvergenceTime: 1m30s", |c| {
            c.migration_convergence = Duration::from_secs(90);
        }),
        ("liveMigrationRouteConvergenceTime: 1h0.5s250ms", |c| {
            c.migration_convergence = Duration::from_millis(3_600_750);
        }),
        ("liveMigrationRouteConvergenceTime: 0s", |c| {
            c.migration_convergence = Duration::ZERO;
        }),
        ("liveMigrationRouteConvergenceTime: null", |_| {}),
    ];
    for (spec, change) in cases {
        let mut expected = Config::default();
        change(&mut expected);
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!(found, expected, "{spec}");
        assert_eq!(problems, Vec::<String>::new(), "{spec}");
    }
}

/// A specification and what it changes.
type Case = (&'static str, fn(&mut Config));

fn nets(text: &str) -> Vec<IpNet> {
    text.parse().into_iter().collect()
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

#[test]
fn a_wrong_setting_is_the_default_and_a_problem() {
    for (spec, field) in [
        ("routeSource: Guess", "spec.routeSource"),
        ("externalNodesList: [x]", "spec.externalNodesList"),
        ("externalNodesList: ['fd00::/64']", "spec.externalNodesList"),
        ("bpfDSROptoutCIDRs: [x]", "spec.bpfDSROptoutCIDRs"),
        (
            "serviceLoopPrevention: Sometimes",
            "spec.serviceLoopPrevention",
        ),
        ("programClusterRoutes: Maybe", "spec.programClusterRoutes"),
        ("bpfRedirectToPeer: Maybe", "spec.bpfRedirectToPeer"),
        ("vxlanVNI: 16777216", "spec.vxlanVNI"),
        ("vxlanPort: 0", "spec.vxlanPort"),
        ("vxlanMTU: -1", "spec.vxlanMTU"),
        (
            "deviceRouteSourceAddress: 'fd00::1'",
            "spec.deviceRouteSourceAddress",
        ),
        (
            "deviceRouteSourceAddressIPv6: 10.0.0.1",
            "spec.deviceRouteSourceAddressIPv6",
        ),
        (
            "ipv4NormalRoutePriority: 2147483647",
            "spec.ipv4NormalRoutePriority",
        ),
        (
            "ipv6ElevatedRoutePriority: 0",
            "spec.ipv6ElevatedRoutePriority",
        ),
        (
            "liveMigrationRouteConvergenceTime: -5s",
            "spec.liveMigrationRouteConvergenceTime",
        ),
        (
            "liveMigrationRouteConvergenceTime: soon",
            "spec.liveMigrationRouteConvergenceTime",
        ),
        ("workloadSourceSpoofing: All", "spec.workloadSourceSpoofing"),
    ] {
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!(found, Config::default(), "{spec}");
        assert_eq!(problems.len(), 1, "{spec}");
        assert!(problems[0].contains(field), "{problems:?}");
    }
}

#[test]
fn our_node_wins_over_the_cluster_and_an_annotation_over_its_field() {
    let default = document(
        "FelixConfiguration",
        "default",
        "vxlanMTU: 1400, vxlanPort: 5000",
    );
    let ours = document(
        "FelixConfiguration",
        "node.node-1",
        "vxlanMTU: 1410, routeSource: ''",
    );
    let other = document("FelixConfiguration", "node.node-2", "vxlanMTU: 1420");
    let (found, problems) = config(&format!("{default}{ours}{other}"));
    assert_eq!((found.vxlan_mtu, found.vxlan_port), (Some(1410), 5000));
    assert_eq!(problems, Vec::<String>::new());

    let wrong = document("FelixConfiguration", "node.node-1", "vxlanMTU: -5");
    let (found, problems) = config(&format!("{default}{wrong}"));
    assert_eq!((found.vxlan_mtu, problems.len()), (None, 1));

    for (annotation, expected) in [
        ("config.projectcalico.org/VXLANMTU: '1430'", Some(1430)),
        ("config.projectcalico.org/vxlanmtu: '0x5dc'", Some(1500)),
        (
            "projectcalico.org/metadata: '{\"annotations\":{\"config.projectcalico.org/VXLANMTU\":\"1300\"}}'",
            Some(1300),
        ),
        ("config.projectcalico.org/Unknown: '1'", Some(1400)),
    ] {
        let text = default.replace(
            "default}",
            &format!("default, annotations: {{{annotation}}}}}"),
        );
        let (found, problems) = config(&text);
        assert_eq!(found.vxlan_mtu, expected, "{annotation} {problems:?}");
    }
}

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

#[test]
fn one_wrong_service_prefix_takes_all_of_them() {
    let services = |spec: &str, name: &str| {
        let update = read(&document("BGPConfiguration", name, spec));
        let prefixes: Vec<String> = update
            .events
            .iter()
            .flat_map(|event| {
                if let Event::Services(services) = event {
                    services.prefixes.as_slice()
                } else {
                    &[]
                }
            })
            .map(ToString::to_string)
            .collect();
        (prefixes.join(" "), update.problems.join(" "))
    };
    let good = "serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: ''}], \
                serviceExternalIPs: [{cidr: 'fd96::/112'}], serviceLoadBalancerIPs: [{cidr: 10.1.0.0/24}]";
    assert_eq!(
        services(good, "default"),
        (
            "10.96.0.0/16 fd96::/112 10.1.0.0/24".to_owned(),
            String::new()
        )
    );
    assert_eq!(
        services(good, "node.node-1"),
        (String::new(), String::new())
    );
    let (prefixes, problem) = services(&good.replace("fd96::/", "fd96::1/"), "default");
    assert_eq!(prefixes, "");
    assert!(
        problem.contains("spec.serviceExternalIPs[0].cidr"),
        "{problem}"
    );
}
