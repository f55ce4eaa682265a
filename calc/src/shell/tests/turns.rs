//! When the loop applies, and what it asks of the helper then. The time is played by hand.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test knows few ops and signals"
)]

mod answers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use ipc_proto::{
    Ack, Batch, BatchId, BpfRoute, Feed, Lease, Link, LinkEvent, LinkRole, LinkState, Observed, Op,
    OpError, Welcome,
};
use ipnet::IpNet;
use tokio::sync::{broadcast, oneshot};

use super::*;
use crate::{
    consumers::Signal,
    dataplane::{Event, Request, Train},
    datastore::{Standing, Update},
    event::{self, Pool},
};

const TOKEN: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(5);

/// A node's cores, with a clock and the helper's part played by hand.
struct Bench {
    node: Node,
    now: Instant,
    requests: mpsc::UnboundedReceiver<Request>,
    way: mpsc::UnboundedSender<Request>,
    train: Train,
    signals: broadcast::Receiver<Arc<Signal>>,
    /// How often the datastore is asked.
    asked: watch::Receiver<u64>,
    _face: Signals,
    /// What the helper has made.
    kernel: BTreeMap<IpNet, BpfRoute>,
    max_steps: u32,
    leases: u64,
}

/// The settings of a node that is read back at `refresh`.
fn settings(refresh: Option<Duration>) -> Config {
    let dir = TempDir::new().unwrap();
    config(&dir, refresh).0
}

impl Bench {
    /// Starts with nothing known.
    fn new(config: &Config) -> Self {
        let (way, requests) = mpsc::unbounded_channel();
        let (status, _) = watch::channel(Status::default());
        let (datastore, asked) = watch::channel(0);
        let (sender, face) = Signals::channel();
        let now = now();
        Self {
            signals: sender.subscribe(),
            asked,
            node: Node::new(
                now,
                config,
                7,
                Outputs {
                    datastore,
                    status,
                    signals: sender,
                },
            ),
            now,
            requests,
            way,
            train: Train::default(),
            _face: face,
            kernel: BTreeMap::new(),
            max_steps: 5000,
            leases: 0,
        }
    }

    /// Starts in sync, after an idle time.
    fn idle(config: &Config) -> Self {
        let mut bench = Self::new(config);
        bench.connect();
        bench.read([]);
        bench.update(0..1);
        assert!(bench.turn());
        bench.answer_all();
        bench.now += IDLE;
        assert!(!bench.turn(), "nothing has come");
        bench
    }

    /// Has done what follows, and returns whether that was an apply.
    fn turn(&mut self) -> bool {
        self.node.settle(self.now)
    }

    fn dataplane(&mut self, event: Event) {
        self.node.dataplane(self.now, event);
    }

    /// The helper can be reached, and is greeted.
    fn connect(&mut self) {
        self.dataplane(Event::Connected(self.way.clone()));
        self.turn();
        self.greeted();
    }

    fn greeted(&mut self) {
        let request = self.requests.try_recv();
        assert!(matches!(request, Ok(Request::Hello(_))), "{request:?}");
    }

    /// The helper has read the kernel.
    fn read(&mut self, observed: impl IntoIterator<Item = Observed>) {
        self.leases += 1;
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(self.leases),
            max_steps: self.max_steps,
            bpf_max_entries: 100_000,
            feed: 0,
        };
        self.dataplane(Event::Welcome(welcome, observed.into_iter().collect()));
    }

    /// The datastore tells of this node and of pools.
    fn update(&mut self, pools: impl IntoIterator<Item = u16>) {
        let update = update(pools);
        self.node.datastore(self.now, Told::Update(update));
    }

    /// An interface has changed.
    fn link(&mut self, state: LinkState) {
        self.feed(LinkEvent::Set(state));
    }

    fn feed(&mut self, event: LinkEvent) {
        self.dataplane(Event::Feed(Feed {
            seq: 1,
            events: vec![event],
            drift: BTreeSet::new(),
        }));
    }

    /// Returns the batch that is asked for, if any is.
    fn batch(&mut self) -> Option<Arc<Batch>> {
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::Apply(batch) => {
                    self.train.start(&batch);
                    return Some(batch);
                }
                Request::Follow(batch) => self.train.add(batch),
                Request::Recall => {
                    let in_flight = self.train.stop();
                    self.dataplane(Event::Recalled(in_flight));
                    self.turn();
                }
                Request::Hello(_) => panic!("a reading"),
            }
        }
        self.train.next().map(|(batch, _)| batch)
    }

    /// Expects a batch and returns its number and how many steps it has.
    #[track_caller]
    fn asked(&mut self) -> (BatchId, usize) {
        let batch = self.batch().expect("a batch");
        (batch.id, batch.steps.len())
    }

    /// Somebody asks for a reading, and gets its number.
    fn resync(&mut self) -> u64 {
        let (answer, mut number) = oneshot::channel();
        self.node.face(self.now, face::Request::Resync(answer));
        let number = number.try_recv().unwrap();
        assert_eq!(*self.asked.borrow(), number);
        number
    }

    /// The datastore has told all that was written before this was asked.
    fn answer(&mut self, number: u64) {
        self.node.datastore(self.now, Told::Answer(number));
        self.turn();
    }

    /// The helper has carried out a batch, but for these steps.
    fn ack(&mut self, id: BatchId, failed: Vec<(u32, OpError)>) {
        let ack = Ack { id, failed };
        self.train.answered(&ack);
        self.dataplane(Event::Ack(ack));
        assert!(!self.turn(), "an answer is no input");
    }

    /// The helper carries out whatever is asked for.
    fn answer_all(&mut self) {
        while let Some(batch) = self.batch() {
            let sets = batch.steps.iter().filter_map(|step| match &step.op {
                Op::BpfRoute(prefix, route) => Some((*prefix, route.clone()?)),
                _ => None,
            });
            self.kernel.extend(sets);
            self.ack(batch.id, Vec::new());
        }
    }

    /// Uses up all tokens.
    fn exhaust(&mut self) {
        for pool in 1000..1100 {
            self.update([pool]);
            if !self.turn() {
                return;
            }
            self.answer_all();
        }
        panic!("there is always another token");
    }
}

