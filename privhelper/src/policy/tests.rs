//! The policy, stated from the outside.

mod programs;
mod properties;

use ipc_proto::{
    BpfRoute, BpfTarget, FdbKey, Flags, Hop, KernelRoute, LinkAddressKey, Mac, NeighbourKey,
    Protocol, RouteKey, RouteKind, Rule, Table, TunnelDevice,
};

use super::*;
use crate::links::Unseen;
use LinkRole::{Other, Uplink, Workload};

const TUNNEL: LinkRole = LinkRole::Tunnel(Tunnel::VxlanV4);
const TUNNEL_V6: LinkRole = LinkRole::Tunnel(Tunnel::VxlanV6);

pub(crate) fn policy() -> Policy {
    Policy {
        workload_prefixes: vec!["cali".into()],
        tunnel_v4: "vxlan.calico".parse().unwrap(),
        tunnel_v6: "vxlan-v6.calico".parse().unwrap(),
        uplinks: Uplinks::Auto,
        excluded: Vec::new(),
        device_protocol: 3,
        safe_protocol: 80,
        former_protocols: Vec::new(),
        second_table: None,
        remove_external_routes: true,
        allow: Vec::new(),
    }
}

pub(crate) fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.parse().unwrap(),
    }
}

const NAMES: [(&str, &[&str]); 6] = [
    ("lo", &["127.0.0.1/8"]),
    ("eth0", &["192.0.2.1/24", "2001:db8::1/64"]),
    ("cali1", &[]),
    ("vxlan.calico", &["10.1.0.0/32"]),
    ("vxlan-v6.calico", &[]),
    ("dummy0", &[]),
];

/// Interfaces of all roles, numbered from 1 in the order of `NAMES`.
pub(crate) fn links(policy: &Policy) -> Links {
    let mut links = Links::default();
    links.update(
        (1..).zip(NAMES).map(|(index, (name, addresses))| {
            let addresses: Vec<IpNet> = addresses.iter().map(|own| own.parse().unwrap()).collect();
            let link = link(index, name);
            LinkState {
                role: policy.role(&link.name, &addresses),
                link,
                up: true,
                carrier: true,
                mac: None,
                mtu: 1500,
                addresses,
            }
        }),
        &Unseen::default(),
    );
    links
}

