//! A node: a namespace with Cairn's three processes, a datastore directory and a runtime directory
//! of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    netns::{Netns, run},
    wait::{PATIENCE, eventually},
};

/// The user of `calc`, as a number: nothing here has a name for it.
const CALC_USER: u32 = 64_110;

/// How often Cairn reads the kernel back here, in seconds. (The default is 90.)
const REFRESH: &str = "1.0";
const REFRESH_KEY: &str = "route_refresh_interval";

/// One of the three processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// The privileged helper.
    Helper,
    /// The one that computes.
    Calc,
    /// The one that starts the others.
    Supervisor,
}

impl Process {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Helper, Self::Calc, Self::Supervisor];
}

/// See the [module](self).
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    /// Its own directory: configuration, `datastore/` and `run/`.
    pub directory: PathBuf,
    bin: PathBuf,
    supervisor: Option<Child>,
}

impl Node {
    /// The user of the helper, as a number.
    pub const PRIVHELPER_USER: u32 = 64_111;

    /// Makes the node and installs Cairn, whose programs are in `bin`.
    pub(super) fn new(name: &str, bin: &Path) -> Self {
        let directory = Path::new("/run").join(name);
        fs::create_dir_all(directory.join("datastore")).unwrap();
        let node = Self {
            name: name.to_owned(),
            netns: Netns::new(name),
            directory,
            bin: bin.to_owned(),
            supervisor: None,
        };
        // As kubelet and every CNI plugin demand of a host; per-link forwarding is Cairn's.
        node.netns.run("sysctl -qw net.ipv6.conf.all.forwarding=1");
        node.configure();
        node
    }

    /// Gives it the datastore of the demo.
    pub(super) fn show_demo(&self) {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo");
        for file in fs::read_dir(&examples).unwrap() {
            let file = file.unwrap();
            fs::copy(
                file.path(),
                self.document(&file.file_name().to_string_lossy()),
            )
            .unwrap();
        }
    }

    /// Has Cairn, from its next start on, read the kernel back only when it has a cause.
    ///
    /// # Panics
    ///
    /// If its configuration cannot be written.
    pub fn refresh_never(&self) {
        self.refresh_every("0");
    }

    /// Has Cairn, from its next start on, read the kernel back so often, in seconds.
    ///
    /// # Panics
    ///
    /// If its configuration cannot be written.
    pub fn refresh_every(&self, seconds: &str) {
        let file = self.directory.join("calc.toml");
        let text = fs::read_to_string(&file).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.retain(|line| !line.starts_with(REFRESH_KEY));
        let text = lines.join("\n");
        fs::write(file, format!("{text}\n{REFRESH_KEY} = {seconds}\n")).unwrap();
    }

