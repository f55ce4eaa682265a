//! The neighbours and forwarding entries of other nodes' ends of the tunnel.

use tests::{
    netns::shell,
    world::{Node, Process},
};

use super::{VXLAN, index, is_again, lacks, listen, shows, test};

const NEIGHBOURS: &str = "ip neigh show dev vxlan.calico nud permanent";
const FDB: &str = "bridge fdb show dev vxlan.calico";
const MAC: &str = "02:00:00:00:00:0a";
const OTHER: &str = "02:00:00:00:00:0b";

/// Gives `node-2` an end of the tunnel with this hardware address.
fn set_mac(node: &Node, mac: &str) {
    let end = "ipv4VXLANTunnelAddr: 10.244.2.0";
    node.edit(
        "nodes.yaml",
        end,
        &format!("{end}\n  vxlanTunnelMACAddr: {mac}"),
    );
}

/// Adds a node with this address, end of the tunnel and hardware address.
fn add_node(node: &Node, name: &str, address: &str, end: &str, mac: &str) {
    let text = format!(
        "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {{name: {name}}}\nspec:\n  \
         bgp: {{ipv4Address: {address}/24}}\n  ipv4VXLANTunnelAddr: {end}\n  \
         vxlanTunnelMACAddr: '{mac}'\n"
    );
    std::fs::write(node.document(&format!("{name}.yaml")), text).unwrap();
}

#[test]
fn a_peers_new_hardware_address_is_known_before_it_is_used() {
    test(
        "peers::a_peers_new_hardware_address_is_known_before_it_is_used",
        |world| {
            let [node, _] = &world.nodes;
            set_mac(node, MAC);
            shows(node, FDB, &[MAC]);
            lacks(node, FDB, &["66:"]);
            node.converged();
            let monitor = listen(node);
            node.edit("nodes.yaml", MAC, OTHER);
            shows(node, FDB, &[OTHER]);
            lacks(node, FDB, &[MAC]);
            node.converged();
            let wanted = [
                format!("+fdb {OTHER} 172.30.0.12"),
                format!("+neigh 10.244.2.0 {OTHER}"),
                format!("-fdb {MAC} 172.30.0.12"),
            ];
            assert_eq!(monitor.told(index(node, VXLAN).unwrap()), wanted);
        },
    );
}

#[test]
fn a_peer_at_another_address_is_one_change() {
    test("peers::a_peer_at_another_address_is_one_change", |world| {
        let [node, _] = &world.nodes;
        set_mac(node, MAC);
        shows(node, FDB, &[MAC]);
        lacks(node, FDB, &["66:"]);
        node.converged();
        let monitor = listen(node);
        node.edit("nodes.yaml", "172.30.0.12/24", "172.30.0.13/24");
        shows(node, FDB, &["172.30.0.13"]);
        node.converged();
        let told = monitor.told(index(node, VXLAN).unwrap());
        assert_eq!(told, [format!("+fdb {MAC} 172.30.0.13")]);
    });
}

#[test]
fn a_peer_goes_from_its_routes_to_its_entries() {
    test(
        "peers::a_peer_goes_from_its_routes_to_its_entries",
        |world| {
            let [node, _] = &world.nodes;
            add_node(node, "node-3", "172.30.0.13", "10.244.3.0", MAC);
            let block = format!(
                "apiVersion: projectcalico.org/v3\nkind: IPAMBlock\nmetadata: {{name: b3}}\n\
                 spec: {{cidr: 10.244.3.0/26, affinity: 'host:node-3', allocations: {}, \
                 attributes: [], unallocated: []}}\n",
                format!("{:?}", ["null"; 64]).replace('"', "")
            );
            std::fs::write(node.document("block-3.yaml"), block).unwrap();
            shows(node, "ip route show", &["10.244.3.0/26 via 10.244.3.0"]);
            node.converged();
            let monitor = listen(node);
            for file in ["block-3.yaml", "node-3.yaml"] {
                std::fs::remove_file(node.document(file)).unwrap();
            }
            lacks(node, FDB, &[MAC]);
            node.converged();
            let told = monitor.told(index(node, VXLAN).unwrap());
            let place = |word: &str| told.iter().position(|told| told.starts_with(word));
            let order = ["-route 10.244.3.0/26", "-neigh 10.244.3.0", "-fdb"].map(place);
            assert!(order.iter().all(Option::is_some), "{told:?}");
            assert!(order.is_sorted(), "{told:?}");
        },
    );
}