fn pool(n: u16) -> IpNet {
    let [high, low] = n.to_be_bytes();
    format!("10.{high}.{low}.0/24").parse().unwrap()
}

fn update(pools: impl IntoIterator<Item = u16>) -> Update {
    let node = event::Event::Node("node-1".to_owned(), Some(event::Node::default()));
    let pools = pools.into_iter();
    let pools = pools.map(|n| event::Event::Pool(pool(n), Some(Pool::default())));
    Update {
        events: [node].into_iter().chain(pools).collect(),
        complete: true,
        standing: Standing::Current,
        problems: Vec::new(),
    }
}

/// What may go well another time.
fn failure() -> OpError {
    let call = "bpf".to_owned();
    OpError::Kernel { call, errno: 12 }
}

fn uplink(addresses: &[&str]) -> LinkState {
    LinkState {
        link: Link {
            index: 2,
            name: "eth0".parse().unwrap(),
        },
        role: LinkRole::Uplink,
        up: true,
        carrier: true,
        mac: None,
        mtu: 1500,
        addresses: addresses.iter().map(|net| net.parse().unwrap()).collect(),
    }
}

#[test]
fn the_first_apply_is_at_once_and_the_next_one_a_token_later() {
    let mut bench = Bench::new(&settings(None));
    bench.connect();
    bench.read([]);
    assert!(!bench.turn());
    bench.update(0..1);
    assert!(bench.turn());
    let (id, steps) = bench.asked();
    assert_eq!(steps, 1);

    bench.update(1..2);
    assert!(!bench.turn());
    bench.ack(id, Vec::new());
    assert_eq!(bench.batch(), None, "what has come since waits");
    assert!(!bench.node.status().in_sync);
    let next = bench.now + TOKEN;
    assert_eq!(bench.node.poll_timeout(), Some(next));
    bench.now = next.checked_sub(Duration::from_nanos(1)).unwrap();
    assert!(!bench.turn());
    bench.now = next;
    assert!(bench.turn());
    assert_eq!(bench.asked().1, 1);
    assert_eq!(bench.node.poll_timeout(), None);
}

#[test]
fn after_an_idle_time_ten_applies_may_follow_each_other() {
    let mut bench = Bench::idle(&settings(None));
    for pool in 1..=10 {
        bench.update([pool]);
        assert!(bench.turn(), "{pool}");
        let (id, steps) = bench.asked();
        assert_eq!(steps, 1, "{pool}");
        bench.ack(id, Vec::new());
    }
    bench.update([11]);
    assert!(!bench.turn());
}

#[test]
fn a_storm_is_few_applies_and_ends_right() {
    let mut bench = Bench::idle(&settings(None));
    let mut applies = 0;
    let mut steps = 0;
    for n in 0..1000 {
        bench.update([1 + n]);
        applies += usize::from(bench.turn());
        while let Some(batch) = bench.batch() {
            steps += batch.steps.len();
            bench.ack(batch.id, Vec::new());
        }
        bench.now += Duration::from_millis(10);
    }
    assert!(applies <= 10 + 100, "{applies}");
    bench.now += TOKEN;
    bench.turn();
    steps += bench.asked().1;
    assert_eq!(steps, 1000);
}