fn try_op(policy: &Policy, op: Op) -> Result<(), OpError> {
    policy.check(Lane::State, op, &links(policy)).map(drop)
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn bpf(text: &str, flags: u32, target: BpfTarget) -> Op {
    let flags = Flags(flags);
    Op::BpfRoute(prefix(text), Some(BpfRoute { flags, target }))
}

pub(crate) fn hop(link: Link, via: Option<&str>) -> Hop {
    Hop {
        link,
        via: via.map(|via| via.parse().unwrap()),
        onlink: via.is_some(),
    }
}

fn kernel(text: &str, kind: RouteKind, protocol: Protocol) -> Op {
    Op::KernelRoute(
        RouteKey::new(Table::Main, prefix(text), 0),
        Some(Box::new(KernelRoute {
            kind,
            protocol,
            source: None,
            mtu: None,
        })),
    )
}

#[test]
fn what_is_never_ours_is_inside_one_of_these_to_the_last_address() {
    let nets: [(&str, &[&str]); 6] = [
        ("0.0.0.0/8", &["1.0.0.0"]),
        ("127.0.0.0/8", &["126.255.255.255", "128.0.0.0"]),
        ("169.254.0.0/16", &["169.253.255.255", "169.255.0.0"]),
        ("224.0.0.0/4", &["223.255.255.255", "240.0.0.0"]),
        ("fe80::/10", &["fe7f:ffff::1", "fec0::"]),
        ("ff00::/8", &["feff:ffff::1"]),
    ];
    for (text, beside) in nets {
        let net: IpNet = text.parse().unwrap();
        let ends = [net.network(), net.broadcast()].map(IpNet::from);
        for inside in [net]
            .into_iter()
            .chain(ends)
            .chain(net.subnets(net.prefix_len() + 1).unwrap())
        {
            assert_eq!(routes::never(&inside), Some(text), "{inside}");
        }
        assert_eq!(
            routes::never(&net.supernet().unwrap().trunc()),
            None,
            "around {net}"
        );
        for address in beside {
            let outside = address.parse::<IpAddr>().unwrap();
            assert_eq!(routes::never(&outside.into()), None, "{address}");
        }
    }
}

#[test]
fn roles_go_by_name_then_by_address() {
    let policy = policy();
    let links = links(&policy);
    let roles: Vec<_> = links.iter().map(|state| state.role).collect();
    assert_eq!(roles, [Other, Uplink, Workload, TUNNEL, TUNNEL_V6, Other]);
    let address = [prefix("10.1.0.1/32")];
    assert_eq!(policy.role(&"tunl0".parse().unwrap(), &address), Other);
    let listed = Policy {
        uplinks: Uplinks::Listed(vec!["eth1".parse().unwrap()]),
        ..policy
    };
    assert_eq!(listed.role(&"eth0".parse().unwrap(), &address), Other);
    assert_eq!(listed.role(&"eth1".parse().unwrap(), &[]), Uplink);
}

#[test]
fn what_calc_asks_for_is_let_through() {
    let policy = policy();
    let via = |text: &str| BpfTarget::NextHop(text.parse().unwrap());
    for op in [
        bpf("10.1.0.0/26", 0x45, via("192.0.2.9")),
        bpf("0.0.0.0/0", 0, BpfTarget::None),
        bpf("10.1.0.9/32", 0xf, BpfTarget::Link(link(3, "cali1"))),
        bpf("10.1.0.9/32", 0xf, BpfTarget::None),
        bpf("fd00:1::/122", 0x405, via("2001:db8::9")),
        Op::BpfRoute(prefix("10.1.0.0/26"), None),
        kernel(
            "10.1.0.9/32",
            RouteKind::Unicast(hop(link(3, "cali1"), None)),
            Protocol::Device,
        ),
        kernel(
            "10.1.1.0/26",
            RouteKind::Unicast(hop(link(4, "vxlan.calico"), Some("10.1.1.0"))),
            Protocol::Device,
        ),
        kernel(
            "10.1.1.0/26",
            RouteKind::Unicast(hop(link(2, "eth0"), Some("192.0.2.9"))),
            Protocol::Safe,
        ),
        // The tunnel device's own address is in the block.
        kernel("10.1.0.0/26", RouteKind::Blackhole, Protocol::Safe),
        Op::LinkSettings(link(3, "cali1"), Some(LinkProfile::Workload)),
        Op::LinkSettings(link(9, "gone"), None),
        Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device()))),
        Op::Neighbour(
            NeighbourKey {
                link: link(3, "cali1"),
                address: "10.1.0.9".parse().unwrap(),
            },
            Some(Mac([2, 0, 0, 0, 0, 1])),
        ),
        link_address(link(3, "cali1"), "169.254.0.179"),
        link_address(link(3, "cali1"), "fe80::179"),
        link_address(link(3, "cali1"), "fd12::179"),
        Op::Fdb(
            FdbKey {
                link: link(4, "vxlan.calico"),
                mac: Mac([0x66, 0, 0, 0, 0, 1]),
            },
            Some("192.0.2.9".parse().unwrap()),
        ),
    ] {
        assert_eq!(try_op(&policy, op.clone()), Ok(()), "{op:?}");
    }
}

fn link_address(link: Link, address: &str) -> Op {
    let address = address.parse().unwrap();
    Op::LinkAddress(LinkAddressKey { link, address }, true)
}