#[test]
fn a_peer_with_a_bad_hardware_address_is_told_and_no_other_is_disturbed() {
    test(
        "peers::a_peer_with_a_bad_hardware_address_is_told_and_no_other_is_disturbed",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let monitor = listen(node);
            // No hardware address, and no host's.
            for (mac, words) in [
                ("kaputt", ["node-3", "vxlanTunnelMACAddr"]),
                ("01:00:5e:00:00:01", ["10.244.3.0", "01:00:5e:00:00:01"]),
            ] {
                add_node(node, "node-3", "172.30.0.13", "10.244.3.0", mac);
                node.reports(&words);
            }
            add_node(node, "node-4", "172.30.0.14", "10.244.4.0", MAC);
            shows(node, NEIGHBOURS, &["10.244.4.0", "10.244.2.0"]);
            for name in ["node-3.yaml", "node-4.yaml"] {
                std::fs::remove_file(node.document(name)).unwrap();
            }
            is_again(node, &before);
            let told = monitor.told(index(node, VXLAN).unwrap());
            let strange = |word: &&String| !word.contains("10.244.4.0") && !word.contains(MAC);
            let told: Vec<_> = told.iter().filter(strange).collect();
            assert!(told.is_empty(), "{told:?}");
        },
    );
}

#[test]
fn peers_with_one_hardware_address_are_all_known_and_the_first_has_it() {
    test(
        "peers::peers_with_one_hardware_address_are_all_known_and_the_first_has_it",
        |world| {
            let [node, _] = &world.nodes;
            add_node(node, "node-3", "172.30.0.13", "10.244.3.0", MAC);
            add_node(node, "node-4", "172.30.0.14", "10.244.4.0", MAC);
            shows(node, NEIGHBOURS, &["10.244.3.0", "10.244.4.0"]);
            shows(node, FDB, &[&format!("{MAC} dst 172.30.0.13")]);
            node.converged();
            let monitor = listen(node);
            // The other takes it over: there is no moment without an entry.
            std::fs::remove_file(node.document("node-3.yaml")).unwrap();
            shows(node, FDB, &[&format!("{MAC} dst 172.30.0.14")]);
            lacks(node, NEIGHBOURS, &["10.244.3.0"]);
            node.converged();
            let told = monitor.told(index(node, VXLAN).unwrap());
            assert!(
                told.contains(&format!("+fdb {MAC} 172.30.0.14")),
                "{told:?}"
            );
            assert!(
                !told.iter().any(|word| word.starts_with("-fdb")),
                "{told:?}"
            );
        },
    );
}

