//! What holds for any request.

use ipc_proto::{Hop, KernelRoute, Protocol, RouteKey, RouteKind, Table, codec};
use proptest::prelude::*;

use super::*;

prop_compose! {
    fn any_link()(index in 1_u32..8, name in 0..NAMES.len(), right in prop::bool::weighted(0.9)) -> Link {
        let right_index = u32::try_from(name).unwrap() + 1;
        link(if right { right_index } else { index }, NAMES[name].0)
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        prop::sample::select(vec![
            "192.0.2.1",
            "10.1.0.9",
            "2001:db8::9",
            "127.0.0.1",
            "fe80::1"
        ])
        .prop_map(|text| text.parse().unwrap()),
        any::<IpAddr>(),
    ]
}

fn any_prefix() -> impl Strategy<Value = IpNet> {
    (any_address(), 0_u8..=128, any::<bool>()).prop_map(|(address, len, mask)| {
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let net = IpNet::new(address, len.min(widest)).unwrap();
        if mask { net.trunc() } else { net }
    })
}

fn any_hop() -> impl Strategy<Value = Hop> {
    (any_link(), prop::option::of(any_address()), any::<bool>())
        .prop_map(|(link, via, onlink)| Hop { link, via, onlink })
}

fn any_kind() -> impl Strategy<Value = RouteKind> {
    prop_oneof![
        any_hop().prop_map(RouteKind::Unicast),
        prop::collection::vec(any_hop(), 0..4).prop_map(RouteKind::Multipath),
        any_link().prop_map(RouteKind::Local),
        Just(RouteKind::Blackhole),
        Just(RouteKind::Throw),
    ]
}

proptest! {
    /// Stated again from the outside, with other means: what is let through is inside.
    #[test]
    fn a_kernel_route_that_is_let_through_is_inside_and_would_be_ours(
        prefix in any_prefix(),
        metric in 0_u32..3,
        kind in any_kind(),
        safe in any::<bool>(),
    ) {
        let policy = policy();
        let links = links(&policy);
        let protocol = if safe { Protocol::Safe } else { Protocol::Device };
        let key = RouteKey { table: Table::Main, prefix, tos: 0, metric };
        let route = KernelRoute { kind: kind.clone(), protocol, source: None, mtu: None };
        if policy.check(Lane::State, Op::KernelRoute(key, Some(Box::new(route))), &links).is_err() {
            return Ok(());
        }
        prop_assert_eq!(prefix.network(), prefix.addr());
        prop_assert!(!prefix.contains(&"192.0.2.1".parse::<IpAddr>().unwrap()));
        prop_assert!(!prefix.contains(&"2001:db8::1".parse::<IpAddr>().unwrap()));
        prop_assert!(!prefix.addr().is_loopback() && !prefix.addr().is_multicast());
        prop_assert!(prefix.prefix_len() >= 8);
        let outputs: Vec<Link> = match kind {
            RouteKind::Unicast(hop) => vec![hop.link],
            RouteKind::Multipath(hops) => hops.into_iter().map(|hop| hop.link).collect(),
            RouteKind::Local(link) => vec![link],
            RouteKind::Blackhole | RouteKind::Prohibit | RouteKind::Unreachable | RouteKind::Throw => {
                vec![]
            }
        };
        let roles: Vec<LinkRole> =
            outputs.iter().map(|link| links.get(link).unwrap().role).collect();
        prop_assert!(!roles.contains(&Other));
        let found = Found {
            table: Table::Main,
            prefix,
            protocol: policy.protocol(protocol).unwrap(),
            outputs: &roles,
        };
        prop_assert!(policy.owns(&found));
        prop_assert_eq!(policy.protocol_of(&found), protocol);
    }

    /// Whatever decodes can be checked.
    #[test]
    fn no_bytes_make_the_check_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let policy = policy();
        if let Ok(op) = codec::decode::<Op>(&bytes) {
            drop(policy.check(Lane::State, op, &links(&policy)));
        }
    }

    /// The same from bytes that nearly always decode.
    #[test]
    fn no_mangled_op_makes_the_check_panic(
        prefix in any_prefix(),
        kind in any_kind(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let policy = policy();
        let route = KernelRoute { kind, protocol: Protocol::Safe, source: None, mtu: Some(1400) };
        let key = RouteKey::new(Table::Main, prefix, 0);
        let mut bytes = codec::encode(&Op::KernelRoute(key, Some(Box::new(route)))).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(op) = codec::decode::<Op>(&bytes) {
            drop(policy.check(Lane::State, op, &links(&policy)));
        }
    }
}
