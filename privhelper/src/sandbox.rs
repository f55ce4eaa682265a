//! Gives up what the helper does not need: all privileges but two, and root.
//!
//! It is the first act, before there is a thread. Afterwards the process is not root, holds exactly
//! `CAP_BPF` and `CAP_NET_ADMIN`, can gain nothing, and has the pin directory open.

use std::{
    fmt,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat},
    sys::{
        prctl,
        signal::Signal,
        stat::{Mode, fstat, mkdirat},
        statfs::{BPF_FS_MAGIC, fstatfs},
    },
    unistd::{Uid, fchownat, getppid, setgroups, setresgid, setresuid},
};

use crate::config::Config;

/// Set by the supervisor when it is the parent, so that the helper dies with it.
const SUPERVISED: &str = "CAIRN_SUPERVISED";

/// All that the helper may do that others may not.
const NEEDED: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];

/// The directory of the pins, open, so that nothing above it needs to be passable.
#[derive(Debug)]
pub struct PinDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl PinDir {
    /// Returns the path of the pin `name` by way of the open directory, for system calls.
    #[must_use]
    pub fn entry(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Returns its path, for people.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory `name` in it, and makes it first if it is not there.
    ///
    /// # Errors
    ///
    /// If it cannot be made or opened.
    pub fn make(&self, name: &str) -> Result<Self, SandboxError> {
        let path = self.path.join(name);
        let failed = |call| {
            let path = path.clone();
            move |errno| SandboxError::PinDir {
                path,
                call,
                errno,
                hint: "it belongs to the helper's user: chown or remove it",
            }
        };
        match mkdirat(&self.fd, name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed("mkdir")(errno)),
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let fd = openat(&self.fd, name, flags, Mode::empty()).map_err(failed("open"))?;
        Ok(Self { fd, path })
    }
}

/// Why the helper cannot run with exactly the privileges that it needs.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The directory of the pins cannot be used.
    #[error("pin_dir {path}: {call}: {errno}; {hint}")]
    PinDir {
        /// The directory.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// The directory of the pins is on another file system.
    #[error(
        "pin_dir {0} is not on a BPF file system, and without pins a restart would lose every \
         route: mount -t bpf bpf /sys/fs/bpf"
    )]
    NotBpffs(PathBuf),
    /// A privilege is missing.
    #[error(
        "{missing} missing: start as root, or with AmbientCapabilities=CAP_BPF CAP_NET_ADMIN \
         (systemd), or with setpriv --inh-caps +bpf,+net_admin --ambient-caps +bpf,+net_admin"
    )]
    Missing {
        /// Which.
        missing: Missing,
    },
    /// A capability set cannot be changed.
    #[error("cannot give up capabilities: {0}")]
    Caps(#[from] CapsError),
    /// A system call failed.
    #[error("{call}: {errno}")]
    Call {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// Whoever started the helper is gone.
    #[error("the supervisor {0} died before the helper could follow it")]
    Orphan(String),
}

/// The capabilities that are missing.
#[derive(Debug)]
pub struct Missing(Vec<Capability>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for capability in &self.0 {
            write!(f, "{separator}{capability}")?;
            separator = " and ";
        }
        f.write_str(if self.0.len() == 1 { " is" } else { " are" })
    }
}

fn call(call: &'static str) -> impl Fn(Errno) -> SandboxError {
    move |errno| SandboxError::Call { call, errno }
}

