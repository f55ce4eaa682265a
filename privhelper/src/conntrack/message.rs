//! The messages of ctnetlink: requests to forget flows, and flows as a dump has them. Pure.
//!
//! A request to delete can only be made for an IPv4 address or for one flow: the kernel takes one that
//! names neither for a request to forget everything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The length of a netlink header in bytes.
const HEADER: usize = 16;
/// The length of the header that all of netfilter's messages start with.
const FAMILY_HEADER: usize = 4;

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const GET: u16 = 0x101;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 0x102;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
/// The dump may have missed something.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
/// Inside a tuple.
const CTA_TUPLE_IP: u16 = 1;
/// Bits of an attribute's type that are no part of it.
const NLA_F_NESTED: u16 = 1 << 15;
const NLA_TYPE: u16 = 0x3fff;

/// One of the two tuples of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// As the first packet had it.
    Original,
    /// As the answers have it.
    Reply,
}

/// One of the two addresses of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Where it comes from.
    Source,
    /// Where it goes to.
    Destination,
}

/// The four places in which a flow can have an address.
pub(super) const PLACES: [(Direction, End); 4] = [
    (Direction::Original, End::Source),
    (Direction::Original, End::Destination),
    (Direction::Reply, End::Source),
    (Direction::Reply, End::Destination),
];

/// A flow, as far as deleting it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// The addresses in both tuples.
    pub(super) addresses: Vec<IpAddr>,
    /// The attributes that name it, as the kernel wrote them: tuple, zone and number.
    name: Vec<u8>,
}

/// What the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A flow of a dump.
    Flow(Flow),
    /// A request was carried out, or this is the `errno` of why not.
    Outcome(i32),
    /// A dump is at its end, or this is the `errno` of why there is no more of it.
    Done(i32),
    /// Something else.
    Other,
}

/// An answer with what it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// The number of the request.
    pub(super) sequence: u32,
    /// Whether the dump may have missed something.
    pub(super) interrupted: bool,
    /// What it is.
    pub(super) answer: Answer,
}

/// Appends a request for all flows, or those of IPv6 (`true`) or IPv4 only.
pub(super) fn dump(bytes: &mut Vec<u8>, sequence: u32, family: Option<bool>) {
    let family = family.map_or(0, number);
    message(bytes, GET, NLM_F_DUMP, sequence, family, |_| {});
}

/// Appends a request to forget all flows, of any zone, that have `address` in that place.
pub(super) fn delete_by_address(
    bytes: &mut Vec<u8>,
    sequence: u32,
    acknowledged: bool,
    address: Ipv4Addr,
    (direction, end): (Direction, End),
) {
    let (tuple, flags) = match direction {
        Direction::Original => (CTA_TUPLE_ORIG, 1_u16),
        Direction::Reply => (CTA_TUPLE_REPLY, 2),
    };
    // CTA_IP_V4_SRC or _DST; CTA_FILTER_F_CTA_IP_SRC or _DST.
    let (attribute, bit) = match end {
        End::Source => (1, 1_u32),
        End::Destination => (2, 2),
    };
    let ack = if acknowledged { NLM_F_ACK } else { 0 };
    message(bytes, DELETE, ack, sequence, number(false), |bytes| {
        nest(bytes, tuple, |bytes| {
            nest(bytes, CTA_TUPLE_IP, |bytes| {
                attribute_of(bytes, attribute, &address.octets());
            });
        });
        nest(bytes, CTA_FILTER, |bytes| {
            attribute_of(bytes, flags, &bit.to_ne_bytes());
        });
    });
}

/// Appends a request to forget a flow, and no later one with the same tuple.
pub(super) fn delete_flow(bytes: &mut Vec<u8>, sequence: u32, acknowledged: bool, flow: &Flow) {
    let ack = if acknowledged { NLM_F_ACK } else { 0 };
    let ipv6 = flow.addresses.first().is_some_and(IpAddr::is_ipv6);
    message(bytes, DELETE, ack, sequence, number(ipv6), |bytes| {
        bytes.extend_from_slice(&flow.name);
    });
}

/// Returns the number of a family.
fn number(ipv6: bool) -> u8 {
    // AF_INET6, AF_INET.
    if ipv6 { 10 } else { 2 }
}

fn message(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    // The version is 0; nobody reads the resource.
    bytes.extend_from_slice(&[family, 0, 0, 0]);
    body(bytes);
    let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
    put(bytes, start, &length.to_ne_bytes());
}

fn nest(bytes: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
    body(bytes);
    let length = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
    put(bytes, start, &length.to_ne_bytes());
}

fn attribute_of(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, byte) in bytes.iter_mut().skip(at).zip(value) {
        *to = *byte;
    }
}

/// Reads all messages of a datagram. One that is cut short ends it.
pub(super) fn read(mut datagram: &[u8]) -> impl Iterator<Item = Received> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let whole = datagram.get(..length).filter(|_| length >= HEADER)?;
        datagram = datagram
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
        read_one(whole)
    })
}

