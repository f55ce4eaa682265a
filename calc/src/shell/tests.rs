//! The shell between a real datastore directory, a helper on a real socket and a client.

use std::{collections::BTreeMap, fs, future::Future, time::Duration};

use futures_util::{Stream, StreamExt};
use ipc_proto::{
    BpfRoute, Link, LinkRole, LinkState,
    bus::{Calc1Proxy, RouteRow},
    codec,
    view::{Kind, RowsRequest},
};
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::dataplane::model::{Helper, signal};

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `check` is so.
async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let waited = timeout(DEADLINE, async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "not in time: {what}");
}

/// A node that has no address, and so nothing to program.
fn node(name: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{}}\n"
    )
}

/// Sets up everything but the process itself.
fn config(dir: &TempDir, interval: Option<Duration>) -> (Config, UnixListener) {
    let datastore_dir = dir.path().join("datastore");
    fs::create_dir(&datastore_dir).unwrap();
    fs::write(datastore_dir.join("node.yaml"), node("node-1")).unwrap();
    let config = Config {
        node_name: "node-1".to_owned(),
        datastore_dir,
        runtime_dir: dir.path().to_owned(),
        route_refresh_interval: interval,
        face_users: Vec::new(),
    };
    let listener = UnixListener::bind(dir.path().join(bus::socket::CALC)).unwrap();
    (config, listener)
}

/// Runs the shell as long as `body` takes.
async fn beside(config: Config, listener: UnixListener, body: impl Future<Output = ()>) {
    tokio::select! {
        result = serve(config, listener) => panic!("{result:?}"),
        () = body => {}
    }
}

fn stray(helper: &Helper) {
    let prefix = "203.0.113.0/24".parse().unwrap();
    let mut state = helper.0.lock().unwrap();
    state.bpf.insert(prefix, BpfRoute::default());
}

async fn swept(helper: &Helper) {
    let is_empty = || async { helper.0.lock().unwrap().bpf.is_empty() };
    eventually("the stray is swept", is_empty).await;
}

async fn face(dir: &TempDir) -> Calc1Proxy<'static> {
    let client = bus::connect(&dir.path().join(bus::socket::CALC))
        .await
        .unwrap();
    let builder = Calc1Proxy::builder(&client);
    builder
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await
        .unwrap()
}

async fn property<T: DeserializeOwned + zbus::Type>(calc: &Calc1Proxy<'_>, name: &str) -> T {
    calc.inner().get_property(name).await.unwrap()
}

