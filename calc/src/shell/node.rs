//! The cores and what connects them: what one hears, the other is told.
//!
//! No I/O but a request handed to the connection; the time comes in with each call.

use std::time::{Duration, Instant};

use ipc_proto::{
    Observed,
    view::{Rows, RowsRequest},
};
use tokio::sync::{mpsc, watch};

use super::journal::Journal;
use crate::{
    calculator::Calculator,
    config::Config,
    dataplane,
    datastore::Update,
    event::Event,
    face::{self, Status},
    reconciler::{Input, Notice, Output, Reconciler},
};

/// How many rows are told at a time, so that they are a message.
const MAX_ROWS: usize = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Node {
    calculator: Calculator,
    reconciler: Reconciler,
    /// The way to the helper.
    requests: Option<mpsc::Sender<dataplane::Request>>,
    refresh_interval: Option<Duration>,
    /// When to read the kernel back without a cause.
    refresh: Option<Instant>,
    resyncs: u64,
    datastore_problems: Journal,
    /// Why there is no lease, once it is known.
    helper_problem: Option<String>,
    status: watch::Sender<Status>,
}

impl Node {
    /// Starts with nothing known, and publishes how things stand to `status`.
    pub(super) fn new(config: &Config, status: watch::Sender<Status>) -> Self {
        Self {
            calculator: Calculator::new(config.node_name.clone()),
            reconciler: Reconciler::default(),
            requests: None,
            refresh_interval: config.route_refresh_interval,
            refresh: None,
            resyncs: 0,
            datastore_problems: Journal::default(),
            helper_problem: None,
            status,
        }
    }

    /// Takes in what the datastore tells.
    pub(super) fn update(&mut self, now: Instant, update: Update) {
        for event in update.events {
            self.calculator.handle(event);
        }
        self.datastore_problems.set(update.problems);
        let complete = update.complete;
        self.reconciler.handle(now, Input::InSync { complete });
    }

    /// Takes in what is heard of the helper.
    pub(super) fn dataplane(&mut self, now: Instant, event: dataplane::Event) {
        let input = match event {
            dataplane::Event::Connected(requests) => {
                self.requests = Some(requests);
                Input::Connected
            }
            dataplane::Event::Disconnected(error) => {
                self.requests = None;
                self.refresh = None;
                let problem = Some(error.to_string());
                if self.helper_problem != problem {
                    tracing::warn!("{error}");
                    self.helper_problem = problem;
                }
                Input::Disconnected
            }
            dataplane::Event::Welcome(welcome, observed) => {
                if self.helper_problem.take().is_some() || self.resyncs == 0 {
                    tracing::info!("the helper has granted a lease");
                }
                self.resyncs += 1;
                self.refresh = self.refresh_interval.map(|interval| now + interval);
                let links = observed.iter().filter_map(link).cloned().collect();
                self.calculator.handle(Event::Links(links));
                Input::Welcome(welcome, observed)
            }
            dataplane::Event::Ack(ack) => Input::Ack(ack),
            dataplane::Event::Links(events) => {
                for event in events {
                    self.reconciler.handle(now, Input::Link(event.clone()));
                    self.calculator.handle(Event::Link(event));
                }
                return;
            }
        };
        self.reconciler.handle(now, input);
    }

    /// Takes in a request of the face.
    pub(super) fn face(&mut self, now: Instant, request: face::Request) {
        match request {
            face::Request::Resync => {
                tracing::info!("reading the kernel back, as asked");
                self.reconciler.handle(now, Input::Resync);
            }
            face::Request::Rows(RowsRequest { kind, skip }, answer) => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let rows = self.reconciler.rows(kind, skip, MAX_ROWS);
                // Whoever asked may be gone.
                drop(answer.send(Rows { rows }));
            }
        }
    }

    /// Computes what follows, asks for it, and publishes how things stand.
    pub(super) fn settle(&mut self, now: Instant) {
        for op in self.calculator.resolve() {
            if let Err(error) = self.reconciler.want(op) {
                tracing::error!("{error}");
            }
        }
        if self.refresh.is_some_and(|at| at <= now) {
            self.refresh = None;
            self.reconciler.handle(now, Input::Resync);
        }
        while let Some(output) = self.reconciler.poll(now) {
            let request = match output {
                Output::Hello => dataplane::Request::Hello,
                Output::Apply(batch) => dataplane::Request::Apply(batch),
                Output::Notice(notice @ Notice::Recovered(_)) => {
                    tracing::info!("{notice}");
                    continue;
                }
                Output::Notice(notice @ (Notice::Failed(..) | Notice::More(_))) => {
                    tracing::warn!("{notice}");
                    continue;
                }
            };
            if let Some(requests) = &self.requests {
                // If the connection has just ended, this is about to be told.
                drop(requests.try_send(request));
            }
        }
        self.publish();
    }

    /// Returns when to [`settle`](Self::settle) again if nothing happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.reconciler.poll_timeout(), self.refresh];
        timeouts.into_iter().flatten().min()
    }

    /// Returns how things stand.
    pub(super) fn status(&self) -> watch::Ref<'_, Status> {
        self.status.borrow()
    }

    fn publish(&mut self) {
        let counts = self.reconciler.totals();
        let problems = self.helper_problem.as_deref().into_iter();
        let problems = problems.chain(self.datastore_problems.lines());
        let status = Status {
            in_sync: self.reconciler.is_in_sync() && !self.calculator.awaits_tunnel(),
            connected: self.reconciler.is_connected(),
            desired: counts.desired,
            pending: counts.pending,
            held: counts.held,
            resyncs: self.resyncs,
            problems: problems.map(str::to_owned).collect(),
        };
        self.status.send_if_modified(|published| {
            let changed = *published != status;
            *published = status;
            changed
        });
    }
}

fn link(observed: &Observed) -> Option<&ipc_proto::LinkState> {
    match observed {
        Observed::Link(state) => Some(state),
        Observed::LinkSettings(..)
        | Observed::TunnelDevice(..)
        | Observed::Neighbour(..)
        | Observed::Fdb(..)
        | Observed::BpfRoute(..)
        | Observed::KernelRoute(..)
        | Observed::Endpoint(..)
        | Observed::Attachment(_) => None,
    }
}
