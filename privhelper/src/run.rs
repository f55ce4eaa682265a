//! From the sockets that it was given to the signal that ends it.

use std::{io, os::unix::net::UnixListener, sync::Arc, thread::JoinHandle, time::Duration};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence},
};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    bpf::{self, BpfError, Object},
    config::Config,
    conntrack::Conntrack,
    dataplane::Dataplane,
    face::Face,
    netlink::Netlink,
    sandbox::PinDir,
    service::{self, Worker},
    session::Session,
    tc::{Attachments, TcError},
    watch::{Watch, WatchError},
};

/// Why the helper cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was started by hand.
    #[error(
        "no socket was passed (LISTEN_FDS): start it by cairn-supervisor, or by systemd with \
         cairn-privhelper.socket"
    )]
    NoSocket,
    /// The maps cannot be used.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The attached programs cannot be taken over.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// The interfaces cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn io(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { what, source }
}

/// Runs until SIGTERM or SIGINT. Everything in the kernel stays as it is then.
///
/// # Errors
///
/// If it cannot start or go on.
pub fn run(config: Config, pins: &PinDir) -> Result<(), RunError> {
    let mut passed = ListenFd::from_env();
    let mut take = |name, otherwise| {
        let at = position(name).unwrap_or(otherwise);
        passed.take_unix_listener(at).map_err(io("LISTEN_FDS"))
    };
    let dataplane = take("dataplane", 0)?.ok_or(RunError::NoSocket)?;
    let face = take("privhelper-face", 1)?;
    let object = bpf::open(pins, config.map_size)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("cannot start the runtime"))?;
    let mut thread = None;
    let ended = runtime.block_on(serve(config, pins, object, dataplane, face, &mut thread));
    // Nobody can ask any more; the batch that the thread is at, if any, is carried out to its end.
    drop(runtime);
    if let Some(thread) = thread {
        drop(thread.join());
    }
    ended
}

/// Returns where a socket is among those that were passed: systemd passes those of several units in
/// no particular order (`sd_listen_fds_with_names(3)`).
fn position(name: &str) -> Option<usize> {
    let names = std::env::var("LISTEN_FDNAMES").ok()?;
    names.split(':').position(|other| other == name)
}

async fn serve(
    config: Config,
    pins: &PinDir,
    object: Object,
    dataplane: UnixListener,
    face: Option<UnixListener>,
    thread: &mut Option<JoinHandle<()>>,
) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(io("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("SIGINT"))?;
    let incarnation = Incarnation::fresh();
    let (lease, leased) = watch::channel(false);
    let policy = Arc::new(config.policy);
    let (watch, watched) = Watch::start(Arc::clone(&policy)).await?;
    let netlink = Netlink::open(Arc::clone(&policy)).map_err(io("cannot open a netlink socket"))?;
    let others = netlink
        .others(watched.clone())
        .map_err(io("cannot listen to other programs' changes"))?;
    let attachments = Attachments::open(pins, object.programs)?;
    let kernel = Dataplane::new(
        policy,
        watched.clone(),
        object.routes,
        object.endpoints,
        attachments,
        netlink,
    );
    let (conntrack, flushed) =
        Conntrack::start(object.notes).map_err(io("cannot start a thread"))?;
    let session = Session::new(kernel, conntrack, incarnation, lease);
    let (worker, started) = Worker::start(session).map_err(io("cannot start a thread"))?;
    *thread = Some(started);

    let data_path = service::serve(
        listen(dataplane)?,
        config.calc,
        worker.clone(),
        watched.clone(),
        flushed,
    );
    let view = Face {
        incarnation,
        leased,
        pin_dir: pins.path().display().to_string(),
        map_size: config.map_size,
        watched,
        verdicts: object.verdicts,
        presence: Presence::default(),
    };
    let face = face.map(listen).transpose()?;
    let face = async {
        match face {
            Some(listener) => {
                bus::show(listener, config.face_users, bus::PRIVHELPER_PATH, view).await
            }
            None => std::future::pending().await,
        }
    };
    notify(&[NotifyState::Ready]);
    tracing::info!("ready");
    let watchdog = ping(worker);
    let ended = tokio::select! {
        result = watch.run() => result.map_err(RunError::from),
        result = others.run() => result.map_err(io("the socket for other programs' changes")),
        result = data_path => result.map_err(io("the data path's socket")),
        result = face => result.map_err(io("the face's socket")),
        () = watchdog => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    notify(&[NotifyState::Stopping]);
    ended
}

fn listen(listener: UnixListener) -> Result<tokio::net::UnixListener, RunError> {
    listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixListener::from_std(listener))
        .map_err(io("LISTEN_FDS"))
}

/// Tells the service manager that the dataplane's thread is alive, if it wants to know.
async fn ping(worker: Worker) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut interval = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    loop {
        interval.tick().await;
        worker.ping().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
