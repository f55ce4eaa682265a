//! Bad input, from the datastore to the host: each gets a clear error that names the object and
//! what to do, nothing else is disturbed, and live routes stay.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    fs,
    process::{Command, Output},
};

use nix::unistd::chown;
use tests::{
    claims, netns,
    wait::eventually,
    world::{self, Node, World},
};

/// A world in which Cairn is up, and what `node-1` then holds.
fn started(name: &str, body: impl FnOnce(&mut World, &str)) {
    world::test(name, |world| {
        claims::comes_up(world).unwrap();
        let state = world.nodes[0].kernel_state();
        body(world, &state);
    });
}

/// Waits until what the node logged has all of `words` in one line.
#[track_caller]
fn logged(node: &Node, words: &[&str]) {
    eventually(&format!("a log line with {words:?}"), || {
        let log = fs::read_to_string(node.log()).unwrap_or_default();
        let found = log
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)));
        if found { Ok(()) } else { Err(log) }
    });
}

#[test]
fn a_broken_document_keeps_its_former_value() {
    started(
        "a_broken_document_keeps_its_former_value",
        |world, state| {
            let [node, _] = &world.nodes;
            let good = fs::read_to_string(node.document("blocks.yaml")).unwrap();
            node.edit(
                "blocks.yaml",
                "affinity: host:node-2",
                "affinity: [host:node-2",
            );
            node.reports(&["blocks.yaml"]);
            assert_eq!(node.kernel_state(), state, "live routes stay");
            fs::write(node.document("blocks.yaml"), good).unwrap();
            node.reports_nothing();
            node.converged();
            assert_eq!(node.kernel_state(), state);
        },
    );
}

#[test]
fn a_field_of_the_wrong_type_is_reported_by_file_line_and_field() {
    started(
        "a_field_of_the_wrong_type_is_reported_by_file_line_and_field",
        |world, state| {
            let [node, _] = &world.nodes;
            node.edit(
                "pools.yaml",
                "cidr: fd00:244::/96\n",
                "cidr: fd00:244::/96\n  natOutgoing: [1]\n",
            );
            node.reports(&["pools.yaml:16:", "pods-v6", "natOutgoing"]);
            assert_eq!(node.kernel_state(), state, "live routes stay");
        },
    );
}

#[test]
fn a_document_that_cannot_be_read_at_the_start_sweeps_nothing() {
    world::test(
        "a_document_that_cannot_be_read_at_the_start_sweeps_nothing",
        |world| {
            claims::comes_up(world).unwrap();
            let state = world.nodes[0].kernel_state();
            world.nodes[0].stop();
            let [node, _] = &mut world.nodes;
            let good = fs::read_to_string(node.document("blocks.yaml")).unwrap();
            fs::write(node.document("blocks.yaml"), "{ broken").unwrap();
            node.start();
            node.reports(&["blocks.yaml"]);
            // Something else still gets through, and so shows that the restart is over.
            node.edit(
                "workloads.yaml",
                "mac: 0a:00:00:00:01:02",
                "mac: 0a:00:00:00:01:99",
            );
            eventually("the new neighbour", || {
                let neighbours = node.netns.run("ip neigh show dev cali-frontend");
                if neighbours.contains("0a:00:00:00:01:99") {
                    Ok(())
                } else {
                    Err(neighbours)
                }
            });
            node.edit(
                "workloads.yaml",
                "mac: 0a:00:00:00:01:99",
                "mac: 0a:00:00:00:01:02",
            );
            let remote = node.netns.run("ip route show 10.244.2.0/26");
            assert!(
                remote.contains("vxlan.calico"),
                "the route to the other node stays: {remote:?}"
            );
            fs::write(node.document("blocks.yaml"), good).unwrap();
            node.reports_nothing();
            node.converged();
            assert_eq!(node.kernel_state(), state);
        },
    );
}

#[test]
fn an_unknown_kind_and_a_pool_with_host_bits_disturb_nothing() {
    started(
        "an_unknown_kind_and_a_pool_with_host_bits_disturb_nothing",
        |world, state| {
            let [node, _] = &world.nodes;
            let documents = "apiVersion: projectcalico.org/v3\nkind: Teapot\nmetadata: {name: brown}\n\
             ---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: crooked}\n\
             spec: {cidr: 10.99.0.1/16}\n";
            fs::write(node.document("odd.yaml"), documents).unwrap();
            node.reports(&["odd.yaml", "Teapot"]);
            node.reports(&["odd.yaml", "crooked", "10.99.0.1/16"]);
            node.converged();
            assert_eq!(node.kernel_state(), state);
        },
    );
}

#[test]
fn an_endpoint_may_come_before_its_interface() {
    started("an_endpoint_may_come_before_its_interface", |world, _| {
        let [node, _] = &world.nodes;
        let document = "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
             metadata: {name: node--1-k8s-late-eth0, namespace: shop}\n\
             spec:\n  orchestrator: k8s\n  node: node-1\n  pod: late\n  endpoint: eth0\n  \
             interfaceName: cali-late\n  ipNetworks: [10.244.1.9/32]\n";
        fs::write(node.document("late.yaml"), document).unwrap();
        eventually("an entry without an interface", || {
            let output = node.cairnctl("--json routes").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if text.contains("10.244.1.9/32") {
                Ok(())
            } else {
                Err(text)
            }
        });
        node.reports(&["shop/late", "cali-late"]);
        node.converged();
        assert_eq!(node.netns.run("ip route show 10.244.1.9"), "");
        node.netns
            .run("ip link add cali-late type veth peer name late-peer");
        node.netns.run("ip link set cali-late up");
        node.netns.run("ip link set late-peer up");
        eventually("the route of the late pod", || {
            let route = node.netns.run("ip route show 10.244.1.9");
            if route.contains("cali-late") {
                Ok(())
            } else {
                Err(route)
            }
        });
        node.converged();
    });
}

