//! The programs on the host's ends of workloads' links.
//!
//! A packet from one workload of this node to another goes straight to it, with the next hardware
//! addresses and one hop less; any other is left to the stack, unchanged. A flow of which one
//! direction comes through the stack is answered through the stack, which may have translated it.
//! A TCP connection goes straight only if its start did, so that neither one that is older than the
//! programs nor one that the maps have forgotten loses its translation.
#![expect(
    unsafe_code,
    reason = "the licence section, fields of the context, helpers and pointers into map values"
)]

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::{bpf_check_mtu, bpf_redirect_peer, bpf_skb_store_bytes},
    macros::{classifier, map},
    maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray, lpm_trie},
    programs::TcContext,
};
use ebpf::{
    DEFAULT_MAX_ENTRIES, Endpoint, Flow, MAP_FLAGS, MAX_ENDPOINTS, MAX_FLOWS, Value, Verdict, flags,
};

use crate::packet::{Fragment, Header, IP, Phase};

/// `PACKET_HOST`: the frame is to the interface's own address.
const PACKET_HOST: u32 = 0;
/// `BPF_MTU_CHK_SEGS`: of what is to be segmented, the segments count.
const SEGMENTS: u64 = 1;
/// Offset of the TTL in bytes.
const TTL: usize = IP + 8;
/// Offset of the IPv4 header's checksum in bytes.
const CHECKSUM: usize = IP + 10;
/// Offset of the hop limit in bytes.
const HOP_LIMIT: usize = IP + 7;

#[map(name = "cali_v4_routes")]
static ROUTES_V4: LpmTrie<[u8; 4], Value<4>> = LpmTrie::pinned(DEFAULT_MAX_ENTRIES, MAP_FLAGS);
#[map(name = "cali_v6_routes")]
static ROUTES_V6: LpmTrie<[u8; 16], Value<16>> = LpmTrie::pinned(DEFAULT_MAX_ENTRIES, MAP_FLAGS);
#[map(name = "cairn_v4_flows")]
static FLOWS_V4: LruHashMap<Flow<4>, u8> = LruHashMap::pinned(MAX_FLOWS, 0);
#[map(name = "cairn_v6_flows")]
static FLOWS_V6: LruHashMap<Flow<16>, u8> = LruHashMap::pinned(MAX_FLOWS, 0);
#[map(name = "cairn_v4_starts")]
static STARTS_V4: LruHashMap<Flow<4>, u8> = LruHashMap::pinned(MAX_FLOWS, 0);
#[map(name = "cairn_v6_starts")]
static STARTS_V6: LruHashMap<Flow<16>, u8> = LruHashMap::pinned(MAX_FLOWS, 0);
#[map(name = "cairn_endpoints")]
static ENDPOINTS: HashMap<u32, Endpoint> = HashMap::pinned(MAX_ENDPOINTS, MAP_FLAGS);
#[map(name = "cairn_verdicts")]
static VERDICTS: PerCpuArray<u64> = PerCpuArray::pinned(Verdict::COUNT, 0);

/// The maps of one family.
struct Family<const N: usize> {
    routes: &'static LpmTrie<[u8; N], Value<N>>,
    flows: &'static LruHashMap<Flow<N>, u8>,
    starts: &'static LruHashMap<Flow<N>, u8>,
}

const V4: Family<4> = Family {
    routes: &ROUTES_V4,
    flows: &FLOWS_V4,
    starts: &STARTS_V4,
};
const V6: Family<16> = Family {
    routes: &ROUTES_V6,
    flows: &FLOWS_V6,
    starts: &STARTS_V6,
};

/// What a workload sends.
#[classifier]
pub(crate) fn cairn_from_workload(ctx: TcContext) -> i32 {
    match from_workload(&ctx) {
        Ok(action) => {
            count(Verdict::Redirected);
            action
        }
        Err(verdict) => {
            count(verdict);
            // Programs of others, and then the stack, have their turn.
            TC_ACT_UNSPEC
        }
    }
}

