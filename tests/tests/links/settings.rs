//! What the configuration of the node leaves to others, or has removed.

use super::{felix, is_again, lacks, shows, test};
use tests::{
    netns::shell,
    wait::eventually,
    world::{Node, Process},
};

/// Returns what `cairnctl` prints.
fn cairnctl(node: &Node, arguments: &str) -> String {
    let output = node.cairnctl(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn routes_that_are_left_to_others_stay_as_they_are() {
    test(
        "settings::routes_that_are_left_to_others_stay_as_they_are",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let kernel = || cairnctl(node, "routes --kernel");
            felix(node, "routeSyncDisabled: true");
            eventually("no kernel routes are shown", || {
                let shown = kernel();
                (shown.lines().count() == 1).then_some(()).ok_or(shown)
            });
            // One of a pod is missing, another is too many, and of one pod the route is no longer wanted.
            node.netns.run("ip route del 10.244.2.0/26");
            node.netns
                .run("ip route add 10.244.1.77 dev cali-cart proto 3");
            let left = node.netns.run("ip route show");
            node.edit("workloads.yaml", "10.244.1.2/32", "10.244.1.9/32");
            // The rest goes on.
            shows(node, "ip neigh show", &["10.244.1.9"]);
            eventually("the BPF route", || {
                let shown = cairnctl(node, "routes");
                shown.contains("10.244.1.9/32").then_some(()).ok_or(shown)
            });
            node.resync();
            node.converged();
            assert_eq!(node.netns.run("ip route show"), left);
            let differing = cairnctl(node, "diff");
            assert!(
                differing.starts_with("all is as it should be"),
                "{differing}"
            );

            node.edit("workloads.yaml", "10.244.1.9/32", "10.244.1.2/32");
            felix(node, "routeSyncDisabled: false");
            is_again(node, &before);
        },
    );
}

#[test]
fn routes_outlive_the_address_that_they_name_as_their_source_being_made_again() {
    test(
        "settings::routes_outlive_the_address_that_they_name_as_their_source_being_made_again",
        |world| {
            let [node, _] = &world.nodes;
            let without = node.kernel_state();
            node.netns.run("ip address add 10.9.9.9/32 dev eth0");
            eventually("the address is heard of", || {
                let now = node.kernel_state();
                (now != without).then_some(()).ok_or(now)
            });
            felix(node, "deviceRouteSourceAddress: 10.9.9.9");
            shows(node, "ip route show 10.244.2.0/26", &["src 10.9.9.9"]);
            node.converged();
            let before = node.kernel_state();
            let batch = "printf 'address del 10.9.9.9/32 dev eth0\\n\
                         address add 10.9.9.9/32 dev eth0\\n' | ip -batch -";
            node.netns.within(|| shell(batch)).join().unwrap();
            is_again(node, &before);
        },
    );
}

#[test]
fn birds_routes_stay_on_the_link_of_a_workload_that_is_its_peer() {
    test(
        "settings::birds_routes_stay_on_the_link_of_a_workload_that_is_its_peer",
        |world| {
            let [node, _] = &mut world.nodes;
            let before = node.kernel_state();
            make_peer(node);
            node.reports_nothing();
            node.converged();
            let add = |prefix: &str, link: &str, protocol: &str| {
                let line = format!("ip route add {prefix} dev {link} proto {protocol}");
                node.netns.run(&line);
            };
            node.netns.run("ip nexthop add id 88 dev cali-cart");
            let odd = [
                "10.88.3.0/24 dev cali-cart proto bird advmss 1200",
                "10.88.4.0/24 dev cali-cart proto bird realm 7",
                "10.88.5.0/24 nhid 88 proto bird",
                "10.88.6.0/24 proto bird nexthop dev cali-cart weight 3 \
                 nexthop via 10.88.0.9 dev cali-cart onlink",
                "10.88.7.0/24 dev cali-cart scope host proto bird",
                "tos 0x10 10.88.8.0/24 dev cali-cart proto bird",
                "fd00:88::/64 dev cali-cart proto bird hoplimit 9",
            ];
            for route in odd {
                node.netns.run(&format!("ip route add {route}"));
            }
            // One way of it leads to a workload that is no peer.
            node.netns.run(
                "ip route add 10.88.9.0/24 proto bird nexthop dev cali-cart \
                 nexthop dev cali-frontend",
            );
            add("10.88.0.0/24", "cali-cart", "bird");
            add("10.88.1.0/24", "cali-frontend", "bird");
            add("10.88.2.0/24", "cali-cart", "static");
            lacks(
                node,
                "ip route show",
                &["10.88.1.0", "10.88.2.0", "10.88.9.0"],
            );
            node.converged();
            let left = node.netns.run("ip route show") + &node.netns.run("ip -6 route show");
            for prefix in (3..9).map(|number| format!("10.88.{number}.0/24")) {
                assert!(left.contains(&prefix), "{prefix}: {left}");
            }
            assert!(left.contains("fd00:88::/64"), "{left}");
            assert!(
                left.contains("10.88.0.0/24 dev cali-cart proto bird"),
                "{left}"
            );
            // Another calc may read them before it knows the peer.
            for _ in 0..3 {
                node.kill(&[Process::Calc]);
                node.converged();
                let still = node.netns.run("ip route show") + &node.netns.run("ip -6 route show");
                assert_eq!(still, left);
            }
            // It is no peer's any more.
            std::fs::remove_file(node.document("peers.yaml")).unwrap();
            is_again(node, &before);
        },
    );
}

#[test]
fn without_ipv6_and_vxlan_nothing_of_them_is_left_and_all_comes_back() {
    test(
        "settings::without_ipv6_and_vxlan_nothing_of_them_is_left_and_all_comes_back",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            felix(node, "ipv6Support: false");
            lacks(node, "ip -o link show type vxlan", &["vxlan-v6.calico"]);
            lacks(node, "ip -6 route show", &["fd00:244"]);
            node.converged();
            let bpf = cairnctl(node, "routes");
            assert!(!bpf.contains("fd00:"), "{bpf}");
            assert!(bpf.contains("10.244.2.0/26"), "{bpf}");
            felix(node, "vxlanEnabled: false");
            lacks(node, "ip -o link show type vxlan", &["vxlan"]);
            lacks(node, "ip route show", &["10.244.2.0/26"]);
            node.converged();
            felix(node, "");
            is_again(node, &before);
        },
    );
}

