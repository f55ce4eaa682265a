//! The rules for nodes.

use calc::event::{Event, NodeAddressKind};

use super::{all_are_absent, document, objects, read};

#[test]
fn a_node_with_a_wrong_address_is_absent() {
    let key = "A".repeat(43) + "=";
    assert!(
        read(&format!(
            "{}status: {{wireguardPublicKey: {key}}}\n",
            document("Node", "n", "")
        ))
        .problems
        .is_empty()
    );
    let update = read(&format!(
        "{}status: {{wireguardPublicKey: short}}\n",
        document("Node", "n", "")
    ));
    assert_eq!(
        update.problems,
        [
            "a.yaml:6: Node n: status.wireguardPublicKey: is not a WireGuard key (base64 of 32 \
          bytes); the object counts as absent"
        ]
    );
    all_are_absent(
        "Node",
        "node-1",
        &[
            ("bgp: {}", "spec.bgp", "empty"),
            ("bgp: {ipv4Address: ''}", "spec.bgp", "empty"),
            (
                "bgp: {ipv4Address: 10.0.0.300}",
                "spec.bgp.ipv4Address",
                "10.0.0.300",
            ),
            (
                "bgp: {ipv4Address: 'fd00::1/64'}",
                "spec.bgp.ipv4Address",
                "IPv4",
            ),
            (
                "bgp: {ipv6Address: 10.0.0.1/24}",
                "spec.bgp.ipv6Address",
                "IPv6",
            ),
            (
                "bgp: {ipv4IPIPTunnelAddr: 'fd00::1'}",
                "spec.bgp.ipv4IPIPTunnelAddr",
                "IPv4",
            ),
            (
                "ipv4VXLANTunnelAddr: 'fd00::1'",
                "spec.ipv4VXLANTunnelAddr",
                "IPv4",
            ),
            (
                "ipv4VXLANTunnelAddr: 10.0.0.0/32",
                "spec.ipv4VXLANTunnelAddr",
                "10.0.0.0/32",
            ),
            (
                "ipv6VXLANTunnelAddr: 10.0.0.1",
                "spec.ipv6VXLANTunnelAddr",
                "IPv6",
            ),
            (
                "vxlanTunnelMACAddr: '66:00'",
                "spec.vxlanTunnelMACAddr",
                "MAC",
            ),
            (
                "vxlanTunnelMACAddrV6: x",
                "spec.vxlanTunnelMACAddrV6",
                "MAC",
            ),
            (
                "wireguard: {interfaceIPv4Address: x}",
                "spec.wireguard.interfaceIPv4Address",
                "x",
            ),
            (
                "wireguard: {interfaceIPv6Address: 1.1.1.1}",
                "spec.wireguard.interfaceIPv6Address",
                "IPv6",
            ),
        ],
    );
    for name in ["Node-1", "node_1", "-node", "node..1"] {
        all_are_absent("Node", name, &[("", "metadata.name", "lower-case")]);
    }
}

#[test]
fn a_node_loses_only_the_address_in_its_list_that_is_wrong() {
    let spec = "bgp: {ipv4Address: 10.0.0.1}, addresses: [{address: 10.0.0.1/24, type: CalicoNodeIP}, \
                {address: nowhere, type: InternalIP}, {address: n.example, type: Hostname}, \
                {address: 'fd00::1', type: ExternalIP}]";
    let update = read(&document("Node", "n", spec));
    assert_eq!(
        update.problems,
        ["a.yaml:5: Node n: spec.addresses[1].address: \"nowhere\" is not an IP address"]
    );
    let [Event::Node(_, Some(node))] = objects(&update)[..] else {
        panic!("{update:?}");
    };
    assert_eq!(node.bgp_ipv4, Some("10.0.0.1/32".parse().unwrap()));
    let addresses: Vec<(String, NodeAddressKind)> = node
        .addresses
        .iter()
        .map(|address| (address.address.to_string(), address.kind))
        .collect();
    assert_eq!(
        addresses,
        [
            ("10.0.0.1".to_owned(), NodeAddressKind::Other),
            ("fd00::1".to_owned(), NodeAddressKind::External)
        ]
    );
}
