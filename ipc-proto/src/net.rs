//! Prefixes and addresses on the wire, where most of what is said is made of them.
//!
//! In bytes a prefix is one number for its family and length, and one for its address, whose octets come
//! in their order; an address is the prefix of its whole length. Their own form has a tag of four bytes,
//! and reads each octet by itself. For people (`--json`) they are text, as they are by themselves.
//!
//! What is small here is part of whatever has it (`#[inline]`): each result that is handed on is copied.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error, SeqAccess, Unexpected, Visitor},
    ser::SerializeTuple,
};

/// What the first number of an IPv6 prefix is more than its length; that of an IPv4 prefix is its
/// length.
const V6: u8 = 64;

/// Has a form of its own in bytes.
pub(crate) trait Wire: Serialize + DeserializeOwned {
    /// Writes it.
    fn to_wire<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;

    /// Reads it.
    fn from_wire<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Writes a field `with` this module.
#[inline]
pub(crate) fn serialize<T: Wire, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        value.serialize(serializer)
    } else {
        value.to_wire(serializer)
    }
}

/// Reads a field `with` this module.
#[inline]
pub(crate) fn deserialize<'de, T: Wire, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    if deserializer.is_human_readable() {
        T::deserialize(deserializer)
    } else {
        T::from_wire(deserializer)
    }
}

impl Wire for IpNet {
    #[inline]
    fn to_wire<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut parts = serializer.serialize_tuple(2)?;
        write(self, &mut parts)?;
        parts.end()
    }

    #[inline]
    fn from_wire<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(2, Prefix)
    }
}

/// Writes a prefix as the next parts of something.
#[inline]
pub(crate) fn write<T: SerializeTuple>(net: &IpNet, parts: &mut T) -> Result<(), T::Error> {
    let len = net.prefix_len();
    match net.addr() {
        IpAddr::V4(address) => {
            parts.serialize_element(&len)?;
            parts.serialize_element(&u32::from_le_bytes(address.octets()))
        }
        IpAddr::V6(address) => {
            parts.serialize_element(&(V6 + len))?;
            parts.serialize_element(&u128::from_le_bytes(address.octets()))
        }
    }
}

/// Reads a prefix that is the next parts of something: the first number says what the second one is.
#[expect(
    clippy::inline_always,
    reason = "a call copies the result: a fifth of all that reading takes"
)]
#[inline(always)]
pub(crate) fn read<'de, A: SeqAccess<'de>>(parts: &mut A) -> Result<IpNet, A::Error> {
    let head: u8 = next(parts)?;
    let net = if let Some(len) = head.checked_sub(V6) {
        let bits: u128 = next(parts)?;
        Ipv6Net::new(Ipv6Addr::from(bits.to_le_bytes()), len).map(IpNet::V6)
    } else {
        let bits: u32 = next(parts)?;
        Ipv4Net::new(Ipv4Addr::from(bits.to_le_bytes()), head).map(IpNet::V4)
    };
    net.map_err(|_too_long| A::Error::invalid_value(Unexpected::Unsigned(head.into()), &Prefix))
}

/// Reads the next part of something.
#[inline]
pub(crate) fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    parts: &mut A,
) -> Result<T, A::Error> {
    let part = parts.next_element()?;
    part.ok_or_else(|| A::Error::custom("some of it is missing"))
}

struct Prefix;

impl<'de> Visitor<'de> for Prefix {
    type Value = IpNet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prefix")
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<IpNet, A::Error> {
        read(&mut seq)
    }
}

impl Wire for IpAddr {
    #[inline]
    fn to_wire<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        IpNet::from(*self).to_wire(serializer)
    }

    #[inline]
    fn from_wire<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole(IpNet::from_wire(deserializer)?)
    }
}

/// Reads an address that is the next parts of something.
#[expect(
    clippy::inline_always,
    reason = "a call copies the result: a fifth of all that reading takes"
)]
#[inline(always)]
pub(crate) fn read_address<'de, A: SeqAccess<'de>>(parts: &mut A) -> Result<IpAddr, A::Error> {
    whole(read(parts)?)
}

#[inline]
fn whole<E: Error>(net: IpNet) -> Result<IpAddr, E> {
    if net.prefix_len() == net.max_prefix_len() {
        Ok(net.addr())
    } else {
        Err(E::custom("an address with the length of a prefix"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn to_wire<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Wired).serialize(serializer)
    }

    fn from_wire<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::deserialize(deserializer)?;
        Ok(value.map(|Wired(value)| value))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn to_wire<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Wired))
    }

    fn from_wire<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::deserialize(deserializer)?;
        let mut values: Vec<T> = values.into_iter().map(|Wired(value)| value).collect();
        // A long one has grown by doubling, and a prefix takes few bytes on the wire.
        values.shrink_to_fit();
        Ok(values)
    }
}

/// What is within another.
struct Wired<T>(T);

impl<T: Wire> Serialize for Wired<&T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_wire(serializer)
    }
}

impl<'de, T: Wire> Deserialize<'de> for Wired<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::from_wire(deserializer).map(Wired)
    }
}
