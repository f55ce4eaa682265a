//! What a request may ask for. Pure, and the whole of the trust decision.
//!
//! [`Policy::check`] is the only maker of [`Permitted`], and the dataplane takes nothing else. What
//! a set that is let through makes is recognised as ours when it is read back, so nothing leaks.

mod l2;
mod ownership;
mod routes;

use std::net::IpAddr;

use ipc_proto::{IfName, Lane, Link, LinkProfile, LinkRole, LinkState, Op, OpError, Tunnel};
use ipnet::IpNet;

pub use self::ownership::Found;
use crate::links::Links;

/// Tunnels of the other encapsulations; they hold pod addresses and lead to no node by themselves.
const OTHER_TUNNELS: [&str; 3] = ["tunl0", "wireguard.cali", "wg-v6.cali"];

/// Which interfaces lead to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplinks {
    /// Those that hold a global unicast address and have no other role.
    Auto,
    /// These.
    Listed(Vec<IfName>),
}

/// What the administrator allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What the names of the host's ends of workloads' links start with.
    pub workload_prefixes: Vec<String>,
    /// The name of the IPv4 tunnel device.
    pub tunnel_v4: IfName,
    /// The name of the IPv6 tunnel device.
    pub tunnel_v6: IfName,
    /// Which interfaces lead to other nodes.
    pub uplinks: Uplinks,
    /// Interfaces whose addresses are nobody's: no route, neighbour or setting of ours is about them.
    pub excluded: Vec<IfName>,
    /// The number of [`Protocol::Device`](ipc_proto::Protocol::Device).
    pub device_protocol: u8,
    /// The number of [`Protocol::Safe`](ipc_proto::Protocol::Safe).
    pub safe_protocol: u8,
    /// What that number was before: routes that have one of these are ours to clear or replace, and
    /// none is made with it.
    pub former_protocols: Vec<u8>,
    /// The number of [`Table::Second`](ipc_proto::Table::Second).
    pub second_table: Option<u32>,
    /// Whether any route on a workload's link is ours, whoever made it.
    pub remove_external_routes: bool,
    /// Routes must lie inside one of these; none is no limit.
    pub allow: Vec<IpNet>,
}

/// An [`Op`] that [`Policy::check`] let through; nothing else makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permitted(Op);

impl Permitted {
    /// Returns the op.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.0
    }
}

fn denied(why: String) -> OpError {
    OpError::Denied(why)
}

impl Policy {
    /// Lets `op` through if it came on the right lane and `links` are such that it may be.
    ///
    /// # Errors
    ///
    /// [`OpError::Denied`], [`OpError::StaleLink`] or [`OpError::Unsupported`].
    pub fn check(&self, lane: Lane, op: Op, links: &Links) -> Result<Permitted, OpError> {
        self.verify(lane, &op, links)?;
        Ok(Permitted(op))
    }

