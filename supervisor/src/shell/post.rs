//! The place of one child: how it is started, the process if there is one, what it last said.

use std::{future::pending, io, os::unix::process::ExitStatusExt, process::ExitStatus};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use tokio::select;

use super::Wake;
use crate::{machine::Child, notify::Notifications, spawn::Recipe};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Post {
    pub(super) child: Child,
    pub(super) recipe: Recipe,
    pub(super) notifications: Notifications,
    pub(super) process: Option<tokio::process::Child>,
    /// What it last said, or how it ended.
    pub(super) status: String,
    /// Whether the last attempt to start it failed in a way that has been logged.
    pub(super) unstartable: bool,
}

impl Post {
    /// Starts the child; returns whether there is one.
    pub(super) fn start(&mut self) -> bool {
        self.status.clear();
        let name = self.child.name();
        match self.recipe.start() {
            Ok(process) => {
                tracing::info!(pid = process.id(), "{name}: started");
                self.unstartable = false;
                self.process = Some(process);
                // What the one before has said is nothing any more.
                self.notifications.follow(self.pid());
                true
            }
            Err(error) => {
                self.notifications.follow(None);
                self.status = error.to_string();
                if !self.unstartable {
                    tracing::error!("{name}: {error}; trying again until it works");
                }
                self.unstartable = true;
                false
            }
        }
    }

    /// Takes leave of the process.
    pub(super) fn bury(&mut self, status: io::Result<ExitStatus>, wanted: bool) {
        self.process = None;
        let name = self.child.name();
        self.status = match status {
            Ok(status) => describe(status),
            Err(error) => format!("waiting for it failed: {error}"),
        };
        if wanted {
            tracing::info!("{name}: {}", self.status);
        } else {
            tracing::warn!("{name}: {}", self.status);
        }
    }

    /// Sends the child a signal. It has not been waited for, so the pid is its own.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        if let Err(errno) = signal::kill(Pid::from_raw(pid), signal) {
            tracing::error!("{}: kill({pid}, {signal}): {errno}", self.child.name());
        }
    }

    /// Returns the process's id, if there is one.
    pub(super) fn id(&self) -> Option<u32> {
        self.process.as_ref()?.id()
    }

    fn pid(&self) -> Option<i32> {
        i32::try_from(self.id()?).ok()
    }
}

/// Waits until the process has ended or said something; for ever if there is no place for one.
pub(super) async fn wait(post: &mut Option<Post>) -> Wake {
    let Some(Post {
        child,
        notifications,
        process,
        ..
    }) = post
    else {
        return pending().await;
    };
    let ended = async {
        match process {
            Some(process) => process.wait().await,
            None => pending().await,
        }
    };
    select! {
        status = ended => Wake::Exited(*child, status),
        _ = notifications.ready() => Wake::Look,
    }
}

/// Says how a process ended.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => {
            let name = Signal::try_from(number)
                .map_or_else(|_| format!("signal {number}"), |signal| signal.to_string());
            let core = if status.core_dumped() {
                " (core dumped)"
            } else {
                ""
            };
            format!("killed by {name}{core}")
        }
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_told_by_name() {
        for (raw, text) in [
            (0, "exited with code 0"),
            (0x0300, "exited with code 3"),
            (9, "killed by SIGKILL"),
            (0x80 | 6, "killed by SIGABRT (core dumped)"),
            (40, "killed by signal 40"),
        ] {
            assert_eq!(describe(ExitStatus::from_raw(raw)), text);
        }
    }
}
