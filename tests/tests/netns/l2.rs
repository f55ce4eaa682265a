//! Tunnel devices, neighbours, forwarding entries and sysctls: set, read back, changed, cleared.

use ipc_proto::{
    FdbKey, LinkAddressKey, LinkProfile, Mac, NeighbourKey, Observed, Op, OpError, Tunnel,
    TunnelDevice,
};
use tests::{
    helper::{Calc, link},
    netns::shell,
};

use super::{address, routes::world, sorted, test};

pub(super) fn device(tunnel: Tunnel) -> TunnelDevice {
    let (local, own) = match tunnel {
        Tunnel::VxlanV4 => ("192.0.2.1", "10.1.0.0"),
        Tunnel::VxlanV6 => ("2001:db8::1", "fd00:1::"),
    };
    TunnelDevice {
        vni: 4096,
        port: 4789,
        local: address(local),
        parent: link("eth0"),
        mac: Mac([0x66, 1, 2, 3, 4, 5]),
        mtu: 1400,
        address: address(own),
    }
}

async fn read_tunnels(calc: &mut Calc) -> Vec<Observed> {
    let mut items = calc.read().await;
    items.retain(|item| matches!(item, Observed::TunnelDevice(..)));
    items
}

#[test]
fn tunnel_devices_become_and_stay_as_asked_for() {
    test(
        "l2::tunnel_devices_become_and_stay_as_asked_for",
        || async {
            let (_helper, mut calc) = world().await;
            for (tunnel, name) in [
                (Tunnel::VxlanV4, "vxlan.calico"),
                (Tunnel::VxlanV6, "vxlan-v6.calico"),
            ] {
                let set = |device: &TunnelDevice| {
                    Op::TunnelDevice(tunnel, Some(Box::new(device.clone())))
                };
                let mut wanted = device(tunnel);
                calc.must_apply([set(&wanted)]).await;
                let index = link(name).index;
                let is =
                    |device: &TunnelDevice| Observed::TunnelDevice(tunnel, Some(device.clone()));
                assert_eq!(read_tunnels(&mut calc).await, [is(&wanted)]);

                // In place.
                wanted.mac = Mac([0x66, 9, 9, 9, 9, 9]);
                wanted.mtu = 1390;
                wanted.address = address(match tunnel {
                    Tunnel::VxlanV4 => "10.1.0.64",
                    Tunnel::VxlanV6 => "fd00:1::64",
                });
                shell(&format!("ip link set {name} down"));
                assert_eq!(
                    read_tunnels(&mut calc).await,
                    [Observed::TunnelDevice(tunnel, None)]
                );
                calc.must_apply([set(&wanted)]).await;
                assert_eq!(read_tunnels(&mut calc).await, [is(&wanted)]);
                assert_eq!(link(name).index, index);

                // Made again.
                wanted.vni = 7;
                calc.must_apply([set(&wanted)]).await;
                assert_eq!(read_tunnels(&mut calc).await, [is(&wanted)]);
                assert_ne!(link(name).index, index);

                // What another program did to it.
                shell(&format!("ip addr add 10.99.0.1/24 dev {name}"));
                assert_eq!(
                    read_tunnels(&mut calc).await,
                    [Observed::TunnelDevice(tunnel, None)]
                );
                calc.must_apply([set(&wanted)]).await;
                assert_eq!(read_tunnels(&mut calc).await, [is(&wanted)]);
                shell(&format!(
                    "ip link del {name} && ip link add {name} type vxlan external dstport 4799"
                ));
                assert_eq!(
                    read_tunnels(&mut calc).await,
                    [Observed::TunnelDevice(tunnel, None)]
                );
                calc.must_apply([set(&wanted)]).await;
                assert_eq!(read_tunnels(&mut calc).await, [is(&wanted)]);

                // As large as the parent cannot carry: the rest is done nonetheless.
                let large = TunnelDevice {
                    mtu: 9000,
                    vni: 8,
                    ..wanted.clone()
                };
                let failed = calc.apply([set(&large)]).await;
                assert!(
                    matches!(failed.as_slice(), [(0, OpError::Kernel { errno: 22, .. })]),
                    "{failed:?}"
                );
                assert!(shell(&format!("ip -o link show {name}")).contains("UP"));

                calc.must_apply([
                    Op::TunnelDevice(tunnel, None),
                    Op::TunnelDevice(tunnel, None),
                ])
                .await;
                assert_eq!(read_tunnels(&mut calc).await, []);
            }
        },
    );
}

