//! The real command against faces that are served the way the processes serve theirs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixListener as Listener,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ipc_proto::{
    BpfRoute, BpfTarget, Flags, Observed, Op,
    bus::{self, RouteRow, SnapshotPage},
    codec,
    view::{Kind, Row, Rows, RowsRequest},
};
use ipnet::{IpNet, Ipv4Net};
use serde_bytes::ByteBuf;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::Notify};
use zbus::{fdo, object_server::SignalEmitter};

/// How many rows the served table has, and a page of it.
const ROWS: u32 = 25;
const PAGE: usize = 10;

#[derive(Clone)]
struct Calc {
    in_sync: bool,
    resyncs: u64,
    /// How often it is asked before it has answered a request for a reading; others come meanwhile.
    late: Arc<AtomicU64>,
    pages: u64,
    /// Has whoever has read all pages told to read them again.
    reset: Arc<Notify>,
    /// It takes requests and does nothing.
    idle: bool,
}

#[zbus::interface(name = "io.cairn.Calc1")]
impl Calc {
    fn resync(&mut self) -> fdo::Result<u64> {
        self.resyncs += u64::from(!self.idle);
        if self.in_sync {
            Ok(if self.idle { u64::MAX } else { self.resyncs })
        } else {
            Err(fdo::Error::Failed("no helper".to_owned()))
        }
    }

    #[expect(clippy::unused_self, reason = "a method of the interface")]
    fn rows(&self, request: &serde_bytes::Bytes) -> ByteBuf {
        let request: RowsRequest = codec::decode(request).unwrap();
        let all = if request.kind == Kind::BpfRoutes {
            ROWS
        } else {
            0
        };
        let rows = (request.skip..all).take(PAGE).map(row).collect();
        ByteBuf::from(codec::encode(&Rows { rows }).unwrap())
    }

    /// Two pages, during which something changes; after a reset one.
    async fn snapshot(
        &mut self,
        after: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> SnapshotPage {
        self.pages += 1;
        let page = |seq, prefix: &str, next: &str| SnapshotPage {
            seq,
            routes: vec![route(prefix)],
            next: next.to_owned(),
            ..SnapshotPage::default()
        };
        match (self.pages, after) {
            (1, "") => {
                let old = vec![route("10.9.0.0/24")];
                Self::routes_changed(&emitter, 5, old, Vec::new())
                    .await
                    .unwrap();
                Self::address_clean(&emitter, 6, Vec::new()).await.unwrap();
                let gone = vec!["10.2.0.0/24".to_owned()];
                let new = vec![route("10.3.0.0/24")];
                Self::routes_changed(&emitter, 7, new, gone).await.unwrap();
                page(5, "10.1.0.0/24", "10.1.0.0/24")
            }
            (2, "10.1.0.0/24") => {
                let (emitter, reset) = (emitter.to_owned(), Arc::clone(&self.reset));
                tokio::spawn(async move {
                    reset.notified().await;
                    Self::reset(&emitter, 8).await.unwrap();
                });
                page(7, "10.2.0.0/24", "")
            }
            other => {
                assert_eq!(other, (3, ""));
                page(8, "10.4.0.0/24", "")
            }
        }
    }

    #[zbus(signal)]
    async fn routes_changed(
        emitter: &SignalEmitter<'_>,
        seq: u64,
        updates: Vec<RouteRow>,
        deletes: Vec<String>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn address_clean(
        emitter: &SignalEmitter<'_>,
        seq: u64,
        addresses: Vec<String>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn reset(emitter: &SignalEmitter<'_>, seq: u64) -> zbus::Result<()>;

    #[zbus(property)]
    fn in_sync(&self) -> bool {
        self.in_sync
    }

    #[zbus(property)]
    fn resyncs(&self) -> u64 {
        self.resyncs
    }

    #[zbus(property)]
    fn answered(&self) -> u64 {
        let late = self
            .late
            .fetch_update(Relaxed, Relaxed, |late| late.checked_sub(1));
        self.resyncs - u64::from(late.is_ok())
    }

    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a method of the interface")]
    fn problems(&self) -> Vec<String> {
        vec!["pool x: bad CIDR".to_owned()]
    }
}

fn route(prefix: &str) -> RouteRow {
    RouteRow {
        prefix: prefix.to_owned(),
        flags: 1,
        next_hop: String::new(),
        interface: "cali1".to_owned(),
        ifindex: 7,
    }
}

fn row(index: u32) -> Row {
    let prefix = IpNet::V4(Ipv4Net::new(index.into(), 32).unwrap());
    let route = BpfRoute {
        flags: Flags(1),
        target: BpfTarget::None,
    };
    Row {
        desired: Some(Op::BpfRoute(prefix, Some(route.clone()))),
        actual: Some(Observed::BpfRoute(prefix, Some(route))),
        reason: None,
    }
}

#[derive(Clone)]
struct Supervisor;

#[zbus::interface(name = "io.cairn.Supervisor1")]
impl Supervisor {
    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a method of the interface")]
    fn calc_pid(&self) -> u32 {
        42
    }
}

#[derive(Clone)]
struct PrivHelper;

#[zbus::interface(name = "io.cairn.PrivHelper1")]
impl PrivHelper {
    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a method of the interface")]
    fn leased(&self) -> bool {
        true
    }
}

/// Serves a face for as long as the test runs.
fn serve<F: zbus::object_server::Interface + Clone>(
    dir: &Path,
    socket: &str,
    path: &'static str,
    face: F,
) {
    drop(serve_until(dir, socket, path, face, Arc::default()));
}

/// The same until it is told to die; then its connections end with it.
fn serve_until<F: zbus::object_server::Interface + Clone>(
    dir: &Path,
    socket: &str,
    path: &'static str,
    face: F,
    death: Arc<Notify>,
) -> JoinHandle<()> {
    // Bound here, so that it is there when this returns.
    let listener = Listener::bind(dir.join(socket)).unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = UnixListener::from_std(listener).unwrap();
            loop {
                let stream = tokio::select! {
                    stream = bus::accept(&listener, |_| true) => stream.unwrap(),
                    () = death.notified() => return,
                };
                let server = bus::server(stream).serve_at(path, face.clone());
                tokio::spawn(async move { server.build().await.unwrap().closed().await });
            }
        });
    })
}

