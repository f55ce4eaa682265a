//! Batches of any content, most often of what is nearly right.

use std::net::IpAddr;

use ipc_proto::{
    AttachmentKey, Batch, BatchId, BpfRoute, BpfTarget, Endpoint, FdbKey, Flags, Hook, Hop,
    KernelRoute, Lane, Lease, Link, LinkAddressKey, LinkProfile, Mac, Masquerade, NeighbourKey, Op,
    ProgramSettings, Protocol, RouteKey, RouteKind, Rule, Step, Table, Tunnel, TunnelDevice,
};
use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::LINKS;

const ADDRESSES: [&str; 22] = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.0",
    "10.1.0.0",
    "10.1.0.9",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.1.1",
    "192.0.2.1",
    "192.0.2.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:10.0.0.1",
    "2001:db8::1",
    "fd00::9",
    "fe80::1",
    "febf::1",
    "ff02::1",
];

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        9 => select(&ADDRESSES[..]).prop_map(|text| text.parse().unwrap()),
        1 => any::<IpAddr>(),
    ]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let length = prop_oneof![
        0..=128_u8,
        select(&[0_u8, 4, 7, 8, 10, 16, 24, 26, 32, 64, 128][..])
    ];
    (address(), length, prop::bool::weighted(0.9)).prop_map(|(address, length, masked)| {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let net = IpNet::new(address, length.min(longest)).unwrap();
        if masked { net.trunc() } else { net }
    })
}

fn link() -> impl Strategy<Value = Link> {
    (select(&LINKS[..]), 0..10_u32, prop::bool::weighted(0.9)).prop_map(
        |((name, index, _), other, right)| Link {
            index: if right { index } else { other },
            name: name.parse().unwrap(),
        },
    )
}

fn mac() -> impl Strategy<Value = Mac> {
    prop_oneof![
        4 => Just(Mac([0x66, 0, 0, 0, 0, 9])),
        1 => any::<[u8; 6]>().prop_map(Mac),
        1 => select(&[Mac([0; 6]), Mac([0xff; 6])][..]),
    ]
}

fn hop() -> impl Strategy<Value = Hop> {
    (link(), option::of(address()), any::<bool>()).prop_map(|(link, via, onlink)| Hop {
        link,
        via,
        onlink,
    })
}

fn route() -> impl Strategy<Value = KernelRoute> {
    let kind = prop_oneof![
        4 => hop().prop_map(RouteKind::Unicast),
        2 => vec(hop(), 0..4).prop_map(RouteKind::Multipath),
        1 => vec(hop(), 60..70).prop_map(RouteKind::Multipath),
        1 => link().prop_map(RouteKind::Local),
        2 => select(vec![
            RouteKind::Blackhole,
            RouteKind::Prohibit,
            RouteKind::Unreachable,
            RouteKind::Throw,
        ]),
    ];
    let protocol = select(
        &[
            Protocol::Device,
            Protocol::Safe,
            Protocol::Safe,
            Protocol::Foreign,
            Protocol::Bird,
        ][..],
    );
    let mtu = option::weighted(0.2, any::<u32>());
    (kind, protocol, option::weighted(0.2, address()), mtu).prop_map(
        |(kind, protocol, source, mtu)| KernelRoute {
            kind,
            protocol,
            source,
            mtu,
        },
    )
}

fn tunnel() -> impl Strategy<Value = Tunnel> {
    select(&[Tunnel::VxlanV4, Tunnel::VxlanV6][..])
}

fn device() -> impl Strategy<Value = TunnelDevice> {
    let numbers = (0..=1_u32 << 24, any::<u16>(), 500..70_000_u32);
    let local = prop_oneof![
        Just("192.0.2.1".parse().unwrap()),
        Just("2001:db8::1".parse().unwrap()),
        address()
    ];
    (numbers, local, link(), mac(), address()).prop_map(
        |((vni, port, mtu), local, parent, mac, address)| TunnelDevice {
            vni,
            port,
            local,
            parent,
            mac,
            mtu,
            address,
        },
    )
}

