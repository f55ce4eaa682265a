//! The kernel that a vector acts on: a network namespace of its own, changed and read by `ip`.

use std::{collections::BTreeMap, net::IpAddr, process::Command};

use ipc_proto::Mac;
use ipnet::IpNet;
use nix::sched::{CloneFlags, unshare};
use serde::Deserialize;
use serde_json::Value;

use super::event::{LinkKind, NewLink, Route};
use crate::netns::{run, shell};

/// The protocols of routes that the kernel makes by itself: kernel and ra.
const KERNEL: [u8; 2] = [2, 9];
/// The numbers of kinds of routes (`RTN_*`).
const KINDS: [(&str, &str); 6] = [
    ("1", "unicast"),
    ("2", "local"),
    ("6", "blackhole"),
    ("7", "unreachable"),
    ("8", "prohibit"),
    ("9", "throw"),
];

/// What tells routes of one table apart.
pub(super) type Key = (IpNet, u8, u32);
/// The routes of the main table that the kernel did not make by itself.
pub(super) type Routes = BTreeMap<Key, Route>;
/// Permanent IPv4 neighbours: the hardware address by interface and address.
pub(super) type Neighbours = BTreeMap<(String, IpAddr), Mac>;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Kernel {
    family: &'static str,
}

impl Kernel {
    /// Moves this thread into a new namespace with interfaces.
    pub(super) fn new(v6: bool, links: &[NewLink]) -> Self {
        assert!(crate::isolate::inside(), "nobody would remove what is made");
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        // Nothing here has a duplicate; detecting that would cost each address a second.
        shell("sysctl -qw net.ipv6.conf.default.accept_dad=0; ip link set lo up");
        let kernel = Self {
            family: if v6 { "-6" } else { "-4" },
        };
        for link in links {
            kernel.add_link(link);
        }
        kernel
    }

    pub(super) fn add_link(&self, link: &NewLink) {
        let NewLink { name, index, .. } = link;
        match link.kind {
            LinkKind::Veth => {
                self.ip(&format!(
                    "link add {name} index {index} type veth peer name p-{name}"
                ));
                self.ip(&format!("link set p-{name} up"));
            }
            LinkKind::Vxlan => drop(self.ip(&format!(
                "link add {name} index {index} type vxlan id 4096 dstport 4789"
            ))),
        }
        let nodad = if self.family == "-6" { "nodad" } else { "" };
        for address in &link.addrs {
            self.ip(&format!("addr add {address} dev {name} {nodad}"));
        }
        if link.up {
            self.set_link(name, true);
        }
    }

    pub(super) fn set_link(&self, name: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        self.ip(&format!("link set {name} {state}"));
    }

    pub(super) fn delete_link(&self, name: &str) {
        self.ip(&format!("link del {name}"));
    }

    /// Makes a route in the place of what is under its key.
    pub(super) fn add_route(&self, route: &Route) {
        // It reads as `ip` takes it.
        self.ip(&format!("route replace {route}"));
    }

    /// Deletes the first route of a prefix and type of service, of any metric if 0 is given.
    pub(super) fn delete_route(&self, route: &Route) {
        let Route {
            dst, priority, tos, ..
        } = route;
        let mut words = vec![self.family.to_owned(), "route".into(), "del".into()];
        words.push(dst.to_string());
        for (what, number) in [("metric", *priority), ("tos", u32::from(*tos))] {
            if number > 0 {
                words.extend([what.to_owned(), format!("{number:#x}")]);
            }
        }
        let output = Command::new("ip").args(&words).output().unwrap();
        // There may be none.
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || complaint.contains("No such process"),
            "{words:?}: {complaint}"
        );
    }

    /// Reads the main table.
    ///
    /// # Errors
    ///
    /// If two routes have one key.
    pub(super) fn routes(&self) -> Result<Routes, String> {
        let text = self.ip("-N -d -j route show table main");
        let listed: Vec<Listed> = serde_json::from_str(&text).unwrap();
        let routes = listed.into_iter().map(Listed::route);
        by_key(routes.filter(|route| !KERNEL.contains(&route.proto)))
    }

    /// Reads the permanent IPv4 neighbours of this namespace.
    pub(super) fn neighbours() -> Neighbours {
        let text = run(Command::new("ip").args(["-4", "-j", "neigh", "show", "nud", "permanent"]));
        let listed: Vec<Value> = serde_json::from_str(&text).unwrap();
        let field = |value: &Value, name: &str| value[name].as_str().unwrap().to_owned();
        listed
            .iter()
            .map(|value| {
                let address = field(value, "dst").parse().unwrap();
                let mac = field(value, "lladdr").parse().unwrap();
                ((field(value, "dev"), address), mac)
            })
            .collect()
    }

    fn ip(&self, line: &str) -> String {
        run(Command::new("ip")
            .arg(self.family)
            .args(line.split_whitespace()))
    }
}

