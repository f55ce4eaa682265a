//! The real helper in throw-away namespaces: starts its binary as the supervisor would, and speaks
//! to it as `calc` would.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

use std::{
    collections::BTreeMap,
    io::Read,
    net::IpAddr,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use command_fds::{CommandFdExt, FdMapping};
use futures_util::StreamExt as _;
use ipc_proto::{
    Ack, Batch, BatchId, Feed, FlowsDone, Known, Lane, Lease, Link, LinkState, Observed, Op,
    OpError, Step, Welcome,
    bus::{self, DataplaneProxy, PrivHelper1Proxy},
    codec,
};
use serde_bytes::ByteBuf;
use tempfile::TempDir;

use crate::{netns::shell, wait::eventually, world::built};

/// A running helper, and the directory of its sockets.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    dir: TempDir,
    log: PathBuf,
}

impl Helper {
    /// The helper's user in tests.
    pub const UID: u32 = 65534;

    /// Starts a helper that serves root, with `config` added to its file.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn start(config: &str) -> Self {
        let binary = built().join("cairn-privhelper");
        Self::start_by(Command::new(binary), config)
    }

    /// Starts a helper by `command`, which runs its binary.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn start_by(mut command: Command, config: &str) -> Self {
        let dir = tempfile::tempdir_in("/run").unwrap();
        let file = dir.path().join("privhelper.toml");
        let users = format!("user = {}\ncalc_user = 0\n", Self::UID);
        let calc_given = config.contains("calc_user");
        let text = if calc_given {
            format!("user = {}\n{config}", Self::UID)
        } else {
            format!("{users}{config}")
        };
        std::fs::write(&file, text).unwrap();
        let log = dir.path().join("log");
        let listen = |name: &str, at| FdMapping {
            parent_fd: OwnedFd::from(UnixListener::bind(dir.path().join(name)).unwrap()),
            child_fd: at,
        };
        let sockets = vec![
            listen(bus::socket::DATAPLANE, 3),
            listen(bus::socket::PRIVHELPER, 4),
        ];
        // Other users must get as far as the sockets.
        shell(&format!("chmod -R a+rwX {}", dir.path().display()));
        shell(&format!("chmod 0644 {}", file.display()));
        let child = command
            .arg("--config")
            .arg(&file)
            .env("LISTEN_FDS", "2")
            .env_remove("LISTEN_PID")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .fd_mappings(sockets)
            .unwrap()
            .spawn()
            .unwrap();
        Self { child, dir, log }
    }

    /// Returns its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of one of its sockets.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns what it has logged.
    ///
    /// # Panics
    ///
    /// If the log cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        let mut text = String::new();
        let mut file = std::fs::File::open(&self.log).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until it has ended, and returns how and what it had to say.
    ///
    /// # Panics
    ///
    /// If it does not end.
    #[must_use]
    pub fn ended(mut self) -> (ExitStatus, String) {
        let (status, _) = eventually("the helper's end", || {
            self.child
                .try_wait()
                .unwrap()
                .ok_or_else(|| "it runs".to_owned())
        });
        (status, self.log())
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        shell(&format!("kill -{name} {}", self.pid()));
    }

    /// Returns the counters of the packet programs, as its face shows them.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    pub async fn verdicts(&self) -> BTreeMap<String, u64> {
        let connection = bus::connect(&self.socket(bus::socket::PRIVHELPER))
            .await
            .unwrap();
        let face = PrivHelper1Proxy::new(&connection).await.unwrap();
        face.verdicts().await.unwrap()
    }

    /// Connects as `calc`.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub async fn connect(&self) -> Calc {
        Calc::connect(&self.socket(bus::socket::DATAPLANE))
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint_log(&self.log);
        }
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[expect(clippy::print_stderr, reason = "for who reads the failure")]
fn eprint_log(log: &Path) {
    eprintln!(
        "--- the helper's log\n{}---",
        std::fs::read_to_string(log).unwrap_or_default()
    );
}

/// A client in `calc`'s place.
#[derive(Debug)]
pub struct Calc {
    /// The data path.
    pub proxy: DataplaneProxy<'static>,
    /// The lease, once there is one.
    pub lease: Lease,
    next: u64,
}

impl Calc {
    /// Connects to the helper that listens at `path`.
    ///
    /// # Errors
    ///
    /// What zbus said.
    pub async fn connect(path: &Path) -> zbus::Result<Self> {
        let connection = bus::connect(path).await?;
        Ok(Self {
            proxy: DataplaneProxy::new(&connection).await?,
            lease: Lease(0),
            next: 0,
        })
    }