#[tokio::test]
async fn the_kernel_is_put_right_again_after_each_way_to_ask_for_it() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    stray(&helper);
    beside(config, listener, async {
        let connection = helper.accept(&socket).await;
        swept(&helper).await;

        let calc = face(&dir).await;
        let in_sync = || async { calc.in_sync().await.unwrap() };
        eventually("in sync", in_sync).await;
        assert_ne!(calc.incarnation().await.unwrap(), 0);
        assert_eq!(
            property::<String>(&calc, "Version").await,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(property::<String>(&calc, "Node").await, "node-1");
        assert!(property::<bool>(&calc, "Connected").await);
        for count in ["Desired", "Pending", "Held"] {
            assert_eq!(property::<u64>(&calc, count).await, 0, "{count}");
        }
        let problems = property::<Vec<String>>(&calc, "Problems").await;
        assert!(problems.is_empty(), "{problems:?}");

        // The operator asks.
        stray(&helper);
        calc.resync().await.unwrap();
        swept(&helper).await;

        // The helper crashes.
        stray(&helper);
        drop(connection.close().await);
        eventually("noticed", || async { !in_sync().await }).await;
        let problems = property::<Vec<String>>(&calc, "Problems").await;
        assert_eq!(problems, ["the helper ended the connection"]);
        let _connection = helper.accept(&socket).await;
        swept(&helper).await;
        eventually("in sync again", in_sync).await;
        assert_eq!(property::<u64>(&calc, "Resyncs").await, 3);

        let request = codec::encode(&RowsRequest {
            kind: Kind::BpfRoutes,
            skip: 0,
        });
        let rows = calc.rows(&ByteBuf::from(request.unwrap())).await.unwrap();
        let rows: ipc_proto::view::Rows = codec::decode(&rows).unwrap();
        assert_eq!(rows.rows, []);
        assert!(calc.rows(&ByteBuf::from(vec![7])).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn the_kernel_is_read_back_at_intervals() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, Some(Duration::from_millis(1)));
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    beside(config, listener, async {
        let _connection = helper.accept(&socket).await;
        for _ in 0..3 {
            stray(&helper);
            swept(&helper).await;
        }
    })
    .await;
}

#[tokio::test]
async fn without_its_own_node_nothing_is_touched() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let document = config.datastore_dir.join("node.yaml");
    fs::write(&document, node("node-2")).unwrap();
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    stray(&helper);
    beside(config, listener, async {
        let _connection = helper.accept(&socket).await;
        let calc = face(&dir).await;
        let reported = || async {
            let problems = property::<Vec<String>>(&calc, "Problems").await;
            problems
                .iter()
                .any(|problem| problem.contains("no Node node-1"))
        };
        eventually("the report", reported).await;
        eventually("connected", || property::<bool>(&calc, "Connected")).await;
        assert!(!calc.in_sync().await.unwrap());
        assert_eq!(helper.0.lock().unwrap().bpf.len(), 1);

        fs::write(&document, node("node-1")).unwrap();
        swept(&helper).await;
        assert!(!reported().await);

        // It goes again: what is there stays.
        fs::write(&document, node("node-2")).unwrap();
        eventually("the report", reported).await;
        assert!(!calc.in_sync().await.unwrap());
    })
    .await;
}

/// Documents of so many pools.
fn pools(count: u16) -> String {
    let pool = |n: u16| {
        let [high, low] = n.to_be_bytes();
        format!(
            "---\napiVersion: projectcalico.org/v3\nkind: IPPool\n\
             metadata: {{name: pool-{n}}}\nspec: {{cidr: 10.{high}.{low}.0/24}}\n"
        )
    };
    (0..count).map(pool).collect()
}

/// An interface with an address that others can send to.
fn uplink() -> LinkState {
    LinkState {
        link: Link {
            index: 2,
            name: "eth0".parse().unwrap(),
        },
        role: LinkRole::Uplink,
        up: true,
        mac: None,
        mtu: 1500,
        addresses: vec!["192.0.2.7/24".parse().unwrap()],
    }
}

async fn heard<T>(signals: &mut (impl Stream<Item = T> + Unpin)) -> T {
    let signal = timeout(DEADLINE, signals.next()).await;
    signal.unwrap().unwrap()
}

/// Reads all pages, and returns the number of the first as well.
async fn snapshot(calc: &Calc1Proxy<'_>) -> (u64, Vec<String>, BTreeMap<String, RouteRow>) {
    let first = calc.snapshot("").await.unwrap();
    let (seq, host_ips) = (first.seq, first.host_ips);
    let (mut rows, mut next) = (first.routes, first.next);
    while !next.is_empty() {
        let page = calc.snapshot(&next).await.unwrap();
        rows.extend(page.routes);
        next = page.next;
    }
    let routes = rows.into_iter().map(|row| (row.prefix.clone(), row));
    (seq, host_ips, routes.collect())
}

fn in_kernel(helper: &Helper) -> BTreeMap<String, RouteRow> {
    let state = helper.0.lock().unwrap();
    let rows = state
        .bpf
        .iter()
        .map(|(key, value)| RouteRow::new(*key, value));
    rows.map(|row| (row.prefix.clone(), row)).collect()
}

#[tokio::test]
async fn consumers_are_told_what_the_helper_has_acknowledged() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let document = config.datastore_dir.join("pools.yaml");
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    helper.0.lock().unwrap().links.push(uplink());
    beside(config, listener, async {
        let calc = face(&dir).await;
        let mut routes = calc.receive_routes_changed().await.unwrap();
        let mut host_ips = calc.receive_host_ips_changed().await.unwrap();
        let mut resets = calc.receive_reset().await.unwrap();
        let error = calc.snapshot("").await.unwrap_err().to_string();
        assert!(error.contains("io.cairn.Error.NotReady"), "{error}");

        let connection = helper.accept(&socket).await;
        let reset = heard(&mut resets).await;
        assert_eq!(*reset.args().unwrap().seq(), 1);
        let (seq, addresses, mut known) = snapshot(&calc).await;
        assert_eq!((seq, addresses), (1, vec!["192.0.2.7".to_owned()]));
        assert_eq!(known, in_kernel(&helper));

        fs::write(&document, pools(3)).unwrap();
        let change = heard(&mut routes).await;
        let change = change.args().unwrap();
        assert_eq!((*change.seq(), change.updates().len()), (2, 3));
        assert!(change.deletes().is_empty());
        known.extend(
            change
                .updates()
                .iter()
                .map(|row| (row.prefix.clone(), row.clone())),
        );
        assert_eq!(known, in_kernel(&helper));

        // Somebody joins late.
        let late = face(&dir).await;
        let mut late_routes = late.receive_routes_changed().await.unwrap();
        let mut late_resets = late.receive_reset().await.unwrap();
        let (seq, _, all) = snapshot(&late).await;
        assert_eq!((seq, all), (2, known));
        fs::write(&document, pools(2)).unwrap();
        for routes in [&mut routes, &mut late_routes] {
            let change = heard(routes).await;
            let change = change.args().unwrap();
            assert_eq!((*change.seq(), change.updates().len()), (3, 0));
            assert_eq!(*change.deletes(), ["10.0.2.0/24"]);
        }

        // An address is added to the interface, and told after its entry.
        let mut state = uplink();
        state.addresses.push("192.0.2.8/24".parse().unwrap());
        let feed = ipc_proto::Feed {
            seq: 1,
            events: vec![ipc_proto::LinkEvent::Set(state)],
        };
        signal(&connection, &feed).await;
        let change = heard(&mut routes).await;
        assert_eq!(*change.args().unwrap().seq(), 4);
        let change = heard(&mut host_ips).await;
        let change = change.args().unwrap();
        assert_eq!((*change.seq(), change.addresses().len()), (5, 2));

        // More than is told one by one.
        fs::write(&document, pools(1500)).unwrap();
        for resets in [&mut resets, &mut late_resets] {
            let reset = heard(resets).await;
            assert_eq!(*reset.args().unwrap().seq(), 6);
        }
        let (seq, addresses, all) = snapshot(&late).await;
        assert_eq!((seq, addresses.len(), all.len()), (6, 2, 1502));
        assert_eq!(all, in_kernel(&helper));

        // A crash of the helper is no news; the next change is.
        drop(connection.close().await);
        let _connection = helper.accept(&socket).await;
        let in_sync = || async { calc.in_sync().await.unwrap() };
        eventually("in sync again", in_sync).await;
        fs::write(&document, pools(1501)).unwrap();
        let change = heard(&mut routes).await;
        assert_eq!(*change.args().unwrap().seq(), 7);

        let error = calc.snapshot("10").await.unwrap_err().to_string();
        assert!(error.contains("InvalidCursor"), "{error}");
    })
    .await;
}
