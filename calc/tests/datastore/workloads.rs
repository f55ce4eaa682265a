//! The rules for workload endpoints.

use calc::event::{Event, MigrationRole, Workload, WorkloadKey};

use super::{all_are_absent, document, objects, read};

#[test]
fn an_endpoint_that_calico_would_refuse_is_absent() {
    let base = "interfaceName: cali1, ipNetworks: [10.0.0.1]";
    let with = |more: &str| format!("{base}, {more}");
    let cases = [
        (
            "ipNetworks: [10.0.0.1]".to_owned(),
            "spec.interfaceName",
            "missing",
        ),
        (
            "ipNetworks: [10.0.0.1], interfaceName: a/b".to_owned(),
            "spec.interfaceName",
            "a/b",
        ),
        (
            "interfaceName: c, ipNetworks: [10.0.0.1, x]".to_owned(),
            "spec.ipNetworks[1]",
            "x",
        ),
        (
            "interfaceName: c, ipNetworks: [10.0.0.0/24]".to_owned(),
            "spec.ipNetworks[0]",
            "/32",
        ),
        (with("node: node-2"), "spec.node", "node-2"),
        (with("orchestrator: cni"), "spec.orchestrator", "k8s"),
        (with("pod: web-1"), "spec.pod", "web-0"),
        (with("endpoint: eth1"), "spec.endpoint", "eth0"),
        (with("mac: nonsense"), "spec.mac", "MAC"),
        (with("ipv4Gateway: 'fd00::1'"), "spec.ipv4Gateway", "IPv4"),
        (with("ipv6Gateway: x"), "spec.ipv6Gateway", "x"),
        (
            with("ipNATs: [{internalIP: 10.0.0.2, externalIP: 1.1.1.1}]"),
            "spec.ipNATs[0].internalIP",
            "10.0.0.2",
        ),
        (
            with("ipNATs: [{internalIP: 10.0.0.1, externalIP: x}]"),
            "spec.ipNATs[0].externalIP",
            "x",
        ),
        (
            with("ports: [{name: a, protocol: ICMP, port: 1}]"),
            "spec.ports[0].protocol",
            "ICMP",
        ),
        (
            with("ports: [{protocol: TCP, port: 1}]"),
            "spec.ports[0]",
            "hostPort",
        ),
        (
            with("allowSpoofedSourcePrefixes: [x]"),
            "spec.allowSpoofedSourcePrefixes[0]",
            "x",
        ),
        (
            with("allowSpoofedSourcePrefixes: [1.0.0.0/8]"),
            "spec.allowSpoofedSourcePrefixes",
            "Any",
        ),
    ];
    for (spec, field, reason) in &cases {
        all_are_absent(
            "WorkloadEndpoint",
            "node--1-k8s-web--0-eth0",
            &[(spec, field, reason)],
        );
    }
    let names = [
        "a-k8s-b",
        "a-k8s-b-c-d",
        "a-k8s--b-c",
        "a---k8s-b-c",
        "abc",
        "a-k8s-b/c-d",
    ];
    for name in names {
        all_are_absent(
            "WorkloadEndpoint",
            name,
            &[(base, "metadata.name", "dashes")],
        );
    }
}

#[test]
fn an_endpoint_is_known_by_the_parts_of_its_name() {
    let spec = "interfaceName: cali1, ipNetworks: [10.0.0.1, 'fd00::/128'], \
                mac: 0A-00-00-00-00-01, ports: [{name: a, protocol: 17, port: 1}]";
    for (name, parts) in [
        (
            "node--1-k8s-api.v2--7d4b9-eth0",
            ["node-1", "k8s", "shop/api.v2-7d4b9", "eth0"],
        ),
        ("n-cni-0f0f-eth0", ["n", "cni", "shop/0f0f", "eth0"]),
        (
            "n----1-libnetwork-libnetwork-e",
            ["n--1", "libnetwork", "shop/libnetwork", "e"],
        ),
        ("n-openstack-vm-tap0", ["n", "openstack", "shop/vm", "tap0"]),
    ] {
        let update = read(&document("WorkloadEndpoint", name, spec));
        let [node, orchestrator, workload, endpoint] = parts.map(str::to_owned);
        let event = Event::Workload(
            WorkloadKey {
                node,
                orchestrator,
                workload,
                endpoint,
            },
            Some(Workload {
                interface: "cali1".parse().unwrap(),
                nets: vec![
                    "10.0.0.1/32".parse().unwrap(),
                    "fd00::/128".parse().unwrap(),
                ],
                mac: Some("0a:00:00:00:00:01".parse().unwrap()),
                skip_ingress_redirect: false,
                bgp_peer: false,
                migration: MigrationRole::None,
            }),
        );
        assert_eq!(objects(&update), [&event], "{:?}", update.problems);
    }
}

#[test]
fn an_endpoint_without_addresses_is_absent_and_no_problem() {
    let update = read(&document(
        "WorkloadEndpoint",
        "n-k8s-p-e",
        "interfaceName: cali1",
    ));
    assert_eq!(objects(&update), Vec::<&Event>::new());
    assert_eq!(update.problems, Vec::<String>::new());
}

#[test]
fn limits_and_virtual_machines_skip_the_redirect() {
    let base = "interfaceName: cali1, ipNetworks: [10.0.0.1]";
    for (more, label, skips) in [
        ("", "", false),
        ("qosControls: {egressBandwidth: 1}", "", false),
        ("qosControls: {ingressBandwidth: 1}", "", true),
        ("qosControls: {ingressPacketRate: 1}", "", true),
        ("", "virt-launcher", true),
        ("", "other", false),
    ] {
        let text = document("WorkloadEndpoint", "n-k8s-p-e", &format!("{base}, {more}")).replace(
            "shop}",
            &format!("shop, labels: {{kubevirt.io: '{label}'}}}}"),
        );
        let update = read(&text);
        let [Event::Workload(_, Some(workload))] = objects(&update)[..] else {
            panic!("{update:?}");
        };
        assert_eq!(workload.skip_ingress_redirect, skips, "{more} {label}");
    }
}

#[test]
fn spoofing_endpoints_need_the_setting() {
    let endpoint = document(
        "WorkloadEndpoint",
        "n-k8s-p-e",
        "interfaceName: cali1, ipNetworks: [10.0.0.1], allowSpoofedSourcePrefixes: [1.0.0.0/8]",
    );
    let felix = document(
        "FelixConfiguration",
        "default",
        "workloadSourceSpoofing: Any",
    );
    assert_eq!(objects(&read(&endpoint)).len(), 0);
    assert_eq!(objects(&read(&(endpoint + &felix))).len(), 1);
}
