//! The shell between a real datastore directory, a helper on a real socket and a client.

mod consumers;
mod turns;

use std::{fs, future::Future, num::NonZeroU16, time::Duration};

use ipc_proto::{
    BpfRoute,
    bus::Calc1Proxy,
    codec,
    view::{Kind, RowsRequest},
};
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::dataplane::model::Helper;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_mins(1);

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
        route_cleanup_grace_period: Duration::ZERO,
        apply_burst: NonZeroU16::new(10).unwrap(),
        apply_interval: Duration::from_millis(100),
        workload_table: crate::WorkloadTable::Main,
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
async fn what_was_written_before_it_is_asked_to_resync_is_in_force_once_it_is_in_sync() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let file = config.datastore_dir.join("pools.yaml");
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    beside(config, listener, async {
        let _connection = helper.accept(&socket).await;
        let calc = face(&dir).await;
        let in_sync = || async { calc.in_sync().await.unwrap() };
        eventually("in sync", in_sync).await;
        let mut pools = Vec::new();
        for n in 1..=20 {
            pools.push(format!(
                "---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: p{n}}}\n\
                 spec: {{cidr: 10.{n}.0.0/16}}\n"
            ));
            fs::write(&file, pools.concat()).unwrap();
            let number = calc.resync().await.unwrap();
            let answered = || async { calc.answered().await.unwrap() >= number };
            eventually("an answer", answered).await;
            eventually("in sync", in_sync).await;
            assert_eq!(property::<u64>(&calc, "Desired").await, n);
        }
    })
    .await;
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
        for count in ["Desired", "Pending", "Held", "Foreign"] {
            assert_eq!(property::<u64>(&calc, count).await, 0, "{count}");
        }
        let problems = property::<Vec<String>>(&calc, "Problems").await;
        assert!(problems.is_empty(), "{problems:?}");

        // The operator asks.
        stray(&helper);
        let number = calc.resync().await.unwrap();
        swept(&helper).await;
        let answered = || async { calc.answered().await.unwrap() == number };
        eventually("the end", answered).await;
        let answered = || async { property::<u64>(&calc, "Batches").await == 2 };
        eventually("an answer", answered).await;

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
        let age = property::<u64>(&calc, "ReadingAge").await;
        assert_ne!(age, u64::MAX, "it was read");
        // What was swept, each time.
        assert_eq!(property::<u64>(&calc, "Batches").await, 3);

        let request = codec::encode(&RowsRequest {
            kind: Kind::BpfRoutes,
            skip: 0,
            differing: false,
        });
        let rows = calc.rows(&ByteBuf::from(request.unwrap())).await.unwrap();
        let rows: ipc_proto::view::Rows = codec::decode(&rows).unwrap();
        assert_eq!(rows.rows, []);
        assert!(calc.rows(&ByteBuf::from(vec![7])).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn a_helper_of_another_version_is_named_and_one_of_the_same_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    stray(&helper);
    helper.0.lock().unwrap().version += 1;
    beside(config, listener, async {
        let calc = face(&dir).await;
        let connection = helper.accept(&socket).await;
        let reported = || async {
            let problems = property::<Vec<String>>(&calc, "Problems").await;
            problems
                .iter()
                .any(|problem| problem.contains("install both from the same release"))
        };
        eventually("the report", reported).await;
        assert!(!property::<bool>(&calc, "Connected").await);
        drop(connection);
        helper.0.lock().unwrap().version -= 1;
        let _connection = helper.accept(&socket).await;
        swept(&helper).await;
        assert!(!reported().await);
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

#[tokio::test]
async fn a_directory_that_is_missing_is_named_and_what_is_lost_stays_in_force() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let store = config.datastore_dir.clone();
    fs::remove_dir_all(&store).unwrap();
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    stray(&helper);
    beside(config, listener, async {
        let _connection = helper.accept(&socket).await;
        let calc = face(&dir).await;
        let is = |standing| {
            let calc = &calc;
            move || async move { property::<String>(calc, "Datastore").await == standing }
        };
        let age = || property::<u64>(&calc, "DatastoreAge");
        let reported = async |fate: &str| {
            let problems = property::<Vec<String>>(&calc, "Problems").await;
            assert_eq!(
                problems,
                [format!(
                    "{}: cannot be watched: No such file or directory (os error 2); create the \
                     directory or correct its path; until then {fate}",
                    store.display()
                )]
            );
        };
        eventually("connected", || property::<bool>(&calc, "Connected")).await;
        let named = || async { property::<Vec<String>>(&calc, "Problems").await.concat() != "" };
        eventually("named", named).await;
        reported("nothing is changed on this host").await;
        assert!(is("unread")().await);
        assert_eq!(age().await, u64::MAX);
        assert_eq!(helper.0.lock().unwrap().bpf.len(), 1);

        fs::create_dir(&store).unwrap();
        fs::write(store.join("node.yaml"), node("node-1")).unwrap();
        swept(&helper).await;
        assert!(is("current")().await);
        assert_ne!(age().await, u64::MAX);

        fs::write(store.join("broken.yaml"), "kind: [").unwrap();
        eventually("partial", is("partial")).await;
        fs::remove_file(store.join("broken.yaml")).unwrap();
        eventually("current", is("current")).await;

        fs::remove_dir_all(&store).unwrap();
        eventually("lost", is("lost")).await;
        reported("the last state stays in force").await;
        assert_ne!(age().await, u64::MAX);
        // In force it is.
        stray(&helper);
        calc.resync().await.unwrap();
        swept(&helper).await;
        assert!(is("lost")().await);
    })
    .await;
}
