//! Workloads' links: they come late, flap, change names and are made again.

use tests::{netns::shell, ping::Ping, wait::eventually, world::Node};

use super::{index, is_again, lacks, listen, shows, test};

const LINK: &str = "cali-frontend";
const ROUTE: &str = "ip route show 10.244.1.2";
const NEIGHBOUR: &str = "ip neigh show 10.244.1.2 nud permanent";

/// Makes the host's end of a pod's link again: another interface of the same name.
fn make_again(node: &Node, name: &str, peer: &str) {
    node.netns.run(&format!(
        "ip link add {name} address ee:ee:ee:ee:ee:ee type veth peer name {peer}"
    ));
    node.netns.run(&format!("ip link set {peer} up"));
}

/// Waits until the route and the neighbour are there, on the interface of this name as it is now.
#[track_caller]
fn leads_to(node: &Node, name: &str) {
    shows(node, ROUTE, &[&format!("dev {name}")]);
    shows(node, NEIGHBOUR, &[&format!("dev {name}")]);
    node.converged();
}

#[test]
fn a_link_that_comes_after_its_workload_is_served_once_it_is_up() {
    test(
        "workloads::a_link_that_comes_after_its_workload_is_served_once_it_is_up",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            node.edit("workloads.yaml", LINK, "cali-late");
            lacks(node, ROUTE, &["10.244.1.2"]);
            node.reports(&["there is no interface cali-late"]);
            make_again(node, "cali-late", "late");
            // Down, it has no route; and that is no failure.
            node.reports_nothing();
            assert_eq!(node.netns.run(ROUTE), "");
            node.netns.run("ip link set cali-late up");
            leads_to(node, "cali-late");
            node.edit("workloads.yaml", "cali-late", LINK);
            leads_to(node, LINK);
            node.netns.run("ip link del cali-late");
            is_again(node, &before);
        },
    );
}

#[test]
fn a_link_that_goes_down_and_up_gets_all_again() {
    test(
        "workloads::a_link_that_goes_down_and_up_gets_all_again",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let bystander = Ping::start(&node.netns, world.cart.addresses[0]);
            // In one go, and with time in between.
            node.netns.run("ip link set cali-frontend down");
            node.netns.run("ip link set cali-frontend up");
            is_again(node, &before);
            node.netns.run("ip link set cali-frontend down");
            lacks(node, ROUTE, &["10.244.1.2"]);
            node.converged();
            eventually("diff says why", || {
                let output = node.cairnctl("diff").output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let mut lines = text.lines().filter(|line| line.contains("10.244.1.2/32"));
                let told = ["kernel-route", LINK, "waiting: link is down"];
                let says = lines.any(|line| told.iter().all(|word| line.contains(word)));
                says.then_some(()).ok_or(text)
            });
            node.netns.run("ip link set cali-frontend up");
            is_again(node, &before);
            let loss = bystander.stop();
            assert!(loss.lost.is_empty(), "{loss:?}");
        },
    );
}

#[test]
fn the_loss_of_a_carrier_changes_nothing() {
    test(
        "workloads::the_loss_of_a_carrier_changes_nothing",
        |world| {
            let [node, _] = &world.nodes;
            let routes = || node.netns.run("ip route show").replace(" linkdown", "");
            let before = routes();
            let monitor = listen(node);
            let at = index(node, LINK).unwrap();
            world.frontend.netns.run("ip link set eth0 down");
            shows(node, "ip link show cali-frontend", &["NO-CARRIER"]);
            // The processes have heard of it once they have of what comes later.
            make_again(node, "cali-seen", "seen");
            node.edit("workloads.yaml", "cali-cart", "cali-seen");
            node.netns.run("ip link set cali-seen up");
            shows(node, "ip route show 10.244.1.3", &["cali-seen"]);
            node.edit("workloads.yaml", "cali-seen", "cali-cart");
            shows(node, "ip route show 10.244.1.3", &["cali-cart"]);
            assert_eq!(routes(), before);
            world.frontend.netns.run("ip link set eth0 up");
            lacks(node, "ip link show cali-frontend", &["NO-CARRIER"]);
            node.converged();
            let told = monitor.told(at);
            let about = |word: &&String| word.contains("10.244.1.2");
            let told: Vec<_> = told.iter().filter(about).collect();
            assert!(told.is_empty(), "{told:?}");
        },
    );
}

