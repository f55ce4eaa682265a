//! A classic BPF program in front of a socket: what it refuses is never queued.
#![expect(
    unsafe_code,
    reason = "a raw system call with a pointer to a list of known length"
)]

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// An instruction: code, how many to skip if true and if false, and its constant.
pub(crate) type Instruction = (u16, u8, u8, u32);

/// Puts a program in front of a socket, in place of one that is there.
///
/// # Errors
///
/// What the kernel said; it checks the program.
pub(crate) fn attach(socket: impl AsFd, program: &[Instruction]) -> Result<(), Errno> {
    let mut filter: Vec<libc::sock_filter> = program
        .iter()
        .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_too_long| Errno::E2BIG)?,
        filter: filter.as_mut_ptr(),
    };
    let length =
        libc::socklen_t::try_from(size_of_val(&program)).map_err(|_too_long| Errno::EINVAL)?;
    // SAFETY: the kernel reads `len` instructions of the list and the struct, and both outlive the
    // call; it keeps a copy of its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    Errno::result(result).map(drop)
}
