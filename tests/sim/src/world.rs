//! All there is: three processes around their real cores, what is under way between them, a model
//! kernel and datastore, and the clock.

mod actors;
mod bird;
mod drift;
mod outside;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ipc_proto::{Ack, Batch};
use privhelper::policy::Policy;
use supervisor::machine::{Child, Input};

use super::{
    bug::Bug,
    cluster,
    datastore::Datastore,
    helper::{Faults, Helper, Message},
    kernel::Kernel,
    node::Node,
    rules::{Broken, Watchman},
    step::Step,
    supervision::Supervisor,
    tally::Tally,
};

/// How long a round takes where that matters.
const ROUND: Duration = Duration::from_millis(15);
/// How often a child says that it is alive.
const PING: Duration = Duration::from_secs(10);

/// What does not change in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The size of each BPF route map in entries.
    pub bpf_max_entries: u8,
    /// The most steps in a batch.
    pub max_steps: u8,
    /// Whether the administrator allows less than the cluster needs.
    pub narrow: bool,
    /// Whether `calc` has to wait for tokens, as it has by default; then all takes its time.
    pub throttled: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process<T> {
    pub(super) body: T,
    incarnation: u64,
    /// It does nothing more.
    pub(super) hung: bool,
    ready: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    setup: Setup,
    bug: Option<Bug>,
    pub(super) policy: Policy,
    pub(super) kernel: Kernel,
    pub(super) datastore: Datastore,
    pub(super) helper: Option<Process<Helper>>,
    pub(super) node: Option<Process<Node>>,
    pub(super) supervisor: Supervisor,
    /// What the helper has said and `calc` has not heard.
    pub(super) messages: VecDeque<Message>,
    /// Reading the datastore takes its time.
    stalled: bool,
    /// Which life of the helper `calc` is, or was last, connected to.
    peer: Option<u64>,
    faults: Faults,
    watchman: Watchman,
    /// Batches and acknowledgements of before.
    late: Vec<Batch>,
    late_acks: Vec<Ack>,
    incarnations: u64,
    next_ping: Instant,
    /// `calc` has read nothing of the kernel in this life.
    is_new: bool,
    /// Something happened that only another reading can tell.
    pub(super) drifted: bool,
    pub(super) tally: Tally,
}

impl World {
    pub(super) fn new(setup: Setup, bug: Option<Bug>) -> Self {
        let now = Instant::now();
        Self {
            now,
            setup,
            bug,
            policy: cluster::policy(setup.narrow),
            kernel: Kernel::new(setup.bpf_max_entries.into()),
            datastore: Datastore::default(),
            helper: None,
            node: None,
            supervisor: Supervisor::new(now),
            messages: VecDeque::new(),
            stalled: false,
            peer: None,
            faults: Faults::default(),
            watchman: Watchman::new(),
            late: Vec::new(),
            late_acks: Vec::new(),
            incarnations: 0,
            next_ping: now + PING,
            is_new: true,
            drifted: false,
            tally: Tally::default(),
        }
    }

