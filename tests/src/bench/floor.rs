//! The raw kernel: the same keys and values in the same order, by bare batch system calls.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use aya::maps::MapData;
use ipc_proto::{BpfRoute, BpfTarget};
use ipnet::{IpNet, Ipv4Net};
use nix::errno::Errno;
use privhelper::bpf::RawMap;

use super::median;
use crate::netns::run;

/// How many entries one system call takes, as the helper has it.
const BATCH: usize = 4096;

/// The bytes of entries of the IPv4 map, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Entries {
    const SIZE: usize = 8;

    /// Lays routes out, on its own: not with the helper's code, which this is to check.
    ///
    /// # Panics
    ///
    /// If one is not of IPv4 or names an interface.
    #[must_use]
    pub fn of(routes: &BTreeMap<IpNet, BpfRoute>) -> Self {
        let mut entries = Self::default();
        for (prefix, route) in routes {
            let IpNet::V4(prefix) = prefix else {
                panic!("{prefix} is not IPv4")
            };
            let payload = match &route.target {
                BpfTarget::None => [0; 4],
                BpfTarget::NextHop(IpAddr::V4(next_hop)) => next_hop.octets(),
                BpfTarget::NextHop(IpAddr::V6(_)) | BpfTarget::Link(_) => panic!("{route:?}"),
            };
            entries.keys.extend(key(*prefix));
            entries.values.extend(route.flags.0.to_ne_bytes());
            entries.values.extend(payload);
        }
        entries
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len() / Self::SIZE
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Reads a map.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    #[must_use]
    pub fn read(pin: &Path) -> Self {
        let trie = RawMap::new(MapData::from_pin(pin).unwrap()).unwrap();
        let mut found = BTreeMap::new();
        let (mut keys, mut values) = (vec![0; 4096 * Self::SIZE], vec![0; 4096 * Self::SIZE]);
        let mut token = None;
        loop {
            let (count, more) = trie.lookup(&mut token, &mut keys, &mut values).unwrap();
            for (key, value) in keys
                .chunks(Self::SIZE)
                .zip(values.chunks(Self::SIZE))
                .take(count)
            {
                // In the order of prefixes: by address, then by length.
                let (length, address) = key.split_at(4);
                found.insert((address.to_vec(), length.to_vec()), value.to_vec());
            }
            if !more {
                break;
            }
        }
        let mut entries = Self::default();
        for ((address, length), value) in found {
            entries.keys.extend(length);
            entries.keys.extend(address);
            entries.values.extend(value);
        }
        entries
    }
}

/// Reads a map of `count` entries by batches as large as the helper's, and returns how long it took.
///
/// # Panics
///
/// If it cannot be read, or holds another number of entries.
#[must_use]
pub fn dump(pin: &Path, count: usize) -> Duration {
    let trie = RawMap::new(MapData::from_pin(pin).unwrap()).unwrap();
    let size = BATCH * Entries::SIZE;
    let (mut keys, mut values) = (vec![0; size], vec![0; size]);
    let mut token = None;
    let mut found = 0;
    let start = Instant::now();
    loop {
        let (some, more) = trie.lookup(&mut token, &mut keys, &mut values).unwrap();
        found += some;
        if !more {
            break;
        }
    }
    let took = start.elapsed();
    assert_eq!(found, count);
    took
}

fn key(prefix: Ipv4Net) -> impl Iterator<Item = u8> {
    let length = u32::from(prefix.prefix_len()).to_ne_bytes();
    length.into_iter().chain(prefix.addr().octets())
}

/// Puts the entries into new maps of their own, `runs` times, and returns the median time.
///
/// # Panics
///
/// If the kernel refuses.
#[must_use]
pub fn updates(entries: &Entries, runs: usize) -> Duration {
    let mut times: Vec<Duration> = (0..runs).map(|run| update_once(entries, run)).collect();
    times.sort_unstable();
    median(&times)
}

fn update_once(entries: &Entries, number: usize) -> Duration {
    let pin = Path::new("/sys/fs/bpf").join(format!("floor{number}"));
    let mut create = Command::new("bpftool");
    create.args(["map", "create"]).arg(&pin);
    let shape = "type lpm_trie key 8 value 8 entries 262144 flags 1 name floor";
    run(create.args(shape.split(' ')));
    let trie = RawMap::new(MapData::from_pin(&pin).unwrap()).unwrap();
    std::fs::remove_file(&pin).unwrap();
    let size = BATCH * Entries::SIZE;
    let start = Instant::now();
    for (keys, values) in entries.keys.chunks(size).zip(entries.values.chunks(size)) {
        while let Err(stopped) = trie.update(keys, values) {
            // What the kernel keeps at hand for its maps ran out, which it fills up by and by.
            assert_eq!(stopped.errno, Errno::ENOMEM);
        }
    }
    start.elapsed()
}
