//! What the packet programs did with a packet, and why.

/// Why a packet went which way; each has a counter.
///
/// All but the first and the last are reasons why a packet of a workload was left to the stack.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It went straight to another workload.
    Redirected = 0,
    /// Its frame is not to the host alone, or has a VLAN tag.
    Frame = 1,
    /// It is not IP.
    NotIp = 2,
    /// It ends before its headers do.
    Truncated = 3,
    /// Its destination is not another workload of this node.
    Elsewhere = 4,
    /// Its source is not the workload that sent it.
    ForeignSource = 5,
    /// One of the two workloads takes no redirected packets.
    OptedOut = 6,
    /// The hardware addresses of one of the two workloads are not known.
    NoEndpoint = 7,
    /// It is a fragment, and only the stack can tell the flow of each.
    Fragment = 8,
    /// It has IPv4 options or IPv6 extension headers, which a router must heed.
    Options = 9,
    /// It is neither TCP nor UDP nor an echo. The other ICMP messages tell of flows that the stack
    /// may have translated.
    Protocol = 10,
    /// This router is its last, and the stack says so to the sender.
    Expired = 11,
    /// The other direction of its flow comes through the stack, which may have translated it.
    StackFlow = 12,
    /// The start of its TCP connection did not go straight, so that the stack may have translated it.
    StartUnseen = 13,
    /// It is larger than the MTU of the link that it goes to.
    TooLarge = 14,
    /// The kernel would not let it be changed.
    Refused = 15,
    /// The stack sent it to a workload.
    FromStack = 16,
}

impl Verdict {
    /// Each with its name, in the order of their numbers.
    pub const ALL: [(Self, &str); 17] = [
        (Self::Redirected, "redirected"),
        (Self::Frame, "frame"),
        (Self::NotIp, "not-ip"),
        (Self::Truncated, "truncated"),
        (Self::Elsewhere, "elsewhere"),
        (Self::ForeignSource, "foreign-source"),
        (Self::OptedOut, "opted-out"),
        (Self::NoEndpoint, "no-endpoint"),
        (Self::Fragment, "fragment"),
        (Self::Options, "options"),
        (Self::Protocol, "protocol"),
        (Self::Expired, "expired"),
        (Self::StackFlow, "stack-flow"),
        (Self::StartUnseen, "start-unseen"),
        (Self::TooLarge, "too-large"),
        (Self::Refused, "refused"),
        (Self::FromStack, "from-stack"),
    ];
    /// How many there are.
    pub const COUNT: u32 = 17;
}

#[expect(clippy::as_conversions, reason = "a constant of few elements")]
#[expect(clippy::cast_possible_truncation, reason = "as above")]
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const _: () = {
    assert!(Verdict::ALL.len() as u32 == Verdict::COUNT);
    let mut at = 0;
    while at < Verdict::ALL.len() {
        assert!(Verdict::ALL[at].0 as u32 == at as u32);
        at += 1;
    }
};