#[test]
fn an_interface_of_another_kind_with_the_tunnels_name_stays() {
    test(
        "l2::an_interface_of_another_kind_with_the_tunnels_name_stays",
        || async {
            let (_helper, mut calc) = world().await;
            shell("ip link add vxlan.calico type veth peer name peer0");
            let index = link("vxlan.calico").index;
            for op in [
                Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device(Tunnel::VxlanV4)))),
                Op::TunnelDevice(Tunnel::VxlanV4, None),
            ] {
                let failed = calc.apply([op]).await;
                assert!(
                    matches!(failed.as_slice(), [(0, OpError::Denied(_))]),
                    "{failed:?}"
                );
            }
            assert_eq!(read_tunnels(&mut calc).await, []);
            assert_eq!(link("vxlan.calico").index, index);
        },
    );
}

#[test]
fn a_renamed_tunnel_device_gets_its_name_back_with_all_that_hangs_on_it() {
    test(
        "l2::a_renamed_tunnel_device_gets_its_name_back_with_all_that_hangs_on_it",
        || async {
            let (_helper, mut calc) = world().await;
            for (tunnel, name, other) in [
                (Tunnel::VxlanV4, "vxlan.calico", "10.1.1.0"),
                (Tunnel::VxlanV6, "vxlan-v6.calico", "fd00:1:1::"),
            ] {
                let set = || Op::TunnelDevice(tunnel, Some(Box::new(device(tunnel))));
                calc.must_apply([set()]).await;
                let link = link(name);
                let mac = "02:00:00:00:00:09";
                shell(&format!(
                    "ip neigh add {other} lladdr {mac} dev {name} nud permanent
                     bridge fdb add {mac} dev {name} dst {} self permanent",
                    if other.contains(':') {
                        "2001:db8::9"
                    } else {
                        "192.0.2.9"
                    }
                ));
                let hangs = || {
                    shell(&format!(
                        "ip neigh show dev {name} nud permanent; bridge fdb show dev {name}"
                    ))
                };
                let before = hangs();
                shell(&format!("ip link set {name} name other"));
                assert_eq!(read_tunnels(&mut calc).await, []);
                calc.must_apply([set()]).await;
                let found = Observed::TunnelDevice(tunnel, Some(device(tunnel)));
                assert_eq!(read_tunnels(&mut calc).await, [found]);
                assert_eq!(tests::helper::link(name), link);
                assert_eq!(hangs(), before);
                // Not only renamed: what differs is put right.
                shell(&format!(
                    "ip link set {name} down; ip link set {name} name other mtu 1300"
                ));
                calc.must_apply([set()]).await;
                assert_eq!(tests::helper::link(name), link);
                calc.must_apply([Op::TunnelDevice(tunnel, None)]).await;
            }
        },
    );
}

#[test]
fn who_has_the_tunnels_vni_or_port_stays_and_is_named() {
    test(
        "l2::who_has_the_tunnels_vni_or_port_stays_and_is_named",
        || async {
            let (_helper, mut calc) = world().await;
            let set = || Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device(Tunnel::VxlanV4))));
            // The same but for the hardware address; and one that shares the port alone.
            for (make, errno, said) in [
                (
                    "ip link add theirs type vxlan id 4096 dstport 4789 local 192.0.2.1 dev eth0 \
                     nolearning",
                    17,
                    "theirs#",
                ),
                (
                    "ip link add theirs type vxlan external dstport 4789 && ip link set theirs up",
                    98,
                    "theirs has UDP port 4789",
                ),
            ] {
                shell(make);
                let before = shell("ip -d link show theirs");
                let failed = calc.apply([set()]).await;
                let [(0, error @ OpError::Kernel { errno: got, .. })] = failed.as_slice() else {
                    panic!("{failed:?}")
                };
                assert_eq!(*got, errno, "{error}");
                let text = error.to_string();
                assert!(
                    text.contains(said) && text.contains("another vxlan"),
                    "{text}"
                );
                assert!(error.is_transient());
                assert_eq!(shell("ip -d link show theirs"), before);
                shell("ip link del theirs");
                calc.must_apply([set()]).await;
                calc.must_apply([Op::TunnelDevice(Tunnel::VxlanV4, None)])
                    .await;
            }
            // The other family's tunnel has the same VNI and port.
            shell("ip link add theirs type vxlan id 4096 dstport 4789 local 2001:db8::1 dev eth0");
            calc.must_apply([set()]).await;
        },
    );
}

