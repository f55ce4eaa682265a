//! The BPF object: its pinned maps and its programs.
//!
//! The pin of a route map of another shape is never used and never removed, since another program
//! may use it. The other maps are ours alone, and made anew where their shape has changed.

mod batch;
mod endpoints;
mod layout;
mod notes;
mod pins;
mod routes;
pub(crate) mod sys;
mod verdicts;

use std::os::fd::{AsFd as _, OwnedFd};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapError},
    programs::{ProgramError, SchedClassifier},
};
use nix::errno::Errno;

use self::pins::Shape;
pub use self::{
    endpoints::Endpoints,
    notes::FlowNotes,
    pins::PinError,
    routes::RouteMaps,
    sys::{RawMap, Stopped},
    verdicts::Verdicts,
};
use crate::sandbox::PinDir;

/// The BPF object, as the build made it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cairn-ebpf"));

/// Why the object cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A pin cannot be used.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The object cannot be loaded.
    #[error("cannot load the BPF object: {0}")]
    Load(#[from] Box<EbpfError>),
    /// A program cannot be loaded.
    #[error("cannot load the BPF program {0}: {1}")]
    Program(&'static str, Box<ProgramError>),
    /// A map of the object cannot be used.
    #[error("cannot use the BPF map {0}: {1}")]
    Map(&'static str, Box<MapError>),
    /// The object lacks something that it must have.
    #[error("the BPF object has no {0}; it was built from other sources")]
    Absent(&'static str),
    /// A map cannot be read.
    #[error("cannot read the BPF map {0}: {1}")]
    Read(&'static str, Errno),
}

/// The programs, loaded.
#[derive(Debug)]
pub struct Programs {
    /// For what a workload sends.
    pub from_workload: OwnedFd,
    /// For what the stack sends to a workload.
    pub to_workload: OwnedFd,
}

/// The parts of the object.
#[derive(Debug)]
pub struct Object {
    /// The route maps.
    pub routes: RouteMaps,
    /// The map of endpoints.
    pub endpoints: Endpoints,
    /// What the programs have noted of flows.
    pub notes: FlowNotes,
    /// The counters.
    pub verdicts: Verdicts,
    /// The programs.
    pub programs: Programs,
}

/// Opens the pinned maps or makes them, with room for `size` entries in each route map, and loads
/// the programs.
///
/// # Errors
///
/// If the pin of a route map is not of such a map, or the kernel refuses.
pub fn open(pins: &PinDir, size: u32) -> Result<Object, BpfError> {
    let mut loader = EbpfLoader::new();
    for shape in Shape::shared(size) {
        shape.check(pins)?;
        loader.map_max_entries(shape.name, size);
        loader.map_pin_path(shape.name, pins.entry(shape.name));
    }
    for shape in Shape::OWN {
        shape.make_way(pins)?;
        loader.map_pin_path(shape.name, pins.entry(shape.name));
    }
    let mut object = loader.load(OBJECT).map_err(Box::new)?;
    Ok(Object {
        programs: Programs {
            from_workload: load(&mut object, ebpf::PROGRAM_FROM_WORKLOAD)?,
            to_workload: load(&mut object, ebpf::PROGRAM_TO_WORKLOAD)?,
        },
        routes: RouteMaps::take(&mut object, size)?,
        endpoints: Endpoints::take(&mut object)?,
        notes: FlowNotes::take(&mut object)?,
        verdicts: Verdicts::take(&mut object)?,
    })
}

fn load(object: &mut Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
    let program = object.program_mut(name).ok_or(BpfError::Absent(name))?;
    let mut loaded = || {
        let program: &mut SchedClassifier = program.try_into()?;
        program.load()?;
        Ok(program.fd()?.as_fd().try_clone_to_owned()?)
    };
    loaded().map_err(|error| BpfError::Program(name, Box::new(error)))
}

/// Takes a map out of the object, to be used as bytes.
fn raw_map(object: &mut Ebpf, name: &'static str) -> Result<RawMap, BpfError> {
    let map = object.take_map(name).ok_or(BpfError::Absent(name))?;
    let (Map::LpmTrie(map) | Map::LruHashMap(map)) = map else {
        return Err(BpfError::Absent(name));
    };
    RawMap::new(map).map_err(|error| BpfError::Map(name, Box::new(error)))
}

/// Returns what the kernel said. The other errors are about a misuse of aya.
fn errno(error: &MapError) -> Errno {
    let MapError::SyscallError(error) = error else {
        return Errno::EINVAL;
    };
    Errno::from_raw(error.io_error.raw_os_error().unwrap_or_default())
}
