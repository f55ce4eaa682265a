//! Tracked connections by the thousand: made, counted and forgotten by raw ctnetlink, with nothing of
//! the helper's code.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

/// How many connections go into one system call.
const BATCH: usize = 256;
const GET: u16 = 0x101;
const NEW: u16 = 0x100;
const DELETE: u16 = 0x102;
const NESTED: u16 = 1 << 15;

/// A UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Source and destination, as the first packet has them.
    pub original: [IpAddr; 2],
    /// Source and destination, as the answers have them.
    pub reply: [IpAddr; 2],
    /// The ports of the first packet; answers have them the other way round.
    pub ports: [u16; 2],
    /// The zone, 0 without one.
    pub zone: u16,
}

impl Flow {
    /// Returns a flow that nothing translates.
    #[must_use]
    pub fn plain(source: IpAddr, destination: IpAddr, port: u16) -> Self {
        Self {
            original: [source, destination],
            reply: [destination, source],
            ports: [port, 53],
            zone: 0,
        }
    }

    /// Returns whether it has one of these in any of its four places.
    #[must_use]
    pub fn has(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        let mut ends = self.original.iter().chain(&self.reply);
        ends.any(|end| addresses.contains(end))
    }

    fn attributes(&self, bytes: &mut Vec<u8>) {
        let [from, to] = self.ports;
        tuple(bytes, 1, self.original, [from, to]);
        tuple(bytes, 2, self.reply, [to, from]);
        if self.zone != 0 {
            attribute(bytes, 18, &self.zone.to_be_bytes());
        }
    }
}

/// Returns `count` flows between addresses of 10.9.0.0/16 that differ.
///
/// # Panics
///
/// If there are not as many.
pub fn many(count: u32) -> impl Iterator<Item = Flow> {
    (0..count).map(|number| {
        let client = Ipv4Addr::from((10 << 24) + (9 << 16) + number % 60_000);
        let server = Ipv4Addr::new(192, 0, 2, 53);
        let port = 1024 + u16::try_from(number / 60_000).unwrap();
        Flow::plain(client.into(), server.into(), port)
    })
}

/// Has the kernel track flows.
///
/// # Panics
///
/// If it refuses one.
pub fn track(flows: impl IntoIterator<Item = Flow>) {
    let socket = open();
    let mut flows = flows.into_iter().peekable();
    while flows.peek().is_some() {
        let mut bytes = Vec::new();
        let batch: Vec<Flow> = flows.by_ref().take(BATCH).collect();
        for (nth, flow) in batch.iter().enumerate() {
            let ack = if nth + 1 == batch.len() { 4 } else { 0 };
            message(&mut bytes, NEW, 0x601 | ack, flow.original[0], |bytes| {
                flow.attributes(bytes);
                attribute(bytes, 7, &600_u32.to_be_bytes());
            });
        }
        assert_eq!(socket.send(&bytes, 0).unwrap(), bytes.len());
        let (answer, _) = socket.recv_from_full().unwrap();
        let code = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
        assert_eq!(code, 0, "{batch:?}");
    }
}

/// Returns all flows that the kernel tracks in this namespace, of both families and all zones.
///
/// # Panics
///
/// If it does not tell.
#[must_use]
pub fn tracked() -> BTreeSet<Flow> {
    let mut found = BTreeSet::new();
    dump(|flow, _| found.extend([flow]));
    found
}

/// Forgets flows that have one of these addresses as fast as it can be done: one dump, and a deletion
/// of each. This is what the helper is measured beside.
///
/// # Panics
///
/// If the kernel refuses.
pub fn forget(addresses: &BTreeSet<IpAddr>) {
    let mut found = Vec::new();
    dump(|flow, name| {
        if flow.has(addresses) {
            found.push((flow, name));
        }
    });
    let socket = open();
    for batch in found.chunks(BATCH) {
        let mut bytes = Vec::new();
        for (nth, (flow, name)) in batch.iter().enumerate() {
            let ack = if nth + 1 == batch.len() { 4 } else { 0 };
            message(&mut bytes, DELETE, 1 | ack, flow.original[0], |bytes| {
                bytes.extend_from_slice(name);
            });
        }
        assert_eq!(socket.send(&bytes, 0).unwrap(), bytes.len());
        let (answer, _) = socket.recv_from_full().unwrap();
        assert_eq!(answer[16..20], [0; 4]);
    }
}

