//! The commands of bpf(2) that aya does not have: batches here, links in [`link`]; and the programs in
//! front of sockets, in [`filter`].
//!
//! Sound because [`RawMap`] asks the kernel itself for the sizes of keys and values, and never names
//! more elements than its buffers hold.
#![expect(
    unsafe_code,
    reason = "a raw system call with pointers into buffers of checked length"
)]

pub(crate) mod filter;
pub(crate) mod link;

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{MapData, MapError};
use nix::errno::Errno;

/// Commands of bpf(2), from `enum bpf_cmd`.
const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_UPDATE_BATCH: libc::c_int = 26;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;

/// The member `batch` of `union bpf_attr`.
#[repr(C)]
#[derive(Debug, Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

const _: () = assert!(size_of::<BatchAttr>() == 56);

/// A batch that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// What the kernel said.
    pub errno: Errno,
    /// How many elements the kernel claims to have done.
    pub done: usize,
}

/// A map, seen as bytes.
#[derive(Debug)]
pub struct RawMap {
    map: MapData,
    key: usize,
    value: usize,
}

impl RawMap {
    /// Takes over a map.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell its sizes.
    pub fn new(map: MapData) -> Result<Self, MapError> {
        let info = map.info()?;
        let size = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
        Ok(Self {
            key: size(info.key_size()),
            value: size(info.value_size()),
            map,
        })
    }

    /// Returns the length of a key in bytes.
    #[must_use]
    pub fn key_size(&self) -> usize {
        self.key
    }

    /// Returns the length of a value in bytes.
    #[must_use]
    pub fn value_size(&self) -> usize {
        self.value
    }

    /// Sets each key to the value at the same place, in order.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn update(&self, keys: &[u8], values: &[u8]) -> Result<(), Stopped> {
        let count = (keys.len() / self.key).min(values.len() / self.value);
        let mut attr = BatchAttr {
            keys: address(keys),
            values: address(values),
            ..self.attr(count)
        };
        // SAFETY: the kernel reads `count` keys and values, which the slices hold.
        unsafe { call(BPF_MAP_UPDATE_BATCH, &mut attr) }
    }

    /// Deletes each key, in order.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn delete(&self, keys: &[u8]) -> Result<(), Stopped> {
        let mut attr = BatchAttr {
            keys: address(keys),
            ..self.attr(keys.len() / self.key)
        };
        // SAFETY: the kernel reads `count` keys, which the slice holds.
        unsafe { call(BPF_MAP_DELETE_BATCH, &mut attr) }
    }

    /// Fills `keys` and `values` from where `token` says, or from the start without one, and moves
    /// the token. Returns how many there were, and whether there may be more.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn lookup(
        &self,
        token: &mut Option<Vec<u8>>,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> Result<(usize, bool), Errno> {
        let count = (keys.len() / self.key).min(values.len() / self.value);
        let mut next = vec![0; self.key];
        let mut attr = BatchAttr {
            in_batch: match token {
                Some(token) if token.len() == self.key => address(token),
                Some(_) | None => 0,
            },
            out_batch: address_mut(&mut next),
            keys: address_mut(keys),
            values: address_mut(values),
            ..self.attr(count)
        };
        // SAFETY: the kernel writes at most `count` keys and values, which the slices hold; it
        // reads and writes a token of the length of a key, which both vectors have.
        let outcome = unsafe { call(BPF_MAP_LOOKUP_BATCH, &mut attr) };
        let filled = usize::try_from(attr.count).unwrap_or(usize::MAX).min(count);
        match outcome {
            Ok(()) => {
                *token = Some(next);
                Ok((filled, true))
            }
            Err(Stopped {
                errno: Errno::ENOENT,
                ..
            }) => Ok((filled, false)),
            Err(stopped) => Err(stopped.errno),
        }
    }

    fn attr(&self, count: usize) -> BatchAttr {
        BatchAttr {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            map_fd: u32::try_from(self.map.fd().as_fd().as_raw_fd()).unwrap_or(u32::MAX),
            ..BatchAttr::default()
        }
    }
}

fn address(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.as_ptr().expose_provenance()).unwrap_or(0)
}

fn address_mut(bytes: &mut [u8]) -> u64 {
    u64::try_from(bytes.as_mut_ptr().expose_provenance()).unwrap_or(0)
}

/// Calls bpf(2).
///
/// # Safety
///
/// `attr` must be laid out as the kernel's for `command`, and the addresses in it must be 0 or those
/// of buffers that hold what `command` reads or writes.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> Result<libc::c_long, Errno> {
    let attr_ptr: *mut T = attr;
    // SAFETY: `attr` lives through the call; the caller vouches for its layout and what it points
    // to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr_ptr, size_of::<T>()) };
    Errno::result(result)
}

/// Calls bpf(2) for a batch.
///
/// # Safety
///
/// The addresses in `attr` must be 0 or those of buffers that hold what `command` reads or writes.
unsafe fn call(command: libc::c_int, attr: &mut BatchAttr) -> Result<(), Stopped> {
    // SAFETY: the layout is the kernel's; the caller vouches for what it points to.
    let result = unsafe { bpf(command, attr) };
    result.map(drop).map_err(|errno| Stopped {
        errno,
        done: usize::try_from(attr.count).unwrap_or(usize::MAX),
    })
}
