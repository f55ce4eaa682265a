//! One BPF route map with faults, and the helper in front of it, which notes what it is asked to do.

use std::collections::{BTreeMap, BTreeSet};

use ::calc::{Input, Output};
use ipc_proto::{Ack, Batch, BpfRoute, Incarnation, Lease, Observed, Op, OpError, Welcome};
use ipnet::IpNet;

use super::{bytes, event::MapFault, links::Links};
use crate::vectors::text::hex;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Kernel {
    entries: BTreeMap<IpNet, Entry>,
    max_entries: usize,
    /// Which writes fail.
    pub(super) fault: MapFault,
    /// The keys that the last reading showed, and what was written since.
    picture: BTreeSet<IpNet>,
    /// What happened since it was last taken.
    done: Done,
    leases: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    /// The key, perhaps with host bits.
    key: IpNet,
    bytes: Vec<u8>,
    /// What was asked for, unless somebody else made it.
    route: Option<BpfRoute>,
}

/// What the writer did.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) writes: Vec<Write>,
    /// How often it read the map.
    pub(super) reads: usize,
    /// Whether there was no room for the new entries beside the old.
    pub(super) crowded: bool,
    /// How many keys there were to its knowledge before the first write.
    pub(super) known: usize,
}

/// An attempt to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) key: IpNet,
    pub(super) change: Change,
    /// Absent in a delete.
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) outcome: Outcome,
    /// Whether the entry was so already.
    pub(super) needless: bool,
}

/// What a write does, to the writer's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Update,
    Insert,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Made,
    /// There was nothing to delete.
    Missing,
    Failed,
}

impl Kernel {
    pub(super) fn new(max_entries: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            max_entries,
            fault: MapFault::default(),
            picture: BTreeSet::new(),
            done: Done::default(),
            leases: 0,
        }
    }

    /// Somebody else writes an entry.
    pub(super) fn disturb(&mut self, key: IpNet, bytes: Vec<u8>) {
        let route = None;
        self.entries
            .insert(key.trunc(), Entry { key, bytes, route });
    }

    /// Somebody else removes an entry.
    pub(super) fn remove(&mut self, key: IpNet) {
        self.entries.remove(&key.trunc());
    }

    /// The entries' bytes, by their masked keys.
    pub(super) fn map(&self) -> BTreeMap<IpNet, Vec<u8>> {
        let entries = self.entries.iter();
        entries
            .map(|(key, entry)| (*key, entry.bytes.clone()))
            .collect()
    }

    /// The entries as the vectors write them.
    pub(super) fn lines(&self) -> Vec<String> {
        let entries = self.entries.values();
        let mut lines: Vec<String> = entries
            .map(|entry| format!("{} {}", hex(&bytes::key(&entry.key)), hex(&entry.bytes)))
            .collect();
        lines.sort();
        lines
    }

    /// Returns what was done since the last time.
    pub(super) fn take_done(&mut self) -> Done {
        let mut done = std::mem::take(&mut self.done);
        let inserts = done
            .writes
            .iter()
            .filter(|write| write.change == Change::Insert);
        done.crowded = done.known + inserts.count() > self.max_entries;
        done
    }

    /// Does what calc asks for.
    pub(super) fn serve(&mut self, request: Output, links: &Links) -> Option<Input> {
        match request {
            Output::Hello(_) => Some(self.read(links)),
            Output::Apply(batch) => Some(Input::Ack(self.apply(&batch, links))),
            Output::Notice(_) | Output::AddressClean(_) => None,
            Output::Follow(_) | Output::Recall => {
                panic!("each batch is answered at once: {request:?}")
            }
        }
    }

    fn read(&mut self, links: &Links) -> Input {
        self.done.reads += 1;
        self.leases += 1;
        self.picture = self.entries.keys().copied().collect();
        let observed = self.entries.iter().map(|(key, entry)| {
            let route = entry.route.clone();
            let read = route.or_else(|| bytes::read_value(&entry.bytes, links));
            // No request makes a key with host bits (V22).
            Observed::BpfRoute(*key, read.filter(|_| entry.key == *key))
        });
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(self.leases),
            max_steps: 2048,
            bpf_max_entries: u32::try_from(self.max_entries).unwrap(),
            feed: 0,
        };
        Input::Welcome(welcome, observed.collect())
    }

    fn apply(&mut self, batch: &Batch, links: &Links) -> Ack {
        assert_eq!(batch.lease, Lease(self.leases), "a stale lease");
        if self.done.writes.is_empty() {
            self.done.known = self.picture.len();
        }
        let mut failed = Vec::new();
        for (index, step) in (0..).zip(&batch.steps) {
            let Op::BpfRoute(key, route) = &step.op else {
                panic!("{:?} was never wanted", step.op);
            };
            let write = self.write(*key, route.clone(), links);
            if write.outcome == Outcome::Failed {
                let errno = if self.is_full(&write) { ENOSPC } else { EIO };
                let call = "bpf".to_owned();
                failed.push((index, OpError::Kernel { call, errno }));
            }
            self.done.writes.push(write);
        }
        let id = batch.id;
        Ack { id, failed }
    }

    fn write(&mut self, key: IpNet, route: Option<BpfRoute>, links: &Links) -> Write {
        let bytes = route.as_ref().map(|route| bytes::value(&key, route, links));
        let change = match (&bytes, self.picture.contains(&key)) {
            (None, _) => Change::Delete,
            (Some(_), true) => Change::Update,
            (Some(_), false) => Change::Insert,
        };
        let mut write = Write {
            key,
            change,
            bytes,
            outcome: Outcome::Made,
            needless: false,
        };
        // An entry under a key with host bits is not as it should be (V22).
        write.needless = match (self.entries.get(&key), &write.bytes) {
            (Some(entry), Some(bytes)) => entry.bytes == *bytes && entry.key == key,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if self.is_faulty(&write) || self.is_full(&write) {
            write.outcome = Outcome::Failed;
        } else if let Some(bytes) = write.bytes.clone() {
            self.picture.insert(key);
            self.entries.insert(key, Entry { key, bytes, route });
        } else {
            self.picture.remove(&key);
            if self.entries.remove(&key).is_none() {
                write.outcome = Outcome::Missing;
            }
        }
        write
    }

    fn is_faulty(&self, write: &Write) -> bool {
        let (all, keys) = if write.bytes.is_some() {
            (self.fault.all_updates, &self.fault.update_keys)
        } else {
            (self.fault.all_deletes, &self.fault.delete_keys)
        };
        all || keys.contains(&hex(&bytes::key(&write.key)))
    }

    fn is_full(&self, write: &Write) -> bool {
        write.bytes.is_some()
            && self.entries.len() >= self.max_entries
            && !self.entries.contains_key(&write.key)
    }
}
