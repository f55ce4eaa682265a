//! Neighbours and forwarding entries as netlink messages, there and back. Pure.

use std::net::IpAddr;

use ipc_proto::{FdbKey, Link, LinkRole, Mac, NeighbourKey, Observed};
use netlink_packet_route::{
    AddressFamily,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::RouteType,
};

use super::attributes;
use crate::links::Links;

/// `NUD_PERMANENT`; other bits may be set besides.
pub(super) const PERMANENT: u16 = 0x80;

/// Lays out a neighbour; without a hardware address, to delete it.
pub(super) fn neighbour(key: &NeighbourKey, mac: Option<Mac>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(key.address.is_ipv6());
    message.header.ifindex = key.link.index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    let address = NeighbourAttribute::Destination(key.address.into());
    message.attributes.push(address);
    message.attributes.extend(mac.map(link_layer));
    message
}

/// Lays out a forwarding entry; without a destination, to delete all of its hardware address.
pub(super) fn fdb(key: &FdbKey, destination: Option<IpAddr>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = key.link.index;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(link_layer(key.mac));
    let to = destination.map(|to| NeighbourAttribute::Destination(to.into()));
    message.attributes.extend(to);
    message
}

/// Returns the message that asks for all neighbours of a family.
pub(super) fn dump(ipv6: bool) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ipv6);
    message
}

/// Returns the message that asks for all forwarding entries of an interface.
pub(super) fn dump_fdb(link: &Link) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message
        .attributes
        .push(NeighbourAttribute::IfIndex(link.index));
    message
}

fn family(ipv6: bool) -> AddressFamily {
    if ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}

fn link_layer(mac: Mac) -> NeighbourAttribute {
    NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())
}

/// Reads a report of the kernel's, if it is of something permanent on an interface of ours.
pub(super) fn read(message: &NeighbourMessage, links: &Links) -> Option<Observed> {
    if u16::from(message.header.state) & PERMANENT == 0 {
        return None;
    }
    let state = links.by_index(message.header.ifindex)?;
    let link = state.link.clone();
    let (mut address, mut mac) = (None, None);
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is of no matter")]
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(to) => address = ip(to),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            _ => {}
        }
    }
    match (state.role, message.header.family) {
        (LinkRole::Tunnel(_), AddressFamily::Bridge)
            if message.header.flags.contains(NeighbourFlags::Own) =>
        {
            let key = FdbKey { link, mac: mac? };
            Some(Observed::Fdb(key, address))
        }
        (LinkRole::Tunnel(_), AddressFamily::Inet | AddressFamily::Inet6)
        // IPv6 workloads are found by neighbour discovery; what is permanent there is another's.
        | (LinkRole::Workload, AddressFamily::Inet) => {
            let address = address?;
            let key = NeighbourKey { link, address };
            Some(Observed::Neighbour(key, mac?))
        }
        (LinkRole::Tunnel(_) | LinkRole::Workload | LinkRole::Uplink | LinkRole::Other, _) => None,
    }
}

fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some(IpAddr::V4(*address)),
        NeighbourAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        // A bridge's table does not say of which family it is.
        NeighbourAddress::Other(bytes) => attributes::ip(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{link, links, policy};

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn what_is_set_reads_back() {
        let links = links(&policy());
        let at = |address: &str| NeighbourKey {
            link: link(3, "cali1"),
            address: address.parse().unwrap(),
        };
        let found = read(&neighbour(&at("10.1.0.9"), Some(MAC)), &links);
        assert_eq!(found, Some(Observed::Neighbour(at("10.1.0.9"), MAC)));
        let others = read(&neighbour(&at("fd00:1::9"), Some(MAC)), &links);
        assert_eq!(others, None, "not ours on a workload's link");
        for address in ["192.0.2.9", "2001:db8::9"] {
            let to: IpAddr = address.parse().unwrap();
            let key = FdbKey {
                link: link(4, "vxlan.calico"),
                mac: MAC,
            };
            let found = read(&fdb(&key, Some(to)), &links);
            assert_eq!(found, Some(Observed::Fdb(key, Some(to))));
        }
    }

    #[test]
    fn what_is_learned_or_elsewhere_is_not_ours() {
        let links = links(&policy());
        let key = |index, name| NeighbourKey {
            link: link(index, name),
            address: "10.1.0.9".parse().unwrap(),
        };
        let mut learned = neighbour(&key(3, "cali1"), Some(MAC));
        learned.header.state = NeighbourState::Reachable;
        assert_eq!(read(&learned, &links), None);
        let elsewhere = neighbour(&key(2, "eth0"), Some(MAC));
        assert_eq!(read(&elsewhere, &links), None);
        let unknown = neighbour(&key(99, "cali9"), Some(MAC));
        assert_eq!(read(&unknown, &links), None);
    }
}
