//! Named network namespaces. They are made inside [`isolate`](crate::isolate) only, and so never
//! need to be removed.

use std::{fs::File, path::PathBuf, process::Command, thread};

use nix::sched::{CloneFlags, setns};

/// A network namespace.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a new one with `lo` up and without duplicate address detection.
    ///
    /// # Panics
    ///
    /// Outside of [`isolate`](crate::isolate), or if the kernel refuses.
    #[must_use]
    pub fn new(name: &str) -> Self {
        assert!(
            crate::isolate::inside(),
            "a namespace that nobody would remove"
        );
        run(Command::new("ip").args(["netns", "add", name]));
        let netns = Self {
            name: name.to_owned(),
        };
        // Nothing here has a duplicate; detecting that would cost each address a second.
        netns.run("sysctl -qw net.ipv6.conf.default.accept_dad=0");
        netns.run("ip link set lo up");
        netns
    }

    /// Returns its file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Returns a command that runs `program` in it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        // Not `ip netns exec`: that mounts a new /sys over bpffs.
        command
            .arg(format!("--net={}", self.path().display()))
            .arg("--")
            .arg(program);
        command
    }

    /// Runs a command line in it and returns what it printed. Words are split at spaces.
    ///
    /// # Panics
    ///
    /// If it fails.
    #[expect(clippy::must_use_candidate, reason = "most are run for what they do")]
    pub fn run(&self, line: &str) -> String {
        let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
        run(self.command(program).args(arguments.split_whitespace()))
    }

    /// Runs `body` in it, on a thread of its own.
    ///
    /// # Panics
    ///
    /// If the namespace cannot be entered or `body` panics.
    pub fn within<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let file = File::open(self.path()).unwrap();
        thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        })
    }
}

/// Runs a line of shell in this namespace and returns what it printed.
///
/// # Panics
///
/// If it fails; with what it said.
#[expect(clippy::must_use_candidate, reason = "most are run for what they do")]
pub fn shell(line: &str) -> String {
    run(Command::new("sh").args(["-ec", line]))
}

/// Runs a command and returns what it printed.
///
/// # Panics
///
/// If it fails; with what it said.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}: {text}{complaint}",
        output.status
    );
    text
}
