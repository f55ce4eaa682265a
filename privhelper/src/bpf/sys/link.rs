//! TCX links: what keeps a program attached to a hook of an interface.
//!
//! aya tells neither the interface of a link nor takes one by its index, so these are here.

use std::{
    ffi::CString,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use ipc_proto::Hook;
use nix::errno::Errno;

use super::bpf;

/// Commands of bpf(2), from `enum bpf_cmd`.
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;
const BPF_LINK_DETACH: libc::c_int = 34;

/// `BPF_LINK_TYPE_TCX` of `enum bpf_link_type`.
const TCX: u32 = 11;

/// Members of `union bpf_attr`.
#[repr(C)]
#[derive(Debug)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
#[derive(Debug)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Debug)]
struct CreateAttr {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Debug)]
struct UpdateAttr {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

#[repr(C)]
#[derive(Debug)]
struct DetachAttr {
    link_fd: u32,
}

/// The start of `struct bpf_link_info`, for a TCX link.
#[repr(C)]
#[derive(Debug, Default)]
struct Info {
    kind: u32,
    id: u32,
    prog_id: u32,
    // What follows is a union of members that are aligned to 8 bytes.
    padding: u32,
    ifindex: u32,
    attach_type: u32,
}

const _: () = assert!(std::mem::offset_of!(Info, ifindex) == 16);

/// Returns the hook's number in `enum bpf_attach_type`.
fn attach_type(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => 46,
        Hook::Egress => 47,
    }
}

/// An open TCX link.
#[derive(Debug)]
pub(crate) struct TcxLink(OwnedFd);

impl TcxLink {
    /// Attaches a program behind those that are there.
    pub(crate) fn create(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> Result<Self, Errno> {
        let mut attr = CreateAttr {
            prog_fd: number(program.as_raw_fd()),
            target_ifindex: ifindex,
            attach_type: attach_type(hook),
            flags: 0,
        };
        // SAFETY: the layout is the kernel's, and there are no pointers in it.
        let fd = unsafe { bpf(BPF_LINK_CREATE, &mut attr) }?;
        owned(fd).map(Self)
    }

    /// Opens a pin. It may be of something else, which [`is_at`](Self::is_at) tells.
    pub(crate) fn open(pin: &Path) -> Result<Self, Errno> {
        let path = path(pin)?;
        let mut attr = ObjAttr {
            pathname: address(&path),
            bpf_fd: 0,
            file_flags: 0,
        };
        // SAFETY: the layout is the kernel's, and the path ends with a NUL.
        let fd = unsafe { bpf(BPF_OBJ_GET, &mut attr) }?;
        owned(fd).map(Self)
    }

    /// Pins it, which keeps it after this process.
    pub(crate) fn pin(&self, pin: &Path) -> Result<(), Errno> {
        let path = path(pin)?;
        let mut attr = ObjAttr {
            pathname: address(&path),
            bpf_fd: self.number(),
            file_flags: 0,
        };
        // SAFETY: the layout is the kernel's, and the path ends with a NUL.
        unsafe { bpf(BPF_OBJ_PIN, &mut attr) }.map(drop)
    }

    /// Puts another program in place of its program, with no moment in between.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut attr = UpdateAttr {
            link_fd: self.number(),
            new_prog_fd: number(program.as_raw_fd()),
            flags: 0,
            old_prog_fd: 0,
        };
        // SAFETY: the layout is the kernel's, and there are no pointers in it.
        unsafe { bpf(BPF_LINK_UPDATE, &mut attr) }.map(drop)
    }

    /// Detaches its program, for good. The kernel would do so some time after the last pin and
    /// descriptor are gone.
    pub(crate) fn detach(&self) -> Result<(), Errno> {
        let mut attr = DetachAttr {
            link_fd: self.number(),
        };
        // SAFETY: the layout is the kernel's, and there are no pointers in it.
        unsafe { bpf(BPF_LINK_DETACH, &mut attr) }.map(drop)
    }

    /// Returns whether it is a TCX link on this hook of this interface. One whose interface is gone
    /// is on none.
    pub(crate) fn is_at(&self, ifindex: u32, hook: Hook) -> Result<bool, Errno> {
        let mut info = Info::default();
        let info_ptr: *mut Info = &raw mut info;
        let mut attr = InfoAttr {
            bpf_fd: self.number(),
            info_len: u32::try_from(size_of::<Info>()).unwrap_or(0),
            info: u64::try_from(info_ptr.expose_provenance()).unwrap_or(0),
        };
        // SAFETY: the layout is the kernel's, which writes at most `info_len` bytes to `info`.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
        Ok(info.kind == TCX && info.ifindex == ifindex && info.attach_type == attach_type(hook))
    }

    fn number(&self) -> u32 {
        number(self.0.as_raw_fd())
    }
}

fn number(fd: RawFd) -> u32 {
    u32::try_from(fd).unwrap_or(u32::MAX)
}

fn path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_nul| Errno::EINVAL)
}

fn address(path: &CString) -> u64 {
    u64::try_from(path.as_ptr().expose_provenance()).unwrap_or(0)
}

/// Takes over a descriptor that a command has returned.
fn owned(fd: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = RawFd::try_from(fd).map_err(|_range| Errno::EBADF)?;
    // SAFETY: the kernel has just made it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