#[tokio::test]
async fn of_a_thousand_messages_a_turn_takes_in_a_part_and_one_apply_does_for_the_rest() {
    let mut config = settings(None);
    config.apply_interval = Duration::from_hours(1);
    let (told, datastore) = mpsc::channel(1000);
    let (_events, dataplane) = mpsc::channel(1);
    let (_requests, face) = mpsc::channel(1);
    for n in 0..1000 {
        told.try_send(Told::Update(update([n]))).unwrap();
    }
    let inputs = Inputs {
        datastore,
        dataplane,
        face,
    };
    let mut bench = Loop::new(Bench::new(&config).node, inputs);
    bench.turn().await;
    assert_eq!(bench.inputs.datastore.len(), 1000 - 101);
    assert_eq!(bench.node.status().desired, 101);
    for _ in 1..10 {
        bench.turn().await;
    }
    assert_eq!(bench.inputs.datastore.len(), 0);
    assert_eq!(bench.node.status().desired, 101, "there is no token");
}

#[test]
fn what_comes_before_the_datastore_is_read_is_part_of_the_first_apply() {
    let mut bench = Bench::new(&settings(None));
    bench.connect();
    bench.read([Observed::Link(uplink(&["192.0.2.7/24"]))]);
    assert!(!bench.turn());
    bench.link(uplink(&["192.0.2.7/24", "192.0.2.8/24"]));
    assert!(!bench.turn());
    assert_eq!(bench.batch(), None);
    assert_eq!(bench.node.poll_timeout(), None);
    bench.update(0..3);
    assert!(bench.turn());
    assert_eq!(bench.asked().1, 3 + 2);
}

#[test]
fn before_interfaces_are_read_nothing_is_asked_for_but_that() {
    let mut bench = Bench::new(&settings(None));
    bench.update(0..3);
    bench.turn();
    assert_eq!(bench.batch(), None);
    bench.connect();
    bench.turn();
    assert_eq!(bench.batch(), None);
    assert!(!bench.node.status().in_sync);
    bench.read([]);
    assert!(bench.turn(), "no token is needed for what was asked for");
    assert_eq!(bench.asked().1, 3);
}

#[test]
fn a_refresh_reads_and_writes_nothing_where_all_is_right() {
    let interval = Duration::from_secs(90);
    let mut bench = Bench::idle(&settings(Some(interval)));
    let read_at = bench.now.checked_sub(IDLE).unwrap();
    let due = bench.node.poll_timeout().unwrap();
    assert!((interval..interval + interval / 10).contains(&(due - read_at)));
    bench.now = due;
    assert!(bench.turn());
    bench.greeted();
    assert_eq!(bench.node.poll_timeout(), None, "one reading at a time");
    assert_eq!(bench.kernel.len(), 1);
    let kernel = bench.kernel.clone().into_iter();
    bench.read(kernel.map(|(prefix, route)| Observed::BpfRoute(prefix, Some(route))));
    assert!(bench.turn());
    assert_eq!(bench.batch(), None);
    assert!(bench.node.status().in_sync);
    assert!(bench.node.poll_timeout().unwrap() >= bench.now + interval);
}

#[test]
fn no_timer_is_lost_while_there_is_no_token() {
    let mut bench = Bench::idle(&settings(None));
    bench.update(1..2);
    assert!(bench.turn());
    let (id, _) = bench.asked();
    bench.ack(id, vec![(0, failure())]);
    let retry = bench.node.poll_timeout().unwrap();
    bench.now = retry.checked_sub(Duration::from_millis(1)).unwrap();
    bench.exhaust();
    bench.now = retry;
    assert!(!bench.turn());
    let token = bench.node.poll_timeout().unwrap();
    assert!(token > retry, "no timer spins");
    bench.now = token;
    assert!(bench.turn());
    let (id, steps) = bench.asked();
    assert_eq!(steps, 2, "what is tried again, and what came last");
    bench.ack(id, Vec::new());
    assert_eq!(bench.node.status().held, 0);
}

#[test]
fn what_tells_nothing_new_asks_for_nothing() {
    let mut bench = Bench::idle(&settings(None));
    bench.link(uplink(&["192.0.2.7/24"]));
    assert!(bench.turn());
    let (id, steps) = bench.asked();
    assert_eq!(steps, 1);
    bench.ack(id, Vec::new());
    bench.link(uplink(&["192.0.2.7/24"]));
    bench.feed(LinkEvent::Gone(Link {
        index: 77,
        name: "never-seen".parse().unwrap(),
    }));
    bench.update(0..1);
    bench.turn();
    assert_eq!(bench.batch(), None);
    let status = bench.node.status().clone();
    assert!(status.in_sync, "{status:?}");
}

#[test]
fn a_request_for_a_reading_is_input_like_any_other() {
    let mut bench = Bench::idle(&settings(None));
    bench.resync();
    assert!(bench.turn());
    bench.greeted();
}
