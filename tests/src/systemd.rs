//! A host that runs this machine's own systemd, with Cairn installed as on any other: a box of
//! `tests/sdbox`, which ends with the test that booted it, however that ends.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

use crate::{netns::run, wait::eventually, world::built};

/// What the units keep, in the order in which they are killed.
pub const PROCESSES: [&str; 3] = ["privhelper", "calc", "supervisor"];

/// Their names on the bus.
const FACES: [&str; 3] = [
    "io.cairn.PrivHelper1",
    "io.cairn.Calc1",
    "io.cairn.Supervisor1",
];

/// The one box of all tests of a process, for one test at a time.
static BOX: LazyLock<Mutex<Host>> = LazyLock::new(|| Mutex::new(Host::boot()));

/// See the [module](self).
#[derive(Debug)]
pub struct Host {
    /// Ends the box at the end of its standard input.
    _runner: Child,
    init: u32,
}

/// A host that is up and all one's own; it tells what it logged if the test fails.
#[derive(Debug)]
pub struct Turn(MutexGuard<'static, Host>);

impl std::ops::Deref for Turn {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The box itself may be what failed.
            if let Ok(log) = self.command("journalctl --no-pager -o cat -n 60").output() {
                println!("{}", String::from_utf8_lossy(&log.stdout));
            }
        }
    }
}

/// Boots the host and starts Cairn if that has not been done, and waits until its kernel holds what
/// it should.
///
/// # Panics
///
/// If that never happens, or without root.
#[must_use]
pub fn host() -> Turn {
    let turn = Turn(BOX.lock().unwrap_or_else(PoisonError::into_inner));
    turn.run("systemctl start --no-block cairn.target");
    turn.in_sync();
    turn
}

/// Returns the path of a file of this repository.
#[must_use]
pub fn repository(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

impl Host {
    fn boot() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "needs root: it boots a systemd"
        );
        let mut runner = Command::new(repository("tests/sdbox"))
            .arg(repository("systemd/install.sh"))
            .arg(built())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(runner.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let init = line.trim().parse().expect("the box boots");
        let host = Self {
            _runner: runner,
            init,
        };
        host.set_up();
        host
    }

    /// What a package and an administrator do on a new host.
    fn set_up(&self) {
        self.run("systemd-sysusers");
        self.run("systemd-tmpfiles --create cairn.conf");
        self.run("systemctl daemon-reload");
        for (name, peer) in [("eth0", "wire"), ("cali-web", "web")] {
            self.run(&format!("ip link add {name} type veth peer name {peer}"));
            self.run(&format!("ip link set {name} up"));
            self.run(&format!("ip link set {peer} up"));
        }
        self.run("ip address add 192.0.2.1/24 dev eth0");
        let calc = self.file("/etc/cairn/calc.toml");
        let text = fs::read_to_string(&calc).unwrap() + "node_name = 'node-1'\n";
        fs::write(&calc, text).unwrap();
        let pod = repository("tests/data/systemd/one-pod.yaml");
        fs::copy(pod, self.file("/etc/cairn/datastore/one-pod.yaml")).unwrap();
        self.run("systemctl enable cairn.target");
    }

    /// Returns the path by which one of its files is seen from here.
    #[must_use]
    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Returns a command line that runs on it. Words are split at spaces.
    #[must_use]
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init))
            .args(["-m", "-u", "-i", "-n", "-p", "-C", "--"])
            .args(line.split_whitespace());
        command
    }

    /// Runs a command line on it and returns what it printed.
    ///
    /// # Panics
    ///
    /// If it fails.
    #[expect(clippy::must_use_candidate, reason = "most are run for what they do")]
    pub fn run(&self, line: &str) -> String {
        run(&mut self.command(line))
    }

    /// Runs a command line on it as a user; returns what it printed, or what it complained of.
    ///
    /// # Errors
    ///
    /// If it fails.
    ///
    /// # Panics
    ///
    /// If it cannot be run at all.
    pub fn run_as(&self, user: &str, line: &str) -> Result<String, String> {
        let line = format!("setpriv --reuid={user} --clear-groups -- {line}");
        let output = self.command(&line).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Waits until the kernel holds all that the datastore asks for, and all processes are on the bus.
    ///
    /// # Panics
    ///
    /// If that never happens.
    pub fn in_sync(&self) {
        eventually("in sync", || {
            let output = self.command("cairnctl status").output().unwrap();
            if output.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&output.stdout).into_owned())
            }
        });
        eventually("all are on the bus", || {
            let names = self.run("busctl list --acquired");
            let all = FACES.iter().all(|face| names.contains(face));
            all.then_some(()).ok_or(names)
        });
    }

    /// Returns a property of a process as `cairnctl` shows it, null while it is not there.
    ///
    /// # Panics
    ///
    /// If `cairnctl` cannot be run.
    #[must_use]
    pub fn property(&self, process: &str, name: &str) -> Value {
        let output = self.command("cairnctl --json status").output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let pointer = format!("/{process}/properties/{name}");
        status.pointer(&pointer).cloned().unwrap_or_default()
    }

    /// Returns the id of a process of the units, on the host itself; 0 if there is none.
    ///
    /// # Panics
    ///
    /// If systemd does not answer.
    #[must_use]
    pub fn pid(&self, process: &str) -> u32 {
        let line = format!("systemctl show --value -p MainPID cairn-{process}.service");
        self.run(&line).trim().parse().unwrap()
    }

    /// Returns a line of `/proc/PID/status` of a process of the units.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn status(&self, process: &str, key: &str) -> String {
        let path = self.file(&format!("/proc/{}/status", self.pid(process)));
        let status = fs::read_to_string(path).unwrap();
        let line = |line: &str| line.strip_prefix(key)?.strip_prefix(':').map(str::to_owned);
        let value = status.lines().find_map(line).unwrap();
        value.trim().replace('\t', " ")
    }
}
