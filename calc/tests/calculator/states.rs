//! Named states: what is present, and what is wanted then. Each is entered from each other one, in
//! several ways that must not matter.
//!
//! What is wanted is in `tests/data/states.txt`; `UPDATE_GOLDEN=1` writes it anew, to be read with
//! care.

use std::{env, fmt::Write, fs, net::IpAddr};

use calc::event::{
    Bgp, Block, MigrationRole, Node, NodeAddress, NodeAddressKind, Peering, Pool, RouteSource,
    SourceHint, TunnelMode, Workload, WorkloadKey,
};
use ipc_proto::{Link, LinkRole, LinkState, Mac, Tunnel};
use ipnet::IpNet;

use crate::world::{Instance, World};

struct State {
    name: &'static str,
    world: World,
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Three nodes: this one, one of its subnet, and one elsewhere.
fn nodes(world: &mut World) {
    for (name, subnet, vxlan) in [
        ("node-a", "192.0.2.1/24", "10.65.0.1"),
        ("node-b", "192.0.2.2/24", "10.65.1.1"),
        ("node-c", "198.51.100.3/24", "10.65.2.1"),
    ] {
        let node = Node {
            bgp_ipv4: Some(net(subnet)),
            vxlan_v4: Some(ip(vxlan)),
            ..Node::default()
        };
        world.nodes.insert(name.to_owned(), node);
    }
}

/// A pool with a block for each node.
fn pool(world: &mut World, vxlan: TunnelMode) {
    let pool = Pool {
        vxlan,
        nat_outgoing: true,
        ..Pool::default()
    };
    world.pools.insert(net("10.65.0.0/16"), pool);
    for (cidr, owner) in [
        ("10.65.0.0/26", "node-a"),
        ("10.65.1.0/26", "node-b"),
        ("10.65.2.0/26", "node-c"),
    ] {
        block(world, cidr, owner);
    }
}

fn block(world: &mut World, cidr: &str, owner: &str) {
    let block = Block {
        owner: Some(owner.to_owned()),
        ..Block::default()
    };
    world.blocks.insert(net(cidr), block);
}

fn link(world: &mut World, name: &str, index: u32, role: LinkRole, addresses: &[&str]) {
    let state = LinkState {
        link: Link {
            index,
            name: name.parse().unwrap(),
        },
        role,
        up: true,
        carrier: true,
        mac: (role == LinkRole::Workload).then_some(Mac([0xee; 6])),
        mtu: 1500,
        addresses: addresses.iter().map(|address| net(address)).collect(),
    };
    world.links.insert(index, state);
}

fn uplink(world: &mut World) {
    link(world, "eth0", 2, LinkRole::Uplink, &["192.0.2.1/24"]);
}

fn tunnel(world: &mut World) {
    let role = LinkRole::Tunnel(Tunnel::VxlanV4);
    link(world, "vxlan.calico", 9, role, &["10.65.0.1/32"]);
}

fn workload(world: &mut World, node: &str, name: &str, interface: &str, nets: &[&str]) {
    let key = WorkloadKey {
        node: node.to_owned(),
        orchestrator: "k8s".to_owned(),
        workload: name.to_owned(),
        endpoint: "eth0".to_owned(),
    };
    let workload = Workload {
        interface: interface.parse().unwrap(),
        nets: nets.iter().map(|one| net(one)).collect(),
        mac: Some("02:00:00:00:00:05".parse().unwrap()),
        skip_ingress_redirect: false,
        bgp_peer: false,
        migration: MigrationRole::None,
    };
    world.workloads.insert(key, workload);
}

/// All of the above, and a workload here.
fn cluster(vxlan: TunnelMode) -> World {
    let mut world = World::default();
    nodes(&mut world);
    pool(&mut world, vxlan);
    uplink(&mut world);
    tunnel(&mut world);
    link(&mut world, "cali1", 5, LinkRole::Workload, &[]);
    workload(&mut world, "node-a", "shop/web", "cali1", &["10.65.0.5/32"]);
    world
}

/// A workload here that is a part of a live migration.
fn migration(role: MigrationRole, address: &str) -> World {
    let mut world = cluster(TunnelMode::Always);
    workload(&mut world, "node-a", "vm/a", "cali1", &[address]);
    let (_, workload) = world.workloads.iter_mut().last().unwrap();
    workload.migration = role;
    world
}

fn with(mut world: World, change: impl FnOnce(&mut World)) -> World {
    change(&mut world);
    world
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn states() -> Vec<State> {
    vec![
        State {
            name: "nothing is present",
            world: World::default(),
        },
        State {
            name: "no interface is known yet",
            world: with(cluster(TunnelMode::CrossSubnet), |world| {
                world.links.clear();
            }),
        },
        State {
            name: "nodes of one subnet reach each other without the tunnel",
            world: cluster(TunnelMode::CrossSubnet),
        },
        State {
            name: "all nodes reach each other through the tunnel",
            world: cluster(TunnelMode::Always),
        },
        State {
            name: "while the uplink is unknown the tunnel serves for all",
            world: with(cluster(TunnelMode::CrossSubnet), |world| {
                world.links.get_mut(&2).unwrap().addresses.clear();
            }),
        },
        State {
            name: "while the uplink is down nothing goes by it",
            world: with(cluster(TunnelMode::CrossSubnet), |world| {
                world.links.get_mut(&2).unwrap().up = false;
            }),
        },
        State {
            name: "the tunnel device is not there yet",
            world: with(cluster(TunnelMode::Always), |world| {
                world.links.remove(&9);
            }),
        },
        State {
            name: "interfaces have been re-created with other indexes",
            world: with(cluster(TunnelMode::Always), |world| {
                for (index, other) in [(5, 25), (9, 29)] {
                    let mut state = world.links.remove(&index).unwrap();
                    state.link.index = other;
                    world.links.insert(other, state);
                }
            }),
        },
        State {
            name: "without a hardware address of its own a workload is served by the stack",
            world: with(cluster(TunnelMode::Always), |world| {
                for workload in world.workloads.values_mut() {
                    workload.mac = None;
                }
            }),
        },
        State {
            name: "packets between workloads of this node go through the stack if so configured",
            world: with(cluster(TunnelMode::Always), |world| {
                world.config.redirect_to_peer = false;
            }),
        },
        State {
            name: "the workload's interface is down",
            world: with(cluster(TunnelMode::Always), |world| {
                world.links.get_mut(&5).unwrap().up = false;
            }),
        },
        State {
            name: "an endpoint on an interface that does not exist disturbs nothing",
            world: with(cluster(TunnelMode::Always), |world| {
                workload(world, "node-a", "shop/db", "cali2", &["10.65.0.6/32"]);
            }),
        },
        State {
            name: "routes of a pool without encapsulation are BIRD's",
            world: cluster(TunnelMode::Never),
        },
        State {
            name: "routes of a pool without encapsulation are ours if so configured",
            world: with(cluster(TunnelMode::Never), |world| {
                world.config.program_no_encap = true;
                world.config.source_hint_v4 = Some(SourceHint::Address(ip("192.0.2.1")));
            }),
        },
        State {
            name: "another node's tunnel end on a borrowed address is attached directly",
            world: with(cluster(TunnelMode::Always), |world| {
                world.nodes.get_mut("node-c").unwrap().vxlan_v4 = Some(ip("10.65.1.9"));
                let block = world.blocks.get_mut(&net("10.65.1.0/26")).unwrap();
                block.allocations.insert(9, "node-c".to_owned());
            }),
        },
        State {
            name: "owners are learned from the endpoints of all nodes",
            world: with(cluster(TunnelMode::Always), |world| {
                world.config.route_source = RouteSource::WorkloadIps;
                workload(world, "node-b", "shop/db", "cali1", &["10.65.1.5/32"]);
            }),
        },
        State {
            name: "the target of a live migration waits for the node that has its address",
            world: migration(MigrationRole::Target, "10.65.1.7/32"),
        },
        State {
            name: "the target of a live migration has an address that IPAM gave to its node",
            world: with(migration(MigrationRole::Target, "10.65.1.7/32"), |world| {
                let block = world.blocks.get_mut(&net("10.65.1.0/26")).unwrap();
                block.allocations.insert(7, "node-a".to_owned());
            }),
        },
        State {
            name: "what has just moved here goes on with the elevated metric",
            world: with(migration(MigrationRole::Moved, "10.65.1.7/32"), |world| {
                let block = world.blocks.get_mut(&net("10.65.1.0/26")).unwrap();
                block.allocations.insert(7, "node-a".to_owned());
                world.config.elevated_metric_v4 = 7;
            }),
        },
        State {
            name: "routes take their source address from an interface",
            world: with(cluster(TunnelMode::Always), |world| {
                let eth0 = "eth0".parse().unwrap();
                world.config.source_hint_v4 = Some(SourceHint::Interface(eth0));
            }),
        },
        State {
            name: "the source of a live migration keeps an address that IPAM gave away until it goes",
            world: with(migration(MigrationRole::Source, "10.65.0.7/32"), |world| {
                let block = world.blocks.get_mut(&net("10.65.0.0/26")).unwrap();
                block.allocations.insert(7, "node-b".to_owned());
            }),
        },
        State {
            name: "of two nodes with one address, neither IPAM nor names but the migration decides",
            world: with(migration(MigrationRole::Target, "10.65.1.7/32"), |world| {
                world.config.route_source = RouteSource::WorkloadIps;
                workload(world, "node-b", "vm/b", "cali1", &["10.65.1.7/32"]);
            }),
        },
        State {
            name: "a configured tunnel and a node known by its address list",
            world: with(cluster(TunnelMode::Always), |world| {
                world.config.vxlan_vni = 5;
                world.config.vxlan_port = 8472;
                world.config.vxlan_mtu = Some(1400);
                world.blocks.remove(&net("10.65.2.0/26"));
                world.nodes.remove("node-c");
                let node = world.nodes.get_mut("node-b").unwrap();
                node.vxlan_mac_v4 = Some("02:00:00:00:00:0b".parse().unwrap());
                node.bgp_ipv4 = None;
                node.addresses = vec![NodeAddress {
                    address: ip("203.0.113.2"),
                    kind: NodeAddressKind::Internal,
                }];
            }),
        },
        State {
            name: "without VXLAN there is no device, nor a route or blackhole of its pools",
            world: with(cluster(TunnelMode::CrossSubnet), |world| {
                world.config.vxlan = false;
            }),
        },
        State {
            name: "without IPv6 nothing of it is wanted",
            world: with(six(), |world| {
                world.config.ipv6 = false;
                let web = world.workloads.values_mut().next().unwrap();
                web.nets.push(net("10.65.0.5/32"));
            }),
        },
        State {
            name: "BIRD's peers among the workloads reach this host by an address on their own link",
            world: peers(),
        },
        State {
            name: "what a pod elsewhere has is no address of this host",
            world: {
                let mut world = peers();
                workload(&mut world, "node-b", "other", "cali8", &["10.65.1.8/32"]);
                world.bgp.peering.v4 = Some(ip("10.65.1.8"));
                world
            },
        },
        State {
            name: "IPv6 is as IPv4 but for neighbours of workloads",
            world: six(),
        },
        State {
            name: "in IPv6 an end of the tunnel is attached where what is around it needs no tunnel",
            world: ends_without_a_tunnel(true),
        },
        State {
            name: "in IPv6 it is not where no pool is reached by it",
            world: ends_without_a_tunnel(false),
        },
    ]
}

fn six() -> World {
    let mut world = World::default();
    for (name, subnet, vxlan) in [
        ("node-a", "2001:db8::1/64", "fd65::a:1"),
        ("node-b", "2001:db8::2/64", "fd65::b:1"),
        ("node-c", "2001:db8:0:1::3/64", "fd65::c:1"),
    ] {
        let node = Node {
            bgp_ipv6: Some(net(subnet)),
            vxlan_v6: Some(ip(vxlan)),
            ..Node::default()
        };
        world.nodes.insert(name.to_owned(), node);
    }
    let pool = Pool {
        vxlan: TunnelMode::CrossSubnet,
        ..Pool::default()
    };
    world.pools.insert(net("fd65::/64"), pool);
    for (cidr, owner) in [
        ("fd65::a:0/122", "node-a"),
        ("fd65::b:0/122", "node-b"),
        ("fd65::c:0/122", "node-c"),
    ] {
        block(&mut world, cidr, owner);
    }
    link(&mut world, "eth0", 2, LinkRole::Other, &["2001:db8::1/64"]);
    let role = LinkRole::Tunnel(Tunnel::VxlanV6);
    link(&mut world, "vxlan-v6.calico", 10, role, &["fd65::a:1/128"]);
    link(&mut world, "cali1", 5, LinkRole::Workload, &["fe80::1/64"]);
    workload(
        &mut world,
        "node-a",
        "shop/web",
        "cali1",
        &["fd65::a:5/128"],
    );
    world
}

/// An end of the tunnel in a pool without encapsulation, and one in a pool that needs no tunnel in this
/// subnet; beside them, if it `also` has, blocks that are reached by the tunnel alone.
fn ends_without_a_tunnel(also: bool) -> World {
    let mut world = six();
    let plain = Pool::default();
    world.pools.insert(net("fd66::/64"), plain);
    block(&mut world, "fd66::c:0/122", "node-c");
    world.nodes.get_mut("node-c").unwrap().vxlan_v6 = Some(ip("fd66::c:1"));
    if also {
        let always = Pool {
            vxlan: TunnelMode::Always,
            ..Pool::default()
        };
        world.pools.insert(net("fd64::/64"), always);
        block(&mut world, "fd64::b:0/122", "node-b");
        block(&mut world, "fd64::c:0/122", "node-c");
    } else {
        world.pools.get_mut(&net("fd65::/64")).unwrap().vxlan = TunnelMode::Never;
    }
    world
}

/// Two workloads here that are peers, of which one's link is down, and one elsewhere.
fn peers() -> World {
    let mut world = cluster(TunnelMode::Never);
    for (name, index, node) in [
        ("cali5", 15, "node-a"),
        ("cali6", 16, "node-a"),
        ("cali7", 17, "node-b"),
    ] {
        link(&mut world, name, index, LinkRole::Workload, &[]);
        workload(&mut world, node, name, name, &[]);
    }
    for workload in world.workloads.values_mut() {
        workload.bgp_peer = workload.nets.is_empty();
    }
    for state in world.links.values_mut() {
        state.up = state.link.index != 16;
    }
    world.bgp = Bgp {
        peering: Peering {
            v4: Some(ip("169.254.0.179")),
            v6: Some(ip("fd12::179")),
        },
        ..Bgp::default()
    };
    world
}

#[test]
fn what_is_wanted_in_each_state_is_as_written() {
    let mut desired = String::new();
    for state in states() {
        writeln!(desired, "# {}", state.name).unwrap();
        for line in state.world.desired().lines() {
            writeln!(desired, "{line}").unwrap();
        }
        desired.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/states.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &desired).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();
    for (desired, written) in desired.split("\n\n").zip(written.split("\n\n")) {
        assert_eq!(
            desired, written,
            "wanted:\n{desired}\n\nas written:\n{written}"
        );
    }
    assert_eq!(desired, written);
}

#[test]
fn no_way_from_one_state_to_another_matters() {
    let states = states();
    for from in &states {
        for to in &states {
            let changes = from.world.changes(&to.world);
            for way in [
                "all at once",
                "one by one",
                "backwards",
                "backwards one by one",
                "detour",
            ] {
                let mut instance = Instance::default();
                for event in World::default().changes(&from.world) {
                    instance.calculator.handle(event);
                }
                instance.resolve();
                let mut changes = changes.clone();
                if way.starts_with("backwards") {
                    changes.reverse();
                }
                if way == "detour" {
                    // By way of nothing, told in one go.
                    changes = from.world.changes(&World::default());
                    changes.extend(World::default().changes(&to.world));
                }
                if way.ends_with("one by one") {
                    for event in changes {
                        instance.calculator.handle(event);
                        instance.resolve();
                    }
                } else {
                    instance.calculator.handle_all(changes);
                }
                instance.resolve();
                let fresh = to.world.desired();
                assert_eq!(
                    instance.desired, fresh,
                    "{} -> {}: {way}",
                    from.name, to.name
                );
            }
        }
    }
}
