//! Upkeep of a VXLAN device in classic mode.
//!
//! What can be changed in place is; a device that differs in the rest is made again. A device of
//! another kind that has the name is not ours, and stays.

use std::net::IpAddr;

use ipc_proto::{IfName, Mac, OpError, TunnelDevice};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
    link::{InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
};
use nix::errno::Errno;

use super::{
    kernel,
    socket::{Request, Requests},
};
use crate::links::Links;

/// What cannot be changed in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fixed {
    vni: Option<u32>,
    port: Option<u16>,
    local: Option<IpAddr>,
    parent: Option<u32>,
    learning: bool,
    /// Flow-based, or an extension of VXLAN.
    other_mode: bool,
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
struct Actual {
    index: u32,
    up: bool,
    mac: Option<Mac>,
    mtu: u32,
    /// None if it is of another kind.
    fixed: Option<Fixed>,
}

/// What there is of a device.
#[derive(Debug)]
pub(super) enum ReadBack {
    /// Nothing, or nothing of ours.
    Absent,
    /// A device that no request could make.
    Otherwise,
    /// This device.
    Device(TunnelDevice),
}

/// Makes the device as it shall be.
///
/// # Errors
///
/// What the kernel said first; the rest is tried nonetheless.
pub(super) fn set(
    requests: &mut Requests,
    name: &IfName,
    device: &TunnelDevice,
) -> Result<(), OpError> {
    let found = match find(requests, name)? {
        None => None,
        Some(Actual { fixed: None, .. }) => return Err(foreign(name)),
        Some(found) if found.fixed == Some(Fixed::from(device)) => Some(found),
        Some(other) => {
            tracing::info!(%name, "the tunnel device is made again, since it differs");
            delete(requests, name, other.index)?;
            None
        }
    };
    let actual = if let Some(actual) = found {
        actual
    } else {
        let message = RouteNetlinkMessage::NewLink(creation(name, device));
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        change(requests, "RTM_NEWLINK", name, Request::new(&message, flags))?;
        find(requests, name)?
            .ok_or_else(|| kernel(&format!("RTM_GETLINK {name}"), &Errno::ENODEV.into()))?
    };
    let mut first = Ok(());
    let mut attempt = |outcome: Result<(), OpError>| {
        if first.is_ok() {
            first = outcome;
        }
    };
    if actual.mac != Some(device.mac) {
        let mac = LinkAttribute::Address(device.mac.0.to_vec());
        attempt(modify(requests, name, actual.index, |message| {
            message.attributes.push(mac);
        }));
    }
    if actual.mtu != device.mtu {
        let mtu = LinkAttribute::Mtu(device.mtu);
        attempt(modify(requests, name, actual.index, |message| {
            message.attributes.push(mtu);
        }));
    }
    attempt(set_address(requests, name, actual.index, device.address));
    if !actual.up {
        attempt(modify(requests, name, actual.index, |message| {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }));
    }
    first
}

/// Removes the device.
///
/// # Errors
///
/// What the kernel said.
pub(super) fn clear(requests: &mut Requests, name: &IfName) -> Result<(), OpError> {
    match find(requests, name)? {
        None => Ok(()),
        Some(Actual { fixed: None, .. }) => Err(foreign(name)),
        Some(Actual { index, .. }) => delete(requests, name, index),
    }
}

/// Reads the device back, if there is one of ours.
///
/// # Errors
///
/// What the kernel said.
pub(super) fn read(
    requests: &mut Requests,
    name: &IfName,
    links: &Links,
) -> Result<ReadBack, Errno> {
    let Some(actual) = get(requests, name)? else {
        return Ok(ReadBack::Absent);
    };
    let Some(fixed) = actual.fixed else {
        return Ok(ReadBack::Absent);
    };
    let addresses = addresses(requests, actual.index)?;
    let device = || {
        let [(address, length)] = addresses.as_slice() else {
            return None;
        };
        let device = TunnelDevice {
            vni: fixed.vni?,
            port: fixed.port?,
            local: fixed.local?,
            parent: links.by_index(fixed.parent?)?.link.clone(),
            mac: actual.mac?,
            mtu: actual.mtu,
            address: *address,
        };
        let right = actual.up && *length == full(*address) && Fixed::from(&device) == fixed;
        right.then_some(device)
    };
    Ok(device().map_or(ReadBack::Otherwise, ReadBack::Device))
}

