//! A face on its own socket and on a bus: a real `dbus-daemon`, and clients of both.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    fs,
    future::pending,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use ipc_proto::bus::{self, Face, Presence};
use tempfile::TempDir;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    time::timeout,
};
use zbus::{
    Connection, connection::Builder, fdo::PropertiesProxy, names::InterfaceName,
    object_server::SignalEmitter,
};

const NAME: &str = "io.cairn.Test1";
const PATH: &str = "/io/cairn/Test1";
/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct Counter {
    count: watch::Receiver<u64>,
    presence: Presence,
    /// Whether it signals all the time.
    chatty: bool,
}

impl Counter {
    fn new() -> (watch::Sender<u64>, Self) {
        let (sender, count) = watch::channel(0);
        let presence = Presence::default();
        let chatty = false;
        let face = Self {
            count,
            presence,
            chatty,
        };
        (sender, face)
    }
}

impl Face for Counter {
    fn presence(&self) -> &Presence {
        &self.presence
    }

    async fn changed(&mut self) {
        if self.count.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    async fn signal(&mut self, emitter: &SignalEmitter<'_>) -> zbus::Result<()> {
        if !self.chatty {
            return pending().await;
        }
        loop {
            self.count_changed(emitter).await?;
            tokio::task::yield_now().await;
        }
    }
}

#[zbus::interface(name = "io.cairn.Test1")]
impl Counter {
    #[zbus(property)]
    fn count(&self) -> u64 {
        *self.count.borrow()
    }

    #[zbus(property)]
    fn system_bus(&self) -> String {
        self.presence.text()
    }
}

/// A bus that lets everybody do all but what `denied` says.
struct Daemon {
    process: Child,
    dir: TempDir,
}

impl Daemon {
    fn start(denied: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("bus");
        let config = format!(
            "<busconfig><listen>unix:path={}</listen><policy context='default'>\
             <allow send_destination='*'/><allow receive_sender='*'/><allow own='*'/>{denied}\
             </policy></busconfig>",
            socket.display()
        );
        let file = dir.path().join("bus.conf");
        fs::write(&file, config).unwrap();
        let mut process = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", file.display()))
            .args(["--nofork", "--nopidfile", "--nosyslog", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It listens by the time it tells where.
        let mut address = String::new();
        let mut output = std::io::BufReader::new(process.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut address).unwrap();
        Self { process, dir }
    }

    async fn connect(&self) -> Connection {
        let stream = UnixStream::connect(self.dir.path().join("bus"))
            .await
            .unwrap();
        let builder = Builder::unix_stream(stream.into_std().unwrap());
        builder.build().await.unwrap()
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A test may have stopped it.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Waits until the face is told of something of its presence that contains `words`.
async fn told(presence: &Presence, words: &str) {
    let wait = async {
        while !presence.text().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let text = || presence.text();
    assert!(timeout(DEADLINE, wait).await.is_ok(), "{}", text());
}

/// Changes the count often and expects that a client hears of the last value, but not of each.
async fn follows(client: &Connection, counter: &watch::Sender<u64>) {
    let proxy = PropertiesProxy::builder(client)
        .destination(NAME)
        .path(PATH)
        .build()
        .await
        .unwrap();
    let mut changes = proxy.receive_properties_changed().await.unwrap();
    // An answer tells that the subscription has been taken in.
    let name = InterfaceName::from_static_str(NAME).unwrap();
    proxy.get_all(name).await.unwrap();
    let start = Instant::now();
    let last = 2000;
    let change = async {
        for count in 1..=last {
            counter.send_replace(count);
            tokio::task::yield_now().await;
        }
    };
    let hear = async {
        for messages in 1_u32.. {
            let change = changes.next().await.unwrap();
            let change = change.args().unwrap();
            assert_eq!(change.interface_name, NAME);
            if let Some(count) = change.changed_properties.get("Count")
                && u64::try_from(count).unwrap() == last
            {
                return messages;
            }
        }
        0
    };
    let ((), messages) = timeout(DEADLINE, async { tokio::join!(change, hear) })
        .await
        .unwrap();
    let allowed = start.elapsed().as_millis() / 250 + 2;
    assert!(u128::from(messages) <= allowed, "{messages} messages");
}

#[tokio::test]
async fn changes_are_told_on_the_faces_own_socket_but_not_each_of_many() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("face.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (counter, face) = Counter::new();
    tokio::spawn(bus::show(listener, Vec::new(), PATH, face));
    let client = bus::connect(&socket).await.unwrap();
    follows(&client, &counter).await;
}

#[tokio::test]
async fn a_face_is_on_the_bus_until_that_ends() {
    let mut daemon = Daemon::start("");
    let (counter, face) = Counter::new();
    let presence = face.presence().clone();
    let path = daemon.dir.path().join("bus");
    tokio::spawn(async move { bus::show_on_bus(&path, PATH, face).await });
    told(&presence, NAME).await;
    let client = daemon.connect().await;
    follows(&client, &counter).await;
    daemon.stop();
    told(&presence, "ended the connection").await;
}

#[tokio::test]
async fn a_bus_that_ends_while_it_is_written_to_has_ended() {
    // At some moments that is seen by the one who writes, at others by the one who reads.
    for _ in 0..10 {
        let mut daemon = Daemon::start("");
        let (_counter, mut face) = Counter::new();
        face.chatty = true;
        let presence = face.presence().clone();
        let path = daemon.dir.path().join("bus");
        let shown = tokio::spawn(async move { bus::show_on_bus(&path, PATH, face).await });
        told(&presence, NAME).await;
        daemon.stop();
        told(&presence, "ended the connection").await;
        shown.abort();
    }
}

#[tokio::test]
async fn a_bus_that_is_not_there_or_refuses_is_told_by_its_reason() {
    let daemon = Daemon::start("<deny own='io.cairn.Test1'/>");
    for (bus, words) in [
        (daemon.dir.path().join("bus"), "refuses us"),
        (daemon.dir.path().join("none"), "none: No such file"),
    ] {
        let (_counter, face) = Counter::new();
        let presence = face.presence().clone();
        let shown = bus::show_on_bus(Path::new(&bus), PATH, face);
        tokio::select! {
            never = shown => match never {},
            () = told(&presence, words) => {}
        }
    }
}