#[test]
fn a_reading_removes_what_is_stray_and_leaves_what_is_learned() {
    test(
        "peers::a_reading_removes_what_is_stray_and_leaves_what_is_learned",
        |world| {
            let [node, _] = &world.nodes;
            for (neigh, state) in [
                ("10.244.9.1", "reachable"),
                ("10.244.9.2", "noarp"),
                ("10.244.9.3", "stale"),
            ] {
                node.netns.run(&format!(
                    "ip neigh add {neigh} lladdr {MAC} dev vxlan.calico nud {state}"
                ));
            }
            node.netns.run(&format!(
                "bridge fdb add {OTHER} dev vxlan.calico dst 172.30.0.77 dynamic"
            ));
            let before = node.kernel_state();
            let learned = || {
                let reached = node.netns.run("ip neigh show 10.244.9.1 dev vxlan.calico");
                // It gets older by itself.
                node.netns.run("ip neigh show dev vxlan.calico nud noarp")
                    + &reached.replace("REACHABLE", "STALE")
            };
            let others = learned();
            assert!(others.contains("10.244.9.1") && others.contains("10.244.9.2"));
            let zero = "00:00:00:00:00:00";
            // It hears of each change; this one reading is to find all.
            let calc = node.pid(Process::Calc);
            shell(&format!("kill -STOP {calc}"));
            for line in [
                // Strays: a peer that is none, three ends with one address, no address at all.
                format!("ip neigh add 10.244.8.1 lladdr {MAC} dev vxlan.calico nud permanent"),
                format!("ip neigh add 10.244.8.2 lladdr {MAC} dev vxlan.calico nud permanent"),
                format!("bridge fdb add {MAC} dev vxlan.calico dst 172.30.0.77"),
                format!("bridge fdb append {zero} dev vxlan.calico dst 172.30.0.77"),
                format!("bridge fdb append {zero} dev vxlan.calico dst 172.30.0.78"),
                // Ours: wrong, and no longer permanent.
                format!(
                    "ip neigh replace 10.244.2.0 lladdr {OTHER} dev vxlan.calico nud permanent"
                ),
                "ip neigh replace 10.244.1.2 lladdr 02:00:00:00:00:99 dev cali-frontend nud stale"
                    .to_owned(),
                // Of the other family.
                "ip neigh add fd00:244::8:1 lladdr 02:00:00:00:00:0c dev vxlan-v6.calico \
                 nud permanent"
                    .to_owned(),
                "bridge fdb add 02:00:00:00:00:0c dev vxlan-v6.calico dst fd00:30::77".to_owned(),
            ] {
                node.netns.run(&line);
            }
            assert_eq!(node.netns.run(FDB).matches(zero).count(), 2);
            shell(&format!("kill -CONT {calc}"));
            // One reading, and what it asks for.
            node.resync();
            is_again(node, &before);
            assert_eq!(learned(), others);
            let monitor = listen(node);
            node.resync();
            node.converged();
            assert_eq!(monitor.heard(), [0_u16; 0]);
        },
    );
}

#[test]
fn an_end_that_is_itself_reached_without_the_tunnel_serves_as_next_hop() {
    test(
        "peers::an_end_that_is_itself_reached_without_the_tunnel_serves_as_next_hop",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let (near, end) = ("ip -6 route show fd00:245::2:0/122", "fd00:245::2:0");
            let far = "ip -6 route show fd00:244::2:0/122";
            let text = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: near}\n\
                        spec: {cidr: 'fd00:245::/96', vxlanMode: CrossSubnet}\n---\n\
                        apiVersion: projectcalico.org/v3\nkind: IPAMBlock\nmetadata: {name: near-2}\n\
                        spec: {cidr: 'fd00:245::2:0/122', affinity: 'host:node-2', allocations: [], \
                        unallocated: [], attributes: []}\n";
            std::fs::write(node.document("near.yaml"), text).unwrap();
            shows(node, near, &["via fd00:30::12 dev eth0"]);
            node.edit("nodes.yaml", "fd00:244::2:0", end);
            shows(node, far, &["via fd00:245::2:0 dev vxlan-v6.calico"]);
            shows(
                node,
                &format!("ip -6 route show {end}/128"),
                &["dev vxlan-v6.calico"],
            );
            node.converged();
            node.reports_nothing();
            let all = node.kernel_state();
            for route in [
                "fd00:244::2:0/122",
                &format!("{end}/128"),
                "fd00:245::2:0/122",
            ] {
                node.netns.run(&format!("ip -6 route del {route}"));
            }
            is_again(node, &all);
            node.edit("nodes.yaml", end, "fd00:244::2:0");
            std::fs::remove_file(node.document("near.yaml")).unwrap();
            is_again(node, &before);
        },
    );
}
