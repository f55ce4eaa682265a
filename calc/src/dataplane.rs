//! The connection to the helper: requests out, answers and the feed of changes in.
//!
//! It decides nothing. A connection lasts until the first thing that is not as it should be; then
//! another one is made. The feed is handed on without a gap, and only after the answer to the
//! `Hello` whose reading it follows.

mod feed;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod tests;
mod train;

use std::{
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{Fuse, FusedFuture},
};
use ipc_proto::{
    Ack, Batch, BatchId, Feed, FlowsDone, Hello, Known, Observed, Page, PageRequest, VERSION,
    Welcome,
    bus::{self, DataplaneProxy},
    codec,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_bytes::ByteBuf;
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{Instant, sleep},
};
use zbus::{Connection, MatchRule, MessageStream, message, proxy::CacheProperties};

pub use self::{
    feed::{FeedOrder, Gap},
    train::Train,
};
use crate::reading::Reading;

/// The wait after a connection that ended early; it doubles from there.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest wait, and how long a connection must have lasted to count as good.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// What is received without being asked for.
const SIGNAL: &str = "a signal";
/// The signal that flow flushes have ended.
const FLOWS_FLUSHED: &str = "FlowsFlushed";
/// How many signals zbus queues before it stops reading from the socket.
const FEED_QUEUE: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// What is asked of the helper.
#[derive(Debug)]
pub enum Request {
    /// Start a lease and read back what is not known.
    Hello(Known),
    /// Carry out a batch.
    Apply(Arc<Batch>),
    /// Carry out a batch once all of the last one of its lane is made, and only then.
    Follow(Arc<Batch>),
    /// Carry out none of those that are to follow.
    Recall,
}

/// What is heard of the helper.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a reading is rare, and moved no more often than it must be"
)]
pub enum Event {
    /// It can be reached: requests go this way, until it is disconnected. There is one at a time on each
    /// lane, and what follows it is of the same load, so nothing bounds them here: none must be lost.
    Connected(mpsc::UnboundedSender<Request>),
    /// It cannot be reached, or no longer.
    Disconnected(Error),
    /// It has started a lease.
    Welcome(Welcome, Reading),
    /// It has carried out a batch.
    Ack(Ack),
    /// Nothing follows any more; this batch of [`Lane::State`] has been sent and is not answered.
    Recalled(Option<BatchId>),
    /// It has ended flow flushes.
    Flushed(FlowsDone),
    /// Interfaces have changed, or others have changed something else.
    Feed(Feed),
}

/// A call to be answered.
#[derive(Debug)]
enum Call {
    Hello(Known),
    Apply(Arc<Batch>),
    /// Of the batch that was sent ahead.
    ApplyPrepared(BatchId),
}

/// Why there is no connection to the helper.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers.
    #[error("cannot reach the helper at {path}: {source}; is cairn-privhelper running?")]
    Connect {
        /// Where.
        path: PathBuf,
        /// What happened.
        source: zbus::Error,
    },
    /// It went away.
    #[error("the helper ended the connection")]
    Closed,
    /// It refused a request, or took too long.
    #[error("the helper did not do {request}: {source}")]
    Call {
        /// The method.
        request: &'static str,
        /// What it said.
        source: zbus::Error,
    },
    /// It is of another release.
    #[error(
        "the helper speaks version {theirs} of the protocol and this process version {VERSION}: \
         install both from the same release"
    )]
    Version {
        /// The helper's version.
        theirs: u16,
    },
    /// It sent something else.
    #[error("cannot read the helper's {what}: {source}; are both from the same release?")]
    Decode {
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        source: codec::DecodeError,
    },
    /// It answered something that was not asked.
    #[error("the helper acknowledged another batch than the one it was sent")]
    OtherBatch,
    /// The request cannot be put into a message.
    #[error(transparent)]
    Encode(#[from] codec::EncodeError),
    /// Something of the feed was lost.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// The signals cannot be received.
    #[error("cannot receive signals of the helper: {0}")]
    Signals(zbus::Error),
}