    /// Adds lines to one of its configuration files, for its next start.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn configure_also(&self, file: &str, lines: &str) {
        let file = self.directory.join(file);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text + lines).unwrap();
    }

    /// Has only the configuration that it was made with, from its next start on.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn configure(&self) {
        let (here, bin) = (self.directory.display(), self.bin.display());
        let write = |file: &str, text: String| fs::write(self.directory.join(file), text).unwrap();
        write(
            "supervisor.toml",
            format!(
                "runtime_dir = '{here}/run'\n\
                 [calc]\npath = '{bin}/cairn-calc'\nconfig = '{here}/calc.toml'\nuser = {CALC_USER}\n\
                 [privhelper]\npath = '{bin}/cairn-privhelper'\nconfig = '{here}/privhelper.toml'\n"
            ),
        );
        write(
            "calc.toml",
            format!(
                "node_name = '{}'\ndatastore_dir = '{here}/datastore'\nruntime_dir = '{here}/run'\n\
                 {REFRESH_KEY} = {REFRESH}\nroute_cleanup_grace_period = 1\n",
                self.name
            ),
        );
        write(
            "privhelper.toml",
            format!(
                "user = {}\ncalc_user = {CALC_USER}\npin_dir = '{}'\n",
                Self::PRIVHELPER_USER,
                self.pin_dir().display()
            ),
        );
    }

    /// Returns where its BPF maps are pinned.
    #[must_use]
    pub fn pin_dir(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(&self.name)
    }

    /// Returns the names of the pins of attached programs, sorted.
    ///
    /// # Panics
    ///
    /// If their directory cannot be read.
    #[must_use]
    pub fn program_pins(&self) -> Vec<String> {
        let pins = fs::read_dir(self.pin_dir().join("links")).unwrap();
        let name = |pin: std::io::Result<fs::DirEntry>| {
            pin.unwrap().file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = pins.map(name).collect();
        names.sort_unstable();
        names
    }

    /// Returns the path of a document of its datastore.
    #[must_use]
    pub fn document(&self, file: &str) -> PathBuf {
        self.directory.join("datastore").join(file)
    }

    /// Replaces text of a document, all occurrences, by writing beside it and renaming.
    ///
    /// # Panics
    ///
    /// If the text is not there.
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.document(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} does not contain {from:?}");
        let beside = self.document(".new");
        fs::write(&beside, text.replace(from, to)).unwrap();
        fs::rename(&beside, &path).unwrap();
    }

    /// Returns the path of what Cairn logs.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Returns the path of one of Cairn's programs.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Returns the command that starts Cairn.
    #[must_use]
    pub fn supervisor_command(&self) -> Command {
        let mut command = self.netns.command(self.program("cairn-supervisor"));
        command
            .arg("--config")
            .arg(self.directory.join("supervisor.toml"));
        command
    }

    /// Starts Cairn, as systemd would.
    ///
    /// # Panics
    ///
    /// If it runs already or cannot be started.
    pub fn start(&mut self) {
        assert!(
            self.supervisor.is_none(),
            "Cairn runs on {} already",
            self.name
        );
        let mut command = self.netns.command(self.bin.join("cairn-supervisor"));
        command
            .arg("--config")
            .arg(self.directory.join("supervisor.toml"));
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.log())
            .unwrap();
        self.supervisor = Some(self.supervisor_command().stderr(log).spawn().unwrap());
    }

    /// Stops Cairn, as systemd would, and checks that it ends well.
    ///
    /// # Panics
    ///
    /// If it does not run or ends otherwise.
    pub fn stop(&mut self) {
        let mut supervisor = self.supervisor.take().expect("Cairn runs");
        signal(supervisor.id(), Signal::SIGTERM);
        let status = supervisor.wait().unwrap();
        assert!(
            status.success(),
            "the supervisor of {} ended with {status}",
            self.name
        );
    }

    /// Kills processes with SIGKILL, at once. A killed supervisor is started again, as systemd
    /// would.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn kill(&mut self, processes: &[Process]) {
        let pids: Vec<u32> = processes.iter().map(|process| self.pid(*process)).collect();
        for id in pids {
            signal(id, Signal::SIGKILL);
        }
        if processes.contains(&Process::Supervisor) {
            self.supervisor.take().expect("Cairn runs").wait().unwrap();
            self.start();
        }
    }

    /// Returns the id of a process of Cairn's.
    ///
    /// # Panics
    ///
    /// If it does not run.
    #[must_use]
    pub fn pid(&self, process: Process) -> u32 {
        self.try_pid(process)
            .unwrap_or_else(|| panic!("no {process:?}: {}", self.status()))
    }

    /// Returns the id of a process of Cairn's, if it runs.
    #[must_use]
    pub fn try_pid(&self, process: Process) -> Option<u32> {
        let property = match process {
            Process::Supervisor => return self.supervisor.as_ref().map(Child::id),
            Process::Helper => "HelperPid",
            Process::Calc => "CalcPid",
        };
        let status = self.status();
        let pid = status
            .pointer(&format!("/supervisor/properties/{property}"))
            .and_then(Value::as_u64)?;
        u32::try_from(pid).ok().filter(|pid| *pid != 0)
    }

    /// Returns a command that runs `cairnctl` for this node.
    #[must_use]
    pub fn cairnctl(&self, arguments: &str) -> Command {
        let mut command = self.netns.command(self.program("cairnctl"));
        command.arg("--runtime-dir").arg(self.directory.join("run"));
        command.args(arguments.split_whitespace());
        command
    }

    /// Returns what `cairnctl --json status` says, or null.
    ///
    /// # Panics
    ///
    /// If it cannot be run.
    #[must_use]
    pub fn status(&self) -> Value {
        let Output { stdout, .. } = self.cairnctl("--json status").output().unwrap();
        serde_json::from_slice(&stdout).unwrap_or(Value::Null)
    }

    /// Has Cairn read the kernel back, and waits until it has.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn resync(&self) {
        let line = format!("resync --wait {}", PATIENCE.as_secs());
        run(&mut self.cairnctl(&line));
    }

    /// Returns what `calc` says is wrong; none if it does not answer.
    #[must_use]
    pub fn problems(&self) -> Option<Vec<String>> {
        let status = self.status();
        let problems = status.pointer("/calc/properties/Problems")?.as_array()?;
        let text = |problem: &Value| problem.as_str().map(str::to_owned);
        problems.iter().map(text).collect()
    }

    /// Waits for a problem that has all of `words`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn reports(&self, words: &[&str]) {
        eventually(&format!("a problem with {words:?}"), || {
            let problems = self.problems();
            let has = |text: &String| words.iter().all(|word| text.contains(word));
            let found = problems.iter().flatten().any(has);
            found.then_some(()).ok_or_else(|| format!("{problems:?}"))
        });
    }

    /// Waits until there is no problem.
    ///
    /// # Panics
    ///
    /// If there is one for good.
    pub fn reports_nothing(&self) {
        eventually("no problem", || match self.problems() {
            Some(problems) if problems.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Waits until all that the datastore asks for is in the kernel, and returns how long it took.
    ///
    /// # Panics
    ///
    /// If that never happens.
    #[expect(
        clippy::must_use_candidate,
        reason = "most wait for nothing but the end"
    )]
    pub fn converged(&self) -> Duration {
        let what = format!("{} in sync", self.name);
        let ((), took) = eventually(&what, || {
            // The command fails as well where another program's route wins.
            let status = self.status();
            let said = [
                "/supervisor/reachable",
                "/privhelper/reachable",
                "/calc/reachable",
                "/calc/properties/InSync",
            ];
            let is_so = |at| status.pointer(at) == Some(&Value::Bool(true));
            let good = said.into_iter().all(is_so);
            good.then_some(()).ok_or_else(|| format!("{status:#}"))
        });
        took
    }

    /// Returns all that Cairn keeps in the kernel, as the kernel's own tools tell it: map entries,
    /// attached programs, routes, neighbours, forwarding entries and settings.
    ///
    /// # Panics
    ///
    /// If one of the tools fails.
    #[must_use]
    pub fn kernel_state(&self) -> String {
        let mut parts = Vec::new();
        for map in [ebpf::MAP_V4, ebpf::MAP_V6, ebpf::MAP_ENDPOINTS] {
            let mut dump = Command::new("bpftool");
            dump.args(["-j", "map", "dump", "pinned"])
                .arg(self.pin_dir().join(map));
            let Value::Array(entries) = serde_json::from_str(&run(&mut dump)).unwrap() else {
                panic!("bpftool prints a list");
            };
            parts.push((
                map.to_owned(),
                entries.iter().map(Value::to_string).collect(),
            ));
        }
        parts.push(("programs".to_owned(), self.program_pins()));
        for line in [
            "ip -4 route show table main",
            "ip -6 route show table main",
            "ip neigh show nud permanent",
            "bridge fdb show dev vxlan.calico",
        ] {
            let lines: Vec<String> = self.netns.run(line).lines().map(str::to_owned).collect();
            parts.push((line.to_owned(), lines));
        }
        for (_, lines) in &mut parts {
            lines.sort_unstable();
        }
        let show =
            |(what, lines): (String, Vec<String>)| format!("# {what}\n{}\n", lines.join("\n"));
        parts.into_iter().map(show).collect()
    }
}

/// Sends a process a signal.
///
/// # Panics
///
/// If there is none of that id.
pub fn signal(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap());
    kill(pid, signal).unwrap();
}
