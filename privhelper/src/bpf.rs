//! The BPF route maps: opening their pins, changing entries in batches, reading them back.
//!
//! A pin of another shape is never used and never removed. One process writes the maps, this one.

mod batch;
mod layout;
mod sys;

use std::{io, ops::Range, os::unix::fs::MetadataExt, path::PathBuf};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError, MapType},
    programs::{ProgramError, SchedClassifier},
};
use ipc_proto::{BpfRoute, Observed, OpError};
use ipnet::IpNet;
use nix::{errno::Errno, unistd::Uid};

pub use self::sys::{Stopped, Trie};
use crate::{dataplane::errno_number, links::Links, sandbox::PinDir};

/// The BPF object, as the build made it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cairn-ebpf"));
/// The program whose loading proves that the verifier accepts the object under our capabilities.
const PROGRAM: &str = "cairn_observe";
/// How many entries one system call reads.
const READ: usize = 4096;

/// Why the maps cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// There is a pin, but not of a map like ours.
    #[error(
        "the pin {path} is of a map with {what} {found}, not {wanted}: remove the pin, or set \
         bpf_map_size_route"
    )]
    Shape {
        /// The pin.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the map has.
        found: String,
        /// What it should have.
        wanted: String,
    },
    /// It cannot be opened.
    #[error("cannot open the pin {path}: BPF_OBJ_GET: {source}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It cannot be opened, since it is somebody else's.
    #[error(
        "the pin {path} belongs to the user {owner}, and this helper runs as {own}: if it is a \
         route map to share, chown it to {own}; otherwise remove it"
    )]
    Owner {
        /// The pin.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        own: u32,
    },
    /// Its shape cannot be read.
    #[error("cannot read what the pin {path} is: {source}")]
    Info {
        /// The pin.
        path: PathBuf,
        /// Why.
        source: Box<MapError>,
    },
    /// The object cannot be loaded.
    #[error("cannot load the BPF object: {0}")]
    Load(#[from] Box<EbpfError>),
    /// The program cannot be loaded.
    #[error("cannot load the BPF program {PROGRAM}: {0}")]
    Program(#[from] Box<ProgramError>),
    /// A map of the object cannot be used.
    #[error("cannot use the BPF map {0}: {1}")]
    Map(&'static str, Box<MapError>),
    /// The object lacks something that it must have.
    #[error("the BPF object has no {0}; it was built from other sources")]
    Absent(&'static str),
    /// A map cannot be read.
    #[error("cannot read the BPF map {0}: BPF_MAP_LOOKUP_BATCH: {1}")]
    Read(&'static str, Errno),
}

/// Both route maps.
#[derive(Debug)]
pub struct RouteMaps {
    v4: Trie,
    v6: Trie,
    size: u32,
    /// Keeps the program loaded.
    _object: Ebpf,
}

impl RouteMaps {
    /// Opens the pinned maps or makes them, with room for `size` entries each.
    ///
    /// # Errors
    ///
    /// If a pin is not of such a map, or the kernel refuses.
    pub fn open(pins: &PinDir, size: u32) -> Result<Self, BpfError> {
        let mut loader = EbpfLoader::new();
        for (name, bytes) in [(ebpf::MAP_V4, 8), (ebpf::MAP_V6, 20)] {
            check_pin(pins, name, bytes, size)?;
            loader.map_max_entries(name, size);
            loader.map_pin_path(name, pins.entry(name));
        }
        let mut object = loader.load(OBJECT).map_err(Box::new)?;
        let program: &mut SchedClassifier = object
            .program_mut(PROGRAM)
            .ok_or(BpfError::Absent(PROGRAM))?
            .try_into()
            .map_err(Box::new)?;
        program.load().map_err(Box::new)?;
        Ok(Self {
            v4: take(&mut object, ebpf::MAP_V4)?,
            v6: take(&mut object, ebpf::MAP_V6)?,
            size,
            _object: object,
        })
    }

    /// Returns the size of each map in entries.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Carries out changes in order and returns what became of each.
    #[must_use]
    pub fn apply(&self, changes: &[(IpNet, Option<&BpfRoute>)]) -> Vec<Result<(), OpError>> {
        changes
            .chunk_by(|(a, set_a), (b, set_b)| {
                a.max_prefix_len() == b.max_prefix_len() && set_a.is_some() == set_b.is_some()
            })
            .flat_map(|run| self.apply_run(run))
            .collect()
    }

    /// Carries out changes of one family, all sets or all deletions.
    fn apply_run(&self, run: &[(IpNet, Option<&BpfRoute>)]) -> Vec<Result<(), OpError>> {
        let (trie, name) = match run {
            [(IpNet::V4(_), _), ..] => (&self.v4, ebpf::MAP_V4),
            _ => (&self.v6, ebpf::MAP_V6),
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (prefix, route) in run {
            layout::push_key(&mut keys, prefix);
            if let Some(route) = route {
                layout::push_value(&mut values, prefix, route);
            }
        }
        let deletes = values.is_empty();
        let results = batch::resume(run.len(), |range| {
            let keys = part(&keys, trie.key_size(), &range);
            if deletes {
                trie.delete(keys)
            } else {
                trie.update(keys, part(&values, trie.value_size(), &range))
            }
        });
        let verb = if deletes {
            "BPF_MAP_DELETE_BATCH"
        } else {
            "BPF_MAP_UPDATE_BATCH"
        };
        results
            .into_iter()
            .map(|result| match result {
                Err(Errno::ENOENT) if deletes => Ok(()),
                other => other.map_err(|errno| OpError::Kernel {
                    call: format!("{verb} {name}"),
                    errno: errno_number(errno),
                }),
            })
            .collect()
    }

    /// Gives all entries of both maps to `sink`; more than once, where another program changes a
    /// map meanwhile.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn snapshot(&self, links: &Links, sink: &mut impl FnMut(Observed)) -> Result<(), BpfError> {
        for (trie, name) in [(&self.v4, ebpf::MAP_V4), (&self.v6, ebpf::MAP_V6)] {
            let size = usize::try_from(self.size).unwrap_or(usize::MAX);
            read(trie, size, |key, value| {
                if let Some((prefix, route)) = layout::read_entry(key, value, links) {
                    sink(Observed::BpfRoute(prefix, route));
                }
            })
            .map_err(|errno| BpfError::Read(name, errno))?;
        }
        Ok(())
    }
}

/// Walks a map of at most `size` entries.
fn read(trie: &Trie, size: usize, mut entry: impl FnMut(&[u8], &[u8])) -> Result<(), Errno> {
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

fn take(object: &mut Ebpf, name: &'static str) -> Result<Trie, BpfError> {
    let map = object.take_map(name).ok_or(BpfError::Absent(name))?;
    let Map::LpmTrie(map) = map else {
        return Err(BpfError::Absent(name));
    };
    Trie::new(map).map_err(|error| BpfError::Map(name, Box::new(error)))
}

/// Refuses a pin of anything but a map like ours. aya would use it without a look.
fn check_pin(pins: &PinDir, name: &str, bytes: u32, size: u32) -> Result<(), BpfError> {
    let path = pins.path().join(name);
    let map = match MapData::from_pin(pins.entry(name)) {
        Ok(map) => map,
        Err(MapError::SyscallError(error)) => return missing(pins, name, error.io_error),
        Err(source) => {
            return Err(BpfError::Info {
                path,
                source: Box::new(source),
            });
        }
    };
    let info = map.info();
    let info = info.map_err(|source| BpfError::Info {
        path: path.clone(),
        source: source.into(),
    })?;
    let number = |number: u32| number.to_string();
    let kind = match info.map_type() {
        Ok(MapType::LpmTrie) => "LPM_TRIE".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(_unknown) => "unknown".to_owned(),
    };
    let shape = [
        ("type", kind, "LPM_TRIE".to_owned()),
        ("key size", number(info.key_size()), number(bytes)),
        ("value size", number(info.value_size()), number(bytes)),
        ("flags", number(info.map_flags()), number(ebpf::MAP_FLAGS)),
        ("max_entries", number(info.max_entries()), number(size)),
    ];
    match shape.into_iter().find(|(_, found, wanted)| found != wanted) {
        Some((what, found, wanted)) => Err(BpfError::Shape {
            path,
            what,
            found,
            wanted,
        }),
        None => Ok(()),
    }
}

/// Tells why a pin cannot be opened; that there is none is well.
fn missing(pins: &PinDir, name: &str, source: io::Error) -> Result<(), BpfError> {
    let path = pins.path().join(name);
    let own = Uid::effective().as_raw();
    match std::fs::symlink_metadata(pins.entry(name)) {
        _ if source.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(file) if file.uid() != own => Err(BpfError::Owner {
            path,
            owner: file.uid(),
            own,
        }),
        _ => Err(BpfError::Pin { path, source }),
    }
}
