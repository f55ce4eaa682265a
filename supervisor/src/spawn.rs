//! Starts a child the way a service manager would: sockets from descriptor 3 on, a clean
//! environment, its own user.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
};

use command_fds::{CommandFdExt, FdMapping, FdMappingCollision};

use crate::{machine, users::Account};

/// What of our own environment the children see.
const KEPT: [&str; 3] = ["PATH", "CAIRN_LOG", "RUST_BACKTRACE"];
/// Has memory that a child has freed go back to the system, however large its buffers once were:
/// glibc by itself keeps up to 64 MiB. The units say the same.
pub const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=262144");
/// The first inherited socket (`sd_listen_fds(3)`).
const FIRST_FD: i32 = 3;

/// A child could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error("cannot start {}: {source}", path.display())]
    Exec { path: PathBuf, source: io::Error },
    #[error("cannot hand a socket over: {0}")]
    Socket(#[from] io::Error),
    #[error("cannot hand the sockets over: {0}")]
    Mapping(#[from] FdMappingCollision),
}

/// How to start a child, any number of times.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) path: PathBuf,
    pub(crate) config: PathBuf,
    /// Whom it starts as; nobody but us if it gives up root itself.
    pub(crate) account: Option<Account>,
    /// Its sockets with their names. They stay open here, so that clients can wait for the next
    /// child.
    pub(crate) listeners: Vec<(&'static str, UnixListener)>,
    /// Where it reports to.
    pub(crate) notify: PathBuf,
}

impl Recipe {
    /// Starts the child. It is killed when what is returned is dropped.
    pub(crate) fn start(&self) -> Result<tokio::process::Child, SpawnError> {
        let mut command = Command::new(&self.path);
        command
            .arg("--config")
            .arg(&self.config)
            .current_dir("/")
            .stdin(Stdio::null())
            // A terminal's ^C is for us alone: we stop the children in order.
            .process_group(0)
            .env_clear()
            .envs(self.environment());
        if let Some(Account { uid, gid }) = self.account {
            // From root, this clears the supplementary groups and drops every capability.
            command.gid(gid).uid(uid);
        }
        // The descriptors that these replace in the child are the runtime's own, which was there
        // first, and not the pipe that reports a failed exec.
        command.fd_mappings(self.mappings()?)?;
        tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| SpawnError::Exec {
                path: self.path.clone(),
                source,
            })
    }

    /// Returns the environment. There is no `LISTEN_PID`: it is not known before the child runs,
    /// and without it the sockets are for whoever has them.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let names: Vec<_> = self.listeners.iter().map(|(name, _)| *name).collect();
        let (tunables, values) = TUNABLES;
        let mut environment = vec![
            (tunables, values.into()),
            ("CAIRN_SUPERVISED", std::process::id().to_string().into()),
            ("NOTIFY_SOCKET", self.notify.clone().into()),
            (
                "WATCHDOG_USEC",
                machine::WATCHDOG.as_micros().to_string().into(),
            ),
            ("LISTEN_FDS", names.len().to_string().into()),
            ("LISTEN_FDNAMES", names.join(":").into()),
        ];
        environment.extend(
            KEPT.into_iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        environment
    }

    fn mappings(&self) -> io::Result<Vec<FdMapping>> {
        (FIRST_FD..)
            .zip(&self.listeners)
            .map(|(child_fd, (_, listener))| {
                let parent_fd: OwnedFd = listener.as_fd().try_clone_to_owned()?;
                Ok(FdMapping {
                    parent_fd,
                    child_fd,
                })
            })
            .collect()
    }
}
