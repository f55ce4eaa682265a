//! Neighbours, forwarding entries, addresses and the devices that they belong to.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Link, Mac, net};

/// Tells permanent neighbours apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NeighbourKey {
    /// The interface that it is reached through.
    pub link: Link,
    /// Its address.
    #[serde(with = "net")]
    pub address: IpAddr,
}

/// Tells permanent forwarding entries of a tunnel device apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FdbKey {
    /// The tunnel device.
    pub link: Link,
    /// The hardware address of the other end.
    pub mac: Mac,
}

/// Tells addresses of this host on workloads' links apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkAddressKey {
    /// The host's end of a workload's link.
    pub link: Link,
    /// The address, by which the workload reaches this host. It is of that link alone: its prefix has
    /// its whole length, and other hosts are not to hear of it.
    #[serde(with = "net")]
    pub address: IpAddr,
}

/// A VXLAN device in classic mode, as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelDevice {
    /// The VXLAN network identifier, below 2^24.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
    /// The node's own address, the outer source.
    #[serde(with = "net")]
    pub local: IpAddr,
    /// The interface that holds `local`.
    pub parent: Link,
    /// The device's hardware address.
    pub mac: Mac,
    /// The device's MTU in bytes.
    pub mtu: u32,
    /// The device's own address, as a single-address prefix.
    #[serde(with = "net")]
    pub address: IpAddr,
}

/// What the packet programs know of a workload's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The hardware address of the host's end.
    pub host_mac: Mac,
    /// The hardware address of the workload's end.
    pub workload_mac: Mac,
    /// The source addresses that it may use. None for the programs of this version, which take
    /// those that lead back to the link by the BPF routes.
    #[serde(with = "net")]
    pub sources: Vec<IpNet>,
}
