//! The addresses of interfaces: who has made them, and what goes with them.
//!
//! Those on workloads' links that the helper may take for ours, or for those of another node agent in
//! our place, are told from the rest as `privhelper` does it.

use std::net::IpAddr;

use ipc_proto::{Link, LinkAddressKey, LinkRole, Observed};
use ipnet::IpNet;
use privhelper::{links::Links, policy::Policy};

use super::{Device, EEXIST, EINVAL, ENODEV, Kernel, devices::IPV6_MIN_MTU};

/// How an address was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// By whom; 0 is not told.
    pub(crate) protocol: u8,
    /// Whether its scope is the link.
    pub(crate) of_link: bool,
}

impl Origin {
    /// As anybody makes one who says nothing.
    pub(crate) const USUAL: Self = Self {
        protocol: 0,
        of_link: false,
    };
}

/// Whose an address on a workload's link is to the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// It may be that of another agent that does the same.
    Unsaid,
    Others,
}

fn whose(own: &IpNet, origin: Origin, policy: &Policy) -> Whose {
    let single = own.prefix_len() == own.max_prefix_len();
    let of_link = origin.of_link || is_ipv6(own);
    match origin.protocol {
        _ if !single => Whose::Others,
        protocol if protocol == policy.safe_protocol => Whose::Ours,
        0 if of_link => Whose::Unsaid,
        _ => Whose::Others,
    }
}

/// Returns whether an address on a workload's link is ours to clear, where one of its family `is_wanted`
/// there.
pub(crate) fn can_clear(own: &IpNet, origin: Origin, policy: &Policy, is_wanted: bool) -> bool {
    match whose(own, origin, policy) {
        Whose::Ours => true,
        Whose::Unsaid => is_wanted,
        Whose::Others => false,
    }
}

fn is_ipv6(own: &IpNet) -> bool {
    matches!(own, IpNet::V6(_))
}

impl Kernel {
    /// Adds an address, unless the device cannot have it as it is.
    pub(crate) fn put_address(&mut self, index: u32, own: IpNet, origin: Origin) -> bool {
        let put = self.insert_address(index, own, origin);
        if put {
            self.disturbed.links.insert(index);
        }
        put
    }

    fn insert_address(&mut self, index: u32, own: IpNet, origin: Origin) -> bool {
        let Some(device) = self.devices.get_mut(&index) else {
            return false;
        };
        if is_ipv6(&own) && (!device.admin || device.mtu < IPV6_MIN_MTU) {
            return false;
        }
        device.addresses.insert(own, origin);
        self.given.insert((index, own.addr(), origin.protocol));
        true
    }

    /// Removes an address, the routes that name it as their source and, after the last IPv4
    /// address, all IPv4 (`fib_del_ifaddr`, `fib_disable_ip`).
    pub(crate) fn take_address(&mut self, index: u32, own: &IpNet) {
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        if device.addresses.remove(own).is_none() {
            return;
        }
        let last = !is_ipv6(own) && device.addresses.keys().all(is_ipv6);
        self.disturbed.links.insert(index);
        self.losses.insert(index);
        self.lost.entry(index).or_default().insert(own.addr());
        // Another device may have it as well.
        if !self.is_own(own.addr()) {
            for routes in self.routes.values_mut() {
                routes.retain(|route| route.source != Some(own.addr()));
            }
        }
        self.routes.retain(|_, routes| !routes.is_empty());
        if last {
            self.flush(index, |ipv6| !ipv6);
        }
    }

    /// Gives a workload's link an address of ours, be it in place of one that may be ours. IPv6 has an
    /// address once, of whatever length.
    pub(super) fn set_link_address(
        &mut self,
        key: &LinkAddressKey,
        policy: &Policy,
    ) -> Result<(), i32> {
        let own = IpNet::from(key.address);
        let device = self.devices.get(&key.link.index).ok_or(ENODEV)?;
        let is_same = |net: &IpNet| *net == own || is_ipv6(net) && net.addr() == key.address;
        let mut former = device.addresses.iter().filter(|(net, _)| is_same(net));
        if former.any(|(net, origin)| whose(net, *origin, policy) == Whose::Others) {
            return Err(EEXIST);
        }
        let origin = Origin {
            protocol: policy.safe_protocol,
            of_link: true,
        };
        if !self.insert_address(key.link.index, own, origin) {
            return Err(EINVAL);
        }
        self.disturbed.sources.insert(key.address);
        Ok(())
    }

    /// Returns whether a link has an address of ours, or none that may be ours.
    pub(super) fn is_link_address(&self, key: &LinkAddressKey, set: bool, policy: &Policy) -> bool {
        let own = IpNet::from(key.address);
        let device = self.devices.get(&key.link.index);
        let origin = device.and_then(|device| device.addresses.get(&own));
        let whose = origin.map(|origin| whose(&own, *origin, policy));
        if set {
            whose == Some(Whose::Ours)
        } else {
            matches!(whose, None | Some(Whose::Others))
        }
    }

    /// Tells of others' addresses on workloads' links, by a bug.
    pub(crate) fn strange_addresses(&self, policy: &Policy, links: &Links) -> Vec<Observed> {
        let mut all = Vec::new();
        for (index, device) in &self.devices {
            let state = links.by_index(*index);
            let Some(state) = state.filter(|state| state.role == LinkRole::Workload) else {
                continue;
            };
            let addresses = device.addresses.iter();
            let others =
                addresses.filter(|(own, origin)| whose(own, **origin, policy) == Whose::Others);
            all.extend(others.map(|(own, _)| {
                let key = LinkAddressKey {
                    link: state.link.clone(),
                    address: own.addr(),
                };
                Observed::LinkAddress(key, false)
            }));
        }
        all
    }

    /// Returns what of an address on a link is not ours, nor may be.
    pub(crate) fn others_addresses(
        &self,
        index: u32,
        address: IpAddr,
        policy: &Policy,
    ) -> Vec<(IpNet, Origin)> {
        let addresses = self
            .devices
            .get(&index)
            .map(|device| device.addresses.iter());
        let same = addresses.into_iter().flatten().filter(|(net, origin)| {
            net.addr() == address && whose(net, **origin, policy) == Whose::Others
        });
        same.map(|(net, origin)| (*net, *origin)).collect()
    }
}

/// Returns what the helper tells of the addresses on a workload's link.
pub(super) fn observe(
    device: &Device,
    link: &Link,
    policy: &Policy,
) -> impl Iterator<Item = Observed> {
    device.addresses.iter().filter_map(|(own, origin)| {
        let is_ours = match whose(own, *origin, policy) {
            Whose::Ours => true,
            Whose::Unsaid => false,
            Whose::Others => return None,
        };
        let key = LinkAddressKey {
            link: link.clone(),
            address: own.addr(),
        };
        Some(Observed::LinkAddress(key, is_ours))
    })
}
