//! What a pinned map must be like. aya would use any without a look.

use std::{fs, io, os::unix::fs::MetadataExt, path::PathBuf};

use aya::maps::{MapData, MapError, MapType};
use nix::unistd::Uid;

use crate::sandbox::PinDir;

/// Why a pin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// It is not of a map like ours.
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
    Open {
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
    /// It cannot be removed.
    #[error("cannot remove the pin {path}: unlink: {source}")]
    Unpin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The shape of a map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The name of the map and of its pin.
    pub(super) name: &'static str,
    kind: MapType,
    key: usize,
    value: usize,
    flags: u32,
    max_entries: u32,
}

/// What differs, what was found and what was wanted.
type Difference = (&'static str, String, String);

impl Shape {
    /// Those of the maps that are ours alone.
    pub(super) const OWN: [Self; 6] = [
        Self {
            name: ebpf::MAP_ENDPOINTS,
            kind: MapType::Hash,
            key: size_of::<u32>(),
            value: size_of::<ebpf::Endpoint>(),
            flags: ebpf::MAP_FLAGS,
            max_entries: ebpf::MAX_ENDPOINTS,
        },
        Self::flows(ebpf::MAP_FLOWS_V4, size_of::<ebpf::Flow<4>>()),
        Self::flows(ebpf::MAP_FLOWS_V6, size_of::<ebpf::Flow<16>>()),
        Self::flows(ebpf::MAP_STARTS_V4, size_of::<ebpf::Flow<4>>()),
        Self::flows(ebpf::MAP_STARTS_V6, size_of::<ebpf::Flow<16>>()),
        Self {
            name: ebpf::MAP_VERDICTS,
            kind: MapType::PerCpuArray,
            key: size_of::<u32>(),
            value: size_of::<u64>(),
            flags: 0,
            max_entries: ebpf::Verdict::COUNT,
        },
    ];

    /// Those of the route maps, which other programs may use as well.
    pub(super) const fn shared(max_entries: u32) -> [Self; 2] {
        [
            Self::routes(ebpf::MAP_V4, size_of::<ebpf::Key<4>>(), max_entries),
            Self::routes(ebpf::MAP_V6, size_of::<ebpf::Key<16>>(), max_entries),
        ]
    }

    const fn routes(name: &'static str, bytes: usize, max_entries: u32) -> Self {
        Self {
            name,
            kind: MapType::LpmTrie,
            key: bytes,
            value: bytes,
            flags: ebpf::MAP_FLAGS,
            max_entries,
        }
    }

    const fn flows(name: &'static str, key: usize) -> Self {
        Self {
            name,
            kind: MapType::LruHash,
            key,
            value: size_of::<u8>(),
            flags: 0,
            max_entries: ebpf::MAX_FLOWS,
        }
    }

    /// Refuses a pin of anything but a map of this shape.
    pub(super) fn check(&self, pins: &PinDir) -> Result<(), PinError> {
        match self.difference(pins)? {
            None => Ok(()),
            Some((what, found, wanted)) => Err(PinError::Shape {
                path: pins.path().join(self.name),
                what,
                found,
                wanted,
            }),
        }
    }

    /// Removes a pin of anything but a map of this shape.
    pub(super) fn make_way(&self, pins: &PinDir) -> Result<(), PinError> {
        let Some((what, found, wanted)) = self.difference(pins)? else {
            return Ok(());
        };
        let path = pins.path().join(self.name);
        tracing::warn!(path = %path.display(), what, found, wanted, "the map is made anew");
        fs::remove_file(pins.entry(self.name)).map_err(|source| PinError::Unpin { path, source })
    }

    /// Returns what differs in the map that is pinned, if one is.
    fn difference(&self, pins: &PinDir) -> Result<Option<Difference>, PinError> {
        let path = || pins.path().join(self.name);
        let info = |source| PinError::Info {
            path: path(),
            source: Box::new(source),
        };
        let map = match MapData::from_pin(pins.entry(self.name)) {
            Ok(map) => map,
            Err(MapError::SyscallError(error)) => return missing(pins, self.name, error.io_error),
            Err(source) => return Err(info(source)),
        };
        let info = map.info().map_err(info)?;
        let kind = match info.map_type() {
            Ok(kind) => name(kind),
            Err(_unknown) => "unknown".to_owned(),
        };
        let shape = [
            ("type", kind, name(self.kind)),
            (
                "key size",
                info.key_size().to_string(),
                self.key.to_string(),
            ),
            (
                "value size",
                info.value_size().to_string(),
                self.value.to_string(),
            ),
            (
                "flags",
                info.map_flags().to_string(),
                self.flags.to_string(),
            ),
            (
                "max_entries",
                info.max_entries().to_string(),
                self.max_entries.to_string(),
            ),
        ];
        Ok(shape.into_iter().find(|(_, found, wanted)| found != wanted))
    }
}

/// Returns the type as the kernel's own tools name it, where they say it in several words.
fn name(kind: MapType) -> String {
    if kind == MapType::LpmTrie {
        "LPM_TRIE".to_owned()
    } else {
        format!("{kind:?}")
    }
}

/// Tells why a pin cannot be opened; that there is none is well.
fn missing(pins: &PinDir, name: &str, source: io::Error) -> Result<Option<Difference>, PinError> {
    let path = pins.path().join(name);
    let own = Uid::effective().as_raw();
    match fs::symlink_metadata(pins.entry(name)) {
        _ if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(file) if file.uid() != own => Err(PinError::Owner {
            path,
            owner: file.uid(),
            own,
        }),
        _ => Err(PinError::Open { path, source }),
    }
}