fn serve_all(in_sync: bool) -> TempDir {
    serve_with(in_sync, Arc::default())
}

fn serve_with(in_sync: bool, reset: Arc<Notify>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let calc = Calc {
        in_sync,
        resyncs: 1,
        late: Arc::default(),
        pages: 0,
        reset,
        idle: false,
    };
    serve(dir.path(), bus::socket::CALC, bus::CALC_PATH, calc);
    serve(
        dir.path(),
        bus::socket::SUPERVISOR,
        bus::SUPERVISOR_PATH,
        Supervisor,
    );
    serve(
        dir.path(),
        bus::socket::PRIVHELPER,
        bus::PRIVHELPER_PATH,
        PrivHelper,
    );
    dir
}

fn cairnctl(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cairnctl"))
        .arg("--runtime-dir")
        .arg(dir)
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn status_is_good_when_all_answer_and_calc_is_in_sync() {
    let dir = serve_all(true);
    let output = cairnctl(dir.path(), &["status"]);
    assert_eq!(
        stdout(&output),
        "\
supervisor:
  CalcPid  42
privhelper:
  Leased  yes
calc:
  Answered  1
  InSync    yes
  Problems  pool x: bad CIDR
  Resyncs   1
"
    );
    assert_eq!(output.status.code(), Some(0));
    let json: Value =
        serde_json::from_slice(&cairnctl(dir.path(), &["--json", "status"]).stdout).unwrap();
    assert_eq!(
        json["privhelper"]["properties"]["Leased"],
        Value::Bool(true)
    );
}

#[test]
fn status_is_bad_when_calc_is_not_in_sync() {
    let dir = serve_all(false);
    let output = cairnctl(dir.path(), &["status"]);
    assert!(stdout(&output).contains("InSync    no"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn status_tells_for_each_process_why_it_is_not_reachable() {
    let dir = tempfile::tempdir().unwrap();
    // One is gone, one was never there, one takes connections and says nothing.
    drop(Listener::bind(dir.path().join(bus::socket::SUPERVISOR)).unwrap());
    let _silent = Listener::bind(dir.path().join(bus::socket::CALC)).unwrap();
    let output = cairnctl(dir.path(), &["status"]);
    let at = |socket| dir.path().join(socket).display().to_string();
    assert_eq!(
        stdout(&output),
        format!(
            "supervisor: not reachable: it is not running: nobody listens at {}\n\
             privhelper: not reachable: is Cairn running? looked for {}\n\
             calc: not reachable: no answer at {} within 5 s: it is starting or hangs\n",
            at(bus::socket::SUPERVISOR),
            at(bus::socket::PRIVHELPER),
            at(bus::socket::CALC),
        )
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn routes_are_read_to_the_last_page() {
    let dir = serve_all(true);
    let text = stdout(&cairnctl(dir.path(), &["routes"]));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 26, "{text}");
    assert_eq!(lines[0], "PREFIX       FLAGS    TARGET  STATE");
    assert_eq!(lines[25], "0.0.0.24/32  in-pool  -       ok");
    let json: Value =
        serde_json::from_slice(&cairnctl(dir.path(), &["routes", "--json"]).stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 25);
    let kernel = cairnctl(dir.path(), &["routes", "--kernel"]);
    assert_eq!(stdout(&kernel).lines().count(), 1);
}

#[test]
fn routes_are_followed_over_a_reset() {
    let reset = Arc::new(Notify::new());
    let dir = serve_with(true, Arc::clone(&reset));
    let mut follower = Command::new(env!("CARGO_BIN_EXE_cairnctl"))
        .arg("--runtime-dir")
        .arg(dir.path())
        .args(["routes", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(follower.stdout.take().unwrap());
    // A line that does not come is a failure, not a test without an end.
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in printed.lines().map_while(Result::ok) {
            drop(sender.send(line));
        }
    });
    let next = || lines.recv_timeout(Duration::from_mins(1)).ok();
    let target = "in-pool cali1#7";
    for line in [
        format!("  10.1.0.0/24 {target}"),
        format!("  10.2.0.0/24 {target}"),
        format!("+ 10.3.0.0/24 {target}"),
        "- 10.2.0.0/24".to_owned(),
    ] {
        assert_eq!(next(), Some(line));
    }
    reset.notify_one();
    for line in [
        "# reset: all is read again".to_owned(),
        format!("  10.4.0.0/24 {target}"),
    ] {
        assert_eq!(next(), Some(line));
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn routes_are_followed_over_the_death_of_calc() {
    let dir = tempfile::tempdir().unwrap();
    let death = Arc::new(Notify::new());
    let calc = || {
        let calc = Calc {
            in_sync: true,
            resyncs: 1,
            late: Arc::default(),
            pages: 0,
            reset: Arc::default(),
            idle: false,
        };
        let (socket, path) = (bus::socket::CALC, bus::CALC_PATH);
        serve_until(dir.path(), socket, path, calc, Arc::clone(&death))
    };
    let first = calc();
    let mut follower = Command::new(env!("CARGO_BIN_EXE_cairnctl"))
        .arg("--runtime-dir")
        .arg(dir.path())
        .args(["routes", "--follow", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(follower.stdout.take().unwrap());
    let mut said = BufReader::new(follower.stderr.take().unwrap()).lines();
    let mut events = printed.lines().map(|line| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        line["event"].as_str().unwrap().to_owned()
    });
    let mut next = |wanted: &[&str]| {
        for wanted in wanted {
            assert_eq!(events.next().as_deref(), Some(*wanted));
        }
    };
    next(&["is", "is", "set", "clear"]);
    death.notify_one();
    first.join().unwrap();
    let hung_up = said.next().unwrap().unwrap();
    assert!(hung_up.starts_with("cairnctl: calc: "), "{hung_up}");
    assert!(hung_up.ends_with("; trying again"), "{hung_up}");
    // Nobody listens, and then there is no socket; each is said once.
    for wanted in ["nobody listens", "is Cairn running?"] {
        let line = said.next().unwrap().unwrap();
        assert!(line.contains(wanted), "{line}");
        drop(std::fs::remove_file(dir.path().join(bus::socket::CALC)));
    }
    let _second = calc();
    next(&["reset", "is", "is", "set", "clear"]);
    assert_eq!(follower.try_wait().unwrap(), None);
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert!(said.next().is_none(), "all was said");
}

#[test]
fn only_one_table_can_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    for other in ["--links", "--follow"] {
        let output = cairnctl(dir.path(), &["routes", "--kernel", other]);
        assert_eq!(output.status.code(), Some(2), "{other}");
    }
}

#[test]
fn resync_waits_for_the_reading() {
    let dir = serve_all(true);
    let output = cairnctl(dir.path(), &["resync"]);
    assert!(
        stdout(&output).starts_with("calc has read the datastore and the kernel back in "),
        "{}",
        stdout(&output)
    );
    assert_eq!(output.status.code(), Some(0));
    let output = cairnctl(dir.path(), &["resync", "--json"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["resync"], "read");
}

#[test]
fn resync_waits_for_a_reading_that_began_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let late = Arc::new(AtomicU64::new(3));
    let calc = Calc {
        in_sync: true,
        resyncs: 1,
        late: Arc::clone(&late),
        pages: 0,
        reset: Arc::default(),
        idle: false,
    };
    serve(dir.path(), bus::socket::CALC, bus::CALC_PATH, calc);
    let output = cairnctl(dir.path(), &["resync"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(late.load(Relaxed), 0);
}

#[test]
fn resync_says_so_if_nothing_is_read_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let calc = Calc {
        in_sync: true,
        resyncs: 7,
        late: Arc::default(),
        pages: 0,
        reset: Arc::default(),
        idle: true,
    };
    serve(dir.path(), bus::socket::CALC, bus::CALC_PATH, calc);
    let output = cairnctl(dir.path(), &["resync", "--wait", "1"]);
    assert!(
        stderr(&output)
            .starts_with("cairnctl: calc was asked, but has not read the datastore and the kernel back within 1 s"),
        "{}",
        stderr(&output)
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn resync_reports_why_calc_does_not() {
    let dir = serve_all(false);
    let output = cairnctl(dir.path(), &["resync"]);
    assert!(
        stderr(&output).starts_with("cairnctl: calc does not resync: "),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("no helper"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_missing_socket_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = cairnctl(dir.path(), &["routes"]);
    let wanted = format!(
        "cairnctl: calc: is Cairn running? looked for {}\n",
        dir.path().join(bus::socket::CALC).display()
    );
    assert_eq!(stderr(&output), wanted);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = serve_all(true);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_cairnctl"))
        .arg("--runtime-dir")
        .arg(dir.path())
        .arg("routes")
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}