/// What the stack sends to a workload.
#[classifier]
pub(crate) fn cairn_to_workload(ctx: TcContext) -> i32 {
    count(Verdict::FromStack);
    match ether_type(&ctx) {
        0x0800 => V4.note(&ctx, Header::<4>::read(&ctx)),
        0x86dd => V6.note(&ctx, Header::<16>::read(&ctx)),
        _ => {}
    }
    TC_ACT_UNSPEC
}

#[inline(always)]
fn from_workload(ctx: &TcContext) -> Result<i32, Verdict> {
    let skb = skb(ctx);
    if skb.pkt_type != PACKET_HOST || skb.vlan_present != 0 {
        return Err(Verdict::Frame);
    }
    match ether_type(ctx) {
        0x0800 => V4.forward(ctx, Header::<4>::read(ctx)),
        0x86dd => V6.forward(ctx, Header::<16>::read(ctx)),
        _ => Err(Verdict::NotIp),
    }
}

impl<const N: usize> Family<N> {
    /// Sends a packet to the workload that it is for, or says why that is left to the stack.
    #[inline(always)]
    fn forward(&self, ctx: &TcContext, header: Option<Header<N>>) -> Result<i32, Verdict> {
        let header = header.ok_or(Verdict::Truncated)?;
        let own = skb(ctx).ifindex;
        let (to, to_flags) = self
            .workload(&header.destination)
            .filter(|(index, _)| *index != own)
            .ok_or(Verdict::Elsewhere)?;
        let (_, from_flags) = self
            .workload(&header.source)
            .filter(|(index, _)| *index == own)
            .ok_or(Verdict::ForeignSource)?;
        if (to_flags | from_flags) & flags::SKIP_INGRESS_REDIRECT != 0 {
            return Err(Verdict::OptedOut);
        }
        if header.fragment != Fragment::Whole {
            return Err(Verdict::Fragment);
        }
        if header.options {
            return Err(Verdict::Options);
        }
        if header.hops_left <= 1 {
            return Err(Verdict::Expired);
        }
        let (flow, phase) = header.flow(ctx).ok_or(Verdict::Protocol)?;
        let endpoint = ENDPOINTS.get_ptr(to).ok_or(Verdict::NoEndpoint)?;
        // The answers must be able to take the same way.
        ENDPOINTS.get_ptr(own).ok_or(Verdict::NoEndpoint)?;
        if !fits(ctx, to) {
            return Err(Verdict::TooLarge);
        }
        self.may_go_straight(&flow, phase)?;
        // Nothing is changed before here. If the first change is made, so are the others: it has
        // made the packet's start this program's own.
        if N == 4 {
            let word = |hops| u64::from(u16::from_ne_bytes([hops, header.protocol]));
            let (before, after) = (word(header.hops_left), word(header.hops_left - 1));
            ctx.l3_csum_replace(CHECKSUM, before, after, 2)
                .map_err(|_| Verdict::Refused)?;
        }
        let (at, sums) = if N == 4 {
            (TTL, 0)
        } else {
            // In IPv4 the two changes cancel out.
            (HOP_LIMIT, u64::from(BPF_F_RECOMPUTE_CSUM))
        };
        if ctx.store(at, &(header.hops_left - 1), sums).is_err() {
            return if N == 4 {
                Ok(TC_ACT_SHOT)
            } else {
                Err(Verdict::Refused)
            };
        }
        // SAFETY: an endpoint is as many bytes; the pointer is to a map value, which stays readable
        // while the program runs.
        let stored = unsafe {
            bpf_skb_store_bytes(
                skb_ptr(ctx).cast(),
                0,
                endpoint.cast(),
                size_of::<Endpoint>() as u32,
                0,
            )
        };
        if stored != 0 {
            return Ok(TC_ACT_SHOT);
        }
        // SAFETY: it takes two numbers.
        Ok(unsafe { bpf_redirect_peer(to, 0) } as i32)
    }

    /// Remembers that the answers to a packet go through the stack, if they might go another way.
    #[inline(always)]
    fn note(&self, ctx: &TcContext, header: Option<Header<N>>) {
        let Some(header) = header else { return };
        if header.fragment == Fragment::Later || self.workload(&header.source).is_none() {
            return;
        }
        let Some((flow, _)) = header.flow(ctx) else {
            return;
        };
        let answer = reversed(&flow);
        // Looking it up keeps it from being forgotten, and is cheaper than writing it again.
        if !knows(self.flows, &answer) {
            // A full map forgets another flow, so this does not fail but for want of memory.
            let _full = self.flows.insert(answer, 0, 0);
        }
    }

