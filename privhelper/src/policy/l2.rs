//! Which neighbours, forwarding entries, addresses, tunnel devices and sysctls a request may touch.

use std::net::IpAddr;

use ipc_proto::{
    Endpoint, FdbKey, Link, LinkAddressKey, LinkProfile, LinkRole, Mac, NeighbourKey, OpError,
    Tunnel, TunnelDevice,
};

use super::{Policy, denied, is_global_unicast, is_unicast, profile, resolve};
use crate::links::Links;

/// VXLAN network identifiers are below this (RFC 7348).
const VNI_END: u32 = 1 << 24;
/// What an MTU may be: each IPv4 host takes in 576 bytes (RFC 791).
const MTU: std::ops::RangeInclusive<u32> = 576..=65535;

pub(super) fn check_settings(
    link: &Link,
    wanted: LinkProfile,
    links: &Links,
) -> Result<(), OpError> {
    let role = resolve(link, links)?.role;
    if profile(role) == Some(wanted) {
        Ok(())
    } else {
        Err(denied(format!(
            "{link}: the profile {wanted:?} for {role:?}"
        )))
    }
}

pub(super) fn check_neighbour(
    key: &NeighbourKey,
    mac: Option<Mac>,
    links: &Links,
) -> Result<(), OpError> {
    match resolve(&key.link, links)?.role {
        LinkRole::Tunnel(_) => {}
        LinkRole::Workload if key.address.is_ipv4() => {}
        LinkRole::Workload => {
            return Err(denied(format!(
                "neighbour {}: IPv6 workloads are found by neighbour discovery",
                key.address
            )));
        }
        LinkRole::Uplink | LinkRole::Other => {
            return Err(denied(format!(
                "{} is no workload's link or tunnel device",
                key.link
            )));
        }
    }
    if !is_unicast(key.address) {
        return Err(denied(format!("neighbour {}", key.address)));
    }
    mac.map_or(Ok(()), check_mac)
}

pub(super) fn check_fdb(
    key: &FdbKey,
    destination: Option<IpAddr>,
    links: &Links,
) -> Result<(), OpError> {
    let LinkRole::Tunnel(tunnel) = resolve(&key.link, links)?.role else {
        return Err(denied(format!("{} is no tunnel device", key.link)));
    };
    let Some(destination) = destination else {
        return Ok(());
    };
    check_mac(key.mac)?;
    if fits(tunnel, destination) && is_unicast(destination) {
        Ok(())
    } else {
        Err(denied(format!("{}: destination {destination}", key.link)))
    }
}

pub(super) fn check_tunnel(
    tunnel: Tunnel,
    device: &TunnelDevice,
    links: &Links,
) -> Result<(), OpError> {
    let parent = resolve(&device.parent, links)?;
    if parent.role != LinkRole::Uplink {
        return Err(denied(format!("{} is no uplink", device.parent)));
    }
    if !parent
        .addresses
        .iter()
        .any(|own| own.addr() == device.local)
    {
        return Err(denied(format!(
            "{} is no address of {}",
            device.local, device.parent
        )));
    }
    if device.vni >= VNI_END || device.port == 0 || !MTU.contains(&device.mtu) {
        return Err(denied(format!(
            "VNI {}, port {}, MTU {}",
            device.vni, device.port, device.mtu
        )));
    }
    if !fits(tunnel, device.local) || !fits(tunnel, device.address) || !is_unicast(device.address) {
        return Err(denied(format!(
            "{tunnel:?} from {} with address {}",
            device.local, device.address
        )));
    }
    check_mac(device.mac)
}

/// Lets through what is about a workload's link.
pub(super) fn check_workload(link: &Link, links: &Links) -> Result<(), OpError> {
    match resolve(link, links)?.role {
        LinkRole::Workload => Ok(()),
        LinkRole::Tunnel(_) | LinkRole::Uplink | LinkRole::Other => {
            Err(denied(format!("{link} is no workload's link")))
        }
    }
}

impl Policy {
    /// Lets through an address that a workload may reach this host by, on its own link.
    pub(super) fn check_link_address(
        &self,
        key: &LinkAddressKey,
        links: &Links,
    ) -> Result<(), OpError> {
        check_workload(&key.link, links)?;
        let address = key.address;
        if !is_unicast(address) {
            return Err(denied(format!("address {address}")));
        }
        // One of the link alone is nobody's elsewhere.
        if is_global_unicast(address) {
            self.check_prefix(&address.into())?;
        }
        Ok(())
    }
}

pub(super) fn check_endpoint(
    link: &Link,
    endpoint: Option<&Endpoint>,
    links: &Links,
) -> Result<(), OpError> {
    check_workload(link, links)?;
    let Some(endpoint) = endpoint else {
        return Ok(());
    };
    if !endpoint.sources.is_empty() {
        // The programs know a workload's addresses from the routes.
        return Err(OpError::Unsupported("sources of an endpoint".into()));
    }
    check_mac(endpoint.workload_mac)?;
    check_mac(endpoint.host_mac)
}

/// Whether an address is of the tunnel's family.
fn fits(tunnel: Tunnel, address: IpAddr) -> bool {
    match tunnel {
        Tunnel::VxlanV4 => address.is_ipv4(),
        Tunnel::VxlanV6 => address.is_ipv6(),
    }
}

fn check_mac(mac: Mac) -> Result<(), OpError> {
    let [first, ..] = mac.0;
    if first & 1 == 0 && mac.0 != [0; 6] {
        Ok(())
    } else {
        Err(denied(format!("{mac} is no host's hardware address")))
    }
}
