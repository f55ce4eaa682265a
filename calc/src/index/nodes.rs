//! Nodes: their addresses, and whose an address is.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::Mac;
use ipnet::IpNet;
use sha1::{Digest, Sha1};

use super::NodeId;
use crate::{
    event::{Node, NodeAddressKind},
    prefix::Family,
    route::{NodeName, Tunnels},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_name: BTreeMap<NodeName, Node>,
    /// By the place of the node's number: what many routes ask for.
    ends: Vec<Ends>,
    /// Every address of a node as a host.
    hosts: BTreeSet<(IpAddr, NodeName)>,
    /// Every end of a tunnel.
    tunnels: BTreeSet<(IpAddr, NodeName, TunnelKind)>,
    /// The hardware address of every VXLAN tunnel end.
    macs: BTreeSet<(Family, Mac, NodeName)>,
}

/// Where a node is reached, by IPv4 and by IPv6.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    mains: [Option<IpNet>; 2],
    vteps: [Option<Vtep>; 2],
}

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TunnelKind {
    WireGuard,
    Ipip,
    Vxlan,
}

/// A node's end of a VXLAN tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vtep {
    /// The node's own address.
    pub(crate) node: IpAddr,
    /// Its address in the tunnel.
    pub(crate) address: IpAddr,
    /// Its hardware address in the tunnel.
    pub(crate) mac: Mac,
}

impl Nodes {
    pub(crate) fn get(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name)
    }

    pub(super) fn set(&mut self, id: NodeId, name: &NodeName, node: Option<Node>) {
        if self.ends.len() <= id.place() {
            self.ends.resize(id.place() + 1, Ends::default());
        }
        if let Some(ends) = self.ends.get_mut(id.place()) {
            *ends = Ends {
                mains: Family::ALL.map(|family| node.as_ref()?.main(family)),
                vteps: Family::ALL.map(|family| node.as_ref()?.vtep(name, family)),
            };
        }
        if let Some(node) = self.by_name.remove(name) {
            for address in node.hosts() {
                self.hosts.remove(&(address, NodeName::clone(name)));
            }
            for (address, kind) in node.tunnel_ends() {
                self.tunnels.remove(&(address, NodeName::clone(name), kind));
            }
            for (family, vtep) in node.vteps(name) {
                self.macs.remove(&(family, vtep.mac, NodeName::clone(name)));
            }
        }
        if let Some(node) = node {
            for address in node.hosts() {
                self.hosts.insert((address, NodeName::clone(name)));
            }
            for (address, kind) in node.tunnel_ends() {
                self.tunnels.insert((address, NodeName::clone(name), kind));
            }
            for (family, vtep) in node.vteps(name) {
                self.macs.insert((family, vtep.mac, NodeName::clone(name)));
            }
            self.by_name.insert(NodeName::clone(name), node);
        }
    }

    /// Returns the main address of a node.
    pub(crate) fn main(&self, id: NodeId, family: Family) -> Option<IpNet> {
        *family.of_both(&self.ends.get(id.place())?.mains)
    }

    /// Returns the end of a node's VXLAN tunnel.
    pub(crate) fn vtep(&self, id: NodeId, family: Family) -> Option<Vtep> {
        *family.of_both(&self.ends.get(id.place())?.vteps)
    }

    /// All nodes, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.by_name.iter()
    }

    /// Returns the first node, by name, that has the address as a host.
    pub(crate) fn host_owner(&self, address: IpAddr) -> Option<&NodeName> {
        self.hosts
            .range((address, NodeName::default())..)
            .next()
            .filter(|(a, _)| *a == address)
            .map(|(_, name)| name)
    }

    /// Returns the first node, by name, that has an end of a tunnel there, and of which tunnels.
    pub(crate) fn tunnel_owner(&self, address: IpAddr) -> Option<(NodeName, Tunnels)> {
        let mut ends = self.tunnel_ends_at(address).peekable();
        let (name, _) = ends.peek().copied()?;
        let mut tunnels = Tunnels::default();
        for (_, kind) in ends.take_while(|(other, _)| *other == name) {
            match kind {
                TunnelKind::WireGuard => tunnels.wireguard = true,
                TunnelKind::Ipip => tunnels.ipip = true,
                TunnelKind::Vxlan => tunnels.vxlan = true,
            }
        }
        Some((NodeName::clone(name), tunnels))
    }

    /// The nodes with an end of a VXLAN tunnel there, by name.
    pub(crate) fn vteps_at(&self, address: IpAddr) -> impl Iterator<Item = &NodeName> {
        self.tunnel_ends_at(address)
            .filter(|(_, kind)| *kind == TunnelKind::Vxlan)
            .map(|(name, _)| name)
    }

    /// The nodes with an end of a VXLAN tunnel of that hardware address, by name.
    pub(crate) fn vteps_of(&self, family: Family, mac: Mac) -> impl Iterator<Item = &NodeName> {
        self.macs
            .range((family, mac, NodeName::default())..)
            .take_while(move |(f, m, _)| (*f, *m) == (family, mac))
            .map(|(_, _, name)| name)
    }

    fn tunnel_ends_at(&self, address: IpAddr) -> impl Iterator<Item = (&NodeName, TunnelKind)> {
        self.tunnels
            .range((address, NodeName::default(), TunnelKind::WireGuard)..)
            .take_while(move |(a, _, _)| *a == address)
            .map(|(_, name, kind)| (name, *kind))
    }
}

