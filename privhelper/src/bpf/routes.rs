//! The BPF route maps: changing entries in batches, reading them back.
//!
//! One process writes the maps, this one.

use std::ops::Range;

use aya::Ebpf;
use ipc_proto::{BpfRoute, Observed, OpError};
use ipnet::IpNet;
use nix::errno::Errno;

use super::{BpfError, batch, layout, raw_map, sys::RawMap};
use crate::{dataplane::errno_number, links::Links, order::Outcomes};

/// How many entries one system call reads.
const READ: usize = 4096;

/// Both route maps.
#[derive(Debug)]
pub struct RouteMaps {
    v4: RawMap,
    v6: RawMap,
    size: u32,
    /// The keys of the next system call. Empty between two batches, and their room is kept.
    keys: Vec<u8>,
    /// The values that go with them; none if they are deleted.
    values: Vec<u8>,
}

impl RouteMaps {
    /// Takes the maps of an object that has room for `size` entries in each.
    pub(super) fn take(object: &mut Ebpf, size: u32) -> Result<Self, BpfError> {
        Ok(Self {
            v4: raw_map(object, ebpf::MAP_V4)?,
            v6: raw_map(object, ebpf::MAP_V6)?,
            size,
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Returns the size of each map in entries.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Carries out changes in order and tells what became of each.
    pub fn apply<'a>(
        &mut self,
        changes: impl Iterator<Item = (&'a IpNet, Option<&'a BpfRoute>)>,
        outcomes: &mut Outcomes,
    ) {
        let mut run = (false, false);
        for (prefix, route) in changes {
            let next = (matches!(prefix, IpNet::V6(_)), route.is_none());
            if run != next {
                self.apply_run(run, outcomes);
                run = next;
            }
            layout::push_key(&mut self.keys, prefix);
            if let Some(route) = route {
                layout::push_value(&mut self.values, prefix, route);
            }
        }
        self.apply_run(run, outcomes);
    }

    /// Carries out what is laid out: changes of one family, all sets or all deletions.
    fn apply_run(&mut self, (ipv6, deletes): (bool, bool), outcomes: &mut Outcomes) {
        let (trie, name) = self.map(ipv6);
        let (keys, values) = (&self.keys, &self.values);
        let results = batch::resume(keys.len() / trie.key_size(), |range| {
            let keys = part(keys, trie.key_size(), &range);
            if deletes {
                trie.delete(keys)
            } else {
                trie.update(keys, part(values, trie.value_size(), &range))
            }
        });
        let verb = if deletes {
            "BPF_MAP_DELETE_BATCH"
        } else {
            "BPF_MAP_UPDATE_BATCH"
        };
        outcomes.extend(results.into_iter().map(|result| match result {
            Err(Errno::ENOENT) if deletes => Ok(()),
            other => other.map_err(|errno| OpError::Kernel {
                call: format!("{verb} {name}"),
                errno: errno_number(errno),
            }),
        }));
        self.keys.clear();
        self.values.clear();
    }

    /// Returns the map of a family, and its name.
    fn map(&self, ipv6: bool) -> (&RawMap, &'static str) {
        if ipv6 {
            (&self.v6, ebpf::MAP_V6)
        } else {
            (&self.v4, ebpf::MAP_V4)
        }
    }

    /// Gives all entries of the map of a family to `sink`; more than once, where another program changes a
    /// map meanwhile.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn read(
        &self,
        ipv6: bool,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<(), BpfError> {
        let (trie, name) = self.map(ipv6);
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        read(trie, size, |key, value| {
            if let Some((prefix, route)) = layout::read_entry(key, value, links) {
                sink(Observed::BpfRoute(prefix, route));
            }
        })
        .map_err(|errno| BpfError::Read(name, errno))
    }
}

/// Walks a map of at most `size` entries.
fn read(trie: &RawMap, size: usize, mut entry: impl FnMut(&[u8], &[u8])) -> Result<(), Errno> {
    let mut keys = vec![0; trie.key_size() * READ];
    let mut values = vec![0; trie.value_size() * READ];
    let mut token = None;
    let mut seen = 0;
    loop {
        let (count, more) = trie.lookup(&mut token, &mut keys, &mut values)?;
        let keys = keys.chunks_exact(trie.key_size());
        let values = values.chunks_exact(trie.value_size());
        for (key, value) in keys.zip(values).take(count) {
            entry(key, value);
        }
        seen += count;
        if !more {
            return Ok(());
        }
        // A walk whose token another program deletes starts over; for ever, if it keeps doing so.
        if seen > size * 2 {
            return Err(Errno::EBUSY);
        }
    }
}

fn part<'a>(bytes: &'a [u8], size: usize, range: &Range<usize>) -> &'a [u8] {
    bytes
        .get(range.start * size..range.end * size)
        .unwrap_or_default()
}