fn foreign(name: &IfName) -> OpError {
    OpError::Denied(format!(
        "{name} is not a VXLAN device, so another program's: remove or rename it"
    ))
}

fn find(requests: &mut Requests, name: &IfName) -> Result<Option<Actual>, OpError> {
    get(requests, name).map_err(|errno| kernel(&format!("RTM_GETLINK {name}"), &errno.into()))
}

fn get(requests: &mut Requests, name: &IfName) -> Result<Option<Actual>, Errno> {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::IfName(name.to_string()));
    match requests.get(&RouteNetlinkMessage::GetLink(message)) {
        Ok(RouteNetlinkMessage::NewLink(found)) => Ok(Some(take_apart(&found))),
        Ok(_) | Err(Errno::ENODEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn take_apart(message: &LinkMessage) -> Actual {
    let mut actual = Actual {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        mac: None,
        mtu: 0,
        fixed: None,
    };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is of no matter")]
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => {
                actual.mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            LinkAttribute::Mtu(mtu) => actual.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Data(InfoData::Vxlan(options)) = info {
                        actual.fixed = Some(fixed(options));
                    }
                }
            }
            _ => {}
        }
    }
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

fn creation(name: &IfName, device: &TunnelDevice) -> LinkMessage {
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

fn delete(requests: &mut Requests, name: &IfName, index: u32) -> Result<(), OpError> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let message = RouteNetlinkMessage::DelLink(message);
    match send(requests, Request::change(&message)) {
        Err(refused) if refused.errno != Errno::ENODEV => {
            Err(kernel(&format!("RTM_DELLINK {name}"), &refused))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn modify(
    requests: &mut Requests,
    name: &IfName,
    index: u32,
    change_it: impl FnOnce(&mut LinkMessage),
) -> Result<(), OpError> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    change_it(&mut message);
    let message = RouteNetlinkMessage::SetLink(message);
    change(requests, "RTM_SETLINK", name, Request::change(&message))
}

/// Leaves `address` as the only one besides the kernel's own link-local one.
fn set_address(
    requests: &mut Requests,
    name: &IfName,
    index: u32,
    address: IpAddr,
) -> Result<(), OpError> {
    let own = addresses(requests, index)
        .map_err(|errno| kernel(&format!("RTM_GETADDR {name}"), &errno.into()))?;
    let wanted = (address, full(address));
    if !own.contains(&wanted) {
        let mut message = address_message(index, wanted);
        let address = AddressAttribute::Address(address);
        message.attributes.push(address);
        // Nobody else is on this link to have the same address.
        message.header.flags = AddressHeaderFlags::Nodad;
        let flags = AddressAttribute::Flags(AddressFlags::Nodad);
        message.attributes.push(flags);
        let message = RouteNetlinkMessage::NewAddress(message);
        change(requests, "RTM_NEWADDR", name, Request::set(&message))?;
    }
    for other in own.into_iter().filter(|other| *other != wanted) {
        let message = RouteNetlinkMessage::DelAddress(address_message(index, other));
        change(requests, "RTM_DELADDR", name, Request::change(&message))?;
    }
    Ok(())
}

/// Returns the addresses of an interface but link-local IPv6 ones, with their prefix lengths.
fn addresses(requests: &mut Requests, index: u32) -> Result<Vec<(IpAddr, u8)>, Errno> {
    let mut message = AddressMessage::default();
    message.header.index = index;
    let message = RouteNetlinkMessage::GetAddress(message);
    requests.dump(&message, |message| {
        let RouteNetlinkMessage::NewAddress(message) = message else {
            return None;
        };
        if message.header.index != index {
            return None;
        }
        let (mut local, mut address) = (None, None);
        #[expect(clippy::wildcard_enum_match_arm, reason = "only these are addresses")]
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(own) => local = Some(*own),
                AddressAttribute::Address(own) => address = Some(*own),
                _ => {}
            }
        }
        let own = local.or(address)?;
        let link_local = matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
        (!link_local).then_some((own, message.header.prefix_len))
    })
}

fn address_message(index: u32, (address, length): (IpAddr, u8)) -> AddressMessage {
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

fn full(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn send(requests: &mut Requests, request: Request) -> Result<(), super::Refused> {
    requests.send(&[request]).into_iter().collect()
}

fn change(
    requests: &mut Requests,
    call: &str,
    name: &IfName,
    request: Request,
) -> Result<(), OpError> {
    send(requests, request).map_err(|refused| kernel(&format!("{call} {name}"), &refused))
}
