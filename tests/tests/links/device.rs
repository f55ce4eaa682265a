//! The tunnel device, and what others do to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tests::{
    netns::shell,
    wait::eventually,
    world::{Node, Process},
};

use super::{VXLAN, felix, index, is_again, lacks, listen, shows, test};

/// Has somebody run `deed` on the node whenever `seen` finds the device, until the returned function
/// is called, which tells how often that was.
fn fight(node: &Node, seen: &'static str, deed: &'static str) -> impl FnOnce() -> usize {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let line = format!("if {seen} 2>/dev/null && {deed} 2>/dev/null; then echo y; fi");
    let thread = node.netns.within(move || {
        let mut deeds = 0;
        while !stopped.load(Ordering::Relaxed) {
            deeds += shell(&line).len() / 2;
        }
        deeds
    });
    move || {
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap()
    }
}

/// Sees that so many deeds took the time that they must: what the first one undid is repaired at once,
/// and then after half a second, one, two, four and so on.
#[track_caller]
fn is_slow(deeds: usize, lasted: Duration) {
    let waits = u32::try_from(deeds.saturating_sub(2)).unwrap();
    let least = Duration::from_millis(500) * (2_u32.saturating_pow(waits) - 1);
    assert!(lasted >= least, "{deeds} in {lasted:?}");
}

#[test]
fn a_fight_over_the_device_is_slow_and_told_and_ends() {
    test(
        "device::a_fight_over_the_device_is_slow_and_told_and_ends",
        |world| {
            let [node, _] = &mut world.nodes;
            let before = node.kernel_state();
            for (deed, told) in [
                ("ip link del vxlan.calico", "vxlan.calico was removed"),
                ("ip link set vxlan.calico down", "vxlan.calico was set down"),
            ] {
                let start = Instant::now();
                let complete =
                    "test -n \"$(ip -4 -o address show up dev vxlan.calico scope global)\"";
                let stop = fight(node, complete, deed);
                node.reports(&[
                    "tunnel device VxlanV4",
                    "another program undoes it again and again",
                    told,
                    "NetworkManager",
                ]);
                let (deeds, lasted) = (stop(), start.elapsed());
                assert!(deeds >= 3, "{deeds}");
                is_slow(deeds, lasted);
                is_again(node, &before);
                let log = std::fs::read_to_string(node.log()).unwrap();
                assert_eq!(log.matches(told).count(), 1, "{log}");
                // It has no memory of what it undoes.
                node.kill(&[Process::Calc]);
                node.converged();
            }
        },
    );
}

#[test]
fn a_device_that_is_removed_in_the_making_is_made_in_the_end() {
    test(
        "device::a_device_that_is_removed_in_the_making_is_made_in_the_end",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let start = Instant::now();
            let stop = fight(node, "true", "ip link del vxlan.calico");
            node.reports(&["tunnel device VxlanV4"]);
            let told = Instant::now();
            eventually("a second of it", || {
                let long = told.elapsed() > Duration::from_secs(1);
                long.then_some(()).ok_or(String::new())
            });
            // Two waits take turns: that for what fails in the making, and that for what is undone later.
            is_slow(stop().div_ceil(2), start.elapsed());
            is_again(node, &before);
        },
    );
}

#[test]
fn a_device_that_was_set_down_comes_up_with_all_that_it_lost() {
    test(
        "device::a_device_that_was_set_down_comes_up_with_all_that_it_lost",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let at = index(node, VXLAN);
            let monitor = listen(node);
            node.netns.run("ip link set vxlan.calico down");
            is_again(node, &before);
            assert_eq!(index(node, VXLAN), at);
            // Forwarding entries outlive that.
            let told = monitor.told(at.unwrap());
            assert!(
                told.contains(&"+route 10.244.2.0/26".to_owned()),
                "{told:?}"
            );
            assert!(!told.iter().any(|word| word.contains("fdb")), "{told:?}");
        },
    );
}

