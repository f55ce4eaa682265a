//! The core that writes and `calc`'s own connection, to a real helper, for tests and benches.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::{net::IpAddr, sync::Arc, time::Instant};

use calc::{Calculator, DataplaneEvent as Event, Input, Output, Reconciler, Request};
use ipc_proto::{Batch, BatchId, FlowsDone, Known, Lane, Lease, Op, Step, bus};
use tokio::sync::mpsc;

use crate::helper::Helper;

/// How much may be heard before it is listened to.
const QUEUE: usize = 100;
/// The number of the first batch of its own: none of the core's.
const FIRST_FLUSH: u64 = 1 << 32;

/// See the [module](self). It hears of no changes but by reading.
#[derive(Debug)]
pub struct Agent {
    reconciler: Box<Reconciler>,
    requests: mpsc::UnboundedSender<Request>,
    events: mpsc::Receiver<Event>,
    lease: Lease,
    /// The number of the last batch of its own,
    flush: u64,
    /// and of the last one that has ended.
    flushed: u64,
}

impl Agent {
    /// Connects, takes the lease and learns what the kernel holds; writes nothing before the
    /// datastore is said to be in sync.
    pub async fn start(helper: &Helper) -> Self {
        let (sender, mut events) = mpsc::channel(QUEUE);
        let socket = helper.socket(bus::socket::DATAPLANE);
        tokio::spawn(calc::run(socket.parent().unwrap().to_owned(), sender));
        let Some(Event::Connected(requests)) = events.recv().await else {
            panic!("no connection\n{}", helper.log());
        };
        let mut agent = Self {
            // What is told here is routes; flows have their own tests and benches.
            reconciler: Box::new(Reconciler::without_flows()),
            requests,
            events,
            lease: Lease(0),
            flush: FIRST_FLUSH,
            flushed: FIRST_FLUSH,
        };
        agent.reconciler.handle(Instant::now(), Input::Connected);
        agent.read().await;
        agent
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
        self.requests.send(Request::Hello(known)).unwrap();
        let resyncs = self.reconciler.resyncs();
        while self.reconciler.resyncs() == resyncs {
            self.hear().await;
        }
    }

    /// Makes these wanted, and returns when the kernel is as it should be.
    pub async fn apply(&mut self, ops: impl IntoIterator<Item = Op>) {
        let ops = ops.into_iter().collect();
        self.reconciler.want_all(ops).unwrap();
        self.settle().await;
    }

    /// Makes wanted what is computed, and returns when the kernel is as it should be.
    pub async fn follow(&mut self, calculator: &mut Calculator) {
        let Self {
            reconciler,
            requests,
            ..
        } = self;
        let ops = calc::resolve(calculator, reconciler, |output| ask(requests, output));
        self.apply(ops).await;
    }

    async fn settle(&mut self) {
        loop {
            while let Some(output) = self.reconciler.poll(Instant::now()) {
                if let Output::Hello(known) = output {
                    // Of links that are new: their grace has ended.
                    self.read_but(known).await;
                } else {
                    ask(&self.requests, output);
                }
            }
            if !self.reconciler.is_writing() {
                break;
            }
            self.hear().await;
        }
        assert!(self.reconciler.is_in_sync());
    }

    /// Reads the kernel back, which must need no change.
    pub async fn resync(&mut self) {
        self.reconciler.handle(Instant::now(), Input::Resync);
        self.read().await;
        assert_eq!(self.reconciler.poll(Instant::now()), None);
    }

    /// Has the flows of addresses forgotten, under the same lease and on the other lane.
    pub fn flush(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.flush += 1;
        let step = |address| Step {
            op: Op::FlowFlush(address),
            needs: None,
        };
        let batch = Batch {
            lease: self.lease,
            lane: Lane::Flows,
            id: BatchId(self.flush),
            steps: addresses.into_iter().map(step).collect(),
        };
        let request = Request::Apply(Arc::new(batch));
        self.requests.send(request).unwrap();
    }

    /// Returns whether they are known to be forgotten.
    #[must_use]
    pub fn has_flushed(&self) -> bool {
        self.flushed == self.flush
    }

    /// Waits until they are.
    pub async fn flushed(&mut self) {
        while !self.has_flushed() {
            self.hear().await;
        }
    }

    async fn hear(&mut self) {
        let input = match self.events.recv().await.unwrap() {
            Event::Welcome(welcome, reading) => {
                self.lease = welcome.lease;
                Input::Welcome(welcome, reading)
            }
            Event::Ack(ack) => {
                assert!(ack.failed.is_empty(), "{:?}", ack.failed);
                Input::Ack(ack)
            }
            Event::Recalled(in_flight) => Input::Recalled(in_flight),
            Event::Flushed(FlowsDone { id, failed, .. }) => {
                assert_eq!(failed, []);
                self.flushed = id.0;
                return;
            }
            Event::Feed(_) => return,
            event @ (Event::Connected(_) | Event::Disconnected(_)) => panic!("{event:?}"),
        };
        self.reconciler.handle(Instant::now(), input);
    }
}

fn ask(requests: &mpsc::UnboundedSender<Request>, output: Output) {
    let request = match output {
        Output::Hello(known) => Request::Hello(known),
        Output::Apply(batch) => Request::Apply(batch),
        Output::Follow(batch) => Request::Follow(batch),
        Output::Recall => Request::Recall,
        output @ (Output::Notice(_) | Output::AddressClean(_)) => panic!("{output:?}"),
    };
    requests.send(request).unwrap();
}
