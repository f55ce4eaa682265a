//! From the command line to the running shell: configuration, socket, runtime.

use std::{fs, io, path::Path};

use listenfd::ListenFd;
use nix::{
    errno::Errno,
    sys::{prctl, signal::Signal},
    unistd::getppid,
};

use crate::{
    config::{Config, ConfigError},
    shell::{self, ShellError},
};

/// The environment variable in which a supervisor that starts its children itself gives its id.
const SUPERVISED: &str = "CAIRN_SUPERVISED";

/// Why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It was started by hand.
    #[error(
        "no socket was passed (LISTEN_FDS): start it by cairn-supervisor, or by systemd with \
         cairn-calc.socket"
    )]
    NoSocket,
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Whoever started it is gone.
    #[error("the supervisor {0} died before calc could follow it")]
    Orphan(String),
    /// It cannot go on.
    #[error(transparent)]
    Shell(#[from] ShellError),
}

fn io(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Io { what, source }
}

/// Runs with the configuration file at `config`, until SIGTERM or SIGINT.
///
/// # Errors
///
/// If it cannot start or go on.
pub fn start(config: &Path) -> Result<(), StartError> {
    follow_supervisor()?;
    let config = Config::read(config)?;
    let listener = ListenFd::from_env()
        .take_unix_listener(0)
        .map_err(io("LISTEN_FDS"))?
        .ok_or(StartError::NoSocket)?;
    warn_of_capabilities();
    // The cores have a thread of their own: what is to be sent does not wait for what is computed.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(io("cannot start the runtime"))?
        .block_on(shell::run(config, listener))?;
    Ok(())
}

/// Has the kernel end this process with its supervisor: the next supervisor starts another, and two
/// would take the lease from each other for ever.
fn follow_supervisor() -> Result<(), StartError> {
    let Ok(supervisor) = std::env::var(SUPERVISED) else {
        return Ok(());
    };
    let failed = |errno: Errno| io("prctl(PR_SET_PDEATHSIG)")(errno.into());
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(failed)?;
    if getppid().to_string() == supervisor {
        Ok(())
    } else {
        Err(StartError::Orphan(supervisor))
    }
}

/// This process parses what others write: it should be able to do nothing.
fn warn_of_capabilities() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(set) = effective_capabilities(&status)
        && set != 0
    {
        tracing::warn!(
            "started with capabilities ({set:#x}), of which it needs none: run it as an ordinary \
             user"
        );
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_process_status() {
        let status = "Name:\tcalc\nCapPrm:\t0000000000000001\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), Some(0x1ff_ffff_ffff));
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(effective_capabilities(&own).is_some());
    }
}
