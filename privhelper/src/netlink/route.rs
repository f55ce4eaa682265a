//! Kernel routes as netlink messages, there and back. Pure.
//!
//! The kernel reports some things otherwise than they were asked for: an IPv6 route has no scope
//! and its metric is never 0, one that refuses packets leads to `lo`, a next hop has flags of its
//! own. Reading undoes that, so that what was set reads back as it was asked for.

mod report;

use std::net::IpAddr;

use ipc_proto::{Hop, KernelRoute, RouteKey, RouteKind};
use ipnet::IpNet;
use libc::{
    AF_INET, AF_INET6, RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RTA_DST, RTA_GATEWAY,
    RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTN_BLACKHOLE,
    RTN_LOCAL, RTN_PROHIBIT, RTN_THROW, RTN_UNICAST, RTN_UNREACHABLE,
};
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage},
};

use self::report::{HOP, MTU, ONLINK};
pub(super) use self::report::{Report, deletion};
use super::attributes::{push, push_ip};
use crate::policy::Policy;

/// Room for what most requests have.
const ROOM: usize = 64;

/// Lays out the body of the request for a route; none if its table or its protocol has no number.
///
/// Routes come by the ten thousands, so this makes no object of each attribute, as `report` does not.
pub(super) fn body(key: &RouteKey, route: &KernelRoute, policy: &Policy) -> Option<Vec<u8>> {
    let table = policy.table(key.table)?;
    let protocol = policy.protocol(route.protocol)?;
    let family = match key.prefix {
        IpNet::V4(_) => AF_INET,
        IpNet::V6(_) => AF_INET6,
    };
    let onlink = matches!(&route.kind, RouteKind::Unicast(hop) if hop.onlink);
    let mut body = Vec::with_capacity(ROOM);
    body.extend([
        u8::try_from(family).unwrap_or_default(),
        key.prefix.prefix_len(),
        0,
        key.tos,
        byte(table),
        protocol,
        scope(&key.prefix, &route.kind),
        kind(&route.kind),
        if onlink { ONLINK } else { 0 },
        0,
        0,
        0,
    ]);
    push(&mut body, RTA_TABLE, &table.to_ne_bytes());
    push_ip(&mut body, RTA_DST, key.prefix.addr());
    match &route.kind {
        RouteKind::Unicast(hop) => {
            push(&mut body, RTA_OIF, &hop.link.index.to_ne_bytes());
            if let Some(via) = hop.via {
                push_ip(&mut body, RTA_GATEWAY, via);
            }
        }
        RouteKind::Multipath(hops) => {
            let mut ways = Vec::new();
            for hop in hops {
                push_hop(&mut ways, hop);
            }
            push(&mut body, RTA_MULTIPATH, &ways);
        }
        RouteKind::Local(link) => push(&mut body, RTA_OIF, &link.index.to_ne_bytes()),
        RouteKind::Blackhole | RouteKind::Prohibit | RouteKind::Unreachable | RouteKind::Throw => {}
    }
    if let Some(source) = route.source {
        push_ip(&mut body, RTA_PREFSRC, source);
    }
    if key.metric > 0 {
        push(&mut body, RTA_PRIORITY, &key.metric.to_ne_bytes());
    }
    if let Some(mtu) = route.mtu {
        let mut metrics = Vec::new();
        push(&mut metrics, MTU, &mtu.to_ne_bytes());
        push(&mut body, RTA_METRICS, &metrics);
    }
    Some(body)
}

/// Appends a way out of several: a `struct rtnexthop` and its attributes.
fn push_hop(ways: &mut Vec<u8>, hop: &Hop) {
    let mut attributes = Vec::new();
    if let Some(via) = hop.via {
        push_ip(&mut attributes, RTA_GATEWAY, via);
    }
    let length = u16::try_from(HOP + attributes.len()).unwrap_or(u16::MAX);
    ways.extend(length.to_ne_bytes());
    ways.extend([if hop.onlink { ONLINK } else { 0 }, 0]);
    ways.extend(hop.link.index.to_ne_bytes());
    ways.extend(attributes);
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

fn header(ipv6: bool, table: u32) -> RouteHeader {
    RouteHeader {
        address_family: if ipv6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        },
        table: byte(table),
        ..RouteHeader::default()
    }
}

/// Returns a table's number as the header has it: those that do not fit are in the attribute alone.
fn byte(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC)
}

fn kind(kind: &RouteKind) -> u8 {
    match kind {
        RouteKind::Unicast(_) | RouteKind::Multipath(_) => RTN_UNICAST,
        RouteKind::Local(_) => RTN_LOCAL,
        RouteKind::Blackhole => RTN_BLACKHOLE,
        RouteKind::Prohibit => RTN_PROHIBIT,
        RouteKind::Unreachable => RTN_UNREACHABLE,
        RouteKind::Throw => RTN_THROW,
    }
}

/// IPv6 has no scopes; the kernel reports the widest for every route.
fn scope(prefix: &IpNet, kind: &RouteKind) -> u8 {
    match (prefix, kind) {
        (IpNet::V4(_), RouteKind::Unicast(Hop { via: None, .. })) => RT_SCOPE_LINK,
        (IpNet::V4(_), RouteKind::Local(_)) => RT_SCOPE_HOST,
        (
            IpNet::V4(_) | IpNet::V6(_),
            RouteKind::Unicast(_)
            | RouteKind::Multipath(_)
            | RouteKind::Local(_)
            | RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw,
        ) => RT_SCOPE_UNIVERSE,
    }
}

#[cfg(test)]
mod tests;
