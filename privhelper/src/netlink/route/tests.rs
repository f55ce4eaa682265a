//! What is set reads back as it was asked for, although the kernel reports it otherwise.

use ipc_proto::{Protocol, Table};
use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader};
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{
        RouteCacheInfo, RouteFlags, RouteMetric, RouteNextHopFlags, RoutePreference, RouteProtocol,
        RouteScope, RouteType,
    },
};
use proptest::prelude::*;

use super::{super::socket, report::Standing, *};
use crate::{
    links::Links,
    policy::tests::{hop, link, links, policy},
};

fn bytes(message: &RouteMessage) -> Vec<u8> {
    socket::body(&RouteNetlinkMessage::NewRoute(message.clone()))
}

/// Reads the request for a route as others do.
fn message(key: &RouteKey, route: &KernelRoute, policy: &Policy) -> Option<RouteMessage> {
    let body = body(key, route, policy)?;
    let mut header = NetlinkHeader::default();
    header.message_type = libc::RTM_NEWROUTE;
    match RouteNetlinkMessage::deserialize(&header, &body) {
        Ok(RouteNetlinkMessage::NewRoute(message)) => Some(message),
        other => panic!("{other:?}"),
    }
}

fn read(message: &RouteMessage, policy: &Policy, links: &Links) -> Option<(RouteKey, Standing)> {
    let body = bytes(message);
    let report = Report::read(&body, policy)?;
    let standing = report.standing(policy, links);
    Some((report.key, standing))
}

/// Reports a route as the kernel does, by what was measured on 6.18.
fn report(mut message: RouteMessage) -> RouteMessage {
    let ipv6 = message.header.address_family == AddressFamily::Inet6;
    let refuses = !matches!(message.header.kind, RouteType::Unicast | RouteType::Local);
    if ipv6 {
        let attributes = &mut message.attributes;
        if !attributes
            .iter()
            .any(|attribute| matches!(attribute, RouteAttribute::Priority(_)))
        {
            attributes.push(RouteAttribute::Priority(1024));
        }
        if refuses {
            attributes.push(RouteAttribute::Oif(1));
        }
        attributes.push(RouteAttribute::CacheInfo(
            RouteCacheInfo::parse(&[0; 32]).unwrap(),
        ));
        attributes.push(RouteAttribute::Preference(RoutePreference::Medium));
    }
    message.header.flags |= RouteFlags::Linkdown;
    for attribute in &mut message.attributes {
        if let RouteAttribute::MultiPath(hops) = attribute {
            for hop in hops {
                hop.flags |= RouteNextHopFlags::Dead;
            }
        }
    }
    message
}

fn any_kind(ipv6: bool) -> impl Strategy<Value = RouteKind> {
    let via = if ipv6 { "2001:db8::9" } else { "192.0.2.9" };
    let other = if ipv6 { "fd00:2::1" } else { "10.2.0.1" };
    prop::sample::select(vec![
        RouteKind::Unicast(hop(link(3, "cali1"), None)),
        RouteKind::Unicast(hop(link(4, "vxlan.calico"), Some(other))),
        RouteKind::Multipath(vec![
            hop(link(2, "eth0"), Some(via)),
            hop(link(4, "vxlan.calico"), Some(other)),
        ]),
        RouteKind::Multipath(vec![
            hop(link(4, "vxlan.calico"), Some(other)),
            hop(link(2, "eth0"), Some(via)),
        ]),
        RouteKind::Local(link(3, "cali1")),
        RouteKind::Blackhole,
        RouteKind::Prohibit,
        RouteKind::Unreachable,
        RouteKind::Throw,
    ])
}

fn any_route() -> impl Strategy<Value = (RouteKey, KernelRoute)> {
    any::<bool>().prop_flat_map(|ipv6| {
        let (prefix, source) = if ipv6 {
            ("fd00:1::40/122", "2001:db8::1")
        } else {
            ("10.1.0.64/26", "192.0.2.1")
        };
        (
            any_kind(ipv6),
            prop::sample::select(vec![0, 512, 1024]),
            prop::option::of(1280_u32..9000),
            any::<bool>(),
        )
            .prop_map(move |(kind, metric, mtu, with_source)| {
                let key = RouteKey::new(Table::Main, prefix.parse().unwrap(), metric);
                let source = with_source.then(|| source.parse().unwrap());
                let protocol = Protocol::Safe;
                let route = KernelRoute {
                    kind,
                    protocol,
                    source,
                    mtu,
                };
                (key, route)
            })
    })
}

