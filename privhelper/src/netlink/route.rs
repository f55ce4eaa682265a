//! Kernel routes as netlink messages, there and back. Pure.
//!
//! The kernel reports some things otherwise than they were asked for: an IPv6 route has no scope
//! and its metric is never 0, one that refuses packets leads to `lo`, a next hop has flags of its
//! own. Reading undoes that, so that what was set reads back as it was asked for.

use std::net::IpAddr;

use ipc_proto::{Hop, KernelRoute, Link, LinkRole, RouteKey, RouteKind};
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
        RouteNextHop, RouteNextHopFlags, RoutePreference, RouteProtocol, RouteScope, RouteType,
    },
};

use crate::{
    links::Links,
    policy::{Found, Policy},
};

/// Lays out a route; none if its table has no number.
pub(super) fn message(
    key: &RouteKey,
    route: &KernelRoute,
    policy: &Policy,
) -> Option<RouteMessage> {
    let mut message = request(key.prefix, policy.table(key.table)?);
    let header = &mut message.header;
    header.protocol = RouteProtocol::from(policy.protocol(route.protocol));
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

/// A route that the kernel reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Existing {
    /// What it is known by.
    pub(super) key: RouteKey,
    /// Whether it is ours.
    pub(super) ours: bool,
    /// What it does, if a request could have made it.
    pub(super) route: Option<KernelRoute>,
    /// The message that deletes it and nothing else.
    pub(super) delete: RouteMessage,
}

/// What a report says beyond its key.
#[derive(Default)]
struct Report<'a> {
    oif: Option<u32>,
    via: Option<IpAddr>,
    source: Option<IpAddr>,
    mtu: Option<u32>,
    hops: Option<&'a [RouteNextHop]>,
    /// Something that no request asks for.
    odd: bool,
}

/// Reads a report of the kernel's; none if it is of a kind of route that has no [`RouteKey`].
pub(super) fn read(message: &RouteMessage, policy: &Policy, links: &Links) -> Option<Existing> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned)
        || header.tos != 0
        || header.source_prefix_length != 0
    {
        return None;
    }
    let (key, report) = take_apart(message, policy)?;
    let refuses = matches!(
        header.kind,
        RouteType::BlackHole | RouteType::Prohibit | RouteType::Unreachable | RouteType::Throw
    );
    let outputs: Vec<u32> = match (refuses, report.hops) {
        (true, _) => Vec::new(),
        (false, Some(hops)) => hops.iter().map(|hop| hop.interface_index).collect(),
        (false, None) => report.oif.into_iter().collect(),
    };
    let roles: Vec<LinkRole> = outputs
        .iter()
        .map(|index| {
            links
                .by_index(*index)
                .map_or(LinkRole::Other, |state| state.role)
        })
        .collect();
    let found = Found {
        table: key.table,
        prefix: key.prefix,
        protocol: header.protocol.into(),
        outputs: &roles,
    };
    let route = read_kind(message, &report, links)
        .filter(|kind| !report.odd && header.scope == scope(&key.prefix, kind))
        .and_then(|kind| {
            Some(KernelRoute {
                kind,
                protocol: policy.protocol_of(&found)?,
                source: report.source,
                mtu: report.mtu,
            })
        });
    Some(Existing {
        ours: policy.owns(&found),
        route,
        delete: deletion(message, refuses),
        key,
    })
}

fn take_apart<'a>(message: &'a RouteMessage, policy: &Policy) -> Option<(RouteKey, Report<'a>)> {
    let header = &message.header;
    let mut number = u32::from(header.table);
    #[expect(clippy::wildcard_enum_match_arm, reason = "others are no IP routes")]
    let mut address = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0_u8; 4]),
        AddressFamily::Inet6 => IpAddr::from([0_u8; 16]),
        _ => return None,
    };
    let mut metric = 0;
    let mut report = Report::default();
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever no request asks for is odd"
    )]
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(table) => number = *table,
            RouteAttribute::Destination(to) => address = ip(to)?,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => report.oif = Some(*index),
            RouteAttribute::Gateway(via) => report.via = ip(via),
            RouteAttribute::PrefSource(own) => report.source = ip(own),
            RouteAttribute::MultiPath(hops) => report.hops = Some(hops),
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => report.mtu = Some(*mtu),
                        RouteMetric::Lock(0) => {}
                        _ => report.odd = true,
                    }
                }
            }
            RouteAttribute::Preference(RoutePreference::Medium) => {}
            RouteAttribute::CacheInfo(cache) => report.odd |= cache.expires != 0,
            _ => report.odd = true,
        }
    }
    let (table, _) = policy.tables().find(|(_, known)| *known == number)?;
    let prefix = IpNet::new(address, header.destination_prefix_length).ok()?;
    Some((RouteKey::new(table, prefix, metric), report))
}

/// Reads what a route does; none if no request asks for that.
fn read_kind(message: &RouteMessage, report: &Report<'_>, links: &Links) -> Option<RouteKind> {
    let link = |index| -> Option<Link> { Some(links.by_index(index)?.link.clone()) };
    match (&message.header.kind, report.hops) {
        (RouteType::Unicast, None) => Some(RouteKind::Unicast(Hop {
            link: link(report.oif?)?,
            via: report.via,
            onlink: message.header.flags.contains(RouteFlags::Onlink),
        })),
        (RouteType::Unicast, Some(hops)) => {
            let hops: Option<Vec<Hop>> = hops
                .iter()
                .map(|hop| {
                    let via = match hop.attributes.as_slice() {
                        [] => None,
                        [RouteAttribute::Gateway(via)] => Some(ip(via)?),
                        _ => return None,
                    };
                    // All weights are equal if all are 1, which is 0 here.
                    (hop.hops == 0).then_some(Hop {
                        link: link(hop.interface_index)?,
                        via,
                        onlink: hop.flags.contains(RouteNextHopFlags::Onlink),
                    })
                })
                .collect();
            hops.map(RouteKind::Multipath)
        }
        (RouteType::Local, None) => Some(RouteKind::Local(link(report.oif?)?)),
        (RouteType::BlackHole, None) => Some(RouteKind::Blackhole),
        (RouteType::Prohibit, None) => Some(RouteKind::Prohibit),
        (RouteType::Unreachable, None) => Some(RouteKind::Unreachable),
        (RouteType::Throw, None) => Some(RouteKind::Throw),
        _ => None,
    }
}

/// Makes the message that deletes exactly the route of a report: the kernel compares what is given,
/// and an IPv4 metric of 0 is not.
fn deletion(message: &RouteMessage, refuses: bool) -> RouteMessage {
    let mut delete = RouteMessage::default();
    delete.header = message.header.clone();
    delete.header.flags &= RouteFlags::Onlink;
    let by_object = message
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, RouteAttribute::NhId(_)));
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is no identity")]
    let identity = message
        .attributes
        .iter()
        .filter(|attribute| match attribute {
            RouteAttribute::Table(_)
            | RouteAttribute::Destination(_)
            | RouteAttribute::Priority(_)
            | RouteAttribute::PrefSource(_)
            | RouteAttribute::NhId(_) => true,
            RouteAttribute::Oif(_) => !refuses && !by_object,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_) => {
                !by_object
            }
            _ => false,
        });
    delete.attributes.extend(identity.cloned());
    for attribute in &mut delete.attributes {
        if let RouteAttribute::MultiPath(hops) = attribute {
            for hop in hops {
                hop.flags &= RouteNextHopFlags::Onlink;
            }
        }
    }
    delete
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "others are no IP addresses")]
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
