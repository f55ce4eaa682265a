//! Nodes.

use ipnet::IpNet;

use crate::event::{Node, NodeAddress, NodeAddressKind};

use super::{Flaw, Rule, Value, address_of, address_or_prefix, mac, of_family};
use crate::datastore::resource::{NodeBgp, NodeSpec, NodeStatus, Resource};

/// A wrong address costs the whole node, except in the list of addresses, where it costs itself.
pub(super) fn node(
    name: &str,
    resource: Resource<NodeSpec, NodeStatus>,
    flaws: &mut Vec<Flaw>,
) -> Result<Value, Flaw> {
    if !is_dns_name(name) {
        return Err(Rule::ObjectName(name.to_owned()).at("metadata.name"));
    }
    let spec = &resource.spec;
    let unset = NodeBgp::default();
    let bgp = spec.bgp.as_ref().unwrap_or(&unset);
    if spec.bgp.is_some() && is_empty(bgp) {
        return Err(Rule::Empty.at("spec.bgp"));
    }
    for (key, field) in [
        (&resource.status.wireguard_public_key, "wireguardPublicKey"),
        (
            &resource.status.wireguard_public_key_v6,
            "wireguardPublicKeyV6",
        ),
    ] {
        if !key.is_empty() && !is_wireguard_key(key) {
            return Err(Rule::WireguardKey.at(format!("status.{field}")));
        }
    }
    let at = |field: &'static str| move |rule: Rule| rule.at(format!("spec.{field}"));
    let node = Node {
        bgp_ipv4: subnet(&bgp.ipv4_address, false).map_err(at("bgp.ipv4Address"))?,
        bgp_ipv6: subnet(&bgp.ipv6_address, true).map_err(at("bgp.ipv6Address"))?,
        addresses: addresses(spec, flaws),
        ipip: address_of(&bgp.ipv4_ipip_tunnel_addr, false)
            .map_err(at("bgp.ipv4IPIPTunnelAddr"))?,
        vxlan_v4: address_of(&spec.ipv4_vxlan_tunnel_addr, false)
            .map_err(at("ipv4VXLANTunnelAddr"))?,
        vxlan_v6: address_of(&spec.ipv6_vxlan_tunnel_addr, true)
            .map_err(at("ipv6VXLANTunnelAddr"))?,
        vxlan_mac_v4: mac(&spec.vxlan_tunnel_mac_addr).map_err(at("vxlanTunnelMACAddr"))?,
        vxlan_mac_v6: mac(&spec.vxlan_tunnel_mac_addr_v6).map_err(at("vxlanTunnelMACAddrV6"))?,
        wireguard_v4: address_of(&spec.wireguard.interface_ipv4_address, false)
            .map_err(at("wireguard.interfaceIPv4Address"))?,
        wireguard_v6: address_of(&spec.wireguard.interface_ipv6_address, true)
            .map_err(at("wireguard.interfaceIPv6Address"))?,
    };
    Ok(Value::Node(Box::new(node), resource.metadata.labels))
}

fn addresses(spec: &NodeSpec, flaws: &mut Vec<Flaw>) -> Vec<NodeAddress> {
    let mut addresses = Vec::new();
    for (place, entry) in spec.addresses.iter().enumerate() {
        let kind = match entry.kind.as_str() {
            "InternalIP" => NodeAddressKind::Internal,
            "ExternalIP" => NodeAddressKind::External,
            // Names of the node, which Kubernetes lists among its addresses.
            "Hostname" | "InternalDNS" | "ExternalDNS" => continue,
            _ => NodeAddressKind::Other,
        };
        match address_or_prefix(&entry.address) {
            Ok(net) => addresses.push(NodeAddress {
                address: net.addr(),
                kind,
            }),
            Err(rule) => flaws.push(rule.at(format!("spec.addresses[{place}].address"))),
        }
    }
    addresses
}

/// The node's address with the length of its subnet.
fn subnet(text: &str, v6: bool) -> Result<Option<IpNet>, Rule> {
    if text.is_empty() {
        return Ok(None);
    }
    let net = address_or_prefix(text)?;
    of_family(net.addr(), text, v6)?;
    Ok(Some(net))
}

fn is_empty(bgp: &NodeBgp) -> bool {
    bgp.ipv4_address.is_empty()
        && bgp.ipv6_address.is_empty()
        && bgp.ipv4_ipip_tunnel_addr.is_empty()
        && bgp.as_number.is_none()
        && bgp.route_reflector_cluster_id.is_empty()
}

/// RFC 1123, as Kubernetes reads it.
fn is_dns_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        })
}

/// 32 bytes in base64: 43 digits, of which the last holds 4 bits, and one of padding.
fn is_wireguard_key(key: &str) -> bool {
    key.strip_suffix('=').is_some_and(|digits| {
        digits.len() == 43
            && digits
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
            && digits.ends_with(|last: char| "AEIMQUYcgkosw048".contains(last))
    })
}
