//! The core that writes, on one connection to a real helper, for tests and benches.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::{pin::pin, time::Instant};

use calc::{Input, Output, Reading, Reconciler};
use futures_util::{
    FutureExt,
    future::{Fuse, FusedFuture},
};
use ipc_proto::{Ack, Batch, Known, Op, bus::DataplaneProxy, codec};
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use crate::helper::{self, Calc, Helper};

/// See the [module](self).
#[derive(Debug)]
pub struct Agent {
    reconciler: Box<Reconciler>,
    helper: Calc,
}

impl Agent {
    /// Connects, takes the lease and learns what the kernel holds; writes nothing before the
    /// datastore is said to be in sync.
    pub async fn start(helper: &Helper) -> Self {
        let mut agent = Self {
            // What is told here is routes; flows have their own tests and benches.
            reconciler: Box::new(Reconciler::without_flows()),
            helper: helper.connect().await,
        };
        agent.reconciler.handle(Instant::now(), Input::Connected);
        agent.read().await;
        agent
    }

    /// Returns the flows lane of its lease, of which it makes no use.
    #[must_use]
    pub fn flows_lane(&self) -> Calc {
        self.helper.under_the_same_lease()
    }

    /// Says that the datastore has shown all that it holds.
    pub fn in_sync(&mut self) {
        let in_sync = Input::InSync { complete: true };
        self.reconciler.handle(Instant::now(), in_sync);
    }

    /// Says that these are all that is wanted and are in place: nothing must be written.
    pub fn in_sync_with(&mut self, ops: impl IntoIterator<Item = Op>) {
        for op in ops {
            self.reconciler.want(op).unwrap();
        }
        self.in_sync();
        assert_eq!(self.reconciler.poll(Instant::now()), None);
    }

    /// Reads the kernel back, as is asked for next.
    async fn read(&mut self) {
        let output = self.reconciler.poll(Instant::now());
        let Some(Output::Hello(known)) = output else {
            panic!("{output:?}");
        };
        self.read_but(known).await;
    }

    /// Reads back what is not as `known`.
    async fn read_but(&mut self, known: Known) {
        let (welcome, pages) = self.helper.pages::<Reading>(known).await;
        let mut reading = Reading::default();
        for page in pages {
            reading.append(page);
        }
        let welcome = Input::Welcome(welcome, reading);
        self.reconciler.handle(Instant::now(), welcome);
    }

    /// Makes these wanted, and returns when the kernel is as it should be.
    pub async fn apply(&mut self, ops: impl IntoIterator<Item = Op>) {
        let ops = ops.into_iter().collect();
        self.reconciler.want_all(ops).unwrap();
        // What is sent is on its way while the answer before it is taken in, as all that follows.
        let (requests, queue) = mpsc::unbounded_channel();
        let (sender, mut answers) = mpsc::unbounded_channel();
        tokio::spawn(send(self.helper.proxy.clone(), queue, sender));
        loop {
            let mut unanswered = false;
            while let Some(output) = self.reconciler.poll(Instant::now()) {
                match output {
                    Output::Apply(batch) => {
                        unanswered = true;
                        requests.send(Request::Apply(batch)).unwrap();
                    }
                    Output::Prepare(batch) => requests.send(Request::Prepare(batch)).unwrap(),
                    // Of links that are new: their grace has ended.
                    Output::Hello(known) => self.read_but(known).await,
                    Output::Notice(_) | Output::AddressClean(_) => panic!("{output:?}"),
                }
            }
            if !unanswered {
                break;
            }
            self.ack(&answers.recv().await.unwrap());
        }
        assert!(self.reconciler.is_in_sync());
    }

    fn ack(&mut self, answer: &[u8]) {
        let ack: Ack = codec::decode(answer).unwrap();
        assert!(ack.failed.is_empty(), "{:?}", ack.failed);
        self.reconciler.handle(Instant::now(), Input::Ack(ack));
    }

    /// Reads the kernel back, which must need no change.
    pub async fn resync(&mut self) {
        self.reconciler.handle(Instant::now(), Input::Resync);
        self.read().await;
        assert_eq!(self.reconciler.poll(Instant::now()), None);
    }
}

/// What is asked of the helper.
#[derive(Debug)]
enum Request {
    Prepare(Batch),
    Apply(Batch),
}

/// Sends requests in their order, as `calc`'s connection does: what is to be prepared follows the call for
/// what was prepared before, and does not wait for its answer.
async fn send(
    proxy: DataplaneProxy<'static>,
    mut requests: mpsc::UnboundedReceiver<Request>,
    answers: mpsc::UnboundedSender<ByteBuf>,
) {
    let mut call = pin!(Fuse::terminated());
    let mut prepared = None;
    loop {
        let request = tokio::select! {
            biased;
            answer = &mut call, if !call.is_terminated() => {
                let answer: zbus::Result<ByteBuf> = answer;
                // Whoever asked has failed otherwise.
                drop(answers.send(answer.unwrap()));
                continue;
            }
            request = requests.recv() => request,
        };
        match request {
            None => return,
            Some(Request::Prepare(batch)) => {
                prepared = Some(batch.id);
                let bytes = helper::bytes(&batch);
                let proxy = &proxy;
                let mut prepare = pin!(async move { proxy.prepare(&bytes).await }.fuse());
                tokio::select! {
                    biased;
                    answer = &mut call, if !call.is_terminated() => {
                        drop(answers.send(answer.unwrap()));
                        prepare.await.unwrap();
                    }
                    sent = &mut prepare => sent.unwrap(),
                }
            }
            Some(Request::Apply(batch)) => {
                let by_number = prepared.take() == Some(batch.id);
                let proxy = proxy.clone();
                let apply = async move {
                    if by_number {
                        proxy.apply_prepared(batch.id.0).await
                    } else {
                        proxy.apply(&helper::bytes(&batch)).await
                    }
                };
                call.set(apply.fuse());
            }
        }
    }
}
