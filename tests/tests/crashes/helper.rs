//! The death of a helper among what it does, and a helper of another release.

use std::{
    fmt::Write as _,
    fs,
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

use command_fds::{CommandFdExt, FdMapping};
use ipc_proto::bus;
use nix::sys::signal::Signal;
use serde_bytes::ByteBuf;
use serde_json::Value;
use tests::{
    wait::{PATIENCE, eventually},
    world::{self, Node, Process, signal},
};
use zbus::fdo;

use super::{A_WHILE, listen, property, recovers, test};

/// So many routes to blocks are several batches, and several pages of a snapshot.
const MANY: u16 = 5_000;

/// Gives the node documents of a pool and of blocks in it that are the other node's.
fn show_many(node: &Node) {
    let mut text = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: many}\n\
                    spec: {cidr: 10.128.0.0/10, vxlanMode: Always}\n"
        .to_owned();
    for n in 0..MANY {
        let [high, low] = n.to_be_bytes();
        let cidr = format!("10.{}.{low}.0/26", 128 + high);
        write!(
            text,
            "---\napiVersion: projectcalico.org/v3\nkind: IPAMBlock\nmetadata: {{name: many-{n}}}\n\
             spec: {{cidr: {cidr}, affinity: 'host:node-2', allocations: [], unallocated: [], \
             attributes: []}}\n",
        )
        .unwrap();
    }
    fs::write(node.document(".many"), text).unwrap();
    fs::rename(node.document(".many"), node.document("many.yaml")).unwrap();
}

/// Returns how many routes to such blocks there are.
fn routes(node: &Node) -> usize {
    let routes = node.netns.run("ip -4 route show table main");
    let to_block = |line: &&str| line.starts_with("10.1") && line.contains("/26");
    routes.lines().filter(to_block).count()
}

#[test]
fn what_a_dead_helper_has_left_undone_is_done() {
    test(
        "helper::what_a_dead_helper_has_left_undone_is_done",
        |node| {
            let before = node.kernel_state();
            // How far it comes before it is killed is chance.
            let hit = (0..20).any(|_| {
                let [helper, supervisor] =
                    [Process::Helper, Process::Supervisor].map(|process| node.pid(process));
                // Nobody takes its place before this has been looked at.
                signal(supervisor, Signal::SIGSTOP);
                let monitor = listen(node);
                show_many(node);
                let start = Instant::now();
                while !monitor
                    .told(0)
                    .iter()
                    .any(|word| word.starts_with("+route 10.1"))
                {
                    assert!(start.elapsed() < PATIENCE, "no route is made");
                }
                signal(helper, Signal::SIGKILL);
                eventually("its end", || {
                    let process =
                        fs::read_to_string(format!("/proc/{helper}/stat")).unwrap_or_default();
                    let is_over = process.is_empty() || process.contains(") Z");
                    is_over.then_some(()).ok_or(process)
                });
                let made = routes(node);
                assert!(made > 0);
                signal(supervisor, Signal::SIGCONT);
                recovers(node, &[(Process::Helper, helper)]);
                assert_eq!(routes(node), usize::from(MANY));
                fs::remove_file(node.document("many.yaml")).unwrap();
                eventually("as before", || {
                    let now = node.kernel_state();
                    (now == before).then_some(()).ok_or(now)
                });
                made < usize::from(MANY)
            });
            assert!(hit, "it was always done by then");
        },
    );
}

#[test]
fn a_helper_that_dies_while_it_is_to_read_is_asked_again() {
    test(
        "helper::a_helper_that_dies_while_it_is_to_read_is_asked_again",
        |node| {
            let before = node.kernel_state();
            let monitor = listen(node);
            let helper = node.pid(Process::Helper);
            let resyncs = property(node, "/calc/properties/Resyncs");
            signal(helper, Signal::SIGSTOP);
            let asked = node.cairnctl("resync --wait 0").output().unwrap();
            let told = String::from_utf8_lossy(&asked.stderr);
            assert!(
                told.contains("has not read the datastore and the kernel back"),
                "{told}"
            );
            // An answer of calc that is later than its question to the helper.
            assert!(node.cairnctl("diff").output().unwrap().status.success());
            signal(helper, Signal::SIGKILL);
            recovers(node, &[(Process::Helper, helper)]);
            assert_ne!(property(node, "/calc/properties/Resyncs"), resyncs);
            assert_eq!(node.kernel_state(), before);
            assert_eq!(monitor.heard(), Vec::<u16>::new());
        },
    );
}

