//! Both ends of a real socket.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "one event is expected at a time"
)]

use std::{collections::BTreeSet, future::Future};

use ipc_proto::{
    BatchId, BpfRoute, Known, Lane, Lease, Link, LinkEvent, LinkRole, LinkState, Op, Step,
};
use tempfile::TempDir;
use tokio::{net::UnixListener, time::timeout};

use super::{
    model::{Helper, signal},
    *,
};

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_mins(1);

/// The client, and the socket of the other side.
struct Bench {
    dir: TempDir,
    events: mpsc::Receiver<Event>,
    listener: UnixListener,
    helper: Helper,
}

impl Bench {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let listener = Helper::listen(dir.path());
        let (sender, events) = mpsc::channel(1);
        tokio::spawn(run(dir.path().to_owned(), sender));
        Self {
            dir,
            events,
            listener,
            helper: Helper::default(),
        }
    }

    async fn connect(&mut self) -> (Connection, mpsc::UnboundedSender<Request>) {
        let connection = soon(self.helper.accept(&self.listener)).await;
        match self.event().await {
            Event::Connected(requests) => (connection, requests),
            other => panic!("{other:?}"),
        }
    }

    async fn event(&mut self) -> Event {
        soon(self.events.recv()).await.unwrap()
    }

    async fn welcome(&mut self, requests: &mpsc::UnboundedSender<Request>) -> (Welcome, Reading) {
        requests.send(Request::Hello(Known::default())).unwrap();
        match self.event().await {
            Event::Welcome(welcome, reading) => (welcome, reading),
            other => panic!("{other:?}"),
        }
    }

    async fn links(&mut self) -> Vec<LinkEvent> {
        match self.event().await {
            Event::Feed(feed) => feed.events,
            other => panic!("{other:?}"),
        }
    }

    async fn error(&mut self) -> Error {
        match self.event().await {
            Event::Disconnected(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap()
}

fn link(index: u32) -> Link {
    Link {
        index,
        name: "cali1".parse().unwrap(),
    }
}

fn feed(seq: u64) -> Feed {
    let events = vec![LinkEvent::Gone(link(u32::try_from(seq).unwrap()))];
    let drift = BTreeSet::new();
    Feed { seq, events, drift }
}

fn set(lease: Lease) -> Batch {
    let op = Op::BpfRoute("10.0.0.0/24".parse().unwrap(), Some(BpfRoute::default()));
    Batch {
        lease,
        lane: Lane::State,
        id: BatchId(7),
        steps: vec![Step { op, needs: None }],
    }
}

#[tokio::test]
async fn all_pages_are_read_and_a_batch_is_carried_out() {
    let mut bench = Bench::new();
    let state = LinkState {
        link: link(3),
        role: LinkRole::Workload,
        up: true,
        carrier: true,
        mac: None,
        mtu: 1500,
        addresses: Vec::new(),
    };
    let prefix = "10.1.0.0/16".parse().unwrap();
    {
        let mut helper = bench.helper.0.lock().unwrap();
        helper.links.push(state.clone());
        helper.bpf.insert(prefix, BpfRoute::default());
    }
    let (_connection, requests) = bench.connect().await;
    let (welcome, reading) = bench.welcome(&requests).await;
    let route = Observed::BpfRoute(prefix, Some(BpfRoute::default()));
    let expected = [Observed::Link(state), route];
    assert_eq!(reading, expected.into_iter().collect());

    requests
        .send(Request::Apply(numbered(welcome.lease, 7)))
        .unwrap();
    match bench.event().await {
        Event::Ack(ack) => assert_eq!((ack.id, ack.failed), (BatchId(7), Vec::new())),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.helper.0.lock().unwrap().bpf.len(), 2);
}

/// Returns a batch under this number.
fn numbered(lease: Lease, id: u64) -> Arc<Batch> {
    Arc::new(Batch {
        id: BatchId(id),
        ..set(lease)
    })
}

#[tokio::test]
async fn what_follows_is_sent_ahead_and_carried_out_by_its_number() {
    let mut bench = Bench::new();
    let (_connection, requests) = bench.connect().await;
    let Welcome { lease, .. } = bench.welcome(&requests).await.0;
    requests.send(Request::Apply(numbered(lease, 1))).unwrap();
    for id in 2..=8 {
        requests.send(Request::Follow(numbered(lease, id))).unwrap();
    }
    for id in 1..=8 {
        match bench.event().await {
            Event::Ack(ack) => assert_eq!((ack.id, ack.failed), (BatchId(id), Vec::new())),
            other => panic!("{other:?}"),
        }
    }
    let by_number = bench.helper.0.lock().unwrap().by_number;
    assert_eq!(by_number, 7, "all but the first");
    // It is not held up by what has ended.
    requests.send(Request::Follow(numbered(lease, 9))).unwrap();
    let event = bench.event().await;
    assert!(matches!(event, Event::Ack(Ack { id: BatchId(9), .. })));
}

#[tokio::test]
async fn nothing_follows_what_failed_or_was_called_back() {
    let mut bench = Bench::new();
    let (_connection, requests) = bench.connect().await;
    let Welcome { lease, .. } = bench.welcome(&requests).await.0;
    let mut number = 0;
    for fails in [true, false] {
        let mut next = || {
            number += 1;
            numbered(lease, number)
        };
        bench.helper.0.lock().unwrap().fails = fails;
        let first = next();
        let id = first.id;
        requests.send(Request::Apply(first)).unwrap();
        if fails {
            let event = bench.event().await;
            assert!(matches!(event, Event::Ack(ack) if ack.id == id && ack.failed.len() == 1));
            requests.send(Request::Follow(next())).unwrap();
            requests.send(Request::Recall).unwrap();
            let event = bench.event().await;
            assert!(matches!(event, Event::Recalled(None)), "{event:?}");
        } else {
            // These wait before the first of them is looked at.
            requests.send(Request::Follow(next())).unwrap();
            requests.send(Request::Recall).unwrap();
            requests.send(Request::Follow(next())).unwrap();
            let mut sent = Vec::new();
            let in_flight = loop {
                match bench.event().await {
                    Event::Ack(ack) => sent.push(ack.id),
                    Event::Recalled(in_flight) => break in_flight,
                    other => panic!("{other:?}"),
                }
            };
            // At whatever moment that came, what is in flight is answered and nothing more is sent.
            if let Some(in_flight) = in_flight {
                let event = bench.event().await;
                assert!(matches!(event, Event::Ack(ack) if ack.id == in_flight));
                sent.push(in_flight);
            }
            assert!(sent.len() <= 2 && sent.first() == Some(&id), "{sent:?}");
        }
        // Whoever starts anew is served.
        let last = next();
        let id = last.id;
        bench.helper.0.lock().unwrap().fails = false;
        requests.send(Request::Apply(last)).unwrap();
        let event = bench.event().await;
        assert!(
            matches!(&event, Event::Ack(ack) if ack.id == id),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn changes_come_after_the_reading_that_they_follow() {
    let mut bench = Bench::new();
    let (connection, requests) = bench.connect().await;
    {
        let mut helper = bench.helper.0.lock().unwrap();
        helper.seq = 4;
        helper.feeds = (3..=5).map(feed).collect();
    }
    assert_eq!(bench.welcome(&requests).await.0.feed, 4);
    assert_eq!(bench.links().await, feed(5).events);
    signal(&connection, &feed(6)).await;
    assert_eq!(bench.links().await, feed(6).events);
}

#[tokio::test]
async fn a_flood_of_changes_does_not_hold_up_the_answer() {
    let mut bench = Bench::new();
    let (_connection, requests) = bench.connect().await;
    let flood = 4 * u64::try_from(FEED_QUEUE.get()).unwrap();
    bench.helper.0.lock().unwrap().feeds = (1..=flood).map(feed).collect();
    bench.welcome(&requests).await;
    let mut seen = 0;
    while seen < flood {
        seen += u64::try_from(bench.links().await.len()).unwrap();
    }
    assert_eq!(seen, flood);
}

#[tokio::test]
async fn a_gap_ends_the_connection_and_another_is_made() {
    let mut bench = Bench::new();
    let (connection, requests) = bench.connect().await;
    bench.welcome(&requests).await;
    signal(&connection, &feed(2)).await;
    let error = bench.error().await;
    assert!(matches!(error, Error::Gap(_)), "{error}");
    let (_connection, requests) = bench.connect().await;
    bench.welcome(&requests).await;
}

#[tokio::test]
async fn a_helper_that_dies_is_waited_for() {
    let mut bench = Bench::new();
    let (connection, requests) = bench.connect().await;
    bench.welcome(&requests).await;
    drop(connection.close().await);
    let error = bench.error().await;
    assert!(matches!(error, Error::Closed), "{error}");

    // Nobody listens for a while.
    let dir = bench.dir.path().to_owned();
    std::fs::remove_file(dir.join(bus::socket::DATAPLANE)).unwrap();
    let error = bench.error().await;
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    bench.listener = Helper::listen(&dir);
    let helper = bench.helper.clone();
    let _connection = soon(helper.accept(&bench.listener)).await;
    loop {
        match bench.event().await {
            Event::Disconnected(Error::Connect { .. }) => {}
            Event::Connected(_) => break,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_helper_that_dies_between_two_pages_has_read_nothing() {
    let mut bench = Bench::new();
    let prefix = "10.1.0.0/16".parse().unwrap();
    let asked = {
        let mut helper = bench.helper.0.lock().unwrap();
        helper.bpf.insert(prefix, BpfRoute::default());
        helper.stuck = true;
        Arc::clone(&helper.asked)
    };
    let (connection, requests) = bench.connect().await;
    requests.send(Request::Hello(Known::default())).unwrap();
    soon(asked.notified()).await;
    drop(connection.close().await);
    let error = bench.error().await;
    assert!(matches!(error, Error::Closed), "{error}");

    // What has come so far is not all, whoever is the first to hear of the end.
    let path = bench.dir.path().join("other");
    let listener = UnixListener::bind(&path).unwrap();
    let (client, connection) = tokio::join!(bus::connect(&path), bench.helper.accept(&listener));
    let client = client.unwrap();
    let proxy = DataplaneProxy::new(&client).await.unwrap();
    let death = async {
        asked.notified().await;
        drop(connection.close().await);
    };
    let (reading, ()) =
        soon(async { tokio::join!(hello::<Reading>(&proxy, Known::default()), death) }).await;
    assert!(matches!(reading, Err(Error::Closed)), "{reading:?}");

    bench.helper.0.lock().unwrap().stuck = false;
    let (_connection, requests) = bench.connect().await;
    let (_, reading) = bench.welcome(&requests).await;
    let route = Observed::BpfRoute(prefix, Some(BpfRoute::default()));
    assert_eq!(reading, [route].into_iter().collect());
}

#[tokio::test]
async fn a_lost_lease_ends_the_connection() {
    let mut bench = Bench::new();
    let (_connection, requests) = bench.connect().await;
    let (welcome, _) = bench.welcome(&requests).await;
    bench.helper.fence();
    requests
        .send(Request::Apply(numbered(welcome.lease, 7)))
        .unwrap();
    let error = bench.error().await.to_string();
    assert!(
        error.contains("did not do Apply") && error.contains("not the lease"),
        "{error}"
    );
}

#[tokio::test]
async fn another_release_is_named() {
    let mut bench = Bench::new();
    bench.helper.0.lock().unwrap().version = 77;
    let (_connection, requests) = bench.connect().await;
    requests.send(Request::Hello(Known::default())).unwrap();
    let error = bench.error().await.to_string();
    assert!(error.contains("version 77"), "{error}");
}
