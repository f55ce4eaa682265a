//! Reads the headers of a packet. It changes nothing.

use aya_ebpf::programs::TcContext;
use ebpf::Flow;

/// Where the IP header starts, in bytes.
pub(crate) const IP: usize = 14;

/// How many IPv6 extension headers are passed over; packets in use have one or two.
const EXTENSIONS: usize = 4;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Flags of TCP.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Where in its flow a packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The protocol does not tell.
    Any,
    /// It asks for a connection.
    Start,
    /// It is a later one of a connection.
    Later,
}

/// Which part of a fragmented packet this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// All of it.
    Whole,
    /// The first part, with the ports.
    First,
    /// Another part.
    Later,
}

/// What both versions of IP say.
pub(crate) struct Header<const N: usize> {
    pub(crate) source: [u8; N],
    pub(crate) destination: [u8; N],
    /// TTL or hop limit.
    pub(crate) hops_left: u8,
    pub(crate) fragment: Fragment,
    /// Whether there are IPv4 options or IPv6 extension headers.
    pub(crate) options: bool,
    /// The protocol above.
    pub(crate) protocol: u8,
    /// Where its header starts, in bytes.
    above: usize,
}

impl Header<4> {
    /// Reads an IPv4 header; none if it is cut off or malformed.
    #[inline(always)]
    pub(crate) fn read(ctx: &TcContext) -> Option<Self> {
        let bytes: [u8; 20] = ctx.load(IP).ok()?;
        let length = usize::from(bytes[0] & 0xf) * 4;
        if length < 20 {
            return None;
        }
        let place = u16::from_be_bytes([bytes[6], bytes[7]]);
        Some(Self {
            source: [bytes[12], bytes[13], bytes[14], bytes[15]],
            destination: [bytes[16], bytes[17], bytes[18], bytes[19]],
            hops_left: bytes[8],
            fragment: match (place & 0x1fff, place & 0x2000) {
                (0, 0) => Fragment::Whole,
                (0, _) => Fragment::First,
                _ => Fragment::Later,
            },
            options: length != 20,
            protocol: bytes[9],
            above: IP + length,
        })
    }
}

impl Header<16> {
    /// Reads an IPv6 header and those that extend it; none if they are cut off or too many.
    #[inline(always)]
    pub(crate) fn read(ctx: &TcContext) -> Option<Self> {
        let [first, source, destination]: [[u8; 16]; 3] = {
            // The first has the fixed fields in its latter half; before them is the Ethernet header.
            ctx.load(IP - 8).ok()?
        };
        let mut header = Self {
            source,
            destination,
            hops_left: first[15],
            fragment: Fragment::Whole,
            options: false,
            protocol: first[14],
            above: IP + 40,
        };
        for _ in 0..EXTENSIONS {
            let length = match header.protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => {
                    let [next, eights]: [u8; 2] = ctx.load(header.above).ok()?;
                    header.protocol = next;
                    usize::from(eights) * 8 + 8
                }
                44 => {
                    let [next, _, high, low]: [u8; 4] = ctx.load(header.above).ok()?;
                    header.protocol = next;
                    header.fragment = if u16::from_be_bytes([high, low]) & 0xfff8 == 0 {
                        Fragment::First
                    } else {
                        Fragment::Later
                    };
                    8
                }
                _ => return Some(header),
            };
            header.options = true;
            header.above += length;
        }
        None
    }
}

impl<const N: usize> Header<N> {
    /// Returns the flow and where in it the packet is; none if the protocol is one whose flows are
    /// not told apart here.
    #[inline(always)]
    pub(crate) fn flow(&self, ctx: &TcContext) -> Option<(Flow<N>, Phase)> {
        let mut phase = Phase::Any;
        let ports = match self.protocol {
            TCP => {
                // Ports, sequence numbers, length of the header, flags.
                let [ports, _, _, last]: [[u8; 4]; 4] = ctx.load(self.above).ok()?;
                phase = if last[1] & (SYN | ACK) == SYN {
                    Phase::Start
                } else {
                    Phase::Later
                };
                two(ports)
            }
            UDP => two(ctx.load(self.above).ok()?),
            ICMP | ICMPV6 => {
                let [first, second]: [[u8; 4]; 2] = ctx.load(self.above).ok()?;
                let (protocol, kinds) = if N == 4 {
                    (ICMP, (8, 0))
                } else {
                    (ICMPV6, (128, 129))
                };
                let kind = first[0];
                if self.protocol != protocol || (kind != kinds.0 && kind != kinds.1) {
                    return None;
                }
                let [identifier, _] = two(second);
                [identifier; 2]
            }
            _ => return None,
        };
        let flow = Flow {
            source: self.source,
            destination: self.destination,
            ports,
            protocol: u32::from(self.protocol),
        };
        Some((flow, phase))
    }
}

#[inline(always)]
fn two([a, b, c, d]: [u8; 4]) -> [u16; 2] {
    [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
}
