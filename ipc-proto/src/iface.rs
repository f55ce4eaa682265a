//! Interfaces: their names, identities and what the helper sees of them.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use crate::net;

/// A name the kernel could give to an interface.
///
/// It is kept in place: links are many, and are copied all the time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName([u8; Self::MAX_LEN]);

impl IfName {
    /// The longest name in bytes, `IFNAMSIZ` less its NUL.
    pub const MAX_LEN: usize = 15;
    /// How many characters an error shows of what is not a name.
    const MAX_SHOWN: usize = 64;

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It is ASCII, and padded with NUL, so that it sorts as the text does.
        let text = self.0.split(|byte| *byte == 0).next();
        text.and_then(|text| str::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

/// The text is not an interface name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interface name")]
pub struct InvalidIfName(pub String);

impl FromStr for IfName {
    type Err = InvalidIfName;

    /// Applies the kernel's own rule (`dev_valid_name`), and leaves out what is not printable.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let ok = (1..=Self::MAX_LEN).contains(&name.len())
            && name != "."
            && name != ".."
            && name
                .bytes()
                .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
        if !ok {
            // It is logged, and told to who sent it, however long it is.
            return Err(InvalidIfName(name.chars().take(Self::MAX_SHOWN).collect()));
        }
        let mut bytes = [0; Self::MAX_LEN];
        for (byte, from) in bytes.iter_mut().zip(name.bytes()) {
            *byte = from;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for IfName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for IfName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

/// Reads a name where it is: a route has one, and routes are many.
struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = IfName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an interface")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<IfName, E> {
        name.parse().map_err(E::custom)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IfName").field(&self.as_str()).finish()
    }
}

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

/// The text is not a hardware address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a MAC address")]
pub struct InvalidMac(pub String);

impl FromStr for Mac {
    type Err = InvalidMac;

    /// Reads six pairs of hexadecimal digits between colons.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(invalid)?;
            // from_str_radix would take a sign.
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(invalid());
            }
            *byte = u8::from_str_radix(part, 16).ok().ok_or_else(invalid)?;
        }
        if parts.next().is_some() {
            Err(invalid())
        } else {
            Ok(Self(bytes))
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for byte in self.0 {
            write!(f, "{separator}{byte:02x}")?;
            separator = ":";
        }
        Ok(())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An interface as the helper last saw it.
///
/// Requests carry both halves, so that the helper can refuse one that was made for an interface
/// which has since been re-created or renamed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    /// The kernel's number for it, never 0.
    pub index: u32,
    /// Its name.
    pub name: IfName,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.index)
    }
}

/// A tunnel device that Cairn makes; its name is in the helper's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tunnel {
    /// VXLAN between IPv4 node addresses.
    VxlanV4,
    /// VXLAN between IPv6 node addresses.
    VxlanV6,
}

/// What an interface is to us, by the helper's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkRole {
    /// The host's end of a workload's link.
    Workload,
    /// A tunnel device of ours.
    Tunnel(Tunnel),
    /// Leads to other nodes.
    Uplink,
    /// Any other.
    Other,
}

/// A set of sysctls for an interface; the numbers are the helper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkProfile {
    /// For the host's end of a workload's link.
    Workload,
    /// For a tunnel device.
    Tunnel,
    /// For an interface that leads to other nodes.
    Uplink,
}

/// All that the helper reports of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Which one.
    pub link: Link,
    /// What it is to us.
    pub role: LinkRole,
    /// Whether it is set up (`IFF_UP`): the kernel keeps routes only on those that are.
    pub up: bool,
    /// Whether it is also ready to carry packets (`IFF_RUNNING`).
    pub carrier: bool,
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its own addresses with their prefix lengths, sorted.
    #[serde(with = "net")]
    pub addresses: Vec<IpNet>,
}

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkEvent {
    /// It is new or has changed.
    Set(LinkState),
    /// It is gone.
    Gone(Link),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_refuses_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "0123456789abcdef",
            "cali\u{e9}",
        ] {
            assert_eq!(
                name.parse::<IfName>(),
                Err(InvalidIfName(name.to_owned())),
                "{name:?}"
            );
        }
        for name in ["lo", "cali0123456789a", "vxlan-v6.calico"] {
            assert_eq!(name.parse::<IfName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_mac_reads_back_as_written() {
        let mac: Mac = "66:0c:13:00:00:0F".parse().unwrap();
        assert_eq!(mac.to_string(), "66:0c:13:00:00:0f");
        for bad in [
            "",
            "66:0c:13:00:00",
            "66:0c:13:00:00:01:02",
            "6:0c:13:00:00:011",
            "66-0c-13-00-00-01",
            "+1:0c:13:00:00:01",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?}");
        }
    }
}