impl Node {
    /// Returns its main address of a family with its subnet (L1). The BGP section is asked for both
    /// families if it has an address at all.
    pub(crate) fn main(&self, family: Family) -> Option<IpNet> {
        if self.bgp_ipv4.is_some() || self.bgp_ipv6.is_some() {
            return match family {
                Family::V4 => self.bgp_ipv4,
                Family::V6 => self.bgp_ipv6,
            };
        }
        let first = |kind| {
            self.addresses
                .iter()
                .find(|a| a.kind == kind && Family::of(a.address) == family)
                .map(|a| a.address.into())
        };
        first(NodeAddressKind::Internal).or_else(|| first(NodeAddressKind::External))
    }

    /// A node without a main address counts as absent.
    pub(crate) fn is_usable(&self) -> bool {
        Family::ALL
            .iter()
            .any(|family| self.main(*family).is_some())
    }

    /// Its addresses as a host (L2).
    pub(crate) fn hosts(&self) -> BTreeSet<IpAddr> {
        let main = Family::ALL
            .into_iter()
            .filter_map(|family| self.main(family));
        let all = self
            .addresses
            .iter()
            .map(|a| a.address)
            .chain(main.map(|net| net.addr()));
        all.filter(|address| self.is_usable() && !address.is_unspecified())
            .collect()
    }

    /// Its ends of tunnels (L3).
    pub(crate) fn tunnel_ends(&self) -> impl Iterator<Item = (IpAddr, TunnelKind)> {
        let usable = self.is_usable();
        [
            (self.ipip, TunnelKind::Ipip),
            (self.vxlan_v4, TunnelKind::Vxlan),
            (self.vxlan_v6, TunnelKind::Vxlan),
            (self.wireguard_v4, TunnelKind::WireGuard),
            (self.wireguard_v6, TunnelKind::WireGuard),
        ]
        .into_iter()
        .filter_map(move |(address, kind)| usable.then_some((address?, kind)))
    }

    /// Returns its end of the VXLAN tunnel of the family, if all that takes is known.
    pub(crate) fn vtep(&self, name: &str, family: Family) -> Option<Vtep> {
        let (address, mac) = match family {
            Family::V4 => (self.vxlan_v4?, self.vxlan_mac_v4),
            Family::V6 => (self.vxlan_v6?, self.vxlan_mac_v6),
        };
        (Family::of(address) == family).then_some(Vtep {
            node: self.main(family)?.addr(),
            address,
            mac: mac.unwrap_or_else(|| default_mac(name, family)),
        })
    }

    /// Its ends of both VXLAN tunnels.
    pub(crate) fn vteps(&self, name: &str) -> impl Iterator<Item = (Family, Vtep)> {
        Family::ALL
            .into_iter()
            .filter_map(move |family| Some((family, self.vtep(name, family)?)))
    }
}

/// The hardware address of a node's VXLAN device: all nodes must come to the same, Calico's too.
fn default_mac(name: &str, family: Family) -> Mac {
    let mut hash = Sha1::new();
    hash.update(name);
    if family == Family::V6 {
        hash.update("-v6");
    }
    let mut mac = [0x66; 6];
    for (byte, hashed) in mac.iter_mut().skip(1).zip(hash.finalize()) {
        *byte = hashed;
    }
    Mac(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_hardware_addresses_are_calicos() {
        for (family, mac) in [
            (Family::V4, "66:a7:93:fa:f8:c4"),
            (Family::V6, "66:53:2e:d5:7e:9e"),
        ] {
            assert_eq!(default_mac("n-rem", family), mac.parse().unwrap());
        }
    }
}
