//! The data path: D-Bus on one side, the thread that owns the dataplane on the other.
//!
//! One client at a time, of one user; a new one replaces the old one. Requests are passed on in
//! their order, one at a time; nothing here looks into them.

mod journal;

use std::{io, mem, thread, time::Instant};

use ipc_proto::{
    BatchId, FlowsDone,
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

use self::journal::Journal;
use crate::{
    conntrack::Flushed,
    pages::Pages,
    session::{Refusal, Session},
    watch::Watched,
};

/// What the dataplane's thread is asked to do, and where the answer goes.
#[derive(Debug)]
enum Job {
    Hello(ByteBuf, oneshot::Sender<Result<(Vec<u8>, Pages), Refusal>>),
    Apply(ByteBuf, oneshot::Sender<Result<Vec<u8>, Refusal>>),
    /// To have a batch at hand, which is likely to be next.
    Prepare(ByteBuf),
    ApplyPrepared(BatchId, oneshot::Sender<Result<Vec<u8>, Refusal>>),
    /// The client is gone.
    End(oneshot::Sender<()>),
    /// Nothing: shows that the thread is alive.
    Ping(oneshot::Sender<()>),
}

impl Job {
    /// Does it. Who asked may be gone, and hears nothing then.
    fn run(self, session: &mut Session) {
        match self {
            Self::Hello(request, answer) => match session.hello(&request) {
                Ok(mut granted) => {
                    let (pages, coming) = mpsc::unbounded_channel();
                    let welcome = mem::take(&mut granted.welcome);
                    let coming = Pages::new(granted.lease, coming);
                    drop(answer.send(Ok((welcome, coming))));
                    session.read(granted, &pages);
                }
                Err(refusal) => drop(answer.send(Err(refusal))),
            },
            Self::Apply(request, answer) => drop(answer.send(session.apply(&request))),
            Self::Prepare(request) => session.prepare(&request),
            Self::ApplyPrepared(id, answer) => drop(answer.send(session.apply_prepared(id))),
            Self::End(answer) => {
                session.end();
                answer.send(()).unwrap_or_default();
            }
            Self::Ping(answer) => answer.send(()).unwrap_or_default(),
        }
    }
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
                while let Some(job) = queue.blocking_recv() {
                    job.run(&mut session);
                }
            })?;
        Ok((Self(jobs), thread))
    }

    /// Returns when the thread has done all that was asked before.
    pub async fn ping(&self) {
        drop(self.ask(Job::Ping).await);
    }

    /// Ends the lease of who is gone.
    async fn end(&self) {
        drop(self.ask(Job::End).await);
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> fdo::Result<T> {
        let (answer, result) = oneshot::channel();
        self.send(job(answer)).await?;
        result.await.map_err(|_ended| ending())
    }

    async fn send(&self, job: Job) -> fdo::Result<()> {
        self.0.send(job).await.map_err(|_ended| ending())
    }
}

/// The error of whoever asks a thread that has ended.
fn ending() -> fdo::Error {
    fdo::Error::Failed("the helper is ending".into())
}

/// Logs a refusal and makes it the answer.
fn refused(journal: &Journal, refusal: &Refusal) -> fdo::Error {
    journal.warn(format_args!("refused a request: {refusal}"));
    dbus_error(refusal)
}

fn dbus_error(refusal: &Refusal) -> fdo::Error {
    let text = refusal.to_string();
    match refusal {
        Refusal::Malformed(_) => fdo::Error::InvalidArgs(text),
        Refusal::Version(_) => fdo::Error::NotSupported(text),
        Refusal::Fenced | Refusal::NoPage | Refusal::NotPrepared(_) => {
            fdo::Error::AccessDenied(text)
        }
        Refusal::Snapshot(_) => fdo::Error::IOError(text),
        Refusal::Answer(_) => fdo::Error::Failed(text),
    }
}

/// The D-Bus object of one connection.
#[derive(Debug)]
struct DataplaneObject {
    worker: Worker,
    hangup: Hangup,
    journal: Journal,
    /// What is left of the snapshot for the last `Hello`.
    pages: Option<Pages>,
}

impl DataplaneObject {
    /// Refuses what a client that has been replaced asked before: it must not touch the lease of the
    /// next one.
    fn is_current(&self) -> fdo::Result<()> {
        if self.hangup.is_ended() {
            Err(fdo::Error::Disconnected("another client came".into()))
        } else {
            Ok(())
        }
    }

    async fn carry_out(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<Vec<u8>, Refusal>>) -> Job,
    ) -> fdo::Result<ByteBuf> {
        self.is_current()?;
        let answer = self.worker.ask(job).await?;
        answer
            .map(ByteBuf::from)
            .map_err(|refusal| refused(&self.journal, &refusal))
    }
}

// Without `spawn = false` zbus may run two calls at once, or the second one first.
#[zbus::interface(name = "io.cairn.Dataplane1", spawn = false)]
impl DataplaneObject {
    /// Starts a lease and ends the one before.
    async fn hello(&mut self, hello: ByteBuf) -> fdo::Result<ByteBuf> {
        self.is_current()?;
        self.pages = None;
        let granted = self.worker.ask(|answer| Job::Hello(hello, answer)).await?;
        let (welcome, pages) = granted.map_err(|refusal| refused(&self.journal, &refusal))?;
        self.pages = Some(pages);
        Ok(ByteBuf::from(welcome))
    }

    /// Returns the next page of the snapshot that is read for the lease, and whether it is the last.
    async fn page(&mut self, request: ByteBuf) -> fdo::Result<(bool, ByteBuf)> {
        let page = match &mut self.pages {
            Some(pages) => pages.serve(&request).await,
            None => Err(Refusal::NoPage),
        };
        page.map(|(last, page)| (last, ByteBuf::from(page)))
            .map_err(|refusal| refused(&self.journal, &refusal))
    }

    /// Applies a batch.
    async fn apply(&self, batch: ByteBuf) -> fdo::Result<ByteBuf> {
        self.carry_out(|answer| Job::Apply(batch, answer)).await
    }

    /// Keeps a batch, in place of the one before, until it is to be applied.
    async fn prepare(&self, batch: ByteBuf) -> fdo::Result<()> {
        self.is_current()?;
        self.worker.send(Job::Prepare(batch)).await
    }

    /// Applies the batch that was prepared.
    async fn apply_prepared(&self, id: u64) -> fdo::Result<ByteBuf> {
        let job = |answer| Job::ApplyPrepared(BatchId(id), answer);
        self.carry_out(job).await
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
    let journal = Journal::new(Instant::now());
    let mut served: Option<JoinHandle<()>> = None;
    loop {
        let stream = bus::accept(&listener, |uid| uid == calc.as_raw()).await?;
        if let Some(old) = served.take() {
            old.abort();
            // Cancelled or done: its connection is closed either way.
            drop(old.await);
            worker.end().await;
        }
        let (worker, watched, flushed) = (worker.clone(), watched.clone(), flushed.subscribe());
        let journal = journal.clone();
        served = Some(tokio::spawn(async move {
            match serve_client(stream, &worker, &watched, flushed, &journal).await {
                Ok(()) => journal.info("calc went away"),
                Err(error) => journal.warn(format_args!("lost the connection to calc: {error}")),
            }
            worker.end().await;
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
    journal: &Journal,
) -> zbus::Result<()> {
    let closing = Closing(Hangup::default());
    let object = DataplaneObject {
        worker: worker.clone(),
        hangup: closing.0.clone(),
        journal: journal.clone(),
        pages: None,
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
