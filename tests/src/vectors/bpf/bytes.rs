//! Entries of the BPF route maps as bytes: little-endian numbers, as the vectors have them.

use std::net::IpAddr;

use ipc_proto::{BpfRoute, BpfTarget, Flags};
use ipnet::IpNet;

use super::links::Links;

/// The bytes of a key; host bits stay.
pub(super) fn key(cidr: &IpNet) -> Vec<u8> {
    let mut bytes = u32::from(cidr.prefix_len()).to_le_bytes().to_vec();
    bytes.extend(octets(cidr.addr()));
    bytes
}

/// The bytes of the value of a key.
pub(super) fn value(cidr: &IpNet, route: &BpfRoute, links: &Links) -> Vec<u8> {
    let mut bytes = route.flags.0.to_le_bytes().to_vec();
    match &route.target {
        BpfTarget::None => {}
        BpfTarget::NextHop(address) => bytes.extend(octets(*address)),
        BpfTarget::Link(link) => bytes.extend(links.recorded(link).to_le_bytes()),
    }
    bytes.resize(4 + usize::from(cidr.max_prefix_len()) / 8, 0);
    bytes
}

/// Reads a key with its host bits.
pub(super) fn read_key(bytes: &[u8]) -> Option<IpNet> {
    let (length, address) = bytes.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    IpNet::new(read_address(address)?, length.try_into().ok()?).ok()
}

/// Reads a value; none if Cairn could not have made it.
pub(super) fn read_value(bytes: &[u8], links: &Links) -> Option<BpfRoute> {
    let (flags, payload) = bytes.split_first_chunk()?;
    let flags = Flags(u32::from_le_bytes(*flags));
    if flags.unknown() != 0 {
        return None;
    }
    let target = if payload.iter().all(|byte| *byte == 0) {
        BpfTarget::None
    } else if flags.names_link() {
        let (index, rest) = payload.split_first_chunk()?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        BpfTarget::Link(links.named_by(u32::from_le_bytes(*index))?)
    } else {
        BpfTarget::NextHop(read_address(payload)?)
    };
    Some(BpfRoute { flags, target })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}
