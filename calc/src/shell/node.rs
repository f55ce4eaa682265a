//! The cores and what connects them: what comes in is taken in here, and what follows from it is
//! done in [`apply`].
//!
//! No I/O but a request handed to the connection; the time comes in with each call.

mod apply;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use ipc_proto::{
    LinkEvent, Op, Tunnel,
    view::{self, Reason, Row, Rows, RowsRequest},
};
use tokio::sync::{broadcast, mpsc, watch};

use super::{Throttle, journal::Journal, refresh::Refresh};
use crate::{
    calculator::Calculator,
    config::Config,
    consumers::{Consumers, Signal},
    convergence::Convergence,
    dataplane,
    datastore::{Standing, Told, Update},
    event::Event,
    face::{self, Status},
    reconciler::{Input, Page, Reconciler},
};

/// How many rows are told at a time, so that they are a message.
const MAX_ROWS: usize = 1000;

/// How many lines about others' routes are logged at a time: a router's may be thousands.
const FEW_RIVALS: usize = 5;

/// What has come in since it was last looked at.
#[derive(Debug, Default)]
struct News {
    /// Something that an apply is to follow from.
    input: bool,
    /// A reading of the kernel, for which the apply that asked for it had its token.
    reading: bool,
    /// An answer of the helper, which may be sent more.
    answer: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Node {
    /// The name of this node in the datastore.
    name: String,
    convergence: Convergence,
    calculator: Calculator,
    reconciler: Box<Reconciler>,
    /// The way to the helper.
    requests: Option<mpsc::UnboundedSender<dataplane::Request>>,
    throttle: Throttle,
    /// Whether an apply waits for a token.
    throttled: bool,
    refresh: Refresh,
    /// What has come in since the last apply.
    news: News,
    /// Changes of interfaces that the cores have not heard: they hear of them in an apply, or an
    /// answer before it would have them ask for, and tell, what does not follow from all that they know.
    links: Vec<LinkEvent>,
    applies: u64,
    /// How often somebody has asked for a reading,
    asked: u64,
    /// as of the last one that was begun,
    begun: u64,
    /// and as of the last one that has come;
    answered: u64,
    /// and as of when all that was written in the datastore has come.
    documents: u64,
    /// When the kernel was last read back.
    read: Option<Instant>,
    /// How many batches the helper has answered.
    batches: u64,
    /// Whether the kernel has once held all that the datastore asks for.
    was_in_sync: bool,
    started: Instant,
    /// Whether all of the datastore could be read, once it has been.
    complete: Option<bool>,
    /// What of it is in force,
    standing: Standing,
    /// and when that last changed.
    changed: Option<Instant>,
    /// The tunnel devices that are not to go although what they are made of is unknown.
    kept: BTreeSet<Tunnel>,
    datastore_problems: Journal,
    /// What is missing on this host.
    obstacles: Journal,
    /// What others undo again and again.
    contested: Journal,
    /// What of others may count in place of routes that are ours.
    rivals: Journal,
    /// What could not be done, by what it is about.
    failing: BTreeMap<String, String>,
    /// Why there is no lease, once it is known.
    helper_problem: Option<String>,
    consumers: Consumers,
    outputs: Outputs,
}

/// Where a node says what.
#[derive(Debug)]
pub(super) struct Outputs {
    /// How often somebody has asked for what has been written in the datastore until then.
    pub(super) datastore: watch::Sender<u64>,
    /// How things stand.
    pub(super) status: watch::Sender<Status>,
    /// What consumers are told.
    pub(super) signals: broadcast::Sender<Arc<Signal>>,
}

impl Node {
    /// Starts with nothing known; `seed` is to differ between processes.
    pub(super) fn new(now: Instant, config: &Config, seed: u64, outputs: Outputs) -> Self {
        Self {
            name: config.node_name.clone(),
            convergence: Convergence::new(config.node_name.clone()),
            calculator: Calculator::new(config.node_name.clone())
                .with_workload_table(config.workload_table),
            reconciler: Box::new(
                Reconciler::default().with_grace(config.route_cleanup_grace_period),
            ),
            requests: None,
            throttle: Throttle::new(now, config.apply_burst, config.apply_interval),
            throttled: false,
            refresh: Refresh::new(config.route_refresh_interval, seed),
            news: News::default(),
            links: Vec::new(),
            applies: 0,
            asked: 0,
            begun: 0,
            answered: 0,
            documents: 0,
            read: None,
            batches: 0,
            was_in_sync: false,
            started: now,
            complete: None,
            standing: Standing::default(),
            changed: None,
            kept: BTreeSet::new(),
            datastore_problems: Journal::new("datastore: "),
            obstacles: Journal::new(""),
            contested: Journal::new(""),
            rivals: Journal::new("").logging(FEW_RIVALS),
            failing: BTreeMap::new(),
            helper_problem: None,
            consumers: Consumers::default(),
            outputs,
        }
    }

