//! The bytes of an entry; see [`ebpf::Key`] and [`ebpf::Value`]. Pure.

use std::net::IpAddr;

use ebpf::flags;
use ipc_proto::{BpfRoute, BpfTarget, Flags};
use ipnet::IpNet;

use crate::links::Links;

/// Appends the key of a prefix.
pub(super) fn push_key(bytes: &mut Vec<u8>, prefix: &IpNet) {
    bytes.extend(u32::from(prefix.prefix_len()).to_ne_bytes());
    push_address(bytes, prefix.network());
}

/// Appends a value for a key of the family of `prefix`.
pub(super) fn push_value(bytes: &mut Vec<u8>, prefix: &IpNet, route: &BpfRoute) {
    bytes.extend(route.flags.0.to_ne_bytes());
    let end = bytes.len() + usize::from(prefix.max_prefix_len() / 8);
    match &route.target {
        BpfTarget::None => {}
        BpfTarget::NextHop(hop) => push_address(bytes, *hop),
        BpfTarget::Link(link) => bytes.extend(link.index.to_ne_bytes()),
    }
    bytes.resize(end, 0);
}

fn push_address(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => bytes.extend(address.octets()),
        IpAddr::V6(address) => bytes.extend(address.octets()),
    }
}

/// Reads an entry, under its key without the bits beyond its length. It has no value if no request
/// could make it: the kernel keeps such bits where somebody else wrote them.
pub(super) fn read_entry(
    key: &[u8],
    value: &[u8],
    links: &Links,
) -> Option<(IpNet, Option<BpfRoute>)> {
    let key = read_key(key)?;
    let masked = key.trunc();
    let route = (key == masked).then(|| read_value(value, links)).flatten();
    Some((masked, route))
}

fn read_key(bytes: &[u8]) -> Option<IpNet> {
    let (len, address) = split(bytes)?;
    IpNet::new(read_address(address)?, u8::try_from(len).ok()?).ok()
}

/// Reads a value; none if no request could make it.
fn read_value(bytes: &[u8], links: &Links) -> Option<BpfRoute> {
    let (flags, payload) = split(bytes)?;
    let flags = Flags(flags);
    let target = if payload.iter().all(|byte| *byte == 0) {
        BpfTarget::None
    } else if flags.names_link() {
        let (index, rest) = payload.split_first_chunk()?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let state = links.by_index(u32::from_ne_bytes(*index))?;
        BpfTarget::Link(state.link.clone())
    } else {
        BpfTarget::NextHop(read_address(payload)?)
    };
    let known = flags.unknown() == 0;
    known.then_some(BpfRoute { flags, target })
}

fn split(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_ne_bytes(*number), rest))
}

fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

const _: () = assert!(flags::LOCAL | flags::WORKLOAD == 0xc);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::tests::{link, links, policy};

    fn any_prefix() -> impl Strategy<Value = IpNet> {
        (any::<IpAddr>(), 0_u8..=128).prop_map(|(address, len)| {
            let widest = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, len.min(widest)).unwrap().trunc()
        })
    }

    #[test]
    fn the_bytes_are_the_reference_implementations() {
        let links = links(&policy());
        let none = BpfTarget::None;
        let hop = |text: &str| BpfTarget::NextHop(text.parse().unwrap());
        let cali = BpfTarget::Link(link(3, "cali1"));
        for (prefix, flags, target, key, value) in [
            (
                "10.20.0.11/32",
                0x18,
                none,
                "20000000 0a14000b",
                "18000000 00000000",
            ),
            (
                "172.24.5.64/26",
                0x447,
                hop("10.20.0.12"),
                "1a000000 ac180540",
                "47040000 0a14000c",
            ),
            (
                "172.24.7.5/32",
                0xf,
                cali.clone(),
                "20000000 ac180705",
                "0f000000 03000000",
            ),
            (
                "fd24:0:0:5::40/122",
                0x447,
                hop("fd20::12"),
                "7a000000 fd240000000000050000000000000040",
                "47040000 fd200000000000000000000000000012",
            ),
            (
                "fd24::7:5/128",
                0x80f,
                cali,
                "80000000 fd240000000000000000000000070005",
                "0f080000 03000000000000000000000000000000",
            ),
        ] {
            let prefix: IpNet = prefix.parse().unwrap();
            let flags = Flags(flags);
            let route = BpfRoute { flags, target };
            let (mut key_bytes, mut value_bytes) = (Vec::new(), Vec::new());
            push_key(&mut key_bytes, &prefix);
            push_value(&mut value_bytes, &prefix, &route);
            if cfg!(target_endian = "little") {
                assert_eq!(hex(&key_bytes), key.replace(' ', ""));
                assert_eq!(hex(&value_bytes), value.replace(' ', ""));
            }
            assert_eq!(read_key(&key_bytes), Some(prefix));
            assert_eq!(read_value(&value_bytes, &links), Some(route));
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    #[test]
    fn what_no_request_could_make_reads_as_nothing() {
        let links = links(&policy());
        let mut unknown_link = 0xf_u32.to_ne_bytes().to_vec();
        unknown_link.extend(99_u32.to_ne_bytes());
        assert_eq!(read_value(&unknown_link, &links), None);
        let mut unknown_flag = 0x8000_u32.to_ne_bytes().to_vec();
        unknown_flag.extend([0; 4]);
        assert_eq!(read_value(&unknown_flag, &links), None);
    }

    #[test]
    fn an_entry_whose_key_has_host_bits_is_wrong_whatever_its_value() {
        let links = links(&policy());
        let value = [0x10_u32.to_ne_bytes(), [192, 168, 7, 2]].concat();
        for (last, wrong) in [(0x40, false), (0x41, true)] {
            let mut key = 26_u32.to_ne_bytes().to_vec();
            key.extend([172, 24, 5, last]);
            let (prefix, route) = read_entry(&key, &value, &links).unwrap();
            assert_eq!(prefix, "172.24.5.64/26".parse().unwrap());
            assert_eq!(route.is_none(), wrong, "{last:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_route_reads_back_as_written(
            prefix in any_prefix(),
            bits in 0_u32..0x1000,
            hop in any::<u128>(),
        ) {
            let links = links(&policy());
            let flags = Flags(bits);
            let target = match (hop, flags.names_link(), prefix) {
                (0, _, _) => BpfTarget::None,
                (_, true, _) => BpfTarget::Link(link(3, "cali1")),
                (hop, false, IpNet::V4(_)) => {
                    BpfTarget::NextHop(IpAddr::from(u32::try_from(hop >> 96).unwrap().max(1).to_be_bytes()))
                }
                (hop, false, IpNet::V6(_)) => BpfTarget::NextHop(IpAddr::from(hop.to_be_bytes())),
            };
            let route = BpfRoute { flags, target };
            let (mut key, mut value) = (Vec::new(), Vec::new());
            push_key(&mut key, &prefix);
            push_value(&mut value, &prefix, &route);
            prop_assert_eq!(key.len(), value.len());
            prop_assert_eq!(read_key(&key), Some(prefix));
            prop_assert_eq!(read_value(&value, &links), Some(route));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            let links = links(&policy());
            if let Some((prefix, _)) = read_entry(&bytes, &bytes, &links) {
                prop_assert_eq!(prefix, prefix.trunc());
            }
            let _never_panics = read_value(&bytes, &links);
        }
    }
}
