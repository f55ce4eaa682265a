//! Giving memory back: a load takes more of it than what stays.

/// Gives all that is free back to the system; without this, the allocator of glibc gives back what
/// lies at the end of its heap alone.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "there is no safe binding of it")]
pub(in crate::shell) fn trim() {
    // SAFETY: it takes a number and touches nothing that is in use.
    let released = unsafe { libc::malloc_trim(0) } != 0;
    tracing::debug!(released, "the memory of the load is given back");
}

/// Other allocators see to that by themselves.
#[cfg(not(target_env = "gnu"))]
pub(in crate::shell) fn trim() {}
