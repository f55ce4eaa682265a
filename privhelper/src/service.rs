//! The data path: D-Bus on one side, the thread that owns the dataplane on the other.
//!
//! One client at a time, of one user; a new one replaces the old one. Requests are passed on in
//! their order, one at a time; nothing here looks into them.

use std::{io, thread};

use ipc_proto::{
    FlowsDone,
    bus::{self, Hangup},
    codec,
};
use nix::unistd::Uid;
use serde_bytes::ByteBuf;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{broadcast::Receiver, mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use zbus::{fdo, object_server::SignalEmitter};

use crate::{
    conntrack::Flushed,
    session::{Refusal, Session},
    watch::Watched,
};

type Answer = Result<Vec<u8>, Refusal>;

/// What the dataplane's thread is asked to do.
#[derive(Debug)]
struct Job {
    what: What,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
enum What {
    Hello(ByteBuf),
    Page(ByteBuf),
    Apply(ByteBuf),
    /// The client is gone.
    End,
    /// Nothing: shows that the thread is alive.
    Ping,
}

/// Asks the dataplane's thread.
#[derive(Clone, Debug)]
pub struct Worker(mpsc::Sender<Job>);

impl Worker {
    /// Starts the thread. It ends, after what it is at, when the last [`Worker`] is dropped.
    ///
    /// # Errors
    ///
    /// If there can be no more threads.
    pub fn start(mut session: Session) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (jobs, mut queue) = mpsc::channel::<Job>(1);
        let thread = thread::Builder::new()
            .name("dataplane".into())
            .spawn(move || {
                while let Some(Job { what, answer }) = queue.blocking_recv() {
                    let result = match what {
                        What::Hello(request) => session.hello(&request),
                        What::Page(request) => session.page(&request),
                        What::Apply(request) => session.apply(&request),
                        What::End => {
                            session.end();
                            Ok(Vec::new())
                        }
                        What::Ping => Ok(Vec::new()),
                    };
                    // Who asked may be gone.
                    drop(answer.send(result));
                }
            })?;
        Ok((Self(jobs), thread))
    }

    /// Returns when the thread has done all that was asked before.
    pub async fn ping(&self) {
        drop(self.ask(What::Ping).await);
    }

    async fn ask(&self, what: What) -> fdo::Result<ByteBuf> {
        let (answer, result) = oneshot::channel();
        let gone = || fdo::Error::Failed("the helper is ending".into());
        let job = Job { what, answer };
        if self.0.send(job).await.is_err() {
            return Err(gone());
        }
        match result.await {
            Ok(Ok(bytes)) => Ok(ByteBuf::from(bytes)),
            Ok(Err(refusal)) => {
                tracing::warn!(%refusal, "refused a request");
                Err(dbus_error(&refusal))
            }
            Err(_ended) => Err(gone()),
        }
    }
}

fn dbus_error(refusal: &Refusal) -> fdo::Error {
    let text = refusal.to_string();
    match refusal {
        Refusal::Malformed(_) => fdo::Error::InvalidArgs(text),
        Refusal::Version(_) => fdo::Error::NotSupported(text),
        Refusal::Fenced | Refusal::NoPage => fdo::Error::AccessDenied(text),
        Refusal::TooLong(_) => fdo::Error::LimitsExceeded(text),
        Refusal::Snapshot(_) => fdo::Error::IOError(text),
        Refusal::Answer(_) => fdo::Error::Failed(text),
    }
}

/// The D-Bus object of one connection.
#[derive(Debug)]
struct DataplaneObject {
    worker: Worker,
    hangup: Hangup,
}

impl DataplaneObject {
    async fn ask(&self, what: What) -> fdo::Result<ByteBuf> {
        // What a client that has been replaced has asked before must not touch the next one's lease.
        if self.hangup.is_ended() {
            return Err(fdo::Error::Disconnected("another client came".into()));
        }
        self.worker.ask(what).await
    }
}

// Without `spawn = false` zbus may run two calls at once, or the second one first.
#[zbus::interface(name = "io.cairn.Dataplane1", spawn = false)]
impl DataplaneObject {
    /// Starts a lease and ends the one before.
    async fn hello(&self, hello: ByteBuf) -> fdo::Result<ByteBuf> {
        self.ask(What::Hello(hello)).await
    }

    /// Returns a page of the snapshot that was read for the lease.
    async fn page(&self, request: ByteBuf) -> fdo::Result<ByteBuf> {
        self.ask(What::Page(request)).await
    }

    /// Applies a batch.
    async fn apply(&self, batch: ByteBuf) -> fdo::Result<ByteBuf> {
        self.ask(What::Apply(batch)).await
    }

    /// Interfaces have changed.
    #[zbus(signal)]
    async fn links_changed(emitter: &SignalEmitter<'_>, feed: ByteBuf) -> zbus::Result<()>;

    /// Flow flushes have ended.
    #[zbus(signal)]
    async fn flows_flushed(emitter: &SignalEmitter<'_>, done: ByteBuf) -> zbus::Result<()>;
}

/// Serves the clients of `listener`, one after the other, until it fails.
///
/// # Errors
///
/// What `accept(2)` said.
pub async fn serve(
    listener: UnixListener,
    calc: Uid,
    worker: Worker,
    watched: Watched,
    flushed: Flushed,
) -> io::Result<()> {
    let mut served: Option<JoinHandle<()>> = None;
    loop {
        let stream = bus::accept(&listener, |uid| uid == calc.as_raw()).await?;
        if let Some(old) = served.take() {
            old.abort();
            // Cancelled or done: its connection is closed either way.
            drop(old.await);
            drop(worker.ask(What::End).await);
        }
        let (worker, watched, flushed) = (worker.clone(), watched.clone(), flushed.subscribe());
        served = Some(tokio::spawn(async move {
            match serve_client(stream, &worker, &watched, flushed).await {
                Ok(()) => tracing::info!("calc went away"),
                Err(error) => tracing::warn!(%error, "lost the connection to calc"),
            }
            drop(worker.ask(What::End).await);
        }));
    }
}

/// Ends a connection even if the task that serves it is cancelled, and whatever it is stuck in.
struct Closing(Hangup);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn serve_client(
    stream: UnixStream,
    worker: &Worker,
    watched: &Watched,
    mut flushed: Receiver<FlowsDone>,
) -> zbus::Result<()> {
    let closing = Closing(Hangup::default());
    let object = DataplaneObject {
        worker: worker.clone(),
        hangup: closing.0.clone(),
    };
    let connection = bus::server_until(stream, &closing.0)
        .serve_at(bus::DATAPLANE_PATH, object)
        .build();
    let connection = timeout(bus::HANDSHAKE_TIMEOUT, connection)
        .await
        .map_err(failure)??;
    tracing::debug!("calc connected");
    let emitter = SignalEmitter::new(&connection, bus::DATAPLANE_PATH)?;
    let feed = async {
        loop {
            watched.changed().await;
            let feed = watched.links().take_feed();
            if let Some(feed) = feed {
                let bytes = codec::encode(&feed).map_err(failure)?;
                DataplaneObject::links_changed(&emitter, ByteBuf::from(bytes)).await?;
            }
        }
    };
    let ends = async {
        loop {
            // Too many at once, or no thread: the client must know that there are some to miss.
            let done = flushed.recv().await.map_err(failure)?;
            let bytes = codec::encode(&done).map_err(failure)?;
            DataplaneObject::flows_flushed(&emitter, ByteBuf::from(bytes)).await?;
        }
    };
    tokio::select! {
        () = connection.closed() => Ok(()),
        result = feed => result,
        result = ends => result,
    }
}

fn failure(error: impl std::error::Error) -> zbus::Error {
    zbus::Error::Failure(error.to_string())
}
