//! The demo world: two nodes as network namespaces on one underlay, two pods on each, and a host
//! outside.
//!
//! ```text
//!   frontend  cart          orders  ledger
//!       |      |               |      |            10.244.N.2, .3   fd00:244::N:2, :3
//!     [ node-1 ]             [ node-2 ]   [ outside ]
//!          | eth0                 | eth0       | eth0   172.30.0.11, .12, .100  fd00:30::11, ...
//!   =======+======== underlay ====+============+=======
//! ```
//!
//! The world does what the cluster around Cairn would: it makes links as a CNI plugin does, and
//! keeps the datastore. It never adds a route, neighbour, tunnel or sysctl that is Cairn's to make.

mod node;
mod pod;

use std::{fs, net::IpAddr, path::Path};

use ipnet::Ipv4Net;

pub use self::{
    node::{Node, Process, signal},
    pod::Pod,
};
use crate::{
    isolate,
    netns::{Netns, run, shell},
};

const NODES: [&str; 2] = ["node-1", "node-2"];

/// See the [module](self).
#[derive(Debug)]
pub struct World {
    /// The nodes, `node-1` first.
    pub nodes: [Node; 2],
    /// On `node-1`.
    pub frontend: Pod,
    /// On `node-1`.
    pub cart: Pod,
    /// On `node-2`.
    pub orders: Pod,
    /// On `node-2`.
    pub ledger: Pod,
    /// A host that knows the way back to the pods.
    pub outside: Netns,
}

impl World {
    /// The addresses of the host outside.
    pub const OUTSIDE: [IpAddr; 2] = [
        IpAddr::V4(std::net::Ipv4Addr::new(172, 30, 0, 100)),
        IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 0, 0x100)),
    ];

    /// Builds it, with Cairn installed on both nodes but not started.
    ///
    /// # Panics
    ///
    /// Outside of [`isolate`](crate::isolate), or if anything cannot be made.
    #[must_use]
    pub fn build() -> Self {
        shell("ip link add underlay type bridge && ip link set underlay up");
        shell("ip address add 172.30.0.254/24 dev underlay");
        shell("ip address add fd00:30::fe/64 dev underlay nodad");
        let bin = install();
        let nodes = NODES.map(|name| {
            let node = Node::new(name, &bin);
            node.show_demo();
            node
        });
        let outside = Netns::new("outside");
        attach(&nodes[0].netns, "11");
        attach(&nodes[1].netns, "12");
        attach(&outside, "100");
        for (node, number) in [("11", 1), ("12", 2)] {
            outside.run(&format!(
                "ip route add 10.244.{number}.0/26 via 172.30.0.{node}"
            ));
            outside.run(&format!(
                "ip route add fd00:244::{number}:0/122 via fd00:30::{node}"
            ));
        }
        let [one, two] = &nodes;
        let frontend = Pod::new("frontend", one, 1, 2);
        let cart = Pod::new("cart", one, 1, 3);
        let orders = Pod::new("orders", two, 2, 2);
        let ledger = Pod::new("ledger", two, 2, 3);
        Self {
            nodes,
            frontend,
            cart,
            orders,
            ledger,
            outside,
        }
    }
}

/// Makes a node without neighbours, at `address`, with Cairn installed but not started, and nothing in
/// its datastore.
///
/// # Panics
///
/// Outside of [`isolate`](crate::isolate), or if anything cannot be made.
#[must_use]
pub fn lone_node(name: &str, address: Ipv4Net) -> Node {
    let node = Node::new(name, &install());
    // As whoever installs a container runtime has it.
    let forwarding = || {
        shell("echo 1 > /proc/sys/net/ipv4/ip_forward");
        shell("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    };
    node.netns.within(forwarding).join().unwrap();
    node.netns
        .run("ip link add eth0 type veth peer name switch");
    node.netns.run("ip link set switch up");
    node.netns.run("ip link set eth0 up");
    node.netns
        .run(&format!("ip address add {address} dev eth0"));
    node
}

/// Runs `body` in a world of its own, as a test (see [`isolate::test`]); a failure shows the logs.
///
/// # Panics
///
/// If `body` does.
pub fn test(name: &str, body: impl FnOnce(&mut World)) {
    isolate::test(name, || {
        show_logs_on_panic(false);
        body(&mut World::build());
    });
}

/// Has a panic print what Cairn logged on each node; and then, if asked, end the process.
pub fn show_logs_on_panic(exit: bool) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        print_logs();
        if exit {
            std::process::exit(1);
        }
    }));
}

/// Prints what Cairn logged on each node, as far as it fits a screen or two.
pub fn print_logs() {
    for directory in fs::read_dir("/run").into_iter().flatten().flatten() {
        let Ok(log) = fs::read_to_string(directory.path().join("log")) else {
            continue;
        };
        let lines: Vec<&str> = log.lines().collect();
        println!("--- log of {} ---", directory.file_name().display());
        for line in lines.iter().skip(lines.len().saturating_sub(60)) {
            println!("{line}");
        }
    }
}

/// Joins `netns` to the underlay as the host with this last part of the address.
fn attach(netns: &Netns, host: &str) {
    let port = format!("port-{host}");
    shell(&format!(
        "ip link add {port} type veth peer name eth0 netns {} && ip link set {port} master underlay up",
        netns.path().display()
    ));
    netns.run("ip link set eth0 up");
    netns.run(&format!("ip address add 172.30.0.{host}/24 dev eth0"));
    netns.run(&format!("ip address add fd00:30::{host}/64 dev eth0 nodad"));
    netns.run("ip route add default via 172.30.0.254");
    netns.run("ip route add default via fd00:30::fe");
}

/// Mounts the programs where any user can run them, wherever the checkout is, and returns that
/// directory.
fn install() -> std::path::PathBuf {
    let built = built();
    for program in [
        "cairn-calc",
        "cairn-privhelper",
        "cairn-supervisor",
        "cairnctl",
    ] {
        let path = built.join(program);
        assert!(
            path.exists(),
            "{} is missing; run 'make build' first",
            path.display()
        );
    }
    let bin = Path::new("/run/cairn-bin").to_owned();
    if bin.exists() {
        return bin;
    }
    fs::create_dir(&bin).unwrap();
    run(std::process::Command::new("mount")
        .arg("--bind")
        .arg(built)
        .arg(&bin));
    bin
}

/// Returns the directory that the workspace's programs are built into.
///
/// # Panics
///
/// If this program is not in or below it.
#[must_use]
pub fn built() -> std::path::PathBuf {
    let this = std::env::current_exe().unwrap();
    let directory = this.parent().unwrap();
    let directory = if directory.ends_with("deps") {
        directory.parent().unwrap()
    } else {
        directory
    };
    directory.to_owned()
}
