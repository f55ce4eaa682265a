//! Which routes and rules a request may set and clear, in the BPF maps and in the kernel's tables.

use std::net::IpAddr;

use ipc_proto::{
    BpfRoute, BpfTarget, Hop, KernelRoute, Link, LinkRole, OpError, Protocol, RouteKey, RouteKind,
    Rule, Table,
};
use ipnet::IpNet;

use super::{Policy, denied, is_unicast, resolve};
use crate::links::Links;

/// The shortest prefix of a kernel route by family.
const SHORTEST: (u8, u8) = (8, 16);
/// The most ways of a multipath route, so that a message stays small.
const MAX_HOPS: usize = 64;
/// The priorities of rules that are asked after the local table's and before the main table's.
const RULES: std::ops::RangeInclusive<u32> = 1..=32765;
/// The smallest MTU by family (RFC 791, RFC 8200), and the largest.
const MTU: (u32, u32, u32) = (68, 1280, 65535);

impl Policy {
    pub(super) fn check_bpf_route(
        &self,
        prefix: &IpNet,
        route: Option<&BpfRoute>,
        links: &Links,
    ) -> Result<(), OpError> {
        self.check_prefix(prefix)?;
        let Some(route) = route else { return Ok(()) };
        if route.flags.unknown() != 0 {
            let bits = route.flags.unknown();
            return Err(denied(format!("{prefix}: unknown flag bits {bits:#x}")));
        }
        match (&route.target, route.flags.names_link()) {
            (BpfTarget::None, _) => Ok(()),
            (BpfTarget::Link(link), true) => match resolve(link, links)?.role {
                LinkRole::Workload => Ok(()),
                LinkRole::Tunnel(_) | LinkRole::Uplink | LinkRole::Other => {
                    Err(denied(format!("{prefix}: {link} is not a workload's link")))
                }
            },
            (BpfTarget::NextHop(hop), false) => check_next_hop(prefix, *hop),
            (BpfTarget::Link(_), false) | (BpfTarget::NextHop(_), true) => Err(denied(format!(
                "{prefix}: the flags {} do not go with its target",
                route.flags
            ))),
        }
    }

    pub(super) fn check_kernel_route(
        &self,
        key: &RouteKey,
        route: Option<&KernelRoute>,
        links: &Links,
    ) -> Result<(), OpError> {
        let prefix = &key.prefix;
        self.check_prefix(prefix)?;
        if key.table == Table::Second && self.second_table.is_none() {
            return Err(denied(format!("{prefix}: no second_table is configured")));
        }
        if matches!(prefix, IpNet::V6(_)) && key.tos != 0 {
            return Err(denied(format!("{prefix}: IPv6 knows no type of service")));
        }
        // Bits of congestion control and of what the kernel reserves.
        if key.tos & 0b11 != 0 {
            return Err(denied(format!(
                "{prefix}: a type of service of {:#x}",
                key.tos
            )));
        }
        if matches!(prefix, IpNet::V6(_)) && key.metric == 0 {
            return Err(denied(format!(
                "{prefix}: an IPv6 metric of 0 is {}",
                RouteKey::IPV6_DEFAULT_METRIC
            )));
        }
        let Some(route) = route else { return Ok(()) };
        check_scope(prefix, links)?;
        let ours = match &route.kind {
            RouteKind::Unicast(hop) => check_hop(prefix, hop, links)?,
            RouteKind::Multipath(hops) => {
                if !(2..=MAX_HOPS).contains(&hops.len()) {
                    return Err(denied(format!("{prefix}: {} ways", hops.len())));
                }
                let mut ours = true;
                for hop in hops {
                    ours &= check_hop(prefix, hop, links)?;
                }
                ours
            }
            RouteKind::Local(link) => check_output(prefix, link, links)?,
            RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw => false,
        };
        match route.protocol {
            Protocol::Device if key.table == Table::Main && !ours => {
                return Err(denied(format!(
                    "{prefix}: nothing but the safe protocol would mark it as ours"
                )));
            }
            Protocol::Foreign | Protocol::Bird => {
                return Err(denied(format!("{prefix}: as another program's route")));
            }
            Protocol::Device | Protocol::Safe => {}
        }
        if let Some(source) = route.source
            && (is_ipv4(source) != is_ipv4(prefix.addr()) || !is_unicast(source))
        {
            return Err(denied(format!("{prefix}: source {source}")));
        }
        let smallest = if is_ipv4(prefix.addr()) { MTU.0 } else { MTU.1 };
        if let Some(mtu) = route.mtu
            && !(smallest..=MTU.2).contains(&mtu)
        {
            return Err(denied(format!("{prefix}: MTU {mtu}")));
        }
        Ok(())
    }