    /// As [`check`](Self::check), and once more by what `refresh` returns, if anything, where a link
    /// looks stale.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn check_anew<'a>(
        &self,
        lane: Lane,
        op: Op,
        links: &Links,
        refresh: impl FnOnce() -> Option<&'a Links>,
    ) -> Result<Permitted, OpError> {
        let mut verdict = self.verify(lane, &op, links);
        if matches!(verdict, Err(OpError::StaleLink(_)))
            && let Some(links) = refresh()
        {
            verdict = self.verify(lane, &op, links);
        }
        verdict.map(|()| Permitted(op))
    }

    fn verify(&self, lane: Lane, op: &Op, links: &Links) -> Result<(), OpError> {
        let right = match op {
            Op::FlowFlush(_) => Lane::Flows,
            Op::LinkSettings(..)
            | Op::TunnelDevice(..)
            | Op::Neighbour(..)
            | Op::Fdb(..)
            | Op::LinkAddress(..)
            | Op::BpfRoute(..)
            | Op::KernelRoute(..)
            | Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_) => Lane::State,
        };
        if lane != right {
            return Err(denied(format!("belongs on the {right:?} lane")));
        }
        match op {
            Op::LinkSettings(_, None) | Op::TunnelDevice(_, None) => {}
            Op::LinkSettings(link, Some(profile)) => l2::check_settings(link, *profile, links)?,
            Op::TunnelDevice(tunnel, Some(device)) => l2::check_tunnel(*tunnel, device, links)?,
            Op::Neighbour(key, mac) => l2::check_neighbour(key, *mac, links)?,
            Op::Fdb(key, destination) => l2::check_fdb(key, *destination, links)?,
            Op::LinkAddress(key, _) => self.check_link_address(key, links)?,
            Op::BpfRoute(prefix, route) => self.check_bpf_route(prefix, route.as_ref(), links)?,
            Op::KernelRoute(key, route) => self.check_kernel_route(key, route.as_deref(), links)?,
            Op::FlowFlush(address) => self.check_flush(*address, links)?,
            Op::Rule(rule, _) => self.check_rule(rule)?,
            Op::Attachment(key, _) => l2::check_workload(&key.link, links)?,
            Op::Endpoint(link, endpoint) => l2::check_endpoint(link, endpoint.as_deref(), links)?,
            Op::Vtep(..) | Op::ProgramSettings(_) => {
                return Err(OpError::Unsupported("programs on tunnels".into()));
            }
            Op::Masquerade(_) => return Err(OpError::Unsupported("outgoing NAT".into())),
        }
        Ok(())
    }

    /// Returns what an interface with this name and these addresses is to us.
    #[must_use]
    pub fn role(&self, name: &IfName, addresses: &[IpNet]) -> LinkRole {
        if self.is_excluded(name) {
            LinkRole::Other
        } else if self.is_workload(name) {
            LinkRole::Workload
        } else if *name == self.tunnel_v4 {
            LinkRole::Tunnel(Tunnel::VxlanV4)
        } else if *name == self.tunnel_v6 {
            LinkRole::Tunnel(Tunnel::VxlanV6)
        } else if match &self.uplinks {
            Uplinks::Listed(names) => names.contains(name),
            Uplinks::Auto => {
                name.as_str() != "lo"
                    && !OTHER_TUNNELS.contains(&name.as_str())
                    && addresses.iter().any(|own| is_global_unicast(own.addr()))
            }
        } {
            LinkRole::Uplink
        } else {
            LinkRole::Other
        }
    }

    /// Returns whether an interface of this name is none of ours, nor its addresses this host's, as
    /// those of services are that kube-proxy keeps on `kube-ipvs0`.
    #[must_use]
    pub fn is_excluded(&self, name: &IfName) -> bool {
        self.excluded.contains(name)
    }

    /// Returns whether the name is that of a workload's link.
    #[must_use]
    pub fn is_workload(&self, name: &IfName) -> bool {
        self.workload_prefixes
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix))
    }

    /// Returns the name of a tunnel device.
    #[must_use]
    pub fn tunnel(&self, tunnel: Tunnel) -> &IfName {
        match tunnel {
            Tunnel::VxlanV4 => &self.tunnel_v4,
            Tunnel::VxlanV6 => &self.tunnel_v6,
        }
    }
}

/// Returns the profile that fits a role.
#[must_use]
pub fn profile(role: LinkRole) -> Option<LinkProfile> {
    match role {
        LinkRole::Workload => Some(LinkProfile::Workload),
        LinkRole::Tunnel(_) => Some(LinkProfile::Tunnel),
        LinkRole::Uplink => Some(LinkProfile::Uplink),
        LinkRole::Other => None,
    }
}

/// Finds the interface that a request means.
fn resolve<'a>(link: &Link, links: &'a Links) -> Result<&'a LinkState, OpError> {
    links
        .get(link)
        .ok_or_else(|| OpError::StaleLink(link.clone()))
}

/// Whether packets for this address can go to one host anywhere.
fn is_global_unicast(address: IpAddr) -> bool {
    is_unicast(address)
        && match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        }
}

/// Whether packets for this address can go to another host.
fn is_unicast(address: IpAddr) -> bool {
    let broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast)
}

#[cfg(test)]
pub(crate) mod tests;