fn bpf() -> impl Strategy<Value = BpfRoute> {
    let flags = prop_oneof![0..0x20_u32, select(&[0x45, 0xf, 0x447][..]), any::<u32>()];
    let target = prop_oneof![
        Just(BpfTarget::None),
        address().prop_map(BpfTarget::NextHop),
        link().prop_map(BpfTarget::Link),
    ];
    (flags, target).prop_map(|(flags, target)| BpfRoute {
        flags: Flags(flags),
        target,
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let priority = prop_oneof![0..3_u32, 90..110_u32, 32_760..32_770_u32, any::<u32>()];
    let mark = option::of((0..256_u32, 0..256_u32));
    (any::<bool>(), priority, mark, any::<bool>()).prop_map(|(ipv6, priority, mark, invert)| Rule {
        ipv6,
        priority,
        mark,
        invert,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let profile = select(
        &[
            LinkProfile::Workload,
            LinkProfile::Tunnel,
            LinkProfile::Uplink,
        ][..],
    );
    let table = select(&[Table::Main, Table::Main, Table::Second][..]);
    let key = (
        table,
        prefix(),
        select(&[0_u8, 0, 0, 4, 1, 255][..]),
        0..3_u32,
    );
    let key = key.prop_map(|(table, prefix, tos, metric)| RouteKey {
        table,
        prefix,
        tos,
        metric,
    });
    let neighbour = (link(), address()).prop_map(|(link, address)| NeighbourKey { link, address });
    let fdb = (link(), mac()).prop_map(|(link, mac)| FdbKey { link, mac });
    let link_address =
        (link(), address()).prop_map(|(link, address)| LinkAddressKey { link, address });
    let hook = select(&[Hook::Ingress, Hook::Egress][..]);
    let attachment = (link(), hook).prop_map(|(link, hook)| AttachmentKey { link, hook });
    let endpoint =
        (mac(), mac(), vec(prefix(), 0..2)).prop_map(|(host_mac, workload_mac, sources)| {
            Box::new(Endpoint {
                host_mac,
                workload_mac,
                sources,
            })
        });
    let masquerade = (vec(prefix(), 0..2), vec(prefix(), 0..2));
    let masquerade = masquerade.prop_map(|(sources, exclusions)| {
        Box::new(Masquerade {
            sources,
            exclusions,
        })
    });
    let (device, route) = (device().prop_map(Box::new), route().prop_map(Box::new));
    let settings = (option::of(link()), any::<u32>(), any::<u16>());
    let settings = settings.prop_map(|(tunnel, vni, port)| ProgramSettings { tunnel, vni, port });
    prop_oneof![
        2 => (link(), option::of(profile)).prop_map(|(link, profile)| Op::LinkSettings(link, profile)),
        2 => (tunnel(), option::weighted(0.9, device)).prop_map(|(t, d)| Op::TunnelDevice(t, d)),
        2 => (neighbour, option::of(mac())).prop_map(|(key, mac)| Op::Neighbour(key, mac)),
        2 => (fdb, option::of(address())).prop_map(|(key, to)| Op::Fdb(key, to)),
        2 => (link_address, any::<bool>()).prop_map(|(key, set)| Op::LinkAddress(key, set)),
        4 => (prefix(), option::weighted(0.8, bpf())).prop_map(|(p, r)| Op::BpfRoute(p, r)),
        8 => (key, option::weighted(0.9, route)).prop_map(|(k, r)| Op::KernelRoute(k, r)),
        2 => (rule(), any::<bool>()).prop_map(|(rule, wanted)| Op::Rule(rule, wanted)),
        1 => (attachment, any::<bool>()).prop_map(|(key, on)| Op::Attachment(key, on)),
        1 => (link(), option::of(endpoint)).prop_map(|(link, e)| Op::Endpoint(link, e)),
        1 => (address(), option::of(mac())).prop_map(|(address, mac)| Op::Vtep(address, mac)),
        1 => settings.prop_map(Op::ProgramSettings),
        1 => option::of(masquerade).prop_map(Op::Masquerade),
        2 => address().prop_map(Op::FlowFlush),
    ]
}

/// Batches.
pub(crate) fn batch() -> impl Strategy<Value = Batch> {
    let step = (op(), option::weighted(0.2, 0..5_u32)).prop_map(|(op, needs)| Step { op, needs });
    let lane = select(&[Lane::State, Lane::Flows][..]);
    (any::<u64>(), lane, any::<u64>(), vec(step, 0..5)).prop_map(|(lease, lane, id, steps)| Batch {
        lease: Lease(lease),
        lane,
        id: BatchId(id),
        steps,
    })
}
