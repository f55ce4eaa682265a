//! The process: one loop that feeds the cores and carries out what they ask for.
//!
//! The only place that reads the clock, but for the face's answer to how old a reading is. What is queued is taken in before anything is computed, so
//! a burst of changes is one computation; no side keeps the others from their turn. Ending leaves
//! the kernel as it is.

mod journal;
mod memory;
mod node;
mod refresh;
mod service;
#[cfg(test)]
mod tests;
mod throttle;

use std::{convert::Infallible, future::pending, io, os::unix::net::UnixListener, pin::pin};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until},
};

pub use self::throttle::Throttle;
use self::{
    node::{Node, Outputs},
    service::Service,
};
use crate::{
    config::Config,
    dataplane,
    datastore::{self, FileDatastore, Told},
    face::{self, Face, Signals, Status},
};

/// How much may be queued from each side.
const QUEUE: usize = 100;
/// How much is taken in from one side, after what it has its turn for, before the others' turn.
const MAX_MORE: usize = 100;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The datastore cannot be watched.
    #[error("the datastore: {0}")]
    Datastore(#[from] datastore::Error),
    /// No client can be accepted.
    #[error("the socket that was passed as LISTEN_FDS: {0}")]
    Face(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
    /// A task has ended by a bug.
    #[error("a task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What comes in.
#[derive(Debug)]
struct Inputs {
    datastore: mpsc::Receiver<Told>,
    dataplane: mpsc::Receiver<dataplane::Event>,
    face: mpsc::Receiver<face::Request>,
}

/// Runs until SIGTERM or SIGINT, showing its face on `listener`.
///
/// # Errors
///
/// If it cannot go on. The kernel's state is left as it is.
pub(crate) async fn run(config: Config, listener: UnixListener) -> Result<(), ShellError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ShellError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ShellError::Signals)?;
    tokio::select! {
        result = serve(config, listener) => result,
        _ = terminate.recv() => {
            tracing::info!("SIGTERM: ending, the kernel's state stays as it is");
            Ok(())
        }
        _ = interrupt.recv() => {
            tracing::info!("SIGINT: ending, the kernel's state stays as it is");
            Ok(())
        }
    }
}

/// Runs for ever.
async fn serve(config: Config, listener: UnixListener) -> Result<(), ShellError> {
    let (asked_sender, asked) = watch::channel(0);
    let (told_sender, datastore) = mpsc::channel(QUEUE);
    let (event_sender, dataplane) = mpsc::channel(QUEUE);
    let (request_sender, face) = mpsc::channel(QUEUE);
    let (status_sender, status) = watch::channel(Status::default());
    let (signal_sender, signals) = Signals::channel();
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixListener::from_std(listener))
        .map_err(ShellError::Face)?;

    let mut tasks = JoinSet::new();
    let incarnation = Incarnation::fresh();
    let object = Face {
        incarnation,
        version: env!("CARGO_PKG_VERSION"),
        node: config.node_name.clone(),
        status,
        requests: request_sender,
        signals,
        presence: Presence::default(),
    };
    let users = config.face_users.clone();
    tasks.spawn(async move {
        bus::show(listener, users, bus::CALC_PATH, object)
            .await
            .map_err(ShellError::Face)
    });
    let runtime_dir = config.runtime_dir.clone();
    tasks.spawn(async move {
        dataplane::run(runtime_dir, event_sender).await;
        Ok(())
    });
    let (dir, name) = (config.datastore_dir.clone(), config.node_name.clone());
    tasks.spawn(async move {
        FileDatastore::run(dir, name, asked, told_sender).await?;
        Ok(())
    });

    let outputs = Outputs {
        datastore: asked_sender,
        status: status_sender,
        signals: signal_sender,
    };
    let node = Node::new(now(), &config, incarnation.0, outputs);
    let inputs = Inputs {
        datastore,
        dataplane,
        face,
    };
    let mut follow = pin!(follow(Loop::new(node, inputs)));
    loop {
        tokio::select! {
            never = &mut follow => match never {},
            Some(result) = tasks.join_next() => result??,
        }
    }
}

/// Takes in what comes and has done what follows from it, for ever.
async fn follow(mut this: Loop) -> Infallible {
    loop {
        this.turn().await;
    }
}

/// The main loop's own state.
#[derive(Debug)]
struct Loop {
    node: Node,
    inputs: Inputs,
    service: Service,
    alive: Option<Interval>,
}

impl Loop {
    fn new(node: Node, inputs: Inputs) -> Self {
        let service = Service::from_env();
        let alive = service.watchdog().map(|period| {
            let mut alive = interval(period);
            alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
            alive
        });
        Self {
            node,
            inputs,
            service,
            alive,
        }
    }

    /// Waits until one side has its turn, by chance if several have something; takes that in, and
    /// has done what follows from it.
    async fn turn(&mut self) {
        let Self { node, inputs, .. } = self;
        let timeout = node.poll_timeout();
        tokio::select! {
            Some(told) = inputs.datastore.recv() => {
                take_in(told, &mut inputs.datastore, |told| node.datastore(now(), told));
            }
            Some(event) = inputs.dataplane.recv() => {
                take_in(event, &mut inputs.dataplane, |event| node.dataplane(now(), event));
            }
            Some(request) = inputs.face.recv() => {
                take_in(request, &mut inputs.face, |request| node.face(now(), request));
            }
            () = sleep(timeout) => {}
            () = tick(&mut self.alive) => {
                service::alive();
                return;
            }
        }
        let start = now();
        if self.node.settle(start) {
            self.node.took(now().saturating_duration_since(start));
        }
        self.service.show(self.node.status());
    }
}

/// Takes in what came, and what has been queued after it up to a limit.
fn take_in<T>(first: T, queue: &mut mpsc::Receiver<T>, mut take: impl FnMut(T)) {
    take(first);
    for _ in 0..MAX_MORE {
        let Ok(next) = queue.try_recv() else { return };
        take(next);
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

async fn sleep(until: Option<std::time::Instant>) {
    match until {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

async fn tick(alive: &mut Option<Interval>) {
    match alive {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}