    /// Says why the stack must have a packet of this flow, if it must.
    #[inline(always)]
    fn may_go_straight(&self, flow: &Flow<N>, phase: Phase) -> Result<(), Verdict> {
        if knows(self.flows, flow) {
            return Err(Verdict::StackFlow);
        }
        if phase == Phase::Later {
            let started = knows(self.starts, flow);
            return if started {
                Ok(())
            } else {
                Err(Verdict::StartUnseen)
            };
        }
        let answer = reversed(flow);
        if knows(self.flows, &answer) {
            // The same ports are in use by a flow that the stack translates: only the stack can
            // tell the answers apart.
            return Err(Verdict::StackFlow);
        }
        if phase == Phase::Start {
            let note = |flow| self.starts.insert(flow, 0, 0);
            note(answer).map_err(|_| Verdict::Refused)?;
            note(*flow).map_err(|_| Verdict::Refused)?;
        }
        Ok(())
    }

    /// Returns the link of the workload of this node that has the address, and its route's flags.
    #[inline(always)]
    fn workload(&self, address: &[u8; N]) -> Option<(u32, u32)> {
        const WANTED: u32 = flags::LOCAL | flags::WORKLOAD;
        if is_special(address) {
            return None;
        }
        let key = lpm_trie::Key::new(N as u32 * 8, *address);
        let route = self.routes.get(&key)?;
        let flags = route.flags;
        let [a, b, c, d, ..] = route.payload.as_slice() else {
            return None;
        };
        let index = u32::from_ne_bytes([*a, *b, *c, *d]);
        let is_workload = flags & (WANTED | flags::HOST) == WANTED;
        (is_workload && index != 0).then_some((index, flags))
    }
}

/// Returns whether a map has a flow, which keeps it from being forgotten.
#[inline(always)]
fn knows<const N: usize>(map: &LruHashMap<Flow<N>, u8>, flow: &Flow<N>) -> bool {
    map.get_ptr(flow).is_some()
}

#[inline(always)]
fn reversed<const N: usize>(flow: &Flow<N>) -> Flow<N> {
    let [from, to] = flow.ports;
    Flow {
        source: flow.destination,
        destination: flow.source,
        ports: [to, from],
        protocol: flow.protocol,
    }
}

/// Link-local, multicast or broadcast.
#[inline(always)]
fn is_special(address: &[u8]) -> bool {
    let [a, b, ..] = address else { return true };
    if address.len() == 4 {
        *a >= 224 || (*a == 169 && *b == 254)
    } else {
        *a == 0xff || (*a == 0xfe && *b & 0xc0 == 0x80)
    }
}

/// Whether the packet, or each segment of it, may go out of the interface.
#[inline(always)]
fn fits(ctx: &TcContext, index: u32) -> bool {
    let mut mtu = 0_u32;
    // SAFETY: the pointers are to this program's context and stack.
    let result = unsafe { bpf_check_mtu(ctx.as_ptr(), index, &mut mtu, 0, SEGMENTS) };
    result == 0
}

#[inline(always)]
fn ether_type(ctx: &TcContext) -> u32 {
    u32::from(u16::from_be(skb(ctx).protocol as u16))
}

#[inline(always)]
fn skb_ptr(ctx: &TcContext) -> *mut __sk_buff {
    ctx.skb.skb
}

#[inline(always)]
fn skb(ctx: &TcContext) -> &__sk_buff {
    // SAFETY: the kernel gives a valid context, which lives as long as the program runs.
    unsafe { &*skb_ptr(ctx) }
}

#[inline(always)]
fn count(verdict: Verdict) {
    if let Some(count) = VERDICTS.get_ptr_mut(verdict as u32) {
        // SAFETY: the pointer is to this CPU's own counter, which lives as long as the program.
        unsafe { *count += 1 };
    }
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