#[test]
fn a_renamed_device_gets_its_name_back() {
    test("device::a_renamed_device_gets_its_name_back", |world| {
        let [node, _] = &world.nodes;
        let before = node.kernel_state();
        let at = index(node, VXLAN);
        node.netns.run("ip link set vxlan.calico name other");
        is_again(node, &before);
        assert_eq!(index(node, VXLAN), at);
        assert_eq!(index(node, "other"), None);
    });
}

#[test]
fn what_others_change_of_the_device_is_put_right_at_once() {
    test(
        "device::what_others_change_of_the_device_is_put_right_at_once",
        |world| {
            let [node, _] = &world.nodes;
            node.netns.run("ip link add br9 type bridge");
            let look = || node.kernel_state() + &node.netns.run("ip address show vxlan.calico");
            let before = look();
            for change in [
                "ip link set vxlan.calico mtu 1300",
                "ip link set vxlan.calico master br9",
                "ip address add 169.254.9.9/16 dev vxlan.calico",
                "ip address del 10.244.1.0/32 dev vxlan.calico",
                "ip link set vxlan.calico address 02:00:00:00:00:01",
            ] {
                node.netns.run(change);
                eventually(change, || {
                    let now = look();
                    (now == before).then_some(()).ok_or(now)
                });
            }
            node.converged();
        },
    );
}

#[test]
fn an_mtu_that_the_uplink_does_not_carry_is_told_with_what_it_does() {
    test(
        "device::an_mtu_that_the_uplink_does_not_carry_is_told_with_what_it_does",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            felix(node, "vxlanMTU: 9000");
            node.reports(&["vxlan.calico mtu 9000", "at most 1450", "eth0, 1500"]);
            felix(node, "vxlanMTU: 575");
            node.reports(&["spec.vxlanMTU: 575 is not within 576 and 65535"]);
            is_again(node, &before);
        },
    );
}

#[test]
fn the_device_follows_the_mtu_and_the_place_of_the_uplink() {
    test(
        "device::the_device_follows_the_mtu_and_the_place_of_the_uplink",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            node.netns.run("ip link set eth0 mtu 1400");
            shows(node, "ip link show type vxlan", &["mtu 1350"]);
            shows(node, "ip link show type vxlan", &["mtu 1330"]);
            shows(node, "ip route show 10.244.2.0/26", &["mtu 1350"]);
            node.netns.run("ip link set eth0 mtu 1500");
            is_again(node, &before);

            // The node's addresses move to another uplink.
            let path = node.netns.path();
            shell(&format!(
                "ip link add port-b type veth peer name eth1 netns {} && \
                 ip link set port-b master underlay up",
                path.display()
            ));
            let at = index(node, VXLAN);
            node.netns.run("ip link set eth1 up");
            node.netns.run("ip address del 172.30.0.11/24 dev eth0");
            node.reports(&["no interface holds its address 172.30.0.11"]);
            assert_eq!(index(node, VXLAN), at, "it stays as it is");
            node.netns.run("ip address add 172.30.0.11/24 dev eth1");
            shows(node, "ip -d link show type vxlan", &["dev eth1"]);
            shows(node, "ip route show 10.244.2.0/26", &["dev vxlan.calico"]);
            shows(node, "bridge fdb show", &["172.30.0.12"]);
            shows(node, "ip neigh show", &["10.244.2.0"]);
            assert_ne!(index(node, VXLAN), at);
            node.converged();
        },
    );
}

#[test]
fn a_device_goes_with_its_uplink_and_comes_again() {
    test(
        "device::a_device_goes_with_its_uplink_and_comes_again",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            // The kernel removes a VXLAN device with its parent.
            node.netns.run("ip link del eth0");
            lacks(node, "ip -o link show", &["vxlan"]);
            shell(&format!(
                "ip link add port-11 type veth peer name eth0 netns {} && \
                 ip link set port-11 master underlay up",
                node.netns.path().display()
            ));
            node.netns.run("ip link set eth0 up");
            node.netns.run("ip address add 172.30.0.11/24 dev eth0");
            node.netns
                .run("ip address add fd00:30::11/64 dev eth0 nodad");
            node.netns.run("ip route add default via 172.30.0.254");
            node.netns.run("ip route add default via fd00:30::fe");
            is_again(node, &before);
            node.reports_nothing();
        },
    );
}
