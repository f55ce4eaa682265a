//! Devices, and what the kernel drops with them or with what they lose.

use std::collections::BTreeMap;

use ipc_proto::{IfName, Mac};
use ipnet::IpNet;

use super::{Device, Kernel, Way};

/// An interface with a smaller MTU has no IPv6 (RFC 8200).
pub(super) const IPV6_MIN_MTU: u32 = 1280;

impl Kernel {
    /// Adds a device that is up.
    pub(crate) fn add(&mut self, name: IfName, mac: Mac) -> u32 {
        let index = self.next_index;
        self.next_index += 1;
        let device = Device {
            name,
            admin: true,
            carrier: true,
            mac,
            mtu: 1500,
            addresses: BTreeMap::new(),
            vxlan: None,
        };
        self.devices.insert(index, device);
        self.disturbed.links.insert(index);
        index
    }

    /// Removes a device with all that hangs on it.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(device) = self.devices.get(&index) else {
            return;
        };
        let addresses: Vec<IpNet> = device.addresses.keys().copied().collect();
        for own in addresses {
            self.take_address(index, &own);
        }
        self.devices.remove(&index);
        self.flush(index, |_| true);
        self.fdb.retain(|(on, _), _| *on != index);
        self.settings.remove(&index);
        let children: Vec<u32> = self
            .devices
            .iter()
            .filter(|(_, device)| device.vxlan.is_some_and(|vxlan| vxlan.parent == index))
            .map(|(child, _)| *child)
            .collect();
        for child in children {
            self.remove(child);
        }
    }

    /// Gives a device another name, if that is free. It keeps all that hangs on it.
    pub(crate) fn rename(&mut self, index: u32, name: IfName) -> bool {
        if self.index(&name).is_some() {
            return false;
        }
        let Some(device) = self.devices.get_mut(&index) else {
            return false;
        };
        device.name = name;
        self.disturbed.links.insert(index);
        true
    }

    /// Sets a device up or down; going down it loses its IPv6 addresses.
    pub(crate) fn set_admin(&mut self, index: u32, up: bool) {
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        if device.admin == up {
            return;
        }
        device.admin = up;
        self.disturbed.links.insert(index);
        if !up {
            self.falls.insert(index);
            self.end_ipv6(index);
            self.flush(index, |_| true);
        }
    }

    pub(crate) fn set_carrier(&mut self, index: u32, carrier: bool) {
        if let Some(device) = self.devices.get_mut(&index) {
            device.carrier = carrier;
            self.disturbed.links.insert(index);
        }
    }

    pub(crate) fn set_mac(&mut self, index: u32, mac: Mac) {
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        if device.mac != mac {
            device.mac = mac;
            self.disturbed.links.insert(index);
            self.losses.insert(index);
            self.neighbours.retain(|(on, _), _| *on != index);
        }
    }

    pub(crate) fn set_mtu(&mut self, index: u32, mtu: u32) {
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        if device.mtu != mtu {
            device.mtu = mtu;
            self.disturbed.links.insert(index);
            if mtu < IPV6_MIN_MTU {
                self.end_ipv6(index);
            }
        }
    }

    fn end_ipv6(&mut self, index: u32) {
        let device = self.devices.get(&index);
        let addresses: Vec<IpNet> = device
            .into_iter()
            .flat_map(|device| device.addresses.keys())
            .filter(|own| matches!(own, IpNet::V6(_)))
            .copied()
            .collect();
        for own in addresses {
            self.take_address(index, &own);
        }
        self.flush(index, |ipv6| ipv6);
    }

    /// Drops the routes and neighbours of a device, of the families (`is_ipv6`) that are lost.
    pub(super) fn flush(&mut self, index: u32, lost: impl Fn(bool) -> bool) {
        self.disturbed.links.insert(index);
        self.losses.insert(index);
        self.routes.retain(|key, routes| {
            if lost(matches!(key.prefix, IpNet::V6(_))) {
                routes.retain(|route| match route.way {
                    Way::Out { index: out, .. } => out != index,
                    Way::Blackhole => true,
                });
            }
            !routes.is_empty()
        });
        self.neighbours
            .retain(|(on, address), _| *on != index || !lost(address.is_ipv6()));
    }
}