#[test]
fn a_pin_of_another_shape_is_refused_and_left_alone() {
    world::test(
        "a_pin_of_another_shape_is_refused_and_left_alone",
        |world| {
            let [node, _] = &mut world.nodes;
            fs::create_dir(node.pin_dir()).unwrap();
            let pin = node.pin_dir().join(ebpf::MAP_V4);
            let mut create = Command::new("bpftool");
            create.args(["map", "create"]).arg(&pin);
            netns::run(create.args("type hash key 4 value 4 entries 10 name other".split(' ')));
            node.start();
            logged(node, &["cali_v4_routes", "belongs to the user 0", "chown"]);
            chown(&pin, Some(Node::PRIVHELPER_USER.into()), None).unwrap();
            logged(
                node,
                &[
                    "cali_v4_routes",
                    "type",
                    "Hash",
                    "LPM_TRIE",
                    "remove the pin",
                ],
            );
            assert!(pin.exists(), "it is not Cairn's to delete");
            fs::remove_file(&pin).unwrap();
            node.converged();
        },
    );
}

#[test]
fn a_missing_bpffs_is_named_with_the_command_that_mounts_it() {
    world::test(
        "a_missing_bpffs_is_named_with_the_command_that_mounts_it",
        |world| {
            netns::run(Command::new("umount").arg("/sys/fs/bpf"));
            let [node, _] = &mut world.nodes;
            node.start();
            logged(node, &["mount -t bpf"]);
            netns::run(Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]));
            node.converged();
        },
    );
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "it must not start: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_supervisor_on_the_same_directory_is_refused() {
    started(
        "a_second_supervisor_on_the_same_directory_is_refused",
        |world, state| {
            let [node, _] = &world.nodes;
            let pid = node.pid(world::Process::Supervisor).to_string();
            let complaint = complaint(&node.supervisor_command().output().unwrap());
            assert!(
                complaint.contains("/run/node-1/run") && complaint.contains(&pid),
                "{complaint}"
            );
            node.converged();
            assert_eq!(node.kernel_state(), state);
        },
    );
}

#[test]
fn missing_capabilities_are_named() {
    world::test("missing_capabilities_are_named", |world| {
        let [node, _] = &world.nodes;
        let run = |program: &str| {
            let mut command = node.netns.command("setpriv");
            command.args(["--reuid", "64999", "--regid", "64999", "--clear-groups"]);
            command.arg(node.program(program)).arg("--config");
            command.arg(
                node.directory
                    .join(program.trim_start_matches("cairn-"))
                    .with_extension("toml"),
            );
            complaint(&command.output().unwrap())
        };
        let helper = run("cairn-privhelper");
        assert!(
            helper.contains("CAP_BPF") && helper.contains("CAP_NET_ADMIN"),
            "{helper}"
        );
        let supervisor = run("cairn-supervisor");
        assert!(supervisor.contains("root"), "{supervisor}");
    });
}

#[test]
fn a_node_that_the_datastore_does_not_know_is_left_as_it_is() {
    started(
        "a_node_that_the_datastore_does_not_know_is_left_as_it_is",
        |world, state| {
            let [node, _] = &mut world.nodes;
            // At run time, and at the start.
            node.edit("nodes.yaml", "name: node-1", "name: node-9");
            node.reports(&["no Node node-1", "node_name"]);
            assert_eq!(node.kernel_state(), state);
            node.stop();
            node.start();
            node.reports(&["no Node node-1", "node_name"]);
            assert_eq!(node.kernel_state(), state);
            node.edit("nodes.yaml", "name: node-9", "name: node-1");
            node.converged();
            assert_eq!(node.kernel_state(), state);
        },
    );
}

#[test]
fn a_lost_node_address_keeps_the_tunnel() {
    started("a_lost_node_address_keeps_the_tunnel", |world, _| {
        let [node, _] = &mut world.nodes;
        let index = node.netns.run("ip -o link show vxlan.calico");
        node.netns.run("ip address del 172.30.0.11/24 dev eth0");
        node.reports(&["node-1", "172.30.0.11"]);
        node.stop();
        node.start();
        node.reports(&["node-1", "172.30.0.11"]);
        let after = node.netns.run("ip -o link show vxlan.calico");
        assert_eq!(index, after, "neither at run time nor at a start");
        node.netns.run("ip address add 172.30.0.11/24 dev eth0");
        node.reports_nothing();
        node.converged();
    });
}

#[test]
fn a_link_that_was_down_for_a_moment_gets_its_routes_back_at_once() {
    world::test(
        "a_link_that_was_down_for_a_moment_gets_its_routes_back_at_once",
        |world| {
            // Not by the periodic reading: only the interface's own change can tell.
            for node in &world.nodes {
                node.refresh_never();
            }
            claims::comes_up(world).unwrap();
            let [node, _] = &world.nodes;
            let state = node.kernel_state();
            for link in ["cali-frontend", "vxlan.calico", "vxlan-v6.calico"] {
                let flap = format!("ip link set {link} down; ip link set {link} up");
                netns::run(node.netns.command("sh").args(["-ec", &flap]));
                eventually(&format!("all as before {link} went down"), || {
                    let after = node.kernel_state();
                    if after == state { Ok(()) } else { Err(after) }
                });
            }
        },
    );
}
