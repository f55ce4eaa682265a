//! All that is done once, before the first child starts. Whatever can fail for good fails here.

use std::{io, os::unix::net::UnixListener};

use ipc_proto::bus::socket;
use listenfd::ListenFd;
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
    /// It was started by hand.
    #[error(
        "no socket was passed (LISTEN_FDS), and --watch is for systemd alone: start \
         cairn-supervisor.service, or leave --watch out"
    )]
    NoSocket,
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

    let machine = Machine::new(now());
    let mut shell = shell(config, machine, signals, own_face);
    shell.helper = Some(helper);
    shell.calc = Some(calc);
    tracing::info!("holding {}", config.runtime_dir.display());
    Ok((shell, dir))
}

/// Gets ready to watch children that others start. The service manager has made the sockets.
pub(super) fn prepare_to_watch(config: &Config) -> Result<Shell, StartError> {
    let own_face = ListenFd::from_env()
        .take_unix_listener(0)?
        .ok_or(StartError::NoSocket)?;
    let signals = Signals::new()?;
    tracing::info!("watching the faces in {}", config.runtime_dir.display());
    Ok(shell(config, Machine::watching(), signals, own_face))
}

/// Starts what both ways to run share.
fn shell(config: &Config, machine: Machine, signals: Signals, own_face: UnixListener) -> Shell {
    let (view, shown) = watch::channel(View::default());
    tokio::spawn(Face::new(shown).serve(own_face));
    let (sender, inputs) = mpsc::channel(16);
    let face = |name| config.runtime_dir.join(name);
    for (child, name) in [
        (Child::Helper, socket::PRIVHELPER),
        (Child::Calc, socket::CALC),
    ] {
        tokio::spawn(watch(child, face(name), sender.clone()));
    }
    Shell {
        machine,
        helper: None,
        calc: None,
        signals,
        inputs,
        calc_face: face(socket::CALC),
        resync: None,
        resync_fails: false,
        report: Report::new(view, now()),
    }
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
