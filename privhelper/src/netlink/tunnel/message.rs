//! VXLAN devices and their addresses as netlink messages, there and back. Pure.

use std::net::IpAddr;

use ipc_proto::{IfName, Mac, TunnelDevice};
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    link::{
        InfoData, InfoKind, InfoPortKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo,
        LinkMessage,
    },
};

/// What cannot be changed in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) vni: Option<u32>,
    pub(super) port: Option<u16>,
    pub(super) local: Option<IpAddr>,
    pub(super) parent: Option<u32>,
    learning: bool,
    /// Flow-based, or an extension of VXLAN.
    other_mode: bool,
}

impl Fixed {
    /// Returns whether the kernel takes packets of one tunnel for those of the other.
    pub(super) fn shares_packets(&self, device: &TunnelDevice) -> bool {
        let is_ipv6 = self.local.is_some_and(|own| own.is_ipv6());
        self.shares_port(device)
            && self.vni == Some(device.vni)
            && is_ipv6 == device.local.is_ipv6()
    }

    /// Returns whether both use the same UDP port.
    pub(super) fn shares_port(&self, device: &TunnelDevice) -> bool {
        self.port == Some(device.port)
    }
}

impl From<&TunnelDevice> for Fixed {
    fn from(device: &TunnelDevice) -> Self {
        Self {
            vni: Some(device.vni),
            port: Some(device.port),
            local: Some(device.local),
            parent: Some(device.parent.index),
            learning: false,
            other_mode: false,
        }
    }
}

/// A device as the kernel reports it.
#[derive(Clone, Debug)]
pub(super) struct Actual {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) mac: Option<Mac>,
    pub(super) mtu: u32,
    /// Whether it is a part of another one, as of a bridge; a VRF has it go on as it is.
    pub(super) enslaved: bool,
    /// None if it is of another kind.
    pub(super) fixed: Option<Fixed>,
}

/// Reads a report of the kernel's.
pub(super) fn take_apart(message: &LinkMessage) -> Actual {
    let mut actual = Actual {
        index: message.header.index,
        name: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        mac: None,
        mtu: 0,
        enslaved: false,
        fixed: None,
    };
    let mut in_vrf = false;
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is of no matter")]
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => {
                actual.mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            LinkAttribute::IfName(name) => actual.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => actual.mtu = *mtu,
            LinkAttribute::Controller(other) => actual.enslaved = *other != 0,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Data(InfoData::Vxlan(options)) => {
                            actual.fixed = Some(fixed(options));
                        }
                        LinkInfo::PortKind(InfoPortKind::Vrf) => in_vrf = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    actual.enslaved &= !in_vrf;
    actual
}

fn fixed(options: &[InfoVxlan]) -> Fixed {
    let mut fixed = Fixed::default();
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest has its default")]
    for option in options {
        match option {
            InfoVxlan::Id(vni) => fixed.vni = Some(*vni),
            InfoVxlan::Port(port) => fixed.port = Some(*port),
            InfoVxlan::Local(own) => fixed.local = Some(IpAddr::V4(*own)),
            InfoVxlan::Local6(own) => fixed.local = Some(IpAddr::V6(*own)),
            InfoVxlan::Link(parent) => fixed.parent = Some(*parent),
            InfoVxlan::Learning(learning) => fixed.learning = *learning,
            InfoVxlan::CollectMetadata(true) | InfoVxlan::Gbp | InfoVxlan::Gpe => {
                fixed.other_mode = true;
            }
            _ => {}
        }
    }
    fixed
}

/// Lays out a device that is to be made.
pub(super) fn creation(name: &IfName, device: &TunnelDevice) -> LinkMessage {
    let local = match device.local {
        IpAddr::V4(own) => InfoVxlan::Local(own),
        IpAddr::V6(own) => InfoVxlan::Local6(own),
    };
    let options = vec![
        InfoVxlan::Id(device.vni),
        InfoVxlan::Port(device.port),
        local,
        InfoVxlan::Link(device.parent.index),
        InfoVxlan::Learning(false),
    ];
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_string()),
        LinkAttribute::Address(device.mac.0.to_vec()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vxlan),
            LinkInfo::Data(InfoData::Vxlan(options)),
        ]),
    ];
    message
}

/// Lays out an address of an interface.
pub(super) fn address_message(index: u32, (address, length): (IpAddr, u8)) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.prefix_len = length;
    message.attributes.push(AddressAttribute::Local(address));
    message
}

/// Returns the length of a prefix of one address.
pub(super) fn full(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}