#[test]
fn birds_peers_reach_the_host_by_an_address_on_their_own_link() {
    test(
        "settings::birds_peers_reach_the_host_by_an_address_on_their_own_link",
        |world| {
            let [node, _] = &mut world.nodes;
            let before = node.kernel_state();
            // Whatever is on the links of others is their business.
            node.netns
                .run("ip address add 169.254.9.9/32 dev cali-frontend scope link");
            make_peer(node);
            let bgp = |spec| set_peering(node, spec);
            bgp("localWorkloadPeeringIPV4: 169.254.0.179, localWorkloadPeeringIPV6: 'fd12::179'");
            let addresses = "ip address show dev cali-cart";
            let both = ["169.254.0.179/32 scope link", "fd12::179/128"];
            shows(node, addresses, &both);
            // What others take away is there again, and told.
            for command in [
                "ip address del 169.254.0.179/32 dev cali-cart",
                "ip -6 address flush dev cali-cart",
                "ip link set cali-cart down && ip link set cali-cart up",
            ] {
                node.netns.within(move || shell(command)).join().unwrap();
                shows(node, addresses, &both);
            }
            eventually("the drift is counted", || {
                let status = cairnctl(node, "status");
                status.contains("link-address").then_some(()).ok_or(status)
            });
            // So is what they make their own, of which the kernel's tool shows no difference.
            let drift = || {
                let drift = node.status()["calc"]["properties"]["Drift"].clone();
                drift["link-address"].as_u64().unwrap_or_default()
            };
            let before_that = drift();
            node.netns
                .run("ip address replace 169.254.0.179/32 dev cali-cart scope link");
            eventually("it is heard", || {
                let now = drift();
                (now > before_that).then_some(()).ok_or(now.to_string())
            });
            shows(node, addresses, &both);
            // Another one of their kind goes, of another kind it stays, as on another link.
            node.netns
                .run("ip address add 169.254.8.8/32 dev cali-cart scope link");
            node.netns
                .run("ip address add 169.254.8.9/24 dev cali-cart");
            node.resync();
            lacks(node, addresses, &["169.254.8.8"]);
            // One that a pod has is nobody else's, which takes nothing with it.
            bgp("localWorkloadPeeringIPV4: 10.244.1.2, localWorkloadPeeringIPV6: 'fd12::179'");
            node.reports(&["localWorkloadPeeringIPV4 10.244.1.2", "frontend", "node-1"]);
            lacks(node, addresses, &["169.254.0.179", "10.244.1.2"]);
            shows(node, addresses, &["fd12::179"]);
            // Another address takes its place, and one that is wrong takes nothing with it.
            bgp("localWorkloadPeeringIPV4: 169.254.0.180, localWorkloadPeeringIPV6: nonsense");
            shows(node, addresses, &["169.254.0.180", "169.254.8.9/24"]);
            lacks(node, addresses, &["169.254.0.179", "fd12::179"]);
            std::fs::remove_file(node.document("peers.yaml")).unwrap();
            lacks(node, addresses, &["169.254.0.180"]);
            let shown = node.netns.run("ip address show dev cali-frontend");
            assert!(shown.contains("169.254.9.9/32"), "{shown}");
            std::fs::remove_file(node.document("bgp.yaml")).unwrap();
            node.netns
                .run("ip address del 169.254.8.9/24 dev cali-cart");
            node.netns
                .run("ip address del 169.254.9.9/32 dev cali-frontend");
            is_again(node, &before);
        },
    );
}