    /// Takes in what is heard of the datastore.
    pub(super) fn datastore(&mut self, now: Instant, told: Told) {
        match told {
            Told::Update(update) => self.update(now, update),
            Told::Answer(asked) => self.documents = asked,
        }
    }

    fn update(&mut self, now: Instant, update: Update) {
        self.news.input = true;
        let is_read = update.standing != Standing::Unread;
        if is_read && (!update.events.is_empty() || self.changed.is_none()) {
            self.changed = Some(now);
        }
        let Self {
            convergence,
            calculator,
            ..
        } = self;
        let events = update.events.into_iter();
        calculator.handle_all(events.map(|event| convergence.handle(now, event)));
        self.datastore_problems.set(update.problems);
        self.standing = update.standing;
        self.complete = is_read.then_some(update.complete);
        if !update.complete {
            // What is not swept can wait for no token.
            self.reconciler.handle(now, Input::Unreadable);
            self.call_back();
        }
    }

    /// Takes in what is heard of the helper.
    pub(super) fn dataplane(&mut self, now: Instant, event: dataplane::Event) {
        let input = match event {
            dataplane::Event::Feed(feed) => {
                self.news.input = true;
                self.links.extend(feed.events);
                if feed.drift.is_empty() {
                    return;
                }
                tracing::debug!(kinds = ?feed.drift, "others have changed something");
                Input::Drift
            }
            dataplane::Event::Connected(requests) => {
                self.requests = Some(requests);
                Input::Connected
            }
            dataplane::Event::Disconnected(error) => {
                self.requests = None;
                self.refresh.stop();
                let problem = Some(error.to_string());
                if self.helper_problem != problem {
                    tracing::warn!("{error}");
                    self.helper_problem = problem;
                }
                Input::Disconnected
            }
            dataplane::Event::Welcome(welcome, reading) => {
                if self.helper_problem.take().is_some() || self.reconciler.resyncs() == 0 {
                    tracing::info!("the helper has granted a lease");
                }
                // What was heard before is older than what was read.
                self.hear_links(now);
                self.calculator.handle(Event::Links(reading.links.clone()));
                self.news.input = true;
                self.news.reading = true;
                Input::Welcome(welcome, reading)
            }
            dataplane::Event::Ack(ack) => {
                self.batches += 1;
                Input::Ack(ack)
            }
            dataplane::Event::Recalled(in_flight) => Input::Recalled(in_flight),
            dataplane::Event::Flushed(done) => Input::Flushed(done),
        };
        self.news.answer = true;
        if !matches!(
            input,
            Input::Ack(_) | Input::Recalled(_) | Input::Flushed(_)
        ) {
            self.hear_links(now);
        }
        let resyncs = self.reconciler.resyncs();
        self.reconciler.handle(now, input);
        if self.reconciler.resyncs() > resyncs {
            self.answered = self.begun;
            self.read = Some(now);
            self.refresh.restart(now);
        }
    }

    /// Takes in a request of the face.
    pub(super) fn face(&mut self, now: Instant, request: face::Request) {
        match request {
            face::Request::Resync(answer) => {
                tracing::info!("reading the kernel back, as asked");
                self.asked += 1;
                self.outputs.datastore.send_replace(self.asked);
                if answer.send(self.asked).is_err() {
                    tracing::debug!("whoever asked for a reading is gone");
                }
                self.news.input = true;
                self.reconciler.handle(now, Input::Resync);
            }
            face::Request::Rows(request, answer) => {
                let RowsRequest {
                    kind,
                    skip,
                    differing,
                } = request;
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let rows = self.rows(kind, skip, differing);
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

    /// Returns a page of a table. What differs begins with the routes that nothing is done for: their
    /// link is down.
    fn rows(&self, kind: view::Kind, skip: usize, differing: bool) -> Vec<Row> {
        let waiting = if kind == view::Kind::KernelRoutes && differing {
            self.calculator.waiting_for_links()
        } else {
            Vec::new()
        };
        let page = Page {
            kind,
            skip: skip.saturating_sub(waiting.len()),
            max: MAX_ROWS,
            differing,
        };
        let waiting = waiting.into_iter().skip(skip).map(|(key, route)| Row {
            desired: Some(Op::KernelRoute(key, Some(Box::new(route)))),
            actual: None,
            reason: Some(Reason::LinkDown),
        });
        let mut rows: Vec<Row> = waiting.take(MAX_ROWS).collect();
        let max = MAX_ROWS - rows.len();
        rows.extend(self.reconciler.rows(&Page { max, ..page }));
        rows
    }

    /// Returns how things stand.
    pub(super) fn status(&self) -> watch::Ref<'_, Status> {
        self.outputs.status.borrow()
    }
}
