//! The tunnel device, and what others do to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tests::{netns::shell, wait::eventually};

use super::{VXLAN, index, is_again, lacks, listen, shows, test};

#[test]
fn a_fight_over_the_device_is_slow_and_told_and_ends() {
    test(
        "device::a_fight_over_the_device_is_slow_and_told_and_ends",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let start = Instant::now();
            // Somebody removes it whenever it is there, as fast as it can.
            let fight = node.netns.within(move || {
                let mut removed = 0_u32;
                while !stopped.load(Ordering::Relaxed) {
                    let gone = "ip link del vxlan.calico 2>/dev/null && echo y || echo n";
                    removed += u32::from(shell(gone) == "y\n");
                    thread::yield_now();
                }
                removed
            });
            node.reports(&[
                "tunnel device VxlanV4",
                "another program undoes it again and again",
                "vxlan.calico was removed",
                "NetworkManager",
            ]);
            eventually("some seconds of it", || {
                let long = start.elapsed() > Duration::from_secs(5);
                long.then_some(()).ok_or(String::new())
            });
            stop.store(true, Ordering::Relaxed);
            let removed = fight.join().unwrap();
            let lasted = start.elapsed();
            // At once, and after 0.5, 1, 2, 4 and 8 seconds.
            assert!(lasted < Duration::from_secs(15), "{lasted:?}");
            assert!((3..=7).contains(&removed), "{removed} in {lasted:?}");
            assert!(!node.cairnctl("status").status().unwrap().success());
            is_again(node, &before);
            let log = std::fs::read_to_string(node.log()).unwrap();
            let told = log.matches("undoes it again and again").count();
            assert_eq!(told, 1, "{log}");
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
            let look = || node.kernel_state() + &node.netns.run("ip address show vxlan.calico");
            let before = look();
            for change in [
                "ip link set vxlan.calico mtu 1300",
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
fn the_device_follows_the_mtu_and_the_place_of_the_uplink() {
    test(
        "device::the_device_follows_the_mtu_and_the_place_of_the_uplink",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            node.netns.run("ip link set eth0 mtu 1400");
            shows(node, "ip link show vxlan.calico", &["mtu 1350"]);
            shows(node, "ip link show vxlan-v6.calico", &["mtu 1330"]);
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
            shows(node, "ip -d link show vxlan.calico", &["dev eth1", "UP"]);
            shows(node, "ip route show 10.244.2.0/26", &["dev vxlan.calico"]);
            shows(node, "bridge fdb show dev vxlan.calico", &["172.30.0.12"]);
            shows(node, "ip neigh show dev vxlan.calico", &["10.244.2.0"]);
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
            let told = node.problems().unwrap();
            assert!(told.is_empty(), "{told:?}");
        },
    );
}