proptest! {
    /// An independent writer lays out what it has read as it was.
    #[test]
    fn a_request_is_laid_out_as_others_do((key, route) in any_route()) {
        let policy = policy();
        let read = message(&key, &route, &policy).unwrap();
        prop_assert_eq!(bytes(&read), body(&key, &route, &policy).unwrap());
        prop_assert_eq!(read.header.destination_prefix_length, key.prefix.prefix_len());
    }

    #[test]
    fn what_is_set_reads_back((key, route) in any_route()) {
        let policy = policy();
        let message = report(message(&key, &route, &policy).unwrap());
        let (found, standing) = read(&message, &policy, &links(&policy)).unwrap();
        prop_assert_eq!(found, key);
        prop_assert!(standing.ours);
        prop_assert_eq!(standing.route, Some(route));
    }

    /// Whether it is known from the request or from the report.
    #[test]
    fn a_deletion_has_the_identity_and_no_state((key, route) in any_route()) {
        let policy = policy();
        let asked = message(&key, &route, &policy).unwrap();
        let read = |body: &[u8]| {
            let deletion = deletion(body);
            let report = Report::read(&deletion, &policy).unwrap();
            (report.key.clone(), report.standing(&policy, &links(&policy)))
        };
        let wanted = Some(KernelRoute { mtu: None, ..route });
        for body in [bytes(&asked), bytes(&report(asked))] {
            let (found, standing) = read(&body);
            prop_assert_eq!(&found, &key);
            prop_assert_eq!(&standing.route, &wanted);
        }
    }

    #[test]
    fn what_is_no_report_is_no_route(body in prop::collection::vec(any::<u8>(), 0..80)) {
        let policy = policy();
        if let Some(report) = Report::read(&body, &policy) {
            report.standing(&policy, &links(&policy));
        }
        deletion(&body);
    }
}

#[test]
fn what_no_request_could_make_is_ours_without_a_value() {
    let policy = policy();
    let key = RouteKey::new(Table::Main, "10.1.0.9/32".parse().unwrap(), 0);
    let route = route_by(hop(link(3, "cali1"), None));
    let asked = message(&key, &route, &policy).unwrap();
    let reread = |message: &RouteMessage| read(message, &policy, &links(&policy)).unwrap();
    assert_eq!(reread(&asked).1.route, Some(route));
    for change in [
        |message: &mut RouteMessage| message.header.scope = RouteScope::Universe,
        |message: &mut RouteMessage| message.attributes.push(RouteAttribute::NhId(7)),
        |message: &mut RouteMessage| {
            message
                .attributes
                .push(RouteAttribute::Metrics(vec![RouteMetric::Advmss(9)]));
        },
    ] {
        let mut changed = asked.clone();
        change(&mut changed);
        let (found, standing) = reread(&changed);
        assert!(standing.ours);
        assert_eq!((found, standing.route), (key.clone(), None));
    }
    let mut bird = asked.clone();
    bird.header.protocol = RouteProtocol::Bird;
    let (_, standing) = reread(&bird);
    assert!(standing.ours);
    let protocol = standing.route.map(|route| route.protocol);
    assert_eq!(
        protocol,
        Some(Protocol::Bird),
        "it says on which link it is"
    );
    let foreign = KernelRoute {
        protocol: Protocol::Foreign,
        ..route_by(hop(link(3, "cali1"), None))
    };
    assert_eq!(message(&key, &foreign, &policy), None);
}

#[test]
fn routes_for_a_source_are_not_told_apart_by_our_key() {
    let policy = policy();
    let key = RouteKey::new(Table::Main, "10.1.0.9/32".parse().unwrap(), 0);
    let route = route_by(hop(link(3, "cali1"), None));
    let mut message = message(&key, &route, &policy).unwrap();
    message.header.source_prefix_length = 8;
    assert_eq!(read(&message, &policy, &links(&policy)), None);
}

fn route_by(hop: Hop) -> KernelRoute {
    KernelRoute {
        kind: RouteKind::Unicast(hop),
        protocol: Protocol::Device,
        source: None,
        mtu: None,
    }
}
