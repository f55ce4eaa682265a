//! The attributes of a netlink message as bytes. Pure.
//!
//! Reports of routes come by the ten thousands; reading them in place costs a fraction of what
//! objects for each attribute would.

use std::net::IpAddr;

/// Bits of an attribute's type that say something of its content.
const FLAGS: u16 = 0xc000;
/// The length of an attribute's header in bytes.
const HEADER: usize = 4;

/// Returns type and value of each attribute, up to the first that is cut off.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & !FLAGS;
        let value = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends an attribute.
pub(super) fn push(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(HEADER + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Appends an attribute that is an address.
pub(super) fn push_ip(bytes: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => push(bytes, kind, &address.octets()),
        IpAddr::V6(address) => push(bytes, kind, &address.octets()),
    }
}

/// Reads an address of either family.
pub(super) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    Some(<[u8; 16]>::try_from(bytes).ok()?.into())
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let value = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*value))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let value = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_up_to_the_first_that_is_cut_off() {
        let mut bytes = Vec::new();
        push(&mut bytes, 1, &[1, 2, 3]);
        push(&mut bytes, 2 | FLAGS, &[]);
        push(&mut bytes, 3, &[4; 4]);
        let all: Vec<(u16, &[u8])> = attributes(&bytes).collect();
        assert_eq!(all, [(1, &[1, 2, 3][..]), (2, &[]), (3, &[4; 4])]);
        for cut in 0..bytes.len() {
            assert!(attributes(&bytes[..cut]).count() < 3);
        }
        // Shorter than its own header.
        assert_eq!(attributes(&[2, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
    }
}