    /// Takes the lease and returns what the helper said and read.
    ///
    /// # Panics
    ///
    /// If the helper refuses.
    pub async fn hello(&mut self) -> (Welcome, Vec<Observed>) {
        let pages = self.pages::<Vec<Observed>>(Known::default());
        let (welcome, pages) = pages.await;
        (welcome, pages.into_iter().flatten().collect())
    }

    /// Takes the lease and returns what the helper reads, page by page, less what is `known` and so.
    ///
    /// # Panics
    ///
    /// If the helper refuses.
    pub async fn pages<P>(&mut self, known: Known) -> (Welcome, Vec<P>)
    where
        P: FromIterator<Observed> + Send + 'static,
    {
        let (welcome, pages) = calc::hello(&self.proxy, known).await.unwrap();
        self.lease = welcome.lease;
        (welcome, pages)
    }

    /// Returns what the helper reads that is not an interface.
    pub async fn read(&mut self) -> Vec<Observed> {
        let (_, items) = self.hello().await;
        let ours = |item: &Observed| !matches!(item, Observed::Link(_));
        items.into_iter().filter(ours).collect()
    }

    /// Applies steps and returns those that failed.
    ///
    /// # Errors
    ///
    /// If the whole batch is refused.
    ///
    /// # Panics
    ///
    /// If the answer is that to another batch.
    pub async fn try_apply(&mut self, steps: Vec<Step>) -> zbus::Result<Vec<(u32, OpError)>> {
        self.send(Lane::State, steps).await
    }

    /// Has the flows of addresses forgotten, waits for the end, and returns those that failed.
    ///
    /// # Panics
    ///
    /// If the whole batch is refused, or its end is not told.
    pub async fn flush(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Vec<(u32, OpError)> {
        let step = |address| Step {
            op: Op::FlowFlush(address),
            needs: None,
        };
        let steps = addresses.into_iter().map(step).collect();
        let mut ends = self.proxy.receive_flows_flushed().await.unwrap();
        self.send(Lane::Flows, steps).await.unwrap();
        loop {
            let end = ends.next().await.expect("a connection");
            let done: FlowsDone = codec::decode(end.args().unwrap().done()).unwrap();
            if (done.lease, done.id) == (self.lease, BatchId(self.next - 1)) {
                return done.failed;
            }
        }
    }

    async fn send(&mut self, lane: Lane, steps: Vec<Step>) -> zbus::Result<Vec<(u32, OpError)>> {
        let id = BatchId(self.next);
        self.next += 1;
        let batch = Batch {
            lease: self.lease,
            lane,
            id,
            steps,
        };
        let answer = self.proxy.apply(&bytes(&batch)).await?;
        let ack: Ack = codec::decode(&answer).unwrap();
        assert_eq!(ack.id, id);
        Ok(ack.failed)
    }

    /// Applies ops that need nothing and returns those that failed.
    ///
    /// # Panics
    ///
    /// If the whole batch is refused.
    pub async fn apply(&mut self, ops: impl IntoIterator<Item = Op>) -> Vec<(u32, OpError)> {
        let step = |op| Step { op, needs: None };
        let steps = ops.into_iter().map(step).collect();
        self.try_apply(steps).await.unwrap()
    }

    /// Applies ops, all of which must succeed.
    ///
    /// # Panics
    ///
    /// If one fails.
    pub async fn must_apply(&mut self, ops: impl IntoIterator<Item = Op>) {
        let failed = self.apply(ops).await;
        assert!(failed.is_empty(), "{failed:?}");
    }
}

/// Encodes a message.
///
/// # Panics
///
/// If it is too large.
#[must_use]
pub fn bytes<T: serde::Serialize>(message: &T) -> ByteBuf {
    ByteBuf::from(codec::encode(message).unwrap())
}

/// Decodes a feed.
///
/// # Panics
///
/// If it is not one.
#[must_use]
pub fn feed(payload: &ByteBuf) -> Feed {
    codec::decode(payload).unwrap()
}

/// Finds an interface among what was read.
///
/// # Panics
///
/// If it is not there.
#[must_use]
pub fn link_state(items: &[Observed], name: &str) -> LinkState {
    items
        .iter()
        .find_map(|item| {
            let Observed::Link(state) = item else {
                return None;
            };
            (state.link.name.as_str() == name).then(|| state.clone())
        })
        .unwrap_or_else(|| panic!("no interface {name} in {items:?}"))
}

/// Returns an interface as it is at this moment.
///
/// # Panics
///
/// If it is not there.
#[must_use]
pub fn link(name: &str) -> Link {
    // Not from /sys, which shows the network namespace that it was mounted in.
    let line = shell(&format!("ip -o link show {name}"));
    let (index, _) = line.split_once(':').expect("a number and a name");
    Link {
        index: index.parse().expect("a number"),
        name: name.parse().expect("a name"),
    }
}
