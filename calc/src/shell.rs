//! The process: one loop that feeds the cores and carries out what they ask for.
//!
//! The only place that reads the clock. What is queued is taken in before anything is computed, so
//! a burst of changes is one computation. Ending leaves the kernel as it is.

mod journal;
mod node;
mod service;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, future::pending, io, os::unix::net::UnixListener, pin::pin};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, interval, sleep_until},
};

use self::{node::Node, service::Service};
use crate::{
    config::Config,
    dataplane,
    datastore::{self, FileDatastore, Update},
    face::{self, Face, Signals, Status},
};

/// How much may be queued from each side. What is queued is taken in at once.
const QUEUE: usize = 64;

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
    updates: mpsc::Receiver<Update>,
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
    let (update_sender, updates) = mpsc::channel(QUEUE);
    let (event_sender, dataplane) = mpsc::channel(QUEUE);
    let (request_sender, face) = mpsc::channel(QUEUE);
    let (status_sender, status) = watch::channel(Status::default());
    let (signal_sender, signals) = Signals::channel();
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixListener::from_std(listener))
        .map_err(ShellError::Face)?;

    let mut tasks = JoinSet::new();
    let object = Face {
        incarnation: Incarnation::fresh(),
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
        FileDatastore::run(dir, name, update_sender).await?;
        Ok(())
    });

    let node = Node::new(&config, status_sender, signal_sender);
    let inputs = Inputs {
        updates,
        dataplane,
        face,
    };
    let mut follow = pin!(follow(node, inputs));
    loop {
        tokio::select! {
            never = &mut follow => match never {},
            Some(result) = tasks.join_next() => result??,
        }
    }
}

/// Takes in what comes and has done what follows from it, for ever.
async fn follow(mut node: Node, mut inputs: Inputs) -> Infallible {
    let service = Service::from_env();
    let mut alive = service.watchdog().map(interval);
    loop {
        let timeout = node.poll_timeout();
        tokio::select! {
            Some(update) = inputs.updates.recv() => node.update(now(), update),
            Some(event) = inputs.dataplane.recv() => node.dataplane(now(), event),
            Some(request) = inputs.face.recv() => node.face(now(), request),
            () = sleep(timeout) => {}
            () = tick(&mut alive) => {
                service::alive();
                continue;
            }
        }
        while let Ok(update) = inputs.updates.try_recv() {
            node.update(now(), update);
        }
        while let Ok(event) = inputs.dataplane.try_recv() {
            node.dataplane(now(), event);
        }
        while let Ok(request) = inputs.face.try_recv() {
            node.face(now(), request);
        }
        node.settle(now());
        service.show(node.status());
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

async fn tick(alive: &mut Option<tokio::time::Interval>) {
    match alive {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}
