//! Upkeep of a VXLAN device in classic mode.
//!
//! What can be changed in place is; a device that differs in the rest is made again; one of ours that
//! somebody has renamed gets its name back. A device of another kind that has the name is not ours,
//! and stays; so does one under another name that has our VNI and port, which is named in the error.

mod message;

use std::net::IpAddr;

use ipc_proto::{IfName, OpError, TunnelDevice};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use nix::errno::Errno;

use self::message::{Actual, Fixed, address_message, creation, full, take_apart};
use super::{
    Refused, kernel,
    socket::{Request, Requests},
};
use crate::links::Links;

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
    let actual = match found {
        Some(actual) => actual,
        None => create(requests, name, device)?,
    };
    let mut first = Ok(());
    let mut attempt = |outcome: Result<(), OpError>| {
        if first.is_ok() {
            first = outcome;
        }
    };
    if actual.enslaved {
        tracing::info!(%name, "the tunnel device is taken out of another one, as of a bridge");
        attempt(modify(requests, name, actual.index, |message| {
            message.attributes.push(LinkAttribute::Controller(0));
        }));
    }
    if actual.mac != Some(device.mac) {
        let mac = LinkAttribute::Address(device.mac.0.to_vec());
        attempt(modify(requests, name, actual.index, |message| {
            message.attributes.push(mac);
        }));
    }
    if actual.mtu != device.mtu {
        attempt(set_mtu(requests, name, &actual, device));
    }
    attempt(set_address(requests, name, actual.index, device.address));
    if !actual.up {
        attempt(set_up(requests, name, &actual, device));
    }
    first
}

/// Makes the device, or finds it under another name, and returns it.
fn create(
    requests: &mut Requests,
    name: &IfName,
    device: &TunnelDevice,
) -> Result<Actual, OpError> {
    let message = RouteNetlinkMessage::NewLink(creation(name, device));
    match send(requests, Request::create(&message)) {
        Ok(()) => {}
        Err(refused) if refused.errno == Errno::EEXIST => {
            let rivals = vxlans(requests, |fixed| fixed.shares_packets(device));
            match rivals.first() {
                // There is no other like it, so that it was made as this one.
                Some(rival) if is_ours(rival, device) => rename(requests, rival, name)?,
                Some(rival) => {
                    let call = format!(
                        "RTM_NEWLINK {name}: {}#{} has VNI {} and UDP port {}: remove it, or set \
                         another vxlanVNI or vxlanPort",
                        rival.name, rival.index, device.vni, device.port
                    );
                    return Err(kernel(&call, &refused));
                }
                None => return Err(kernel(&format!("RTM_NEWLINK {name}"), &refused)),
            }
        }
        Err(refused) => return Err(kernel(&format!("RTM_NEWLINK {name}"), &refused)),
    }
    find(requests, name)?
        .ok_or_else(|| kernel(&format!("RTM_GETLINK {name}"), &Errno::ENODEV.into()))
}

/// Returns whether a device is the one that shall be, under whatever name.
fn is_ours(found: &Actual, device: &TunnelDevice) -> bool {
    found.fixed == Some(Fixed::from(device)) && found.mac == Some(device.mac)
}

/// Gives a device the name that it should have. What hangs on it stays.
fn rename(requests: &mut Requests, found: &Actual, name: &IfName) -> Result<(), OpError> {
    tracing::info!(%name, was = found.name, "the tunnel device gets its name back");
    let attempt = |requests: &mut Requests| {
        let mut message = LinkMessage::default();
        message.header.index = found.index;
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_string()));
        let message = RouteNetlinkMessage::SetLink(message);
        send(requests, Request::change(&message))
    };
    let outcome = match attempt(requests) {
        // Linux before 6.2 renames only what is down.
        Err(refused) if refused.errno == Errno::EBUSY => {
            modify(requests, name, found.index, |message| {
                message.header.change_mask = LinkFlags::Up;
            })?;
            attempt(requests)
        }
        other => other,
    };
    let call = || format!("RTM_SETLINK {}: rename to {name}", found.name);
    outcome.map_err(|refused| kernel(&call(), &refused))
}

fn set_mtu(
    requests: &mut Requests,
    name: &IfName,
    actual: &Actual,
    device: &TunnelDevice,
) -> Result<(), OpError> {
    let mut message = LinkMessage::default();
    message.header.index = actual.index;
    message.attributes.push(LinkAttribute::Mtu(device.mtu));
    let message = RouteNetlinkMessage::SetLink(message);
    send(requests, Request::change(&message)).map_err(|refused| {
        let mut call = format!("RTM_SETLINK {name} mtu {}", device.mtu);
        let parent = &device.parent.name;
        if refused.errno == Errno::EINVAL
            && let Ok(Some(Actual { mtu, .. })) = get(requests, parent)
        {
            let most = mtu.saturating_sub(overhead(device.local));
            call = format!(
                "{call}: it must be at most {most}, what the MTU of {parent}, {mtu}, leaves beside \
                 the outer headers: set another vxlanMTU, or leave it out"
            );
        }
        kernel(&call, &refused)
    })
}

/// Returns how many bytes a packet has more in the tunnel.
fn overhead(local: IpAddr) -> u32 {
    match local {
        IpAddr::V4(_) => 50,
        IpAddr::V6(_) => 70,
    }
}

fn set_up(
    requests: &mut Requests,
    name: &IfName,
    actual: &Actual,
    device: &TunnelDevice,
) -> Result<(), OpError> {
    let mut message = LinkMessage::default();
    message.header.index = actual.index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    let message = RouteNetlinkMessage::SetLink(message);
    send(requests, Request::change(&message)).map_err(|refused| {
        let mut call = format!("RTM_SETLINK {name} up");
        if refused.errno == Errno::EADDRINUSE {
            let others = vxlans(requests, |fixed| fixed.shares_port(device));
            let other = others.iter().find(|other| other.index != actual.index);
            let other = other.map_or("another program".to_owned(), |other| other.name.clone());
            call = format!(
                "{call}: {other} has UDP port {}: stop or remove it, or set another vxlanPort",
                device.port
            );
        }
        kernel(&call, &refused)
    })
}

/// Returns the VXLAN devices that are as `is_meant` says; none if the kernel does not tell.
fn vxlans(requests: &mut Requests, is_meant: impl Fn(&Fixed) -> bool) -> Vec<Actual> {
    let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let found = requests.dump(&message, |message| {
        let RouteNetlinkMessage::NewLink(message) = message else {
            return None;
        };
        Some(take_apart(&message)).filter(|found| found.fixed.as_ref().is_some_and(&is_meant))
    });
    found.unwrap_or_default()
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
        let right = actual.up
            && !actual.enslaved
            && *length == full(*address)
            && Fixed::from(&device) == fixed;
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

fn send(requests: &mut Requests, request: Request) -> Result<(), Refused> {
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