/// Sorts routes by what the kernel tells them apart by.
///
/// # Errors
///
/// If two have one key.
pub(super) fn by_key(routes: impl IntoIterator<Item = Route>) -> Result<Routes, String> {
    let mut found = Routes::new();
    for mut route in routes {
        route.dst = route.dst.trunc();
        if route.dst.addr().is_ipv6() && route.kind != "unicast" {
            // Whatever goes nowhere goes there by `lo`.
            route.dev.clear();
        }
        if !route.nexthops.is_empty() {
            // Each way says so itself.
            route.onlink = false;
        }
        let key = (route.dst, route.tos, route.priority);
        if let Some(other) = found.insert(key, route) {
            return Err(format!("there are two routes under the key of {other:?}"));
        }
    }
    Ok(found)
}

/// A route as `ip -N -d -j` lists it.
#[derive(Debug, Deserialize)]
struct Listed {
    dst: String,
    #[serde(rename = "type")]
    kind: String,
    protocol: String,
    scope: String,
    #[serde(default)]
    dev: String,
    gateway: Option<IpAddr>,
    prefsrc: Option<IpAddr>,
    #[serde(default)]
    metric: u32,
    tos: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    metrics: Vec<BTreeMap<String, u32>>,
    #[serde(default)]
    nexthops: Vec<ListedHop>,
}

#[derive(Debug, Deserialize)]
struct ListedHop {
    gateway: IpAddr,
    dev: String,
    #[serde(default)]
    flags: Vec<String>,
}

impl Listed {
    fn route(self) -> Route {
        let kind = KINDS.iter().find(|(number, _)| *number == self.kind);
        let onlink = |flags: &[String]| flags.iter().any(|flag| flag == "onlink");
        let dst = match (self.dst.as_str(), self.dst.parse::<IpAddr>()) {
            ("default", _) => IpNet::new(self.gateway.unwrap(), 0).unwrap().trunc(),
            (_, Ok(address)) => address.into(),
            (prefix, Err(_)) => prefix.parse().unwrap(),
        };
        let tos = self.tos.map_or(0, |tos| {
            u8::from_str_radix(tos.trim_start_matches("0x"), 16).unwrap()
        });
        let hop = |hop: &ListedHop| {
            let end = if onlink(&hop.flags) { " onlink" } else { "" };
            format!("{} dev {}{end}", hop.gateway, hop.dev)
        };
        let mtu = self.metrics.iter().find_map(|metrics| metrics.get("mtu"));
        Route {
            dst,
            kind: kind.map_or(self.kind.clone(), |(_, name)| (*name).to_owned()),
            scope: self.scope.parse().unwrap(),
            proto: self.protocol.parse().unwrap(),
            dev: self.dev,
            gw: self.gateway,
            priority: self.metric,
            tos,
            onlink: onlink(&self.flags),
            src: self.prefsrc,
            mtu: mtu.copied().unwrap_or_default(),
            nexthops: self.nexthops.iter().map(hop).collect(),
        }
    }
}