    /// Flows are forgotten of what could be a pod's, one address at a time.
    pub(super) fn check_flush(&self, address: IpAddr, links: &Links) -> Result<(), OpError> {
        let prefix = IpNet::from(address);
        if !is_unicast(address) {
            return Err(denied(format!("{address} is nobody's")));
        }
        self.check_prefix(&prefix)?;
        check_scope(&prefix, links)
    }

    pub(super) fn check_rule(&self, rule: &Rule) -> Result<(), OpError> {
        let priority = rule.priority;
        if self.second_table.is_none() {
            return Err(denied(format!(
                "rule {priority}: no second_table is configured"
            )));
        }
        if !RULES.contains(&priority) {
            return Err(denied(format!(
                "rule {priority}: outside {}-{}, between the local and the main table's",
                RULES.start(),
                RULES.end()
            )));
        }
        match rule.mark {
            Some((mark, relevant)) if relevant == 0 || mark & !relevant != 0 => Err(denied(
                format!("rule {priority}: mark {mark:#x} with mask {relevant:#x}"),
            )),
            None if rule.invert => Err(denied(format!("rule {priority}: matches nothing"))),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses what nobody's pods can have, or the administrator does not allow.
    pub(super) fn check_prefix(&self, prefix: &IpNet) -> Result<(), OpError> {
        if *prefix != prefix.trunc() {
            return Err(denied(format!("{prefix} has bits beyond its length")));
        }
        if let Some(net) = never(prefix) {
            return Err(denied(format!("{prefix} is inside {net}")));
        }
        if !self.allow.is_empty() && !self.allow.iter().any(|net| net.contains(prefix)) {
            return Err(denied(format!("{prefix} is outside all of allow")));
        }
        Ok(())
    }
}

/// Returns the net around a prefix without host bits in which nothing is a pod's, a node's or a service's.
pub(super) fn never(prefix: &IpNet) -> Option<&'static str> {
    let len = prefix.prefix_len();
    match prefix.addr() {
        IpAddr::V4(address) => match address.octets() {
            [0, ..] if len >= 8 => Some("0.0.0.0/8"),
            [127, ..] if len >= 8 => Some("127.0.0.0/8"),
            [169, 254, ..] if len >= 16 => Some("169.254.0.0/16"),
            [224..=239, ..] if len >= 4 => Some("224.0.0.0/4"),
            _ => None,
        },
        IpAddr::V6(address) => match address.octets() {
            [0xfe, 0x80..=0xbf, ..] if len >= 10 => Some("fe80::/10"),
            [0xff, ..] if len >= 8 => Some("ff00::/8"),
            _ => None,
        },
    }
}

/// Refuses what would take in more than pods, services or another node's network.
///
/// An own address of the tunnel device or a workload's link lies in a pod block and is no reason.
fn check_scope(prefix: &IpNet, links: &Links) -> Result<(), OpError> {
    let shortest = if is_ipv4(prefix.addr()) {
        SHORTEST.0
    } else {
        SHORTEST.1
    };
    if prefix.prefix_len() < shortest {
        return Err(denied(format!("{prefix} is shorter than /{shortest}")));
    }
    let own = links.uplinks().find_map(|state| {
        let address = state
            .addresses
            .iter()
            .find(|own| prefix.contains(&own.addr()))?;
        Some((state, address))
    });
    match own {
        Some((state, own)) => Err(denied(format!(
            "{prefix} covers {}, this node's own address on {}",
            own.addr(),
            state.link
        ))),
        None => Ok(()),
    }
}

/// Checks a way out and returns whether its interface alone marks the route as ours.
fn check_hop(prefix: &IpNet, hop: &Hop, links: &Links) -> Result<bool, OpError> {
    match hop.via {
        Some(via) => check_next_hop(prefix, via)?,
        None if hop.onlink => return Err(denied(format!("{prefix}: onlink without a next hop"))),
        None => {}
    }
    check_output(prefix, &hop.link, links)
}

fn check_output(prefix: &IpNet, link: &Link, links: &Links) -> Result<bool, OpError> {
    match resolve(link, links)?.role {
        LinkRole::Workload | LinkRole::Tunnel(_) => Ok(true),
        LinkRole::Uplink => Ok(false),
        LinkRole::Other => Err(denied(format!(
            "{prefix}: {link} is no workload's link, tunnel device or uplink"
        ))),
    }
}

fn check_next_hop(prefix: &IpNet, hop: IpAddr) -> Result<(), OpError> {
    if is_ipv4(hop) == is_ipv4(prefix.addr()) && is_unicast(hop) {
        Ok(())
    } else {
        Err(denied(format!("{prefix}: next hop {hop}")))
    }
}

fn is_ipv4(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(_))
}
