//! What the supervisor itself needs in order to start the children as they must be.

use caps::{CapSet, Capability};
use nix::{errno::Errno, sys::prctl, unistd};

/// What the helper keeps, and what it takes to give a process another user, own sockets to it and
/// end it.
const NEEDED: [Capability; 6] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    Capability::CAP_CHOWN,
    Capability::CAP_KILL,
];

const OTHER_WAY: &str = "start it as root, or let systemd start the processes \
    (cairn-supervisor.service, cairn-calc.service, cairn-privhelper.service)";

/// The children could not be started as they must be.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// It does not run as root.
    #[error(
        "the supervisor runs as uid {0} and cannot start its children under theirs: {OTHER_WAY}"
    )]
    NotRoot(u32),
    /// It runs as a root that lacks something.
    #[error("the supervisor lacks {0}: {OTHER_WAY}")]
    Missing(String),
    /// The kernel does not tell.
    #[error("cannot read the supervisor's own capabilities: {0}")]
    Unknown(#[from] caps::errors::CapsError),
    /// The kernel refuses to take privileges away.
    #[error("prctl(PR_SET_NO_NEW_PRIVS): {0}")]
    NoNewPrivs(Errno),
}

/// Checks that nothing is missing, and gives up, for the children too, what a setuid program could
/// add.
pub(crate) fn check() -> Result<(), PrivilegesError> {
    let uid = unistd::geteuid();
    if !uid.is_root() {
        return Err(PrivilegesError::NotRoot(uid.as_raw()));
    }
    let held = caps::read(None, CapSet::Effective)?;
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|capability| !held.contains(capability))
        .map(ToString::to_string)
        .collect();
    if !missing.is_empty() {
        return Err(PrivilegesError::Missing(missing.join(", ")));
    }
    prctl::set_no_new_privs().map_err(PrivilegesError::NoNewPrivs)
}
