//! The shipped reconciler in front of the real helper.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use calc::{Input, Output, Page, Reconciler};
use futures_util::{StreamExt, stream::BoxStream};
use ipc_proto::{
    Ack, BatchId, Feed, FlowsDone, Lane, Link, LinkEvent, LinkState, Observed, Op, codec,
    view::{Kind, Reason},
};
use tokio::time::timeout;

use super::{event::Config, kernel::Key};
use crate::{
    helper::{Calc, Helper, bytes, feed},
    wait::PATIENCE,
};

/// More requests than any apply needs.
const MAX_REQUESTS: usize = 1000;

/// What was done in an apply.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The addresses whose flows were forgotten.
    pub(super) flushed: BTreeSet<IpAddr>,
    /// Whether the kernel was read.
    pub(super) read: bool,
    /// Whether that was before anything was written.
    pub(super) read_first: bool,
    wrote: bool,
}

/// See the [module](self).
pub(super) struct Writer {
    reconciler: Reconciler,
    calc: Calc,
    changes: BoxStream<'static, Feed>,
    ends: BoxStream<'static, FlowsDone>,
    /// The number of the last change of interfaces that is known.
    seq: u64,
    /// The interfaces as the helper tells of them.
    pub(super) links: BTreeMap<Link, LinkState>,
    done: Done,
}

impl Writer {
    /// Connects to a helper, with a reconciler that knows nothing, and has it read the kernel, of which
    /// it reads again in the first apply what has changed by then.
    pub(super) async fn start(helper: &Helper, config: &Config, now: Instant) -> Self {
        let calc = helper.connect().await;
        let changes = calc.proxy.receive_links_changed().await.unwrap();
        let changes = changes.map(|change| feed(change.args().unwrap().feed()));
        let ends = calc.proxy.receive_flows_flushed().await.unwrap();
        let ends = ends.map(|end| codec::decode(end.args().unwrap().done()).unwrap());
        let reconciler = if config.conntrack_cleanup {
            Reconciler::default()
        } else {
            Reconciler::without_flows()
        };
        let grace = Duration::from_secs(config.cleanup_grace_period_s);
        let mut reconciler = reconciler.with_grace(grace);
        reconciler.handle(now, Input::InSync { complete: true });
        reconciler.handle(now, Input::Connected);
        let mut writer = Self {
            reconciler,
            calc,
            changes: changes.boxed(),
            ends: ends.boxed(),
            seq: 0,
            links: BTreeMap::new(),
            done: Done::default(),
        };
        let output = writer.reconciler.poll(now);
        assert!(matches!(output, Some(Output::Hello(_))), "{output:?}");
        writer.hello(now).await;
        writer.ask_to_read(now);
        writer
    }

    pub(super) fn want(&mut self, op: Op) {
        self.reconciler.want(op).unwrap();
    }

    /// Somebody asks for the kernel to be read.
    pub(super) fn ask_to_read(&mut self, now: Instant) {
        self.reconciler.handle(now, Input::Resync);
    }

    /// Waits until the helper has told that an interface is as it should be, and takes in all that it
    /// tells until then.
    pub(super) async fn follow(
        &mut self,
        now: Instant,
        what: &str,
        is: impl Fn(&BTreeMap<Link, LinkState>) -> bool,
    ) {
        while !is(&self.links) {
            let feed = timeout(PATIENCE, self.changes.next()).await;
            let feed = feed.unwrap_or_else(|_| panic!("{what}: not told: {:?}", self.links));
            let feed = feed.unwrap();
            if feed.seq <= self.seq {
                // It was read since.
                continue;
            }
            assert_eq!(feed.seq, self.seq + 1);
            self.seq = feed.seq;
            for event in feed.events {
                self.take(now, event);
            }
        }
    }

    fn take(&mut self, now: Instant, event: LinkEvent) {
        match &event {
            LinkEvent::Set(state) => {
                self.links.insert(state.link.clone(), state.clone());
            }
            LinkEvent::Gone(link) => {
                self.links.remove(link);
            }
        }
        self.reconciler.handle(now, Input::Link(event));
    }