/// Gives up everything that is not needed and opens the directory of the pins.
///
/// # Errors
///
/// If a needed privilege is missing, one that is not needed cannot be given up, or there is no
/// place for the pins.
pub fn enter(config: &Config) -> Result<PinDir, SandboxError> {
    let pins = if Uid::effective().is_root() {
        let pins = open_pin_dir(&config.pin_dir, true)?;
        give(&pins, config.user.uid)?;
        become_user(config)?;
        pins
    } else {
        keep_needed()?;
        open_pin_dir(&config.pin_dir, false)?
    };
    prctl::set_no_new_privs().map_err(call("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    // The kernel forgets it at each change of user or capabilities, so it comes last.
    if let Ok(supervisor) = std::env::var(SUPERVISED) {
        prctl::set_pdeathsig(Signal::SIGTERM).map_err(call("prctl(PR_SET_PDEATHSIG)"))?;
        if getppid().to_string() != supervisor {
            return Err(SandboxError::Orphan(supervisor));
        }
    }
    Ok(pins)
}

fn become_user(config: &Config) -> Result<(), SandboxError> {
    let (uid, gid) = (config.user.uid, config.user.gid);
    check_needed()?;
    // Moot under no_new_privs, so a container without CAP_SETPCAP may keep its bounding set.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::read(None, CapSet::Bounding)?
            .into_iter()
            .filter(|capability| !NEEDED.contains(capability))
            .try_for_each(|capability| caps::drop(None, CapSet::Bounding, capability))?;
    }
    prctl::set_keepcaps(true).map_err(call("prctl(PR_SET_KEEPCAPS)"))?;
    setgroups(&[]).map_err(call("setgroups"))?;
    setresgid(gid, gid, gid).map_err(call("setresgid"))?;
    setresuid(uid, uid, uid).map_err(call("setresuid"))?;
    prctl::set_keepcaps(false).map_err(call("prctl(PR_SET_KEEPCAPS)"))?;
    keep_needed()
}

/// Reduces all sets to what is needed; inherited sets to nothing.
fn keep_needed() -> Result<(), SandboxError> {
    check_needed()?;
    let needed = CapsHashSet::from(NEEDED);
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Effective must stay within permitted at each step.
    caps::set(None, CapSet::Effective, &needed)?;
    caps::set(None, CapSet::Permitted, &needed)?;
    Ok(())
}

fn check_needed() -> Result<(), SandboxError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let missing: Vec<_> = NEEDED
        .into_iter()
        .filter(|capability| !permitted.contains(capability))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(SandboxError::Missing {
            missing: Missing(missing),
        })
    }
}

/// Opens the directory at `path`, and first makes what is missing of it if told so.
fn open_pin_dir(path: &Path, make: bool) -> Result<PinDir, SandboxError> {
    let failed = |call, hint| {
        move |errno| SandboxError::PinDir {
            path: path.to_owned(),
            call,
            errno,
            hint,
        }
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = open(path, flags, Mode::empty());
    let fd = if make && matches!(opened, Err(Errno::ENOENT)) {
        let not_bpffs = || SandboxError::NotBpffs(path.to_owned());
        let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(not_bpffs)?;
        let parent = open_pin_dir(parent, true)?;
        mkdirat(&parent.fd, name, Mode::S_IRWXU)
            .map_err(failed("mkdir", "is the BPF file system mounted read-only?"))?;
        openat(&parent.fd, name, flags | OFlag::O_NOFOLLOW, Mode::empty())
    } else {
        opened
    };
    let fd = fd.map_err(failed(
        "open",
        "start as root, or make the directory for the helper's user with mode 0700",
    ))?;
    let kind = fstatfs(&fd).map_err(failed("fstatfs", "is /sys/fs/bpf mounted?"))?;
    if kind.filesystem_type() != BPF_FS_MAGIC {
        return Err(SandboxError::NotBpffs(path.to_owned()));
    }
    Ok(PinDir {
        fd,
        path: path.to_owned(),
    })
}

/// Makes the helper's user the owner of the directory, unless it is someone's already.
fn give(pins: &PinDir, owner: Uid) -> Result<(), SandboxError> {
    let failed = |call, hint| {
        move |errno| SandboxError::PinDir {
            path: pins.path.clone(),
            call,
            errno,
            hint,
        }
    };
    let stat = fstat(&pins.fd).map_err(failed("fstat", "is it a directory?"))?;
    if stat.st_uid == owner.as_raw() {
        return Ok(());
    }
    if stat.st_uid != 0 {
        return Err(failed(
            "open",
            "it belongs to another user: chown or remove it",
        )(Errno::EPERM));
    }
    fchownat(&pins.fd, "", Some(owner), None, AtFlags::AT_EMPTY_PATH)
        .map_err(failed("chown", "root needs CAP_CHOWN for it"))
}
