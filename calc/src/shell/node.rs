//! The cores and what connects them: what one hears, the other is told.
//!
//! No I/O but a request handed to the connection; the time comes in with each call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_proto::{
    Op, Tunnel,
    view::{Rows, RowsRequest},
};
use tokio::sync::{broadcast, mpsc, watch};

use super::journal::Journal;
use crate::{
    calculator::Calculator,
    config::Config,
    consumers::{Consumers, Signal},
    convergence::Convergence,
    dataplane,
    datastore::Update,
    event::Event,
    face::{self, Status},
    reconciler::{Input, Notice, OldFlows, Output, Page, Reconciler},
};

/// How many failures are shown by name.
const MAX_FAILING: usize = 16;
/// How many rows are told at a time, so that they are a message.
const MAX_ROWS: usize = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Node {
    /// The name of this node in the datastore.
    name: String,
    convergence: Convergence,
    calculator: Calculator,
    reconciler: Reconciler,
    /// The way to the helper.
    requests: Option<mpsc::Sender<dataplane::Request>>,
    refresh_interval: Option<Duration>,
    /// When to read the kernel back without a cause.
    refresh: Option<Instant>,
    resyncs: u64,
    /// Whether all of the datastore could be read, once it has been.
    complete: Option<bool>,
    /// The tunnel devices that are not to go although what they are made of is unknown.
    kept: BTreeSet<Tunnel>,
    datastore_problems: Journal,
    /// What is missing on this host.
    obstacles: Journal,
    /// What others undo again and again.
    contested: Journal,
    /// What could not be done, by what it is about.
    failing: BTreeMap<String, String>,
    /// Why there is no lease, once it is known.
    helper_problem: Option<String>,
    status: watch::Sender<Status>,
    consumers: Consumers,
    signals: broadcast::Sender<Arc<Signal>>,
}

impl Node {
    /// Starts with nothing known, publishes how things stand to `status`, and tells consumers by
    /// `signals`.
    pub(super) fn new(
        config: &Config,
        status: watch::Sender<Status>,
        signals: broadcast::Sender<Arc<Signal>>,
    ) -> Self {
        Self {
            name: config.node_name.clone(),
            convergence: Convergence::new(config.node_name.clone()),
            calculator: Calculator::new(config.node_name.clone())
                .with_workload_table(config.workload_table),
            reconciler: Reconciler::default().with_grace(config.route_cleanup_grace_period),
            requests: None,
            refresh_interval: config.route_refresh_interval,
            refresh: None,
            resyncs: 0,
            complete: None,
            kept: BTreeSet::new(),
            datastore_problems: Journal::new("datastore: "),
            obstacles: Journal::new(""),
            contested: Journal::new(""),
            failing: BTreeMap::new(),
            helper_problem: None,
            status,
            consumers: Consumers::default(),
            signals,
        }
    }

