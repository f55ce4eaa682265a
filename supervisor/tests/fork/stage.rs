//! A directory with all that a supervisor needs, and a supervisor in it. Both go when it does.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ipc_proto::bus;
use nix::{
    sys::signal::{self, Signal},
    unistd::{Pid, geteuid},
};
use tempfile::TempDir;

pub(crate) const CALC_UID: u32 = 64_901;
pub(crate) const HELPER_UID: u32 = 64_902;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

#[expect(
    clippy::disallowed_methods,
    reason = "the outside world takes its time"
)]
fn now() -> Instant {
    Instant::now()
}

/// Waits until `done`, or fails with all that is known.
pub(crate) fn eventually(what: &str, stage: &Stage, done: impl Fn() -> bool) {
    let deadline = now() + PATIENCE;
    while !done() {
        assert!(
            now() < deadline,
            "never: {what}\nlog: {:#?}\nstderr:\n{}",
            stage.log(),
            stage.stderr()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// See the [module](self).
pub(crate) struct Stage {
    dir: TempDir,
    parent: UnixDatagram,
    supervisor: Option<Child>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        assert!(
            geteuid().is_root(),
            "needs root: the children have users of their own"
        );
        let dir = TempDir::with_prefix("cairn-supervisor-").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let parent = UnixDatagram::bind(dir.path().join("parent.notify")).unwrap();
        parent.set_read_timeout(Some(PATIENCE)).unwrap();
        let stage = Self {
            dir,
            parent,
            supervisor: None,
        };
        // A copy that every user can reach.
        let program = std::env::current_exe().unwrap();
        install(File::open(program).unwrap().into(), &stage.path("stand-in"));
        File::create(stage.path("log")).unwrap();
        fs::set_permissions(stage.path("log"), Permissions::from_mode(0o666)).unwrap();
        for role in ["privhelper", "calc"] {
            stage.behave(role, "serve");
            let script = format!(
                "#!/bin/sh\nexec {} stand_in --exact --ignored --nocapture --test-threads=1 -- \"$2\"\n",
                stage.path("stand-in").display()
            );
            fs::write(stage.path("script"), script).unwrap();
            let script = File::open(stage.path("script")).unwrap();
            install(script.into(), &stage.path(role));
        }
        stage.configure(&format!("[calc]\nuser = {CALC_UID}"));
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Says how the child of that role shall behave when it is next started.
    pub(crate) fn behave(&self, role: &str, behaviour: &str) {
        let path = self.path(&format!("{role}.toml"));
        let log = self.path("log").display().to_string();
        let text = format!(
            "user = {HELPER_UID}\nrole = \"{role}\"\nlog = {log:?}\nbehaviour = \"{behaviour}\"\n"
        );
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    /// Writes the supervisor's configuration: that of calc, and where things are.
    pub(crate) fn configure(&self, calc: &str) {
        let path = |name| self.path(name).display().to_string();
        let text = format!(
            "runtime_dir = {:?}\n{calc}\npath = {:?}\nconfig = {:?}\n[privhelper]\npath = {:?}\nconfig = {:?}\n",
            path("run"),
            path("calc"),
            path("calc.toml"),
            path("privhelper"),
            path("privhelper.toml"),
        );
        fs::write(self.path("supervisor.toml"), text).unwrap();
    }

    /// Returns a command that runs a supervisor here.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn-supervisor"));
        command
            .arg("--config")
            .arg(self.path("supervisor.toml"))
            .env_remove("CAIRN_LOG")
            .env("UNRELATED", "x")
            .env("NOTIFY_SOCKET", self.path("parent.notify"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self) {
        let stderr = File::options()
            .append(true)
            .create(true)
            .open(self.path("stderr"))
            .unwrap();
        self.supervisor = Some(self.command().stderr(stderr).spawn().unwrap());
    }

    pub(crate) fn supervisor_pid(&self) -> u32 {
        self.supervisor.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.supervisor_pid(), signal);
    }

    /// Waits for the supervisor's end.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let mut supervisor = self.supervisor.take().unwrap();
        let deadline = now() + PATIENCE;
        loop {
            if let Some(status) = supervisor.try_wait().unwrap() {
                return status.code();
            }
            assert!(now() < deadline, "it does not end:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn both_up(&self) {
        eventually("both are up", self, || {
            self.try_face().is_some_and(|face| {
                ["CalcState", "HelperState"]
                    .iter()
                    .all(|key| face.get(*key).is_some_and(|state| state == "\"up\""))
            })
        });
    }

    /// Returns the properties of the supervisor's face, in D-Bus's text form.
    pub(crate) fn face(&self) -> BTreeMap<String, String> {
        self.try_face().unwrap()
    }

    fn try_face(&self) -> Option<BTreeMap<String, String>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let connection = bus::connect(&self.run_dir().join("supervisor.sock"))
                .await
                .ok()?;
            let reply = connection
                .call_method(
                    None::<&str>,
                    bus::SUPERVISOR_PATH,
                    Some("org.freedesktop.DBus.Properties"),
                    "GetAll",
                    &"io.cairn.Supervisor1",
                )
                .await
                .ok()?;
            let properties: BTreeMap<String, zbus::OwnedVariant> =
                reply.body().deserialize().unwrap();
            let text = |value: zbus::OwnedVariant| {
                let text = value.to_string();
                let number = ["uint32 ", "uint64 "]
                    .iter()
                    .find_map(|kind| text.strip_prefix(kind));
                number.map(str::to_owned).unwrap_or(text)
            };
            Some(
                properties
                    .into_iter()
                    .map(|(name, value)| (name, text(value)))
                    .collect(),
            )
        })
    }

    /// Waits until the supervisor has said all of `lines` to its own service manager.
    pub(crate) fn parent_hears(&self, lines: &[&str]) {
        let mut missing: Vec<_> = lines.to_vec();
        let mut buffer = [0; 4096];
        while !missing.is_empty() {
            let heard = self.parent.recv(&mut buffer);
            let len = heard.unwrap_or_else(|error| panic!("not said: {missing:?} ({error})"));
            let message = String::from_utf8_lossy(buffer.get(..len).unwrap());
            missing.retain(|line| !message.lines().any(|said| said == *line));
        }
    }

    /// Returns what the stand-ins wrote.
    pub(crate) fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap();
        log.lines().map(str::to_owned).collect()
    }

    pub(crate) fn log_count(&self, part: &str) -> usize {
        self.log().iter().filter(|line| line.contains(part)).count()
    }

    pub(crate) fn stderr(&self) -> String {
        // Without the colours.
        let text = fs::read_to_string(self.path("stderr")).unwrap_or_default();
        text.replace("\u{1b}[0m", "")
    }

    /// Returns the pid of the last child of that role.
    pub(crate) fn pid(&self, role: &str) -> u32 {
        self.starts(role).last().unwrap().0
    }

    /// Returns when the children of that role started, by the wall's clock.
    pub(crate) fn start_times(&self, role: &str) -> Vec<Duration> {
        self.starts(role).into_iter().map(|(_, at)| at).collect()
    }

    fn starts(&self, role: &str) -> Vec<(u32, Duration)> {
        let prefix = format!("{role} start ");
        let log = self.log();
        let starts = log
            .iter()
            .filter_map(|line| line.strip_prefix(&prefix)?.split_once(' '));
        starts
            .map(|(pid, at)| {
                (
                    pid.parse().unwrap(),
                    Duration::from_millis(at.parse().unwrap()),
                )
            })
            .collect()
    }

    pub(crate) fn kill(&self, role: &str) {
        self.signal_child(role, Signal::SIGKILL);
    }

    pub(crate) fn signal_child(&self, role: &str, signal: Signal) {
        kill(self.pid(role), signal);
    }

    pub(crate) fn proc_status(&self, role: &str) -> BTreeMap<String, String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(role))).unwrap();
        let fields = status.lines().filter_map(|line| line.split_once(":\t"));
        fields
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    pub(crate) fn environment(&self, role: &str) -> BTreeMap<String, String> {
        let environment = fs::read(
            Path::new("/proc")
                .join(self.pid(role).to_string())
                .join("environ"),
        )
        .unwrap();
        let environment = String::from_utf8(environment).unwrap();
        let variables = environment
            .split('\0')
            .filter_map(|variable| variable.split_once('='));
        variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut supervisor) = self.supervisor.take() {
            // Its children go with it.
            drop(supervisor.kill());
            drop(supervisor.wait());
        }
    }
}

/// Makes a program. A process of its own writes it: another test that forks meanwhile would hold a
/// descriptor of ours open for writing, and `execve(2)` would fail with ETXTBSY.
fn install(content: Stdio, path: &Path) {
    let status = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(content)
        .status();
    assert!(status.unwrap().success());
}

fn kill(pid: u32, signal: Signal) {
    signal::kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}
