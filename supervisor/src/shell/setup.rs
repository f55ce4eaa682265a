//! All that is done once, before the first child starts. Whatever can fail for good fails here.

use std::{io, os::unix::net::UnixListener};

use ipc_proto::bus::socket;
use tokio::sync::{mpsc, watch};

use super::{Shell, Signals, now, post::Post, report::Report};
use crate::{
    config::{Config, ConfigError},
    face::{Face, View},
    machine::{Child, Machine},
    notify::Notifications,
    privileges::{self, PrivilegesError},
    runtime_dir::{RuntimeDir, RuntimeDirError},
    spawn::Recipe,
    users::{self, Account, UserError},
    watch::watch,
};

/// Where a child reports to, in the runtime directory.
const fn notify_socket(child: Child) -> &'static str {
    match child {
        Child::Helper => "privhelper.notify",
        Child::Calc => "calc.notify",
    }
}

/// The supervisor cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The helper's configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// We may not do what we are for.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    /// The children have no users.
    #[error(transparent)]
    User(#[from] UserError),
    /// There is no place for the sockets.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The runtime has no room for a socket or a signal.
    #[error("cannot watch sockets and signals: {0}")]
    Io(#[from] io::Error),
}

/// Takes hold of the runtime directory and gets everything ready.
pub(super) fn prepare(config: &Config) -> Result<(Shell, RuntimeDir), StartError> {
    privileges::check()?;
    let (calc, helper) = users::accounts(&config.calc.user, &config.privhelper.user()?)?;
    let mut dir = RuntimeDir::claim(&config.runtime_dir)?;
    let signals = Signals::new()?;

    let own_face = dir.listen(socket::SUPERVISOR, None)?;
    let helper_listeners = vec![
        ("dataplane", dir.listen(socket::DATAPLANE, Some(calc))?),
        ("privhelper-face", dir.listen(socket::PRIVHELPER, None)?),
    ];
    let calc_listeners = vec![("calc-face", dir.listen(socket::CALC, None)?)];
    let recipe = |child, listeners: Vec<(&'static str, UnixListener)>| {
        let (path, file, account) = match child {
            Child::Helper => (&config.privhelper.path, &config.privhelper.config, None),
            Child::Calc => (&config.calc.path, &config.calc.config, Some(calc)),
        };
        Recipe {
            path: path.clone(),
            config: file.clone(),
            account,
            listeners,
            notify: config.runtime_dir.join(notify_socket(child)),
        }
    };
    let helper = post(
        &mut dir,
        recipe(Child::Helper, helper_listeners),
        Child::Helper,
        helper,
    )?;
    let calc = post(
        &mut dir,
        recipe(Child::Calc, calc_listeners),
        Child::Calc,
        calc,
    )?;

    let (view, shown) = watch::channel(View::default());
    tokio::spawn(Face::new(shown).serve(own_face));
    let (sender, inputs) = mpsc::channel(16);
    for (child, name) in [
        (Child::Helper, socket::PRIVHELPER),
        (Child::Calc, socket::CALC),
    ] {
        tokio::spawn(watch(child, dir.join(name), sender.clone()));
    }
    tracing::info!("holding {}", config.runtime_dir.display());
    let shell = Shell {
        machine: Machine::new(now()),
        helper,
        calc,
        signals,
        inputs,
        calc_face: dir.join(socket::CALC),
        resync: None,
        resync_fails: false,
        report: Report::new(view, now()),
    };
    Ok((shell, dir))
}

fn post(
    dir: &mut RuntimeDir,
    recipe: Recipe,
    child: Child,
    account: Account,
) -> Result<Post, StartError> {
    let socket = dir.receive(notify_socket(child), account)?;
    Ok(Post {
        child,
        recipe,
        notifications: Notifications::new(socket)?,
        process: None,
        status: String::new(),
        unstartable: false,
    })
}