    /// Has it do all that there is to do at that time, and returns what that was.
    pub(super) async fn apply(&mut self, now: Instant) -> Done {
        let mut flushes = BTreeSet::new();
        for _ in 0..MAX_REQUESTS {
            match self.reconciler.poll(now) {
                None if flushes.is_empty() => return std::mem::take(&mut self.done),
                None => self.flushed(now, &mut flushes).await,
                Some(Output::Hello(_)) => self.hello(now).await,
                Some(Output::Apply(batch)) => {
                    if batch.lane == Lane::Flows {
                        flushes.insert(batch.id);
                    }
                    for step in &batch.steps {
                        if let Op::FlowFlush(address) = &step.op {
                            self.done.flushed.insert(*address);
                        }
                    }
                    self.done.wrote = true;
                    let answer = self.calc.proxy.apply(&bytes(&*batch)).await.unwrap();
                    let ack: Ack = codec::decode(&answer).unwrap();
                    self.reconciler.handle(now, Input::Ack(ack));
                }
                Some(Output::Notice(_) | Output::AddressClean(_)) => {}
                Some(output @ (Output::Follow(_) | Output::Recall)) => {
                    panic!("each batch is answered at once: {output:?}")
                }
            }
        }
        panic!("the reconciler does not come to rest");
    }

    async fn hello(&mut self, now: Instant) {
        let (welcome, observed) = self.calc.hello().await;
        self.seq = welcome.feed;
        // The devices of the vectors are not ours to make.
        let ours = |item: &Observed| {
            matches!(
                item,
                Observed::Link(_) | Observed::KernelRoute(..) | Observed::Neighbour(..)
            )
        };
        let observed: Vec<Observed> = observed.into_iter().filter(ours).collect();
        self.links.clear();
        for item in &observed {
            if let Observed::Link(state) = item {
                self.links.insert(state.link.clone(), state.clone());
            }
        }
        self.done.read = true;
        self.done.read_first |= !self.done.wrote;
        self.reconciler
            .handle(now, Input::Welcome(welcome, observed.into_iter().collect()));
    }

    async fn flushed(&mut self, now: Instant, flushes: &mut BTreeSet<BatchId>) {
        let done = timeout(PATIENCE, self.ends.next()).await.unwrap().unwrap();
        assert!(done.failed.is_empty(), "{done:?}");
        flushes.remove(&done.id);
        self.reconciler.handle(now, Input::Flushed(done));
    }

    /// Returns the routes that could not be made, and why.
    pub(super) fn failed_routes(&self) -> BTreeMap<Key, String> {
        let why = |reason| match reason {
            Reason::Failed(why) => Some(why.to_string()),
            Reason::Pending
            | Reason::Contested
            | Reason::Grace
            | Reason::Flows
            | Reason::Unread
            | Reason::LinkDown
            | Reason::Foreign(_) => None,
        };
        let differing = self.differing_routes().into_iter();
        let failed = differing.filter_map(|(key, reason)| Some((key, why(reason)?)));
        failed.collect()
    }

    /// Returns the routes that others undo again and again, so that they wait.
    pub(super) fn contested_routes(&self) -> BTreeSet<Key> {
        let differing = self.differing_routes().into_iter();
        let contested = differing.filter(|(_, reason)| *reason == Reason::Contested);
        contested.map(|(key, _)| key).collect()
    }

    fn differing_routes(&self) -> Vec<(Key, Reason)> {
        let page = Page {
            kind: Kind::KernelRoutes,
            skip: 0,
            max: usize::MAX,
            differing: true,
        };
        let rows = self.reconciler.rows(&page).into_iter();
        let differing = rows.filter_map(|row| {
            let Some(Op::KernelRoute(key, _)) = row.desired else {
                return None;
            };
            Some(((key.prefix, key.tos, key.metric), row.reason?))
        });
        differing.collect()
    }
}
