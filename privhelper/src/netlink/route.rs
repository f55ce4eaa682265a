//! Kernel routes as netlink messages, there and back. Pure.
//!
//! The kernel reports some things otherwise than they were asked for: an IPv6 route has no scope
//! and its metric is never 0, one that refuses packets leads to `lo`, a next hop has flags of its
//! own. Reading undoes that, so that what was set reads back as it was asked for.

mod report;

use std::net::IpAddr;

use ipc_proto::{Hop, KernelRoute, RouteKey, RouteKind};
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    route::{
        RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
        RouteNextHopFlags, RouteProtocol, RouteScope, RouteType,
    },
};

pub(super) use self::report::{Report, deletion};
use crate::policy::Policy;

/// Lays out a route; none if its table or its protocol has no number.
pub(super) fn message(
    key: &RouteKey,
    route: &KernelRoute,
    policy: &Policy,
) -> Option<RouteMessage> {
    let mut message = request(key.prefix, policy.table(key.table)?);
    let protocol = policy.protocol(route.protocol)?;
    let header = &mut message.header;
    header.tos = key.tos;
    header.protocol = RouteProtocol::from(protocol);
    header.kind = kind(&route.kind);
    header.scope = scope(&key.prefix, &route.kind);
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Destination(key.prefix.addr().into()));
    match &route.kind {
        RouteKind::Unicast(hop) => {
            if hop.onlink {
                header.flags |= RouteFlags::Onlink;
            }
            attributes.push(RouteAttribute::Oif(hop.link.index));
            attributes.extend(hop.via.map(|via| RouteAttribute::Gateway(via.into())));
        }
        RouteKind::Multipath(hops) => {
            let hops = hops.iter().map(next_hop).collect();
            attributes.push(RouteAttribute::MultiPath(hops));
        }
        RouteKind::Local(link) => attributes.push(RouteAttribute::Oif(link.index)),
        RouteKind::Blackhole | RouteKind::Prohibit | RouteKind::Unreachable | RouteKind::Throw => {}
    }
    attributes.extend(
        route
            .source
            .map(|own| RouteAttribute::PrefSource(own.into())),
    );
    if key.metric > 0 {
        attributes.push(RouteAttribute::Priority(key.metric));
    }
    let mtu = route.mtu.map(|mtu| vec![RouteMetric::Mtu(mtu)]);
    attributes.extend(mtu.map(RouteAttribute::Metrics));
    Some(message)
}

/// Returns the message that asks for all routes of a family in a table.
pub(super) fn dump(ipv6: bool, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = header(ipv6, table);
    message.attributes.push(RouteAttribute::Table(table));
    message
}

/// Returns the message that asks which route the kernel takes to an address.
pub(super) fn lookup(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = header(address.is_ipv6(), 0);
    message.header.destination_prefix_length = IpNet::from(address).prefix_len();
    message.header.flags = RouteFlags::FibMatch;
    let attribute = RouteAttribute::Destination(address.into());
    message.attributes.push(attribute);
    message
}

fn request(prefix: IpNet, table: u32) -> RouteMessage {
    let mut message = dump(matches!(prefix, IpNet::V6(_)), table);
    message.header.destination_prefix_length = prefix.prefix_len();
    message
}

fn header(ipv6: bool, table: u32) -> RouteHeader {
    RouteHeader {
        address_family: if ipv6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        },
        // Numbers that do not fit are in the attribute alone.
        table: u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC),
        ..RouteHeader::default()
    }
}

fn next_hop(hop: &Hop) -> RouteNextHop {
    let mut next = RouteNextHop::default();
    next.interface_index = hop.link.index;
    if hop.onlink {
        next.flags = RouteNextHopFlags::Onlink;
    }
    let via = hop.via.map(|via| RouteAttribute::Gateway(via.into()));
    next.attributes.extend(via);
    next
}

fn kind(kind: &RouteKind) -> RouteType {
    match kind {
        RouteKind::Unicast(_) | RouteKind::Multipath(_) => RouteType::Unicast,
        RouteKind::Local(_) => RouteType::Local,
        RouteKind::Blackhole => RouteType::BlackHole,
        RouteKind::Prohibit => RouteType::Prohibit,
        RouteKind::Unreachable => RouteType::Unreachable,
        RouteKind::Throw => RouteType::Throw,
    }
}

/// IPv6 has no scopes; the kernel reports the widest for every route.
fn scope(prefix: &IpNet, kind: &RouteKind) -> RouteScope {
    match (prefix, kind) {
        (IpNet::V4(_), RouteKind::Unicast(Hop { via: None, .. })) => RouteScope::Link,
        (IpNet::V4(_), RouteKind::Local(_)) => RouteScope::Host,
        (
            IpNet::V4(_) | IpNet::V6(_),
            RouteKind::Unicast(_)
            | RouteKind::Multipath(_)
            | RouteKind::Local(_)
            | RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw,
        ) => RouteScope::Universe,
    }
}

#[cfg(test)]
mod tests;
