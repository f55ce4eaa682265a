//! The BPF object: the route maps and the packet programs.
//!
//! It is verified without `CAP_PERFMON`, that is with the stricter rules: loads at computed offsets
//! go through `bpf_skb_load_bytes`, and no struct is built on the stack by memset.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod programs {
    #![expect(
        unsafe_code,
        reason = "the licence section, and one pointer into a map value"
    )]

    use aya_ebpf::{
        bindings::TC_ACT_UNSPEC,
        macros::{classifier, map},
        maps::{LpmTrie, PerCpuArray, lpm_trie},
        programs::TcContext,
    };
    use ebpf::{DEFAULT_MAX_ENTRIES, Destination, MAP_FLAGS, Value};

    /// Offset of the Ethernet type in bytes.
    const ETHER_TYPE: usize = 12;
    /// Offset of an IPv4 packet's destination in bytes.
    const IPV4_DESTINATION: usize = 14 + 16;
    /// Offset of an IPv6 packet's destination in bytes.
    const IPV6_DESTINATION: usize = 14 + 24;

    #[map(name = "cali_v4_routes")]
    static ROUTES_V4: LpmTrie<[u8; 4], Value<4>> = LpmTrie::pinned(DEFAULT_MAX_ENTRIES, MAP_FLAGS);
    #[map(name = "cali_v6_routes")]
    static ROUTES_V6: LpmTrie<[u8; 16], Value<16>> =
        LpmTrie::pinned(DEFAULT_MAX_ENTRIES, MAP_FLAGS);
    #[map(name = "cairn_dests")]
    static DESTINATIONS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Destination::COUNT, 0);

    /// Counts each packet by what its destination is, and lets it pass.
    #[classifier]
    pub(crate) fn cairn_observe(ctx: TcContext) -> i32 {
        if let Some(destination) = destination(&ctx)
            && let Some(count) = DESTINATIONS.get_ptr_mut(destination as u32)
        {
            // SAFETY: the pointer is to this CPU's own counter, which lives as long as the program.
            unsafe { *count += 1 };
        }
        TC_ACT_UNSPEC
    }

    #[inline(always)]
    fn destination(ctx: &TcContext) -> Option<Destination> {
        match u16::from_be(ctx.load(ETHER_TYPE).ok()?) {
            0x0800 => Some(look_up(&ROUTES_V4, ctx.load(IPV4_DESTINATION).ok()?)),
            0x86dd => Some(look_up(&ROUTES_V6, ctx.load(IPV6_DESTINATION).ok()?)),
            _ => None,
        }
    }

    #[inline(always)]
    fn look_up<const N: usize>(
        routes: &LpmTrie<[u8; N], Value<N>>,
        address: [u8; N],
    ) -> Destination {
        match routes.get(&lpm_trie::Key::new(N as u32 * 8, address)) {
            Some(route) => Destination::of(route.flags),
            None => Destination::Unknown,
        }
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
