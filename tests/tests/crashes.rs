//! What becomes of the kernel's state when a process dies at a moment that matters: the real processes
//! on one node of the demo world. ARCHITECTURE.md tells the sequence of events of each; e2e.rs shows
//! that no packet is lost, and the simulator crashes each process at each step.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "crashes/helper.rs"]
mod helper;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    net::IpAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::{
    flows::{self, Flow},
    monitor::Monitor,
    netns::shell,
    wait::eventually,
    world::{self, Node, Process, signal},
};

/// Longer than a helper takes to do what it was asked for, on most machines.
const A_WHILE: Duration = Duration::from_secs(5);

/// The address that is frontend's, and cart's once it has moved.
const ADDRESS: &str = "10.244.1.2";

/// Runs `body` on a node on which Cairn is up and reads nothing back without a cause.
fn test(name: &str, body: impl FnOnce(&mut Node)) {
    world::test(name, |world| {
        let [node, _] = &mut world.nodes;
        node.refresh_never();
        node.start();
        node.converged();
        body(node);
    });
}

/// Listens to the node's kernel from now on.
fn listen(node: &Node) -> Monitor {
    node.netns.within(Monitor::open).join().unwrap()
}

/// Waits for other processes in the place of these, and for the node to be in sync.
fn recovers(node: &Node, dead: &[(Process, u32)]) {
    for (process, pid) in dead {
        eventually(&format!("another {process:?}"), || {
            match node.try_pid(*process) {
                Some(other) if other != *pid => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    node.converged();
}

/// Kills processes and waits until all is well again.
fn survives(node: &mut Node, processes: &[Process]) {
    let dead: Vec<_> = processes
        .iter()
        .map(|process| (*process, node.pid(*process)))
        .collect();
    node.kill(processes);
    recovers(node, &dead);
}

/// Waits until calc has something to do that is not done.
fn awaits(node: &Node, words: &str) {
    eventually(&format!("a change of {words}"), || {
        let output = node.cairnctl("diff").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains(words).then_some(()).ok_or(text)
    });
}

/// Returns a property that a process shows.
fn property(node: &Node, pointer: &str) -> String {
    let status = node.status();
    status
        .pointer(pointer)
        .map(Value::to_string)
        .unwrap_or_default()
}

#[test]
fn no_crash_of_an_idle_process_writes_anything() {
    test("no_crash_of_an_idle_process_writes_anything", |node| {
        let before = node.kernel_state();
        let monitor = listen(node);
        for processes in [
            &[Process::Calc][..],
            &[Process::Helper],
            &[Process::Helper, Process::Calc],
            &Process::ALL,
        ] {
            survives(node, processes);
            assert_eq!(monitor.heard(), Vec::<u16>::new(), "{processes:?}");
        }
        assert_eq!(node.kernel_state(), before);
        // It does hear what is written.
        node.netns.run("ip route add blackhole 198.51.100.7");
        assert_eq!(monitor.heard().len(), 1);
    });
}

#[test]
fn what_a_dead_calc_has_asked_for_is_undone_if_it_is_no_longer_wanted() {
    test(
        "what_a_dead_calc_has_asked_for_is_undone_if_it_is_no_longer_wanted",
        |node| {
            let before = node.kernel_state();
            let [helper, calc] = [Process::Helper, Process::Calc].map(|process| node.pid(process));
            signal(helper, Signal::SIGSTOP);
            let [mac, other] = ["0a:00:00:00:01:02", "0a:00:00:00:01:99"];
            node.edit("workloads.yaml", mac, other);
            awaits(node, other);
            // The batch is in the socket of a helper that does not read it yet.
            signal(calc, Signal::SIGKILL);
            node.edit("workloads.yaml", other, mac);
            signal(helper, Signal::SIGCONT);
            recovers(node, &[(Process::Calc, calc)]);
            assert_eq!(node.pid(Process::Helper), helper);
            assert_eq!(node.kernel_state(), before);
        },
    );
}

/// Moves the address to cart or back.
fn move_address(node: &Node, to_cart: bool) {
    let path = node.document("workloads.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let here = ["[10.244.1.2/32, 'fd00:244::1:2/128']", "[10.244.1.3/32,"];
    let there = ["['fd00:244::1:2/128']", "[10.244.1.3/32, 10.244.1.2/32,"];
    let (from, to) = if to_cart {
        (here, there)
    } else {
        (there, here)
    };
    let [a, b] = [0, 1].map(|n| (from.get(n).unwrap(), to.get(n).unwrap()));
    assert!(text.contains(a.0) && text.contains(b.0));
    fs::write(
        node.document(".new"),
        text.replace(a.0, a.1).replace(b.0, b.1),
    )
    .unwrap();
    fs::rename(node.document(".new"), path).unwrap();
}

#[test]
fn a_calc_that_dies_between_clear_and_flush_leaves_no_flow_to_the_new_owner() {
    test(
        "a_calc_that_dies_between_clear_and_flush_leaves_no_flow_to_the_new_owner",
        |node| {
            let address: IpAddr = ADDRESS.parse().unwrap();
            let own = || {
                let tracked = node.netns.within(flows::tracked).join().unwrap();
                let addresses = BTreeSet::from([address]);
                tracked.iter().filter(|flow| flow.has(&addresses)).count()
            };
            // Whether calc has sent the change by the time that it shows it is chance.
            let hit = (0..10).any(|attempt| {
                let to_cart = attempt % 2 == 0;
                node.netns
                    .within(move || {
                        let peer = IpAddr::from([192, 0, 2, 53]);
                        let flow = |n: u16| Flow::plain(peer, address, 1024 + n);
                        flows::track((0..2000).map(flow));
                    })
                    .join()
                    .unwrap();
                let [helper, calc] =
                    [Process::Helper, Process::Calc].map(|process| node.pid(process));
                let monitor = listen(node);
                // The change is in the socket of a helper that does not read it yet; its answer will be
                // in that of a calc that does not either.
                signal(helper, Signal::SIGSTOP);
                move_address(node, to_cart);
                awaits(node, ADDRESS);
                signal(calc, Signal::SIGSTOP);
                signal(helper, Signal::SIGCONT);
                let cleared = format!("-route {ADDRESS}/32");
                let start = Instant::now();
                let mut is_cleared = false;
                while !is_cleared && start.elapsed() < A_WHILE {
                    is_cleared = monitor.told(0).contains(&cleared);
                }
                let left = own();
                signal(calc, Signal::SIGKILL);
                recovers(node, &[(Process::Calc, calc)]);
                let owner = if to_cart {
                    "cali-cart"
                } else {
                    "cali-frontend"
                };
                let route = node.netns.run(&format!("ip route show {ADDRESS}"));
                assert!(route.contains(owner), "{route}");
                assert_eq!(own(), 0, "of {left} that were left when calc died");
                is_cleared && left == 2000
            });
            assert!(hit, "the change was never sent");
        },
    );
}

#[test]
fn without_a_datastore_directory_all_stays_and_a_new_calc_sweeps_nothing() {
    test(
        "without_a_datastore_directory_all_stays_and_a_new_calc_sweeps_nothing",
        |node| {
            let before = node.kernel_state();
            let monitor = listen(node);
            let (here, away) = (node.document(""), node.directory.join("away"));
            fs::rename(&here, &away).unwrap();
            node.reports(&["cannot be watched", "the last state stays in force"]);
            let calc = node.pid(Process::Calc);
            node.kill(&[Process::Calc]);
            node.reports(&["cannot be watched", "nothing is changed on this host"]);
            assert_ne!(node.pid(Process::Calc), calc);
            assert_eq!(node.kernel_state(), before);
            fs::rename(&away, &here).unwrap();
            node.converged();
            assert_eq!(node.kernel_state(), before);
            assert_eq!(monitor.heard(), Vec::<u16>::new());
        },
    );
}

/// A system bus, as long as it lives.
struct Bus(Child);

impl Bus {
    fn start() -> Self {
        // It lets in nobody without an entry.
        shell(
            "cp /etc/passwd /run/passwd
             for id in 64110 64111; do
               grep -q :$id: /run/passwd || echo u$id:x:$id:$id::/:/bin/false >> /run/passwd
             done
             mount --bind /run/passwd /etc/passwd; mkdir -p /run/dbus",
        );
        let config = "<busconfig><listen>unix:path=/run/dbus/system_bus_socket</listen>\
             <policy context='default'><allow user='*'/><allow send_destination='*'/>\
             <allow receive_sender='*'/><allow own='*'/></policy></busconfig>";
        fs::write("/run/bus.conf", config).unwrap();
        let mut bus = Command::new("dbus-daemon")
            .args(["--config-file=/run/bus.conf", "--nofork", "--nopidfile"])
            .args(["--nosyslog", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It listens by the time it tells where.
        let mut output = BufReader::new(bus.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        shell("chmod 666 /run/dbus/system_bus_socket");
        Self(bus)
    }

    fn end(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_death_of_the_system_bus_changes_nothing() {
    const FACES: [(&str, &str); 3] = [
        ("supervisor", "io.cairn.Supervisor1"),
        ("calc", "io.cairn.Calc1"),
        ("privhelper", "io.cairn.PrivHelper1"),
    ];
    world::test("the_death_of_the_system_bus_changes_nothing", |world| {
        let [node, _] = &mut world.nodes;
        let bus = Bus::start();
        node.refresh_never();
        node.start();
        node.converged();
        let told = |face: &str, words: &str| {
            let pointer = format!("/{face}/properties/SystemBus");
            eventually(&format!("{words} at {face}"), || {
                let text = property(node, &pointer);
                text.contains(words).then_some(()).ok_or(text)
            });
        };
        for (face, name) in FACES {
            told(face, name);
        }
        let before = Process::ALL.map(|process| node.pid(process));
        let resyncs = property(node, "/calc/properties/Resyncs");
        let monitor = listen(node);
        bus.end();
        for (face, _) in FACES {
            told(face, "the system bus ended the connection");
        }
        assert_eq!(monitor.heard(), Vec::<u16>::new());
        // What comes is done as ever, by the same processes.
        node.edit("workloads.yaml", "0a:00:00:00:01:02", "0a:00:00:00:01:99");
        eventually("the new neighbour", || {
            let neighbours = node.netns.run("ip neigh show dev cali-frontend");
            let is_there = neighbours.contains("0a:00:00:00:01:99");
            is_there.then_some(()).ok_or(neighbours)
        });
        node.converged();
        assert_eq!(Process::ALL.map(|process| node.pid(process)), before);
        assert_eq!(property(node, "/calc/properties/Resyncs"), resyncs);
    });
}
