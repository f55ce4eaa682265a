//! Carries out what the [`machine`](crate::machine) decides, and tells it what happens. It holds
//! the clock, the signals and the processes, and decides nothing.

mod post;
mod report;
mod setup;

use std::{future::pending, io, path::PathBuf, process::ExitStatus, time::Instant};

use futures_util::future::OptionFuture;
use nix::sys::signal::Signal;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::{JoinError, JoinHandle},
    time::sleep_until,
};

pub use self::setup::StartError;
use self::{post::Post, report::Report};
use crate::{
    config::Config,
    face::{ChildView, View},
    machine::{Action, Child, Fault, Input, Machine},
    notify::Note,
    watch,
};

/// Keeps the children alive until a signal says stop.
///
/// # Errors
///
/// If it cannot start; once it has, nothing but a signal ends it.
pub async fn run(config: &Config) -> Result<(), StartError> {
    let (shell, dir) = setup::prepare(config)?;
    shell.run().await;
    dir.clear();
    Ok(())
}

/// Watches the children that a service manager keeps alive, until a signal says stop.
///
/// # Errors
///
/// If it cannot start; once it has, nothing but a signal ends it.
pub async fn watch(config: &Config) -> Result<(), StartError> {
    setup::prepare_to_watch(config)?.run().await;
    Ok(())
}

/// See the [module](self).
struct Shell {
    machine: Machine,
    /// Its place, and that of `calc`, if they are ours to keep.
    helper: Option<Post>,
    calc: Option<Post>,
    signals: Signals,
    /// What is seen of the children's faces.
    inputs: mpsc::Receiver<Input>,
    /// Where `calc`'s is.
    calc_face: PathBuf,
    /// The call that is under way.
    resync: Option<JoinHandle<zbus::Result<()>>>,
    /// Whether the last call failed in a way that has been logged.
    resync_fails: bool,
    report: Report,
}

/// What ended a wait.
enum Wake {
    Exited(Child, io::Result<ExitStatus>),
    Seen(Input),
    Resynced(Result<zbus::Result<()>, JoinError>),
    Stop,
    Hangup,
    /// A child said something, or time has passed.
    Look,
}

impl Shell {
    async fn run(mut self) {
        loop {
            // What children said comes before what time has come to, or a pause of ours would look
            // like theirs.
            self.hear(Child::Helper);
            self.hear(Child::Calc);
            while let Some(action) = self.machine.poll(now()) {
                if action == Action::Quit {
                    return;
                }
                self.carry_out(action);
            }
            self.report.update(now(), self.view());
            match self.wait().await {
                Wake::Exited(child, status) => {
                    let wanted = self.machine.state(child) == "stopping";
                    if let Some(post) = self.post_mut(child) {
                        post.bury(status, wanted);
                    }
                    self.machine.handle(now(), Input::Exited(child));
                }
                Wake::Seen(input) => self.machine.handle(now(), input),
                Wake::Resynced(told) => self.resynced(told),
                Wake::Stop => {
                    tracing::info!("stopping");
                    self.report.stopping();
                    self.machine.handle(now(), Input::Stop);
                }
                Wake::Hangup => self.machine.handle(now(), Input::Resync),
                Wake::Look => {}
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        let due = [self.machine.poll_timeout(), self.report.due()];
        let due = due.into_iter().flatten().min();
        let due = OptionFuture::from(due.map(|due| sleep_until(due.into())));
        select! {
            _ = self.signals.terminate.recv() => Wake::Stop,
            _ = self.signals.interrupt.recv() => Wake::Stop,
            _ = self.signals.hangup.recv() => Wake::Hangup,
            wake = post::wait(&mut self.helper) => wake,
            wake = post::wait(&mut self.calc) => wake,
            Some(input) = self.inputs.recv() => Wake::Seen(input),
            told = ended(&mut self.resync) => Wake::Resynced(told),
            Some(()) = due => Wake::Look,
        }
    }

    fn hear(&mut self, child: Child) {
        let Some(post) = self.post(child) else { return };
        for note in post.notifications.take() {
            match note {
                Note::Ready => {
                    if self.machine.state(child) == "starting" {
                        tracing::info!("{}: ready", child.name());
                    }
                    self.machine.handle(now(), Input::Ready(child));
                }
                Note::Alive => self.machine.handle(now(), Input::Alive(child)),
                Note::Status(status) => {
                    if let Some(post) = self.post_mut(child).filter(|post| post.id().is_some()) {
                        post.status = status;
                    }
                }
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Spawn(child) => {
                if !self.post_mut(child).is_some_and(Post::start) {
                    self.machine.handle(now(), Input::Exited(child));
                }
            }
            Action::Terminate(child) => self.signal(child, Signal::SIGTERM),
            Action::Kill(child, fault) => {
                tracing::warn!("{}: {}, so it is killed", child.name(), describe(fault));
                self.signal(child, Signal::SIGKILL);
            }
            Action::Resync => {
                let socket = self.calc_face.clone();
                let call = tokio::spawn(async move { watch::resync(&socket).await });
                if let Some(before) = self.resync.replace(call) {
                    before.abort();
                }
            }
            Action::NotifyReady => {
                tracing::info!("both are up");
                self.report.ready();
            }
            Action::Quit => {}
        }
    }

    fn resynced(&mut self, told: Result<zbus::Result<()>, JoinError>) {
        self.resync = None;
        match told {
            Ok(Ok(())) => {
                tracing::info!("calc reads the kernel back under a new lease");
                self.resync_fails = false;
            }
            Ok(Err(error)) => {
                if !self.resync_fails {
                    tracing::warn!("cannot tell calc to resync: {error}; trying again");
                }
                self.resync_fails = true;
                self.machine.handle(now(), Input::ResyncFailed);
            }
            // It was replaced by a later one.
            Err(_) => {}
        }
    }

    fn view(&self) -> View {
        let view = |child| {
            let post = self.post(child);
            ChildView {
                state: self.machine.state(child),
                since: None,
                until: self.machine.due(child),
                pid: post.and_then(Post::id).unwrap_or(0),
                restarts: self.machine.restarts(child),
                status: post.map(|post| post.status.clone()).unwrap_or_default(),
            }
        };
        View {
            helper: view(Child::Helper),
            calc: view(Child::Calc),
        }
    }

    fn signal(&self, child: Child, signal: Signal) {
        if let Some(post) = self.post(child) {
            post.signal(signal);
        }
    }

    fn post(&self, child: Child) -> Option<&Post> {
        match child {
            Child::Helper => self.helper.as_ref(),
            Child::Calc => self.calc.as_ref(),
        }
    }

    fn post_mut(&mut self, child: Child) -> Option<&mut Post> {
        match child {
            Child::Helper => self.helper.as_mut(),
            Child::Calc => self.calc.as_mut(),
        }
    }
}

/// The signals that mean something.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Waits for a task; for ever if there is none.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => pending().await,
    }
}

fn describe(fault: Fault) -> &'static str {
    match fault {
        Fault::NotReady => "not ready in time",
        Fault::Silent => "silent for too long",
        Fault::WillNotStop => "it does not stop",
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
fn now() -> Instant {
    Instant::now()
}
