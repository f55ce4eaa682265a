//! The kernel's longest-prefix match over what the helper wrote, against a linear scan over what was
//! asked for: what a packet program is told of an address is the entry of the narrowest prefix.

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use aya::maps::{
    Map, MapData,
    lpm_trie::{Key, LpmTrie},
};
use ipc_proto::{BpfRoute, BpfTarget, Flags, Op};
use ipnet::IpNet;
use tests::helper::Helper;

use super::test;

/// A number from another, without any visible order (Knuth's multiplicative hash).
fn scatter(number: u32) -> u32 {
    number.wrapping_mul(2_654_435_761)
}

/// An address among few thousand, so that prefixes lie in each other.
fn address(ipv6: bool, number: u32) -> IpAddr {
    let low = scatter(number) >> 20;
    if ipv6 {
        IpAddr::V6(((0xfd00_u128 << 112) | (u128::from(low) << 40)).into())
    } else {
        IpAddr::V4(((10 << 24) | (low << 8)).into())
    }
}

/// Prefixes of any length, each with an entry like no other.
fn entries(ipv6: bool) -> BTreeMap<IpNet, BpfRoute> {
    let (longest, shortest) = if ipv6 { (128, 16) } else { (32, 8) };
    (0..2000_u32)
        .map(|number| {
            let span = u32::from(longest - shortest) + 1;
            let len = longest - u8::try_from(scatter(number ^ 0x55) % span).unwrap();
            let prefix = IpNet::new(address(ipv6, number), len).unwrap().trunc();
            let next_hop = if ipv6 {
                IpAddr::V6(((0x2001_0db8_u128 << 96) | u128::from(number + 1)).into())
            } else {
                IpAddr::V4(((172 << 24) + (16 << 16) + number + 1).into())
            };
            let route = BpfRoute {
                flags: Flags(ebpf::flags::WORKLOAD),
                target: BpfTarget::NextHop(next_hop),
            };
            (prefix, route)
        })
        .collect()
}

fn scan(entries: &BTreeMap<IpNet, BpfRoute>, address: IpAddr) -> Option<IpAddr> {
    let around = entries
        .iter()
        .filter(|(prefix, _)| prefix.contains(&address));
    let (_, route) = around.max_by_key(|(prefix, _)| prefix.prefix_len())?;
    match route.target {
        BpfTarget::NextHop(next_hop) => Some(next_hop),
        BpfTarget::None | BpfTarget::Link(_) => None,
    }
}

fn open<K: aya::Pod, V: aya::Pod>(name: &str) -> LpmTrie<MapData, K, V> {
    let pin = Path::new("/sys/fs/bpf/cairn").join(name);
    LpmTrie::try_from(Map::LpmTrie(MapData::from_pin(pin).unwrap())).unwrap()
}

#[test]
fn the_kernel_finds_the_entry_that_a_scan_finds() {
    test(
        "lookups::the_kernel_finds_the_entry_that_a_scan_finds",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            let (v4, v6) = (entries(false), entries(true));
            for entries in [&v4, &v6] {
                let set = |(prefix, route): (&IpNet, &BpfRoute)| {
                    Op::BpfRoute(*prefix, Some(route.clone()))
                };
                calc.must_apply(entries.iter().map(set)).await;
            }
            let (map_v4, map_v6) = (
                open::<[u8; 4], [u8; 8]>(ebpf::MAP_V4),
                open::<[u8; 16], [u8; 20]>(ebpf::MAP_V6),
            );
            let (mut found, mut missed) = (0, 0);
            for number in 0..4000 {
                for ipv6 in [false, true] {
                    let near = address(ipv6, number / 2);
                    let (asked, kernel) = match near {
                        IpAddr::V4(near) => {
                            // Half of them beside what has an entry, and some outside of all.
                            let asked = u32::from(near) + (number % 2) * scatter(number) % 7;
                            let asked = if number % 10 == 0 {
                                scatter(number)
                            } else {
                                asked
                            };
                            let value = map_v4.get(&Key::new(32, asked.to_be_bytes()), 0).ok();
                            let next_hop =
                                value.map(|value| <[u8; 4]>::try_from(&value[4..]).unwrap());
                            (IpAddr::V4(asked.into()), next_hop.map(IpAddr::from))
                        }
                        IpAddr::V6(near) => {
                            let asked = u128::from(near) + u128::from(number % 2 * scatter(number));
                            let value = map_v6.get(&Key::new(128, asked.to_be_bytes()), 0).ok();
                            let next_hop =
                                value.map(|value| <[u8; 16]>::try_from(&value[4..]).unwrap());
                            (IpAddr::V6(asked.into()), next_hop.map(IpAddr::from))
                        }
                    };
                    let entries = if ipv6 { &v6 } else { &v4 };
                    assert_eq!(kernel, scan(entries, asked), "{asked}");
                    *if kernel.is_some() {
                        &mut found
                    } else {
                        &mut missed
                    } += 1;
                }
            }
            assert!(
                found > 1000 && missed > 100,
                "{found} found, {missed} missed"
            );
        },
    );
}
