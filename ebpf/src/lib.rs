//! The layout of the BPF maps: the route maps, byte-compatible with Calico's `cali_v4_routes` and
//! `cali_v6_routes`, and those that are ours alone.
//!
//! Plain data, shared by the packet programs and the user space; it never does I/O. `N` is the
//! address length in bytes: 4 for IPv4, 16 for IPv6. The `u32` fields are in host byte order, the
//! addresses in network byte order.
#![no_std]

mod verdict;

pub use self::verdict::Verdict;

/// The name of the IPv4 map: kernel object name and pin file name.
pub const MAP_V4: &str = "cali_v4_routes";
/// The name of the IPv6 map: kernel object name and pin file name.
pub const MAP_V6: &str = "cali_v6_routes";
/// The default size of both maps, in entries (Felix's `bpfMapSizeRoute`).
pub const DEFAULT_MAX_ENTRIES: u32 = 256 * 1024;
/// `BPF_F_NO_PREALLOC`, which the kernel demands of an LPM trie.
pub const MAP_FLAGS: u32 = 1;
/// `BPF_MAP_TYPE_LPM_TRIE`.
pub const MAP_TYPE: u32 = 11;

/// Bits of [`Value::flags`]; names and numbers are Calico's.
pub mod flags {
    /// The address lies in an IP pool.
    pub const IN_POOL: u32 = 0x001;
    /// Outgoing NAT applies to packets from it.
    pub const NAT_OUT: u32 = 0x002;
    /// A workload; on the node at the next hop, or here with [`LOCAL`].
    pub const WORKLOAD: u32 = 0x004;
    /// On this node.
    pub const LOCAL: u32 = 0x008;
    /// A node.
    pub const HOST: u32 = 0x010;
    /// Reached without a tunnel although the pool is [`TUNNELED`].
    pub const SAME_SUBNET: u32 = 0x020;
    /// Encapsulate to the next hop.
    pub const TUNNELED: u32 = 0x040;
    /// Replies to this client return through the tunnel.
    pub const NO_DSR: u32 = 0x080;
    /// Drop packets that no service took.
    pub const BLACKHOLE_DROP: u32 = 0x100;
    /// Reject packets that no service took.
    pub const BLACKHOLE_REJECT: u32 = 0x200;
    /// The tunnel is VXLAN.
    pub const VXLAN: u32 = 0x400;
    /// No shortcut into this workload.
    pub const SKIP_INGRESS_REDIRECT: u32 = 0x800;

    /// Every bit with its name, lowest first.
    pub const ALL: [(u32, &str); 12] = [
        (IN_POOL, "in-pool"),
        (NAT_OUT, "nat-out"),
        (WORKLOAD, "workload"),
        (LOCAL, "local"),
        (HOST, "host"),
        (SAME_SUBNET, "same-subnet"),
        (TUNNELED, "tunneled"),
        (NO_DSR, "no-dsr"),
        (BLACKHOLE_DROP, "blackhole-drop"),
        (BLACKHOLE_REJECT, "blackhole-reject"),
        (VXLAN, "vxlan"),
        (SKIP_INGRESS_REDIRECT, "skip-ingress-redirect"),
    ];
}

/// The key of an entry, as the kernel's LPM trie wants it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<const N: usize> {
    /// The length of the prefix in bits.
    pub prefix_len: u32,
    /// The masked address.
    pub address: [u8; N],
}

/// The value of an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<const N: usize> {
    /// See [`flags`].
    pub flags: u32,
    /// Zero, or a next hop, or an interface index as `u32` followed by zeros. The flags tell:
    /// [`flags::LOCAL`] with [`flags::WORKLOAD`] means the index.
    pub payload: [u8; N],
}

const _: () = {
    assert!(size_of::<Key<4>>() == 8 && size_of::<Value<4>>() == 8);
    assert!(size_of::<Key<16>>() == 20 && size_of::<Value<16>>() == 20);
    assert!(core::mem::offset_of!(Key<16>, address) == 4);
    assert!(core::mem::offset_of!(Value<16>, payload) == 4);
    assert!(align_of::<Value<16>>() == 4);
};

/// The name of the IPv4 map of flows that go through the stack, since those of the other direction
/// come through it.
pub const MAP_FLOWS_V4: &str = "cairn_v4_flows";
/// The name of the IPv6 map of such flows.
pub const MAP_FLOWS_V6: &str = "cairn_v6_flows";
/// The name of the IPv4 map of TCP connections, by both directions, whose start went straight. A
/// map of its own: many starts must not have the other forget who is translated.
pub const MAP_STARTS_V4: &str = "cairn_v4_starts";
/// The name of the IPv6 map of such connections.
pub const MAP_STARTS_V6: &str = "cairn_v6_starts";
/// How many flows each of these maps remembers; it forgets those that are unused for longest.
pub const MAX_FLOWS: u32 = 65536;
/// The name of the map of [`Endpoint`]s by the index of the host's end.
pub const MAP_ENDPOINTS: &str = "cairn_endpoints";
/// How many endpoints there can be.
pub const MAX_ENDPOINTS: u32 = 16384;
/// The name of the per-CPU array of counters, one `u64` for each [`Verdict`].
pub const MAP_VERDICTS: &str = "cairn_verdicts";

/// The name of the program for what a workload sends: the ingress of the host's end of its link.
pub const PROGRAM_FROM_WORKLOAD: &str = "cairn_from_workload";
/// The name of the program for what the stack sends to a workload: the egress of the host's end.
pub const PROGRAM_TO_WORKLOAD: &str = "cairn_to_workload";

/// What the programs know of a workload's link, laid out as the start of a frame to the workload.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The hardware address of the workload's end.
    pub workload_mac: [u8; 6],
    /// The hardware address of the host's end.
    pub host_mac: [u8; 6],
}

/// A flow in one direction, as its packets have it on a workload's link.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<const N: usize> {
    /// Where it comes from.
    pub source: [u8; N],
    /// Where it goes to.
    pub destination: [u8; N],
    /// The ports as in the packet, in network byte order; for an echo, its identifier twice.
    pub ports: [u16; 2],
    /// The protocol above IP. Four bytes, so that there are none between the fields.
    pub protocol: u32,
}

const _: () = {
    assert!(size_of::<Endpoint>() == 12);
    assert!(size_of::<Flow<4>>() == 16 && size_of::<Flow<16>>() == 40);
};