    /// Has a step happen.
    pub(super) fn take(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Document(doc, variant) => self.document(doc, variant),
            Step::Garble(doc) => {
                if self.datastore.garble(doc) {
                    self.tally.add("documents garbled");
                }
            }
            Step::Deliver(from) => {
                self.stalled = false;
                self.deliver(from);
            }
            Step::Stall => self.stalled = true,
            Step::Hear => self.hear()?,
            Step::Think => self.think()?,
            Step::Connect => self.connect(),
            Step::Serve => self.serve()?,
            Step::Watch => self.watch(),
            Step::Supervise => self.supervise()?,
            Step::Flow(rounds) => {
                for _ in 0..rounds {
                    self.round()?;
                    if self.setup.throttled {
                        self.wait(ROUND)?;
                    }
                }
            }
            Step::Wait(ms) => self.wait(Duration::from_millis(ms.into()))?,
            Step::Sleep(minutes) => self.sleep(minutes)?,
            Step::Link(slot, motion) => self.link(slot, motion),
            Step::Drift(thing, how, which) => self.drift(thing, how, which),
            Step::Foreign(which) => self.kernel.foreign(which),
            Step::Bird(which) => self.bird(which),
            Step::Fail(writes, made) => {
                self.faults.failing = writes;
                self.faults.made = made;
            }
            Step::Fuse(writes) => self.faults.fuse = Some(writes),
            Step::Crash(child) => {
                if self.end(child) {
                    self.tally.add(match child {
                        Child::Helper => "helper crashes",
                        Child::Calc => "calc crashes",
                    });
                }
            }
            Step::CrashSupervisor => {
                self.tally.add("supervisor crashes");
                self.end(Child::Calc);
                self.end(Child::Helper);
                self.supervisor = Supervisor::new(self.now);
            }
            Step::Hang(child) => self.hang(child),
            Step::Cut => {
                if self.is_connected() {
                    self.tally.add("connections cut");
                    self.disconnect();
                }
            }
            Step::LoseReply => self.lose_reply(),
            Step::LoseFeed => self.lose_feed(),
            Step::Late => self.late(),
            Step::LateAck => self.late_ack(),
            Step::Resync => {
                let now = self.now;
                if let Some(node) = self.live_node() {
                    node.resync(now);
                    self.tally.add("resyncs by the operator");
                }
            }
        }
        Ok(())
    }

    /// Everybody goes on once.
    fn round(&mut self) -> Result<(), Broken> {
        self.supervise()?;
        self.connect();
        self.deliver(0);
        self.think()?;
        self.serve()?;
        self.serve()?;
        self.watch();
        for _ in 0..self.messages.len() {
            self.hear()?;
        }
        self.think()
    }

    /// Returns whether anybody has something to do at once.
    pub(super) fn is_busy(&self) -> bool {
        let behind = |node: &Process<Node>| {
            !node.hung
                && (!self.stalled && node.body.is_behind(&self.datastore)
                    || node.body.is_stirred()
                    || !node.body.connected && self.live_helper_ref().is_some())
        };
        !self.supervisor.inputs.is_empty()
            || !self.messages.is_empty() && self.is_live(Child::Calc)
            || self.live_helper_ref().is_some_and(Helper::has_work)
            || self.node.as_ref().is_some_and(behind)
    }

    /// Returns whether everybody is there and in contact.
    pub(super) fn works(&self) -> bool {
        Child::ALL.into_iter().all(|child| self.is_live(child))
            && self.is_served()
            && self.supervisor.has_both_up()
    }

    /// Time passes, and who waits for it goes on when it is time.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Broken> {
        let end = self.now + time;
        while let Some(due) = self.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.tick()?;
        }
        self.now = end;
        Ok(())
    }

    /// Time passes, and nobody goes on before it has.
    fn sleep(&mut self, minutes: u16) -> Result<(), Broken> {
        let before = self.now;
        self.now += Duration::from_secs(60 * u64::from(minutes));
        self.tally.add("sleeps");
        if let Some(node) = self.live_node() {
            node.slept(before);
        }
        self.tick()
    }

    /// Returns when something is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let node = self.node.as_ref().filter(|node| !node.hung);
        let node = node.and_then(|node| node.body.due());
        let supervisor = self.supervisor.machine.poll_timeout();
        [node, supervisor, Some(self.next_ping)]
            .into_iter()
            .flatten()
            .min()
    }

    fn tick(&mut self) -> Result<(), Broken> {
        if self.next_ping <= self.now {
            self.next_ping = self.now + PING;
            for child in Child::ALL {
                if self.is_live(child) {
                    // Notifications of a child do not wait for the supervisor's other news.
                    self.supervisor
                        .machine
                        .handle(self.now, Input::Alive(child));
                }
            }
        }
        // What was said comes before what time has come to.
        while !self.supervisor.inputs.is_empty() {
            self.supervisor.hear(self.now);
        }
        let now = self.now;
        if self.live_node().is_some_and(|node| node.is_overdue(now)) {
            self.tally.add("answers overdue");
            self.disconnect();
        }
        self.act()?;
        self.think()
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.faults = Faults::default();
        self.datastore.mend();
        self.stalled = false;
    }

    fn is_live(&self, child: Child) -> bool {
        match child {
            Child::Helper => self.live_helper_ref().is_some(),
            Child::Calc => self.node.as_ref().is_some_and(|node| !node.hung),
        }
    }

    fn live_helper_ref(&self) -> Option<&Helper> {
        let live = self.helper.as_ref().filter(|helper| !helper.hung);
        live.map(|helper| &helper.body)
    }

    fn live_node(&mut self) -> Option<&mut Node> {
        let live = self.node.as_mut().filter(|node| !node.hung);
        live.map(|node| &mut node.body)
    }

    /// Returns whether `calc` is connected to this life of the helper.
    fn is_served(&self) -> bool {
        let helper = self.helper.as_ref().map(|helper| helper.incarnation);
        self.is_connected() && helper.is_some() && helper == self.peer
    }

    pub(super) fn is_connected(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.body.connected)
    }
}