#[test]
fn neighbours_and_forwarding_entries_read_back_as_they_were_set() {
    test(
        "l2::neighbours_and_forwarding_entries_read_back_as_they_were_set",
        || async {
            let (_helper, mut calc) = world().await;
            calc.must_apply(
                [Tunnel::VxlanV4, Tunnel::VxlanV6]
                    .map(|tunnel| Op::TunnelDevice(tunnel, Some(Box::new(device(tunnel))))),
            )
            .await;
            calc.hello().await;
            let mac = |last| Mac([0x66, 0, 0, 0, 0, last]);
            let neighbour = |name: &str, text: &str| NeighbourKey {
                link: link(name),
                address: address(text),
            };
            let neighbours = [
                neighbour("cali1", "10.1.0.9"),
                neighbour("vxlan.calico", "10.1.1.0"),
                neighbour("vxlan-v6.calico", "fd00:1:1::"),
            ];
            let fdb = [
                ("vxlan.calico", "192.0.2.9"),
                ("vxlan-v6.calico", "2001:db8::9"),
            ]
            .map(|(name, to)| {
                let key = FdbKey {
                    link: link(name),
                    mac: mac(9),
                };
                (key, address(to))
            });
            // What the kernel learns, and what is elsewhere.
            shell(
                "ip neigh add 10.1.0.10 lladdr 02:00:00:00:00:10 nud reachable dev cali1
             ip neigh add fd00:1::9 lladdr 02:00:00:00:00:10 nud permanent dev cali1
             ip neigh add 192.0.2.10 lladdr 02:00:00:00:00:10 nud permanent dev eth0
             bridge fdb add 02:00:00:00:00:11 dev vxlan.calico dst 192.0.2.11 dynamic",
            );
            let others = neighbour("cali1", "fd00:1::9");
            for mac in [None, Some(mac(9))] {
                let failed = calc.apply([Op::Neighbour(others.clone(), mac)]).await;
                assert!(
                    matches!(failed.as_slice(), [(0, OpError::Denied(_))]),
                    "{failed:?}"
                );
            }
            for last in [1, 2] {
                let ops = neighbours
                    .iter()
                    .map(|key| Op::Neighbour(key.clone(), Some(mac(last))));
                let ops = ops.chain(fdb.iter().map(|(key, to)| Op::Fdb(key.clone(), Some(*to))));
                calc.must_apply(ops.collect::<Vec<_>>()).await;
                let mut found = calc.read().await;
                found.retain(|item| matches!(item, Observed::Neighbour(..) | Observed::Fdb(..)));
                let wanted = neighbours
                    .iter()
                    .map(|key| Observed::Neighbour(key.clone(), mac(last)));
                let wanted = wanted.chain(
                    fdb.iter()
                        .map(|(key, to)| Observed::Fdb(key.clone(), Some(*to))),
                );
                assert_eq!(sorted(found), sorted(wanted.collect()));
            }
            // Somewhere else.
            let (key, _) = &fdb[0];
            calc.must_apply([Op::Fdb(key.clone(), Some(address("192.0.2.8")))])
                .await;
            let moved = Observed::Fdb(key.clone(), Some(address("192.0.2.8")));
            assert!(calc.read().await.contains(&moved));
            // Cleared, and again.
            for _ in 0..2 {
                let ops = neighbours
                    .iter()
                    .map(|key| Op::Neighbour(key.clone(), None));
                let ops = ops.chain(fdb.iter().map(|(key, _)| Op::Fdb(key.clone(), None)));
                calc.must_apply(ops.collect::<Vec<_>>()).await;
            }
            let left = calc.read().await;
            assert!(
                !left
                    .iter()
                    .any(|item| matches!(item, Observed::Neighbour(..) | Observed::Fdb(..))),
                "{left:?}"
            );
            assert!(shell("ip neigh show dev eth0").contains("192.0.2.10"));
        },
    );
}