fn device() -> TunnelDevice {
    TunnelDevice {
        vni: 4096,
        port: 4789,
        local: "192.0.2.1".parse().unwrap(),
        parent: link(2, "eth0"),
        mac: Mac([0x66, 0, 0, 0, 0, 9]),
        mtu: 1450,
        address: "10.1.0.0".parse().unwrap(),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_must_not_be_touched_is_refused() {
    let policy = policy();
    let via = |text: &str| BpfTarget::NextHop(text.parse().unwrap());
    let unicast = |link, via| RouteKind::Unicast(hop(link, via));
    let neighbour = |link, address: &str, mac| {
        let address = address.parse().unwrap();
        Op::Neighbour(NeighbourKey { link, address }, Some(Mac(mac)))
    };
    let fdb = |link, destination: &str| {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        Op::Fdb(FdbKey { link, mac }, Some(destination.parse().unwrap()))
    };
    let tunnel = |change: &dyn Fn(&mut TunnelDevice)| {
        let mut device = device();
        change(&mut device);
        Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device)))
    };
    let mac = [2, 0, 0, 0, 0, 1];
    let (cali, eth0) = (|| link(3, "cali1"), || link(2, "eth0"));
    for (op, said) in [
        (link_address(eth0(), "169.254.0.179"), "no workload's link"),
        (
            link_address(link(4, "vxlan.calico"), "169.254.0.179"),
            "no workload's link",
        ),
        (link_address(cali(), "127.0.0.1"), "address 127.0.0.1"),
        (link_address(cali(), "ff02::1"), "address ff02::1"),
        (link_address(cali(), "255.255.255.255"), "address 255"),
        (bpf("10.1.0.1/26", 0, BpfTarget::None), "bits beyond"),
        (bpf("127.0.0.0/16", 0, BpfTarget::None), "127.0.0.0/8"),
        (bpf("fe80::/64", 0, BpfTarget::None), "fe80::/10"),
        (bpf("10.1.0.0/26", 0x1000, BpfTarget::None), "unknown flag"),
        (bpf("10.1.0.0/26", 0x45, via("2001:db8::9")), "next hop"),
        (bpf("10.1.0.0/26", 0x45, via("224.0.0.1")), "next hop"),
        (bpf("10.1.0.9/32", 0xf, via("192.0.2.9")), "do not go with"),
        (
            bpf("10.1.0.9/32", 5, BpfTarget::Link(cali())),
            "do not go with",
        ),
        (
            bpf("10.1.0.9/32", 0xf, BpfTarget::Link(eth0())),
            "workload's",
        ),
        (
            kernel("0.0.0.0/0", RouteKind::Blackhole, Protocol::Safe),
            "shorter",
        ),
        (
            kernel("2000::/12", RouteKind::Blackhole, Protocol::Safe),
            "shorter",
        ),
        (
            kernel("192.0.2.1/32", RouteKind::Blackhole, Protocol::Safe),
            "own address",
        ),
        (
            kernel("192.0.0.0/16", RouteKind::Throw, Protocol::Safe),
            "own address",
        ),
        (
            kernel("10.1.0.0/26", RouteKind::Blackhole, Protocol::Device),
            "safe protocol",
        ),
        (
            kernel(
                "10.1.0.0/26",
                unicast(eth0(), Some("192.0.2.9")),
                Protocol::Device,
            ),
            "safe protocol",
        ),
        (
            kernel(
                "10.1.0.0/26",
                unicast(link(6, "dummy0"), None),
                Protocol::Safe,
            ),
            "dummy0#6",
        ),
        (
            kernel("10.1.0.0/26", unicast(link(1, "lo"), None), Protocol::Safe),
            "lo#1",
        ),
        (
            kernel(
                "10.1.0.0/26",
                RouteKind::Multipath(vec![hop(eth0(), Some("192.0.2.9"))]),
                Protocol::Safe,
            ),
            "1 ways",
        ),
        (neighbour(eth0(), "192.0.2.9", mac), "eth0#2"),
        (neighbour(cali(), "224.0.0.1", mac), "224.0.0.1"),
        (
            neighbour(cali(), "10.1.0.9", [3, 0, 0, 0, 0, 1]),
            "hardware",
        ),
        (neighbour(cali(), "10.1.0.9", [0; 6]), "hardware"),
        (fdb(cali(), "192.0.2.9"), "cali1#3"),
        (fdb(link(4, "vxlan.calico"), "2001:db8::9"), "destination"),
        (tunnel(&|device| device.vni = 1 << 24), "VNI"),
        (tunnel(&|device| device.port = 0), "port 0"),
        (tunnel(&|device| device.mtu = 500), "MTU 500"),
        (
            tunnel(&|device| device.local = "192.0.2.2".parse().unwrap()),
            "no address",
        ),
        (
            tunnel(&|device| device.address = "fd00::1".parse().unwrap()),
            "fd00::1",
        ),
        (tunnel(&|device| device.parent = cali()), "no uplink"),
        (tunnel(&|device| device.mac = Mac([0xff; 6])), "hardware"),
        (
            Op::LinkSettings(eth0(), Some(LinkProfile::Workload)),
            "profile",
        ),
        (Op::FlowFlush("10.1.0.9".parse().unwrap()), "Flows lane"),
    ] {
        match try_op(&policy, op.clone()) {
            Err(OpError::Denied(why)) => assert!(why.contains(said), "{op:?}: {why}"),
            other => assert!(
                matches!(other, Err(OpError::Denied(_))),
                "{op:?}: {other:?}"
            ),
        }
    }
}