/// Returns how many bytes the helper has sent to calc that calc has not read.
fn unread(node: &Node) -> u64 {
    let told = node.netns.run("ss -xHn");
    // Each socket: what waits in it, its path and number, and the number of the other end.
    let sockets = told.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, waiting, _, path, own, _, other] = words.as_slice() else {
            return None;
        };
        Some((waiting.parse::<u64>().unwrap(), path, own, other))
    });
    let sockets: Vec<_> = sockets.collect();
    let served = sockets
        .iter()
        .filter(|(_, path, ..)| path.ends_with(bus::socket::DATAPLANE));
    let calcs: Vec<&str> = served.map(|(.., other)| *other).collect();
    let own = sockets
        .iter()
        .filter(|(_, _, own, other)| *other != "0" && calcs.contains(own));
    own.map(|(waiting, ..)| waiting).sum()
}

#[test]
fn a_helper_that_dies_among_its_pages_has_told_nothing() {
    test(
        "helper::a_helper_that_dies_among_its_pages_has_told_nothing",
        |node| {
            show_many(node);
            eventually("all routes", || {
                let made = routes(node);
                (made == usize::from(MANY))
                    .then_some(())
                    .ok_or(made.to_string())
            });
            node.converged();
            let before = node.kernel_state();
            let monitor = listen(node);
            // How far the reading comes before it is stopped is chance.
            let hit = (0..30).any(|_| {
                let [helper, calc, supervisor] =
                    [Process::Helper, Process::Calc, Process::Supervisor]
                        .map(|process| node.pid(process));
                // Another one knows nothing, and so has all read to it.
                signal(calc, Signal::SIGKILL);
                let (next, _) = eventually("another calc that reads", || {
                    let status = node.status();
                    let leased = status.pointer("/privhelper/properties/Leased");
                    let pid = status.pointer("/supervisor/properties/CalcPid");
                    let pid = pid.and_then(Value::as_u64).unwrap_or_default();
                    let reads = pid != 0 && pid != u64::from(calc) && leased == Some(&true.into());
                    reads.then_some(pid).ok_or(status.to_string())
                });
                let next = u32::try_from(next).unwrap();
                signal(next, Signal::SIGSTOP);
                let start = Instant::now();
                while unread(node) == 0 && start.elapsed() < A_WHILE {}
                let paged = unread(node) > 0;
                // Nobody takes the helper's place before this has been looked at.
                signal(supervisor, Signal::SIGSTOP);
                signal(helper, Signal::SIGKILL);
                signal(next, Signal::SIGCONT);
                eventually("its death is noticed", || {
                    let connected = property(node, "/calc/properties/Connected");
                    (connected == "false").then_some(()).ok_or(connected)
                });
                let readings = property(node, "/calc/properties/Resyncs");
                signal(supervisor, Signal::SIGCONT);
                recovers(node, &[(Process::Helper, helper)]);
                assert_eq!(node.kernel_state(), before);
                assert_eq!(monitor.heard(), Vec::<u16>::new());
                paged && readings == "0"
            });
            assert!(hit, "all was always read by then");
        },
    );
}

/// A helper of another release, as far as calc gets with it.
struct OtherRelease;

#[zbus::interface(name = "io.cairn.Dataplane1")]
impl OtherRelease {
    #[expect(clippy::unused_self, reason = "a method of the interface")]
    fn hello(&self, hello: ByteBuf) -> fdo::Result<ByteBuf> {
        drop(hello);
        Err(fdo::Error::NotSupported("speaks version 77".to_owned()))
    }
}

/// A process that ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Serves it to one client after the other for as long as the test runs.
fn serve_other_release(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            loop {
                let stream = bus::accept(&listener, |_| true).await.unwrap();
                let server = bus::server(stream).serve_at(bus::DATAPLANE_PATH, OtherRelease);
                let connection = server.build().await.unwrap();
                tokio::spawn(async move { connection.closed().await });
            }
        });
    });
}

#[test]
fn a_helper_of_another_release_is_told_by_cairnctl() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("datastore")).unwrap();
    let config = format!(
        "node_name = 'node-1'\nruntime_dir = {0:?}\ndatastore_dir = {1:?}\n",
        dir.path(),
        path("datastore")
    );
    fs::write(path("calc.toml"), config).unwrap();
    serve_other_release(&path(bus::socket::DATAPLANE));
    let face = FdMapping {
        parent_fd: UnixListener::bind(path(bus::socket::CALC)).unwrap().into(),
        child_fd: 3,
    };
    let calc = Command::new(world::built().join("cairn-calc"))
        .arg("--config")
        .arg(path("calc.toml"))
        .env("LISTEN_FDS", "1")
        .env_remove("LISTEN_PID")
        .stderr(Stdio::null())
        .fd_mappings(vec![face])
        .unwrap()
        .spawn()
        .unwrap();
    let _calc = Killed(calc);
    eventually("cairnctl tells why", || {
        let mut status = Command::new(world::built().join("cairnctl"));
        status.arg("--runtime-dir").arg(dir.path()).arg("status");
        let output = status.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = text.contains("speaks version 77") && !output.status.success();
        told.then_some(()).ok_or(text)
    });
}
