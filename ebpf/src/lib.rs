//! The layout of the BPF route maps, byte-compatible with Calico's `cali_v4_routes` and
//! `cali_v6_routes`.
//!
//! Plain data, shared by the packet programs and the user space; it never does I/O. `N` is the
//! address length in bytes: 4 for IPv4, 16 for IPv6. The `u32` fields are in host byte order, the
//! addresses in network byte order.
#![no_std]

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

/// The name of the per-CPU array of counters, one `u64` for each [`Destination`].
pub const MAP_DESTINATIONS: &str = "cairn_dests";
/// The name of the program that counts.
pub const PROGRAM_OBSERVE: &str = "cairn_observe";

/// What a packet's destination is, by its route.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// No route: the kernel's routing decides.
    Unknown = 0,
    /// A workload of this node.
    LocalWorkload = 1,
    /// A workload of another node.
    RemoteWorkload = 2,
    /// This node.
    LocalHost = 3,
    /// Another node.
    RemoteHost = 4,
    /// Something else that has a route, such as an unused address of a pool.
    Other = 5,
}

impl Destination {
    /// How many there are.
    pub const COUNT: u32 = 6;

    /// Tells by the flags of the route; a workload on a host's address is a workload.
    #[must_use]
    pub const fn of(route: u32) -> Self {
        let local = route & flags::LOCAL != 0;
        match (route & flags::WORKLOAD != 0, route & flags::HOST != 0) {
            (true, _) if local => Self::LocalWorkload,
            (true, _) => Self::RemoteWorkload,
            (false, true) if local => Self::LocalHost,
            (false, true) => Self::RemoteHost,
            (false, false) => Self::Other,
        }
    }
}