#[test]
fn routes_follow_a_name_not_an_interface() {
    test(
        "workloads::routes_follow_a_name_not_an_interface",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let at = index(node, LINK);
            // Another name, and back.
            node.netns.run("ip link set cali-frontend name tmp0");
            lacks(node, ROUTE, &["10.244.1.2"]);
            node.converged();
            node.netns.run("ip link set tmp0 name cali-frontend");
            is_again(node, &before);
            // Another workload's name, whose link has gone.
            node.netns.run("ip link set cali-cart name tmp0");
            node.netns.run("ip link set cali-frontend name cali-cart");
            shows(node, "ip route show 10.244.1.3", &["dev cali-cart"]);
            lacks(node, ROUTE, &["10.244.1.2"]);
            assert_eq!(index(node, "cali-cart"), at);
            node.converged();
            // All in one go: the names are swapped back.
            node.netns.run("ip link set cali-cart name cali-frontend");
            node.netns.run("ip link set tmp0 name cali-cart");
            is_again(node, &before);
        },
    );
}

#[test]
fn a_link_that_is_made_again_is_another_one() {
    test(
        "workloads::a_link_that_is_made_again_is_another_one",
        |world| {
            let [node, _] = &world.nodes;
            let at = index(node, LINK);
            for round in 0..3 {
                node.netns.run("ip link del cali-frontend");
                if round == 1 {
                    lacks(node, ROUTE, &["10.244.1.2"]);
                    node.converged();
                }
                make_again(node, LINK, &format!("again{round}"));
                node.netns.run("ip link set cali-frontend up");
                leads_to(node, LINK);
                shows(
                    node,
                    "ip -6 route show fd00:244::1:2",
                    &["dev cali-frontend"],
                );
            }
            assert_ne!(index(node, LINK), at);
            // The newer of two of one name, of which the older goes late.
            node.netns.run("ip link set cali-frontend name old0");
            make_again(node, LINK, "again3");
            node.netns.run("ip link set cali-frontend up");
            node.netns.run("ip link del old0");
            leads_to(node, LINK);
        },
    );
}

#[test]
fn a_link_that_goes_before_its_workload_leaves_nothing() {
    test(
        "workloads::a_link_that_goes_before_its_workload_leaves_nothing",
        |world| {
            let [node, _] = &world.nodes;
            for (link, from) in [("cali-frontend", "10.244.1.2"), ("cali-cart", "10.244.1.3")] {
                node.netns.run(&format!("ip link del {link}"));
                if link == "cali-frontend" {
                    node.reports(&["there is no interface cali-frontend"]);
                }
                node.edit(
                    "workloads.yaml",
                    &format!("interfaceName: {link}"),
                    "interfaceName: gone",
                );
                lacks(node, "ip route show", &[from]);
            }
            node.converged();
        },
    );
}

#[test]
fn links_that_come_and_go_under_its_hands_disturb_no_other() {
    test(
        "workloads::links_that_come_and_go_under_its_hands_disturb_no_other",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let bystander = Ping::start(&node.netns, world.cart.addresses[0]);
            let churn = node.netns.within(|| {
                for round in 0..100 {
                    shell(&format!(
                        "ip link set cali-frontend name old{round}
                         ip link add cali-frontend type veth peer name churn{round}
                         ip link set cali-frontend up; ip link set churn{round} up
                         ip link set cali-frontend down; ip link set cali-frontend up
                         ip link del cali-frontend
                         ip link set old{round} name cali-frontend"
                    ));
                }
            });
            churn.join().unwrap();
            // What the programs know of interfaces that are gone goes with a reading.
            node.resync();
            is_again(node, &before);
            let loss = bystander.stop();
            assert!(loss.lost.is_empty(), "{loss:?}");
            node.reports_nothing();
        },
    );
}

#[test]
fn an_excluded_interfaces_addresses_are_not_this_hosts() {
    test(
        "workloads::an_excluded_interfaces_addresses_are_not_this_hosts",
        |world| {
            let [node, _] = &world.nodes;
            // The second one shows that the first one has been heard of.
            for (name, address) in [("kube-ipvs0", "10.96.0.10"), ("other", "10.96.0.11")] {
                node.netns.run(&format!("ip link add {name} type bridge"));
                node.netns
                    .run(&format!("ip address add {address}/32 dev {name}"));
            }
            let entry = |last: &str| {
                format!(r#""key":["0x20","0x00","0x00","0x00","0x0a","0x60","0x00","{last}"]"#)
            };
            eventually("an entry of the other's address", || {
                let state = node.kernel_state();
                let is_there = state.contains(&entry("0x0b"));
                is_there.then_some(()).ok_or(state)
            });
            node.converged();
            let state = node.kernel_state();
            assert!(!state.contains(&entry("0x0a")), "{state}");
        },
    );
}