#[test]
fn an_interface_that_was_made_again_or_renamed_is_stale() {
    let policy = policy();
    for stale in [link(7, "cali1"), link(3, "cali2")] {
        let route = RouteKind::Unicast(hop(stale.clone(), None));
        assert_eq!(
            try_op(&policy, kernel("10.1.0.9/32", route, Protocol::Device)),
            Err(OpError::StaleLink(stale))
        );
    }
}

#[test]
fn a_rule_may_only_lead_to_the_second_table_and_by_a_mark_that_can_match() {
    let rule = |priority, mark, invert| Rule {
        ipv6: false,
        priority,
        mark,
        invert,
    };
    let mark = Some((0x10, 0xf0));
    let second = Policy {
        second_table: Some(77),
        ..policy()
    };
    for ipv6 in [false, true] {
        for (rule, permitted) in [
            (rule(99, mark, false), true),
            (rule(99, mark, true), true),
            (rule(99, None, false), true),
            (rule(1, mark, false), true),
            (rule(32_765, mark, false), true),
            // It would come before the local table's, or after the main one's.
            (rule(0, mark, false), false),
            (rule(32_766, mark, false), false),
            (rule(u32::MAX, mark, false), false),
            // It would match nothing.
            (rule(99, None, true), false),
            (rule(99, Some((0x100, 0xf0)), false), false),
            (rule(99, Some((0, 0)), false), false),
        ] {
            let rule = Rule { ipv6, ..rule };
            for wanted in [false, true] {
                let op = || Op::Rule(rule.clone(), wanted);
                assert_eq!(try_op(&second, op()).is_ok(), permitted, "{rule:?}");
                // There is no table that it could lead to.
                let refused = try_op(&policy(), op());
                assert!(matches!(refused, Err(OpError::Denied(_))), "{rule:?}");
            }
        }
    }
}

#[test]
fn allow_narrows_and_does_not_widen() {
    let policy = Policy {
        allow: vec![prefix("10.0.0.0/8"), prefix("127.0.0.0/8")],
        ..policy()
    };
    let set = |text| try_op(&policy, bpf(text, 0, BpfTarget::None));
    assert_eq!(set("10.1.0.0/26"), Ok(()));
    assert!(set("11.0.0.0/26").is_err());
    assert!(set("10.0.0.0/7").is_err());
    assert!(set("127.0.0.0/26").is_err());
}

#[test]
fn what_others_made_is_not_ours() {
    let policy = policy();
    let owns = |policy: &Policy, text: &str, protocol, outputs: &[LinkRole]| {
        policy.owns(&Found {
            table: Table::Main,
            prefix: prefix(text),
            protocol,
            outputs,
        })
    };
    for (text, protocol, outputs, ours) in [
        ("10.1.0.0/26", 80, &[][..], true),
        ("10.1.0.0/26", 80, &[Uplink], true),
        ("10.1.0.9/32", 3, &[Workload], true),
        ("10.1.0.9/32", 12, &[Workload], true),
        ("10.1.0.9/32", 2, &[Workload], false),
        ("fe80::/64", 3, &[Workload], false),
        ("10.1.1.0/26", 4, &[TUNNEL], true),
        ("fd00::1/128", 2, &[TUNNEL], false),
        ("10.1.0.0/26", 3, &[Uplink], false),
        ("10.1.0.0/26", 3, &[Other], false),
        ("10.1.0.0/26", 3, &[], false),
        ("10.1.0.0/26", 3, &[Workload, Uplink], false),
    ] {
        assert_eq!(
            owns(&policy, text, protocol, outputs),
            ours,
            "{text} proto {protocol} on {outputs:?}"
        );
    }
    let keep = Policy {
        remove_external_routes: false,
        ..policy
    };
    assert!(!owns(&keep, "10.1.0.9/32", 12, &[Workload]));
    assert!(owns(&keep, "10.1.0.9/32", 3, &[Workload]));
}