/// Keeps a connection to the helper whose sockets are in `runtime_dir`, until nobody listens.
pub async fn run(runtime_dir: PathBuf, events: mpsc::Sender<Event>) {
    let path = runtime_dir.join(bus::socket::DATAPLANE);
    let mut wait = RETRY_MIN;
    loop {
        let start = Instant::now();
        match session(&path, &events).await {
            Ok(()) => return,
            Err(error) => {
                if events.send(Event::Disconnected(error)).await.is_err() {
                    return;
                }
            }
        }
        if start.elapsed() > RETRY_MAX {
            wait = RETRY_MIN;
        }
        sleep(wait).await;
        wait = RETRY_MAX.min(wait * 2);
    }
}

/// Holds one connection. Ends well only if nobody listens.
async fn session(path: &Path, events: &mpsc::Sender<Event>) -> Result<(), Error> {
    let connection = bus::connect(path).await.map_err(|source| Error::Connect {
        path: path.to_owned(),
        source,
    })?;
    let mut signals = signals(&connection).await.map_err(Error::Signals)?;
    let proxy = DataplaneProxy::builder(&connection)
        .cache_properties(CacheProperties::No)
        .build()
        .await
        .map_err(Error::Signals)?;
    let (sender, mut requests) = mpsc::unbounded_channel();
    if events.send(Event::Connected(sender)).await.is_err() {
        return Ok(());
    }
    let mut order = FeedOrder::default();
    let mut train = Train::default();
    let mut call = pin!(Fuse::terminated());
    let mut preparing = pin!(Fuse::terminated());
    let mut next = None;
    loop {
        // In this order: a call is sent when it is first looked at, and what is to be prepared must not
        // overtake the one before it. The signals are read all the time, for a full queue would hold up
        // the answers as well; requests are few.
        let event = tokio::select! {
            biased;
            event = &mut call, if !call.is_terminated() => Some(event?),
            sent = &mut preparing, if !preparing.is_terminated() => {
                sent?;
                None
            }
            request = requests.recv(), if next.is_none() => match request {
                None => return Ok(()),
                Some(Request::Follow(batch)) => {
                    train.add(batch);
                    None
                }
                Some(Request::Recall) => Some(Event::Recalled(train.stop())),
                Some(Request::Hello(known)) => {
                    next = Some(Call::Hello(known));
                    None
                }
                Some(Request::Apply(batch)) => {
                    next = Some(Call::Apply(batch));
                    None
                }
            },
            signal = signals.next() => {
                let message = signal.ok_or(Error::Closed)?.map_err(failed(SIGNAL))?;
                let bytes: ByteBuf = message.body().deserialize().map_err(failed(SIGNAL))?;
                if message.header().member().is_some_and(|member| member == FLOWS_FLUSHED) {
                    Some(Event::Flushed(decode("end of flow flushes", &bytes)?))
                } else {
                    let feed: Feed = decode("feed of changes", &bytes)?;
                    order.push(feed)?.map(Event::Feed)
                }
            }
        };
        if let Some(Event::Ack(ack)) = &event {
            train.answered(ack);
        }
        // What was sent ahead is with the helper before it is called for.
        if call.is_terminated() && preparing.is_terminated() {
            if let Some(Call::Apply(batch)) = &next {
                train.start(batch);
            }
            let follows = || {
                let (batch, is_prepared) = train.next()?;
                Some(if is_prepared {
                    Call::ApplyPrepared(batch.id)
                } else {
                    Call::Apply(batch)
                })
            };
            if let Some(next) = next.take().or_else(follows) {
                if matches!(next, Call::Hello(_)) {
                    order.hold();
                }
                call.set(answer(&proxy, next).fuse());
            }
        }
        if !call.is_terminated()
            && preparing.is_terminated()
            && let Some(batch) = train.ahead()
        {
            preparing.set(prepare(&proxy, encode(&**batch)?).fuse());
        }
        let Some(event) = event else { continue };
        let held = match &event {
            Event::Welcome(welcome, _) => order.follow(welcome.feed)?,
            Event::Connected(_)
            | Event::Disconnected(_)
            | Event::Ack(_)
            | Event::Recalled(_)
            | Event::Flushed(_)
            | Event::Feed(_) => Vec::new(),
        };
        for event in [event].into_iter().chain(held.into_iter().map(Event::Feed)) {
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Receives the feed and the ends of flow flushes. They are received from here on, but come only
/// after a `Hello`.
async fn signals(connection: &Connection) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder()
        .msg_type(message::Type::Signal)
        .path(bus::DATAPLANE_PATH)
        .interface("io.cairn.Dataplane1")
        .build()?;
    MessageStream::for_match_rule(rule, connection, Some(FEED_QUEUE)).await
}

/// Starts a lease, and returns it with the pages that the helper has read, less what is `known` and
/// so.
///
/// Pages are decoded by other threads, while the next ones are on their way.
///
/// # Errors
///
/// If the helper does not answer, or not as it should.
pub async fn hello<P>(proxy: &DataplaneProxy<'_>, known: Known) -> Result<(Welcome, Vec<P>), Error>
where
    P: FromIterator<Observed> + Send + 'static,
{
    let version = VERSION;
    let request = encode(&Hello { version, known })?;
    let bytes = proxy.hello(&request).await.map_err(failed("Hello"))?;
    let welcome: Welcome = decode("welcome", &bytes)?;
    if welcome.version != VERSION {
        return Err(Error::Version {
            theirs: welcome.version,
        });
    }
    let lease = welcome.lease;
    let mut decoding = Vec::new();
    for page in 0.. {
        let request = encode(&PageRequest { lease, page })?;
        let (last, bytes) = proxy.page(&request).await.map_err(failed("Page"))?;
        decoding.push(spawn_blocking(move || {
            let page: Page = decode("page", &bytes)?;
            Ok::<P, Error>(page.items.into_iter().collect())
        }));
        if last {
            break;
        }
    }
    let mut pages = Vec::with_capacity(decoding.len());
    for page in decoding {
        // A panic ends the process, and only its end cancels.
        pages.push(page.await.map_err(|_ending| Error::Closed)??);
    }
    Ok((welcome, pages))
}

/// Sends a batch ahead.
async fn prepare(proxy: &DataplaneProxy<'_>, bytes: ByteBuf) -> Result<(), Error> {
    proxy.prepare(&bytes).await.map_err(failed("Prepare"))
}

/// Calls the helper, and returns what is answered.
async fn answer(proxy: &DataplaneProxy<'_>, call: Call) -> Result<Event, Error> {
    let (id, bytes) = match call {
        Call::Hello(known) => {
            let (welcome, pages) = hello::<Reading>(proxy, known).await?;
            let mut reading = Reading::default();
            for page in pages {
                reading.append(page);
            }
            return Ok(Event::Welcome(welcome, reading));
        }
        Call::Apply(batch) => {
            let call = proxy.apply(&encode(&*batch)?).await;
            (batch.id, call.map_err(failed("Apply"))?)
        }
        Call::ApplyPrepared(id) => {
            let call = proxy.apply_prepared(id.0).await;
            (id, call.map_err(failed("ApplyPrepared"))?)
        }
    };
    let ack: Ack = decode("acknowledgement", &bytes)?;
    if ack.id == id {
        Ok(Event::Ack(ack))
    } else {
        Err(Error::OtherBatch)
    }
}

/// Explains a failed call.
fn failed(request: &'static str) -> impl Fn(zbus::Error) -> Error {
    move |source| {
        if let zbus::Error::InputOutput(error) = &source
            && error.kind() != io::ErrorKind::TimedOut
        {
            return Error::Closed;
        }
        Error::Call { request, source }
    }
}

fn encode<T: Serialize>(message: &T) -> Result<ByteBuf, Error> {
    Ok(ByteBuf::from(codec::encode(message)?))
}

fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Error> {
    codec::decode(bytes).map_err(|source| Error::Decode { what, source })
}