fn read_one(message: &[u8]) -> Option<Received> {
    let kind = u16_at(message, 4)?;
    let flags = u16_at(message, 6)?;
    let code = || {
        let code = u32_at(message, HEADER).unwrap_or(0);
        i32::from_ne_bytes(code.to_ne_bytes()).saturating_neg()
    };
    let answer = match kind {
        NLMSG_ERROR => Answer::Outcome(code()),
        NLMSG_DONE => Answer::Done(code().max(0)),
        // NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW.
        0x100 => message
            .get(HEADER + FAMILY_HEADER..)
            .and_then(flow)
            .map_or(Answer::Other, Answer::Flow),
        _ => Answer::Other,
    };
    Some(Received {
        sequence: u32_at(message, 8)?,
        interrupted: flags & NLM_F_DUMP_INTR != 0,
        answer,
    })
}

fn flow(body: &[u8]) -> Option<Flow> {
    let mut flow = Flow {
        addresses: Vec::with_capacity(4),
        name: Vec::new(),
    };
    for (kind, whole, value) in attributes(body) {
        match kind {
            CTA_TUPLE_ORIG | CTA_TUPLE_REPLY => {
                let ip = attributes(value).find(|(kind, ..)| *kind == CTA_TUPLE_IP);
                let addresses = ip.into_iter().flat_map(|(.., value)| attributes(value));
                flow.addresses
                    .extend(addresses.filter_map(|(.., value)| address(value)));
                if kind == CTA_TUPLE_ORIG {
                    flow.name.extend_from_slice(whole);
                }
            }
            CTA_ID | CTA_ZONE => flow.name.extend_from_slice(whole),
            _ => {}
        }
    }
    (!flow.name.is_empty() && !flow.addresses.is_empty()).then_some(flow)
}

fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(octets).into())
}

/// Returns the type of each attribute, all of it with its padding, and its value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE;
        let value = bytes.get(4..length)?;
        let padded = length.next_multiple_of(4);
        // The kernel pads each of these; a last one without padding cannot be handed back.
        let whole = bytes.get(..padded)?;
        bytes = bytes.get(padded..).unwrap_or_default();
        Some((kind, whole, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let (bytes, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let (bytes, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A tuple with nothing in it, or a filter without a bit, would forget every flow there is.
        #[test]
        fn a_request_names_an_address_and_asks_for_it(
            address in any::<Ipv4Addr>(),
            place in prop::sample::select(PLACES.to_vec()),
        ) {
            let mut bytes = Vec::new();
            delete_by_address(&mut bytes, 7, true, address, place);
            prop_assert_eq!(usize::try_from(u32_at(&bytes, 0).unwrap()).unwrap(), bytes.len());
            let body: Vec<_> = attributes(&bytes[HEADER + FAMILY_HEADER..]).collect();
            let [(tuple, _, inside), (CTA_FILTER, _, filter)] = body.as_slice() else {
                panic!("{body:?}");
            };
            let ip = attributes(inside).next().unwrap();
            let (end, _, octets) = attributes(ip.2).next().unwrap();
            prop_assert_eq!(super::address(octets), Some(address.into()));
            let (which, _, bits) = attributes(filter).next().unwrap();
            prop_assert_eq!(which, *tuple);
            prop_assert_eq!(u32_at(bits, 0), Some(2 - u32::from(end % 2)));
        }

        #[test]
        fn bytes_of_any_kind_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).count() <= bytes.len());
        }
    }

    #[test]
    fn a_flow_is_deleted_by_the_name_that_it_was_read_with() {
        let mut body = Vec::new();
        let ends = ["10.0.0.1", "10.0.0.2"];
        for (tuple, order) in [(CTA_TUPLE_ORIG, [0, 1]), (CTA_TUPLE_REPLY, [1, 0])] {
            nest(&mut body, tuple, |bytes| {
                nest(bytes, CTA_TUPLE_IP, |bytes| {
                    for (kind, which) in [1, 2].into_iter().zip(order) {
                        let address: Ipv4Addr = ends[which].parse().unwrap();
                        attribute_of(bytes, kind, &address.octets());
                    }
                });
            });
        }
        let original = body.len() / 2;
        attribute_of(&mut body, 3, &[0; 4]);
        let named = body.len();
        attribute_of(&mut body, CTA_ID, &[1, 2, 3, 4]);
        attribute_of(&mut body, CTA_ZONE, &[0, 7]);
        let mut datagram = Vec::new();
        message(&mut datagram, 0x100, 0, 9, 2, |bytes| {
            bytes.extend_from_slice(&body);
        });
        let received: Vec<_> = read(&datagram).collect();
        let [
            Received {
                sequence: 9,
                interrupted: false,
                answer: Answer::Flow(flow),
            },
        ] = received.as_slice()
        else {
            panic!("{received:?}");
        };
        assert_eq!(flow.name, [&body[..original], &body[named..]].concat());
        assert_eq!(flow.addresses.len(), 4);
        let mut request = Vec::new();
        delete_flow(&mut request, 10, false, flow);
        assert_eq!(request[HEADER + FAMILY_HEADER..], flow.name);
    }
}
