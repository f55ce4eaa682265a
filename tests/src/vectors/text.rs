//! Addresses and prefixes as text, by rules V1 and V2; and bytes as hexadecimal digits.

use std::net::IpAddr;

use ipnet::IpNet;

/// An address; one of IPv4 in IPv6 clothes is none.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        IpAddr::V4(_) | IpAddr::V6(_) => Some(address),
    }
}

/// A prefix without host bits; without a length it is a single address.
pub(super) fn net(text: &str) -> Option<IpNet> {
    Some(untruncated(text)?.trunc())
}

/// As [`net`], with the host bits.
pub(super) fn untruncated(text: &str) -> Option<IpNet> {
    match text.split_once('/') {
        None => Some(address(text)?.into()),
        Some((start, length)) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            IpNet::new(address(start)?, length.parse().ok()?).ok()
        }
        Some(_) => None,
    }
}

/// Those prefixes of a list that can be read.
pub(super) fn nets(list: &[String]) -> impl Iterator<Item = IpNet> {
    list.iter().filter_map(|one| net(one))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_by_v1() {
        for (text, meant) in [
            ("10.0.0.1", Some("10.0.0.1/32")),
            ("10.0.0.1/8", Some("10.0.0.0/8")),
            ("10.0.0.1/08", Some("10.0.0.0/8")),
            ("fd00::1/64", Some("fd00::/64")),
            ("fd00::1", Some("fd00::1/128")),
            ("010.0.0.1", None),
            ("10.0.0.1/", None),
            ("10.0.0.1/+8", None),
            ("10.0.0.1/33", None),
            ("fd00::1/129", None),
            ("fe80::1%eth0", None),
            ("::ffff:10.0.0.1", None),
            ("::ffff:a00:1/120", None),
            ("", None),
        ] {
            let meant = meant.map(|text| text.parse().unwrap());
            assert_eq!(net(text), meant, "{text:?}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        assert_eq!(unhex(&hex(&[0, 0x1f, 0xff])), Some(vec![0, 0x1f, 0xff]));
        assert_eq!(unhex("0g"), None);
        assert_eq!(unhex("+1"), None);
    }
}