#[test]
fn of_what_goes_with_an_address_that_is_fought_over_only_the_address_waits() {
    test(
        "settings::of_what_goes_with_an_address_that_is_fought_over_only_the_address_waits",
        |world| {
            let [node, _] = &mut world.nodes;
            let before = node.kernel_state();
            let address = "ip address show dev cali-cart";
            let pods = || {
                let route = node.netns.run("ip route show dev cali-cart");
                let neighbour = node
                    .netns
                    .run("ip -4 neigh show dev cali-cart nud permanent");
                route + &neighbour
            };
            let bare = pods();
            make_peer(node);
            set_peering(node, "localWorkloadPeeringIPV4: 169.254.0.179");
            shows(node, address, &["169.254.0.179"]);
            for _ in 0..5 {
                let del = "ip address del 169.254.0.179/32 dev cali-cart";
                node.netns.within(move || shell(del)).join().unwrap();
                eventually("what hangs on the link is there", || {
                    let now = pods();
                    (now == bare).then_some(()).ok_or(now)
                });
                shows(node, address, &["169.254.0.179"]);
            }
            eventually("the address is told, and nothing else", || {
                let problems = node.problems().unwrap_or_default();
                let told = matches!(problems.as_slice(), [one] if one.contains("169.254.0.179"));
                told.then_some(()).ok_or(format!("{problems:?}"))
            });
            let drift = node.status()["calc"]["properties"]["Drift"].clone();
            assert_eq!(drift["kernel-route"], serde_json::Value::Null, "{drift}");
            for file in ["bgp.yaml", "peers.yaml"] {
                std::fs::remove_file(node.document(file)).unwrap();
            }
            is_again(node, &before);
        },
    );
}

/// Has BIRD speak BGP with the workload that is on `cali-cart`.
fn make_peer(node: &Node) {
    node.edit(
        "workloads.yaml",
        "name: node--1-k8s-cart-eth0",
        "name: node--1-k8s-cart-eth0\n  labels: {role: router}",
    );
    let peer = "apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: routers}\n\
                spec: {node: node-1, asNumber: 65000, localWorkloadSelector: \"role == 'router'\"}\n";
    std::fs::write(node.document("peers.yaml"), peer).unwrap();
}

/// Says what the BGP configuration holds.
fn set_peering(node: &Node, spec: &str) {
    let text = format!(
        "apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {{name: default}}\n\
         spec: {{{spec}}}\n"
    );
    std::fs::write(node.document("bgp.yaml"), text).unwrap();
}
