//! What the packet programs have noted of flows: those that the stack must have, and connections
//! whose start went straight.
//!
//! The programs write the notes and the kernel forgets old ones; here they are only ever removed.

use std::{collections::BTreeSet, net::IpAddr};

use aya::Ebpf;
use nix::errno::Errno;

use super::{BpfError, batch, raw_map, sys::RawMap};

/// How many notes are read at a time. No bucket of the kernel's holds as many.
const CHUNK: usize = 4096;

/// See the [module](self).
#[derive(Debug)]
pub struct FlowNotes {
    v4: [RawMap; 2],
    v6: [RawMap; 2],
}

impl FlowNotes {
    pub(super) fn take(object: &mut Ebpf) -> Result<Self, BpfError> {
        let mut take = |name| raw_map(object, name);
        Ok(Self {
            v4: [take(ebpf::MAP_FLOWS_V4)?, take(ebpf::MAP_STARTS_V4)?],
            v6: [take(ebpf::MAP_FLOWS_V6)?, take(ebpf::MAP_STARTS_V6)?],
        })
    }

    /// Forgets what was noted of flows from or to these addresses.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn forget(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), Errno> {
        let mut v4: BTreeSet<[u8; 4]> = BTreeSet::new();
        let mut v6: BTreeSet<[u8; 16]> = BTreeSet::new();
        for address in addresses {
            match address {
                IpAddr::V4(address) => drop(v4.insert(address.octets())),
                IpAddr::V6(address) => drop(v6.insert(address.octets())),
            }
        }
        if !v4.is_empty() {
            self.v4.iter().try_for_each(|map| forget(map, &v4))?;
        }
        if !v6.is_empty() {
            self.v6.iter().try_for_each(|map| forget(map, &v6))?;
        }
        Ok(())
    }
}

/// Forgets the flows whose source or destination, the first two fields of a key, is one of these.
fn forget<const N: usize>(map: &RawMap, addresses: &BTreeSet<[u8; N]>) -> Result<(), Errno> {
    let mut keys = vec![0; CHUNK * map.key_size()];
    let mut values = vec![0; CHUNK * map.value_size()];
    let mut found = Vec::new();
    let mut token = None;
    loop {
        let (count, more) = map.lookup(&mut token, &mut keys, &mut values)?;
        for key in keys.chunks(map.key_size()).take(count) {
            let (ends, _) = key.as_chunks::<N>();
            if ends.iter().take(2).any(|end| addresses.contains(end)) {
                found.extend_from_slice(key);
            }
        }
        if !more {
            break;
        }
    }
    let size = map.key_size();
    let outcomes = batch::resume(found.len() / size, |range| {
        map.delete(
            found
                .get(range.start * size..range.end * size)
                .unwrap_or_default(),
        )
    });
    outcomes
        .into_iter()
        .find(|outcome| !matches!(outcome, Ok(()) | Err(Errno::ENOENT)))
        .unwrap_or(Ok(()))
}
