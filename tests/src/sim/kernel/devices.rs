//! Devices, and what the kernel drops with them or with what they lose.

use std::collections::BTreeSet;

use ipc_proto::{IfName, Mac};
use ipnet::IpNet;

use super::{Device, Kernel, Way};

/// An interface with a smaller MTU has no IPv6 (RFC 8200).
const IPV6_MIN_MTU: u32 = 1280;

impl Kernel {
    /// Adds a device that is up.
    pub(in crate::sim) fn add(&mut self, name: IfName, mac: Mac) -> u32 {
        let index = self.next_index;
        self.next_index += 1;
        let device = Device {
            name,
            admin: true,
            carrier: true,
            mac,
            mtu: 1500,
            addresses: BTreeSet::new(),
            vxlan: None,
        };
        self.devices.insert(index, device);
        self.disturbed.links.insert(index);
        index
    }

    /// Removes a device with all that hangs on it.
    pub(in crate::sim) fn remove(&mut self, index: u32) {
        let Some(device) = self.devices.get(&index) else {
            return;
        };
        for own in device.addresses.clone() {
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

    pub(in crate::sim) fn rename(&mut self, index: u32, name: IfName) {
        if self.index(&name).is_none()
            && let Some(device) = self.devices.get_mut(&index)
        {
            device.name = name;
            self.disturbed.links.insert(index);
        }
    }

    /// Sets a device up or down; going down it loses its IPv6 addresses.
    pub(in crate::sim) fn set_admin(&mut self, index: u32, up: bool) {
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

    pub(in crate::sim) fn set_carrier(&mut self, index: u32, carrier: bool) {
        if let Some(device) = self.devices.get_mut(&index) {
            device.carrier = carrier;
            self.disturbed.links.insert(index);
        }
    }

    pub(in crate::sim) fn set_mac(&mut self, index: u32, mac: Mac) {
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

    pub(in crate::sim) fn set_mtu(&mut self, index: u32, mtu: u32) {
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

    /// Adds an address, unless the device cannot have it as it is.
    pub(in crate::sim) fn put_address(&mut self, index: u32, own: IpNet) -> bool {
        let Some(device) = self.devices.get_mut(&index) else {
            return false;
        };
        let ipv6 = matches!(own, IpNet::V6(_));
        if ipv6 && (!device.admin || device.mtu < IPV6_MIN_MTU) {
            return false;
        }
        device.addresses.insert(own);
        self.disturbed.links.insert(index);
        true
    }

    /// Removes an address, the routes that name it as their source and, after the last IPv4
    /// address, all IPv4 (`fib_del_ifaddr`, `fib_disable_ip`).
    pub(in crate::sim) fn take_address(&mut self, index: u32, own: &IpNet) {
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        if !device.addresses.remove(own) {
            return;
        }
        let ipv4 = |net: &IpNet| matches!(net, IpNet::V4(_));
        let last = ipv4(own) && !device.addresses.iter().any(ipv4);
        self.disturbed.links.insert(index);
        self.losses.insert(index);
        self.lost.entry(index).or_default().insert(own.addr());
        for routes in self.routes.values_mut() {
            routes.retain(|route| route.source != Some(own.addr()));
        }
        self.routes.retain(|_, routes| !routes.is_empty());
        if last {
            self.flush(index, |ipv6| !ipv6);
        }
    }

    fn end_ipv6(&mut self, index: u32) {
        let device = self.devices.get(&index);
        let addresses: Vec<IpNet> = device
            .into_iter()
            .flat_map(|device| &device.addresses)
            .filter(|own| matches!(own, IpNet::V6(_)))
            .copied()
            .collect();
        for own in addresses {
            self.take_address(index, &own);
        }
        self.flush(index, |ipv6| ipv6);
    }

    /// Drops the routes and neighbours of a device, of the families (`is_ipv6`) that are lost.
    fn flush(&mut self, index: u32, lost: impl Fn(bool) -> bool) {
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