#[test]
fn link_settings_read_back_and_touch_nothing_of_the_hosts() {
    test(
        "l2::link_settings_read_back_and_touch_nothing_of_the_hosts",
        || async {
            let (_helper, mut calc) = world().await;
            calc.must_apply([Op::TunnelDevice(
                Tunnel::VxlanV4,
                Some(Box::new(device(Tunnel::VxlanV4))),
            )])
            .await;
            let all = "grep -rH . /proc/sys/net/ipv4/conf/all /proc/sys/net/ipv4/conf/default \
                   /proc/sys/net/ipv6/conf/all /proc/sys/net/ipv6/conf/default \
                   /proc/sys/net/ipv4/conf/other0 /proc/sys/net/ipv4/ip_forward 2>/dev/null || true";
            shell(
                "for dev in eth0 vxlan.calico; do echo 1 > /proc/sys/net/ipv4/conf/$dev/rp_filter; done",
            );
            let before = shell(all);
            let settings = [
                ("cali1", LinkProfile::Workload),
                ("vxlan.calico", LinkProfile::Tunnel),
                ("eth0", LinkProfile::Uplink),
            ];
            for (name, profile) in settings {
                let found = Observed::LinkSettings(link(name), profile);
                assert!(!calc.read().await.contains(&found), "{found:?}");
                calc.must_apply([Op::LinkSettings(link(name), Some(profile))])
                    .await;
                assert!(calc.read().await.contains(&found), "{found:?}");
            }
            assert_eq!(shell(all), before);
            for (path, value) in [
                ("ipv4/conf/cali1/proxy_arp", "1"),
                ("ipv4/conf/cali1/rp_filter", "1"),
                ("ipv4/neigh/cali1/proxy_delay", "0"),
                ("ipv6/conf/cali1/proxy_ndp", "1"),
                ("ipv4/conf/vxlan.calico/rp_filter", "2"),
                ("ipv4/conf/eth0/rp_filter", "1"),
                ("ipv6/conf/eth0/accept_ra", "2"),
            ] {
                assert_eq!(
                    shell(&format!("cat /proc/sys/net/{path}")).trim(),
                    value,
                    "{path}"
                );
            }
            shell("echo 0 > /proc/sys/net/ipv4/conf/cali1/proxy_arp");
            let found = Observed::LinkSettings(link("cali1"), LinkProfile::Workload);
            assert!(!calc.read().await.contains(&found));

            // A name that has come to mean another interface.
            let stale = link("cali1");
            shell("ip link del cali1; ip link add cali1 type veth peer name pod1");
            let failed = calc
                .apply([Op::LinkSettings(stale.clone(), Some(LinkProfile::Workload))])
                .await;
            assert_eq!(failed, [(0, OpError::StaleLink(stale))]);
        },
    );
}

