//! The core that writes, on one connection to a real helper, for tests and benches.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::time::Instant;

use calc::{Input, Output, Reading, Reconciler};
use ipc_proto::{Ack, BatchId, Known, Op, codec};
use tokio::task::JoinHandle;

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
        let mut prepared: Option<(BatchId, JoinHandle<zbus::Result<()>>)> = None;
        while let Some(output) = self.reconciler.poll(Instant::now()) {
            let batch = match output {
                Output::Apply(batch) => batch,
                // Of links that are new: their grace has ended.
                Output::Hello(known) => {
                    self.read_but(known).await;
                    continue;
                }
                Output::Prepare(_) | Output::Notice(_) | Output::AddressClean(_) => {
                    panic!("{output:?}")
                }
            };
            let proxy = self.helper.proxy.clone();
            let by_number = match prepared.take() {
                Some((id, preparing)) => {
                    preparing.await.unwrap().unwrap();
                    id == batch.id
                }
                None => false,
            };
            // On its way while the answer before it is taken in, as all that follows.
            let call = tokio::spawn(async move {
                if by_number {
                    proxy.apply_prepared(batch.id.0).await
                } else {
                    proxy.apply(&helper::bytes(&batch)).await
                }
            });
            match self.reconciler.poll(Instant::now()) {
                None => {}
                Some(Output::Prepare(batch)) => {
                    let proxy = self.helper.proxy.clone();
                    let id = batch.id;
                    let call = async move { proxy.prepare(&helper::bytes(&batch)).await };
                    prepared = Some((id, tokio::spawn(call)));
                    assert_eq!(self.reconciler.poll(Instant::now()), None);
                }
                other => panic!("{other:?}"),
            }
            let answer = call.await.unwrap().unwrap();
            let ack: Ack = codec::decode(&answer).unwrap();
            assert!(ack.failed.is_empty(), "{:?}", ack.failed);
            self.reconciler.handle(Instant::now(), Input::Ack(ack));
        }
        assert!(self.reconciler.is_in_sync());
    }

    /// Reads the kernel back, which must need no change.
    pub async fn resync(&mut self) {
        self.reconciler.handle(Instant::now(), Input::Resync);
        self.read().await;
        assert_eq!(self.reconciler.poll(Instant::now()), None);
    }
}
