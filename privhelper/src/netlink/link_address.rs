//! Addresses of this host on workloads' links as netlink messages, there and back. Pure.
//!
//! Ours have the safe protocol. Of those without any, which others have made, only such are seen as
//! another node agent would have made in our place.

use ipc_proto::{LinkAddressKey, LinkRole, Observed, Protocol};
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope},
};

use crate::{links::Links, policy::Policy};

/// Lays out an address.
pub(super) fn message(key: &LinkAddressKey, policy: &Policy) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = key.link.index;
    (message.header.family, message.header.prefix_len) = if key.address.is_ipv6() {
        (AddressFamily::Inet6, 128)
    } else {
        (AddressFamily::Inet, 32)
    };
    // The kernel goes by the address where it is of IPv6.
    message.header.scope = AddressScope::Link;
    // It is of use at once, and leads nowhere but here.
    let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
    let protocol = policy.protocol(Protocol::Safe).map(AddressProtocol::from);
    message.attributes.extend([
        AddressAttribute::Local(key.address),
        AddressAttribute::Address(key.address),
        AddressAttribute::Flags(flags),
    ]);
    message
        .attributes
        .extend(protocol.map(AddressAttribute::Protocol));
    message
}

/// Reads a report of the kernel's, if it is of something that is ours or could be.
pub(super) fn read(message: &AddressMessage, policy: &Policy, links: &Links) -> Option<Observed> {
    let state = links.by_index(message.header.index)?;
    let (mut own, mut other, mut protocol) = (None, None, None);
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is of no matter")]
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => own = Some(*address),
            // The other end's, on a point-to-point link.
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Protocol(number) => protocol = Some(u8::from(*number)),
            _ => {}
        }
    }
    let key = LinkAddressKey {
        link: state.link.clone(),
        address: own.or(other)?,
    };
    let whole = if key.address.is_ipv6() { 128 } else { 32 };
    let single = message.header.prefix_len == whole;
    let of_link = key.address.is_ipv6() || message.header.scope == AddressScope::Link;
    let is_ours = protocol == policy.protocol(Protocol::Safe);
    let could_be = protocol.is_none_or(|number| number == 0) && of_link;
    let seen = state.role == LinkRole::Workload && single && (is_ours || could_be);
    seen.then_some(Observed::LinkAddress(key, is_ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{link, links, policy};

    fn key(index: u32, name: &str, address: &str) -> LinkAddressKey {
        LinkAddressKey {
            link: link(index, name),
            address: address.parse().unwrap(),
        }
    }

    #[test]
    fn what_is_set_reads_back_as_ours_and_without_its_protocol_as_anothers() {
        let policy = policy();
        let links = links(&policy);
        for address in ["169.254.1.1", "fd00:1::1", "fe80::1"] {
            let key = key(3, "cali1", address);
            let mut message = message(&key, &policy);
            let read = |message: &AddressMessage| read(message, &policy, &links);
            assert_eq!(
                read(&message),
                Some(Observed::LinkAddress(key.clone(), true))
            );
            message.attributes.pop();
            assert_eq!(read(&message), Some(Observed::LinkAddress(key, false)));
        }
    }

    #[test]
    fn what_no_request_could_make_is_nobodys_business() {
        let policy = policy();
        let links = links(&policy);
        let ours = message(&key(3, "cali1", "169.254.1.1"), &policy);
        let change = |change: &dyn Fn(&mut AddressMessage)| {
            let mut message = ours.clone();
            message.attributes.pop();
            change(&mut message);
            read(&message, &policy, &links)
        };
        assert!(change(&|_| {}).is_some());
        let others: [&dyn Fn(&mut AddressMessage); 4] = [
            &|message| message.header.index = 2,
            &|message| message.header.prefix_len = 24,
            &|message| message.header.scope = AddressScope::Universe,
            &|message| {
                let protocol = AddressAttribute::Protocol(AddressProtocol::LinkLocal);
                message.attributes.push(protocol);
            },
        ];
        for other in others {
            assert_eq!(change(other), None);
        }
    }
}