#[test]
fn forwarding_is_forced_only_where_the_host_does_not_forward() {
    test(
        "l2::forwarding_is_forced_only_where_the_host_does_not_forward",
        || async {
            let (_helper, mut calc) = world().await;
            let set = Op::LinkSettings(link("cali1"), Some(LinkProfile::Workload));
            let found = Observed::LinkSettings(link("cali1"), LinkProfile::Workload);
            let forced = "cat /proc/sys/net/ipv6/conf/cali1/force_forwarding";

            shell("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
            calc.must_apply([set.clone()]).await;
            assert_eq!(shell(forced).trim(), "0");
            assert!(calc.read().await.contains(&found));

            // That also turns off the forwarding of each interface.
            shell("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding");
            assert!(!calc.read().await.contains(&found));
            calc.must_apply([set]).await;
            assert_eq!(shell(forced).trim(), "1");
            assert!(calc.read().await.contains(&found));
        },
    );
}

/// Reads the addresses of links back.
async fn link_addresses(calc: &mut Calc) -> Vec<String> {
    let mut found = calc.read().await;
    found.retain(|item| matches!(item, Observed::LinkAddress(..)));
    sorted(found)
}

/// Returns what `ip` prints of addresses, less that some are not valid yet, which ends by itself.
fn addresses(line: &str) -> String {
    shell(line).replace(" tentative", "")
}

#[test]
fn addresses_of_workloads_links_are_set_read_back_and_cleared_there_and_nowhere_else() {
    test(
        "l2::addresses_of_workloads_links_are_set_read_back_and_cleared_there_and_nowhere_else",
        || async {
            let (_helper, mut calc) = world().await;
            shell("ip link add cali2 type veth peer name peer2 && ip link set cali2 up");
            calc.hello().await;
            let key = |name: &str, text: &str| LinkAddressKey {
                link: link(name),
                address: address(text),
            };
            let found = |keys: &[(LinkAddressKey, bool)]| {
                let items = keys.iter().cloned();
                sorted(
                    items
                        .map(|(key, ours)| Observed::LinkAddress(key, ours))
                        .collect(),
                )
            };
            // What is another's for its length, its scope or its link.
            shell(
                "ip address add 169.254.7.1/24 dev cali1
                 ip address add 10.7.0.1/32 dev cali1
                 ip address add 169.254.7.3/32 dev eth0 scope link
                 ip address add fd77::1/64 dev cali1",
            );
            let before = addresses("ip -o address");
            assert_eq!(link_addresses(&mut calc).await, found(&[]));
            let wanted = [
                key("cali1", "169.254.0.179"),
                key("cali2", "169.254.0.179"),
                key("cali1", "fd12::179"),
                key("cali2", "fe80::179"),
            ];
            // As another agent would have made them.
            shell(
                "ip address add 169.254.0.179/32 dev cali1 scope link
                 ip address add fd12::179/128 dev cali1
                 ip address add 169.254.0.180/32 dev cali1 scope link",
            );
            let theirs = [
                (wanted[0].clone(), false),
                (wanted[2].clone(), false),
                (key("cali1", "169.254.0.180"), false),
            ];
            assert_eq!(link_addresses(&mut calc).await, found(&theirs));
            for _ in 0..2 {
                let ops = wanted.iter().map(|key| Op::LinkAddress(key.clone(), true));
                calc.must_apply(ops.collect::<Vec<_>>()).await;
                let mut ours = wanted.clone().map(|key| (key, true)).to_vec();
                ours.push(theirs[2].clone());
                assert_eq!(link_addresses(&mut calc).await, found(&ours));
            }
            let shown = shell("ip -o address show dev cali2");
            assert!(shown.contains("169.254.0.179/32 scope link"), "{shown}");
            // It is of use at once, and no route leads to it.
            assert!(!shown.contains("tentative"), "{shown}");
            let routes = shell("ip -6 route show");
            assert!(!routes.contains("fd12::179"), "{routes}");
            for _ in 0..2 {
                let ops = wanted.iter().map(|key| Op::LinkAddress(key.clone(), false));
                let more = Op::LinkAddress(theirs[2].0.clone(), false);
                calc.must_apply(ops.chain([more]).collect::<Vec<_>>()).await;
                assert_eq!(addresses("ip -o address"), before);
            }
            let failed = calc
                .apply([Op::LinkAddress(key("eth0", "169.254.7.3"), false)])
                .await;
            assert!(
                matches!(failed.as_slice(), [(0, OpError::Denied(_))]),
                "{failed:?}"
            );
            // What another program has there in another form stays as it is.
            shell(
                "ip address add fd12::180/64 dev cali1 && ip address add 169.254.0.181/32 dev cali1",
            );
            let before = addresses("ip -o address; ip -6 route show");
            for address in ["fd12::180", "169.254.0.181"] {
                let set = Op::LinkAddress(key("cali1", address), true);
                let failed = calc.apply([set]).await;
                assert!(
                    matches!(failed.as_slice(), [(0, OpError::Kernel { errno: 17, .. })]),
                    "{failed:?}"
                );
            }
            assert_eq!(addresses("ip -o address; ip -6 route show"), before);
            // Of a link that is gone, nothing is left to clear.
            let gone = key("cali2", "169.254.0.179");
            calc.must_apply([Op::LinkAddress(gone.clone(), true)]).await;
            shell("ip link del cali2");
            let failed = calc.apply([Op::LinkAddress(gone, false)]).await;
            // Whether the helper has heard of it or not.
            assert!(
                matches!(failed.as_slice(), [] | [(0, OpError::StaleLink(_))]),
                "{failed:?}"
            );
            assert_eq!(link_addresses(&mut calc).await, found(&[]));
        },
    );
}