    /// Takes in what the datastore tells.
    pub(super) fn update(&mut self, now: Instant, update: Update) {
        for event in update.events {
            self.calculator.handle(self.convergence.handle(now, event));
        }
        self.datastore_problems.set(update.problems);
        self.complete = Some(update.complete);
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
            dataplane::Event::Welcome(welcome, reading) => {
                if self.helper_problem.take().is_some() || self.resyncs == 0 {
                    tracing::info!("the helper has granted a lease");
                }
                self.resyncs += 1;
                self.refresh = self.refresh_interval.map(|interval| now + interval);
                self.calculator.handle(Event::Links(reading.links.clone()));
                Input::Welcome(welcome, reading)
            }
            dataplane::Event::Ack(ack) => Input::Ack(ack),
            dataplane::Event::Flushed(done) => Input::Flushed(done),
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
            face::Request::Rows(request, answer) => {
                let RowsRequest {
                    kind,
                    skip,
                    differing,
                } = request;
                let rows = self.reconciler.rows(&Page {
                    kind,
                    skip: usize::try_from(skip).unwrap_or(usize::MAX),
                    max: MAX_ROWS,
                    differing,
                });
                // Whoever asked may be gone.
                drop(answer.send(Rows { rows }));
            }
            face::Request::Snapshot(after, answer) => {
                let routes = self.reconciler.told_after(after.prefix());
                let page = routes.map(|routes| self.consumers.page(&after, routes));
                // As above.
                drop(answer.send(page));
            }
        }
    }

    /// Computes what follows, asks for it, and publishes how things stand.
    pub(super) fn settle(&mut self, now: Instant) {
        for event in self.convergence.poll(now) {
            self.calculator.handle(event);
        }
        self.resolve(now);
        if self.refresh.is_some_and(|at| at <= now) {
            self.refresh = None;
            self.reconciler.handle(now, Input::Resync);
        }
        let mut clean = Vec::new();
        while let Some(output) = self.reconciler.poll(now) {
            let request = match output {
                Output::Hello => dataplane::Request::Hello,
                Output::Apply(batch) => dataplane::Request::Apply(batch),
                Output::AddressClean(address) => {
                    clean.push(address);
                    continue;
                }
                Output::Notice(notice) => {
                    self.notice(&notice);
                    continue;
                }
            };
            if let Some(requests) = &self.requests {
                // If the connection has just ended, this is about to be told.
                drop(requests.try_send(request));
            }
        }
        self.tell();
        for signal in self.consumers.clean(&clean) {
            // Nobody may be there to hear it.
            drop(self.signals.send(Arc::new(signal)));
        }
        self.publish();
    }

    /// Tells consumers what the helper has made.
    fn tell(&mut self) {
        if !self.calculator.knows_own_node() {
            return;
        }
        let Some(told) = self.reconciler.tell() else {
            return;
        };
        let local = self.calculator.host_addresses().collect();
        let awaits = |prefix: &_| self.reconciler.awaits(prefix);
        for signal in self.consumers.settle(told, &local, awaits) {
            // Nobody may be there to hear it.
            drop(self.signals.send(Arc::new(signal)));
        }
    }

    /// Says what should be, once it is known.
    ///
    /// Without this node in the datastore nothing is touched: everything on it would look like a
    /// leftover or another node's.
    fn resolve(&mut self, now: Instant) {
        let Some(complete) = self.complete else {
            return;
        };
        if !self.calculator.knows_own_node() {
            self.obstacles.set([format!(
                "the datastore has no Node {}, so nothing is changed on this host: correct \
                 node_name in calc.toml, or add the Node",
                self.name
            )]);
            return;
        }
        let ops = self.calculator.resolve();
        let tunnels: BTreeSet<Tunnel> = self.calculator.tunnels().collect();
        let over = self
            .kept
            .difference(&tunnels)
            .map(|tunnel| Op::TunnelDevice(*tunnel, None));
        for op in over.collect::<Vec<_>>().into_iter().chain(ops) {
            if let Op::TunnelDevice(tunnel, device) = &op {
                if device.is_none() && tunnels.contains(tunnel) {
                    self.kept.insert(*tunnel);
                    continue;
                }
                self.kept.remove(tunnel);
            }
            if let Err(error) = self.reconciler.want(op) {
                tracing::error!("{error}");
            }
        }
        // Before the first lease, no interface is known.
        if self.resyncs > 0 {
            self.obstacles.set(self.calculator.obstacles());
        }
        // While an obstacle hides what a device is made of, it is no leftover.
        let complete = complete && !self.calculator.lacks_uplink();
        self.reconciler.handle(now, Input::InSync { complete });
    }

    /// Logs what the operator is to know, and keeps it while it lasts.
    fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Failed(op, _) => {
                tracing::warn!("{notice}");
                if self.failing.len() < MAX_FAILING {
                    self.failing.insert(Notice::subject(op), notice.to_string());
                }
            }
            Notice::Recovered(op) => {
                tracing::info!("{notice}");
                self.failing.remove(&Notice::subject(op));
            }
            Notice::FlowsForgotten(_) => tracing::info!("{notice}"),
            Notice::FlowsKept(..) | Notice::More(_) => tracing::warn!("{notice}"),
        }
    }

    /// Returns all that is wrong, worst first.
    fn problems(&mut self, held: usize) -> Vec<String> {
        let unread = self
            .complete
            .is_none()
            .then(|| "the datastore has not been read yet".to_owned());
        if held == 0 {
            self.failing.clear();
        }
        let failing = self.failing.values().cloned();
        let rest = held.saturating_sub(self.failing.len());
        let rest = (rest > 0).then(|| format!("{rest} more changes fail; see cairnctl routes"));
        let old_flows = self.reconciler.with_old_flows().take(MAX_FAILING);
        let old_flows = old_flows.map(|(address, why)| OldFlows(address, why).to_string());
        let helper = self.helper_problem.clone().into_iter();
        let datastore = self.datastore_problems.lines();
        let obstacles = self.obstacles.lines();
        helper
            .chain(unread)
            .chain(datastore)
            .chain(failing)
            .chain(self.contested.lines())
            .chain(old_flows)
            .chain(rest)
            .chain(obstacles)
            .collect()
    }

    /// Returns when to [`settle`](Self::settle) again if nothing happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [
            self.reconciler.poll_timeout(),
            self.convergence.poll_timeout(),
            self.refresh,
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Returns how things stand.
    pub(super) fn status(&self) -> watch::Ref<'_, Status> {
        self.status.borrow()
    }

    fn publish(&mut self) {
        let contested = self.reconciler.contested();
        self.contested
            .set(contested.map(|contested| contested.to_string()));
        let counts = self.reconciler.totals();
        let problems = self.problems(counts.held);
        let status = Status {
            in_sync: self.reconciler.is_in_sync()
                && self.calculator.knows_own_node()
                && !self.calculator.awaits_tunnel(),
            connected: self.reconciler.is_connected(),
            desired: counts.desired,
            pending: counts.pending,
            held: counts.held + counts.contested,
            resyncs: self.resyncs,
            problems,
        };
        self.status.send_if_modified(|published| {
            let changed = *published != status;
            *published = status;
            changed
        });
    }
}
