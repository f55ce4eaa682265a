//! The cores, and the helper's part played by hand in front of a map that stands for the kernel.

#![expect(
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "any instant will do to start with, and the model knows few ops"
)]

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use ipc_proto::{Ack, Batch, Incarnation, Lease, Observed, Op, OpError, Welcome};

use super::*;
use crate::{
    dataplane::Train,
    reconciler::{Input, Output, Reconciler},
};

/// See the [module](self).
pub(super) struct Bench {
    pub(super) reconciler: Reconciler,
    pub(super) consumers: Consumers,
    pub(super) local: BTreeSet<IpAddr>,
    pub(super) kernel: BTreeMap<IpNet, BpfRoute>,
    /// Of which it cannot be told what they are.
    pub(super) unreadable: BTreeSet<IpNet>,
    pub(super) batch: Option<Arc<Batch>>,
    pub(super) train: Train,
    pub(super) max_steps: u32,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn starting() -> Self {
        Self {
            reconciler: Reconciler::without_flows(),
            consumers: Consumers::default(),
            local: BTreeSet::new(),
            kernel: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            batch: None,
            train: Train::default(),
            max_steps: 5000,
            now: Instant::now(),
        }
    }

    /// Starts with all known and the first signal behind it.
    pub(super) fn new() -> Self {
        let mut bench = Self::starting();
        bench.in_sync();
        bench.connect();
        assert_eq!(bench.signals(), [Signal::Reset { seq: 1 }]);
        bench
    }

    pub(super) fn in_sync(&mut self) {
        self.handle(Input::InSync { complete: true });
    }

    pub(super) fn handle(&mut self, input: Input) {
        self.reconciler.handle(self.now, input);
    }

    pub(super) fn want(&mut self, n: u16, flags: Option<u32>) {
        let op = Op::BpfRoute(prefix(n), flags.map(route));
        self.reconciler.want(op).unwrap();
    }

    /// The helper is there, perhaps again, and what was in flight is lost.
    pub(super) fn connect(&mut self) {
        self.handle(Input::Disconnected);
        self.batch = None;
        self.train = Train::default();
        self.handle(Input::Connected);
        let output = self.reconciler.poll(self.now);
        assert!(matches!(output, Some(Output::Hello(_))), "{output:?}");
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(1),
            max_steps: self.max_steps,
            bpf_max_entries: 10_000,
            feed: 0,
        };
        let read = |(key, value): (&IpNet, &BpfRoute)| {
            let value = Some(value.clone()).filter(|_| !self.unreadable.contains(key));
            Observed::BpfRoute(*key, value)
        };
        let observed = self.kernel.iter().map(read).collect();
        self.handle(Input::Welcome(welcome, observed));
    }

    /// As the shell does after each event: sends what there is to send, and tells.
    pub(super) fn signals(&mut self) -> Vec<Signal> {
        while let Some(output) = self.reconciler.poll(self.now) {
            match output {
                Output::Apply(batch) => {
                    self.train.start(&batch);
                    self.batch = Some(batch);
                }
                Output::Follow(batch) => self.train.add(batch),
                Output::Recall => {
                    let in_flight = self.train.stop();
                    self.handle(Input::Recalled(in_flight));
                }
                Output::Notice(_) | Output::AddressClean(_) => {}
                Output::Hello(_) => panic!("nobody asked for it"),
            }
        }
        let more = self.reconciler.is_writing();
        let Some(told) = self.reconciler.tell() else {
            let owed = if more {
                None
            } else {
                self.consumers.catch_up()
            };
            return owed.into_iter().collect();
        };
        let awaits = |prefix: &_| self.reconciler.awaits(prefix);
        self.consumers.settle(told, &self.local, awaits, more)
    }

    /// The kernel takes over what is in flight.
    pub(super) fn apply(&mut self) {
        let Some(batch) = &self.batch else { return };
        for step in &batch.steps {
            match step.op.clone() {
                Op::BpfRoute(key, Some(value)) => drop(self.kernel.insert(key, value)),
                Op::BpfRoute(key, None) => drop(self.kernel.remove(&key)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The helper does what it was asked for, and says so.
    pub(super) fn ack(&mut self) {
        self.apply();
        if let Some(batch) = self.batch.take() {
            let (id, failed) = (batch.id, Vec::new());
            self.answer(Ack { id, failed });
        }
    }

    /// The kernel refuses all that is in flight.
    pub(super) fn fail(&mut self) {
        let batch = self.batch.take().unwrap();
        let error = OpError::Kernel {
            call: "bpf".to_owned(),
            errno: 12,
        };
        let failed = (0..).zip(&batch.steps);
        let failed = failed.map(|(index, _)| (index, error.clone())).collect();
        let id = batch.id;
        self.answer(Ack { id, failed });
    }

    fn answer(&mut self, ack: Ack) {
        self.train.answered(&ack);
        self.batch = self.train.next().map(|(batch, _)| batch);
        self.handle(Input::Ack(ack));
    }

    pub(super) fn page(&self, after: &str) -> Option<SnapshotPage> {
        let after: Cursor = after.parse().unwrap();
        let routes = self.reconciler.told_after(after.prefix())?;
        Some(self.consumers.page(&after, routes))
    }

    /// Returns all pages as one.
    pub(super) fn pages(&self) -> SnapshotPage {
        let mut all = self.page("").unwrap();
        while !all.next.is_empty() {
            let page = self.page(&all.next).unwrap();
            assert!(page.host_ips.len() + page.routes.len() > 0);
            all.host_ips.extend(page.host_ips);
            all.routes.extend(page.routes);
            all.next = page.next;
        }
        all
    }
}