/// Hands on each flow, with the attributes that name it.
fn dump(mut each: impl FnMut(Flow, Vec<u8>)) {
    let socket = open();
    let mut bytes = Vec::new();
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    message(&mut bytes, GET, 0x301, any, |_| {});
    // The family: all of them.
    bytes[16] = 0;
    assert_eq!(socket.send(&bytes, 0).unwrap(), bytes.len());
    loop {
        let (datagram, _) = socket.recv_from_full().unwrap();
        let mut rest = datagram.as_slice();
        while rest.len() >= 16 {
            let length =
                usize::try_from(u32::from_ne_bytes(rest[..4].try_into().unwrap())).unwrap();
            match u16::from_ne_bytes([rest[4], rest[5]]) {
                NEW => {
                    let (flow, name) = read(&rest[20..length]);
                    each(flow, name);
                }
                3 => return,
                kind => panic!("message {kind}"),
            }
            rest = &rest[length.next_multiple_of(4)..];
        }
    }
}

fn read(body: &[u8]) -> (Flow, Vec<u8>) {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut flow = Flow::plain(any, any, 0);
    let mut name = Vec::new();
    for (kind, whole, value) in attributes(body) {
        match kind {
            1 | 2 => {
                let (mut ends, mut ports) = (Vec::new(), Vec::new());
                for (kind, _, value) in attributes(value) {
                    match kind {
                        1 => ends.extend(attributes(value).map(|(_, _, value)| address(value))),
                        2 => ports.extend(
                            attributes(value)
                                .filter(|(kind, ..)| matches!(kind, 2 | 3))
                                .map(|(_, _, value)| u16::from_be_bytes([value[0], value[1]])),
                        ),
                        _ => {}
                    }
                }
                let ends = [ends[0], ends[1]];
                if kind == 1 {
                    flow.original = ends;
                    if let [from, to] = ports[..] {
                        flow.ports = [from, to];
                    }
                    name.extend_from_slice(whole);
                } else {
                    flow.reply = ends;
                }
            }
            12 => name.extend_from_slice(whole),
            18 => {
                flow.zone = u16::from_be_bytes([value[0], value[1]]);
                name.extend_from_slice(whole);
            }
            _ => {}
        }
    }
    (flow, name)
}

fn address(value: &[u8]) -> IpAddr {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).unwrap().into(),
        _ => <[u8; 16]>::try_from(value).unwrap().into(),
    }
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & 0x3fff;
        let (whole, rest) = bytes.split_at(length.next_multiple_of(4));
        bytes = rest;
        Some((kind, whole, &whole[4..length]))
    })
}

fn open() -> Socket {
    let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    socket
}

fn message(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    address: IpAddr,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([if address.is_ipv6() { 10 } else { 2 }, 0, 0, 0]);
    body(bytes);
    let length = u32::try_from(bytes.len() - start).unwrap();
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn tuple(bytes: &mut Vec<u8>, kind: u16, ends: [IpAddr; 2], ports: [u16; 2]) {
    let mut ip = Vec::new();
    for (nth, end) in (0..).zip(ends) {
        match end {
            IpAddr::V4(end) => attribute(&mut ip, 1 + nth, &end.octets()),
            IpAddr::V6(end) => attribute(&mut ip, 3 + nth, &end.octets()),
        }
    }
    let mut protocol = Vec::new();
    attribute(&mut protocol, 1, &[17]);
    attribute(&mut protocol, 2, &ports[0].to_be_bytes());
    attribute(&mut protocol, 3, &ports[1].to_be_bytes());
    let mut both = Vec::new();
    attribute(&mut both, 1 | NESTED, &ip);
    attribute(&mut both, 2 | NESTED, &protocol);
    attribute(bytes, kind | NESTED, &both);
}
