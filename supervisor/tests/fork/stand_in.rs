//! A child that speaks what the real ones do: inherited sockets, `sd_notify`, its face. What it
//! does it writes to a log that the test reads.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "a child that cannot go on crashes; zbus's macro looks properties up in a map"
)]

use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipc_proto::bus;
use listenfd::ListenFd;
use nix::{
    sys::{prctl, signal::Signal},
    unistd::{self, Uid},
};
use sd_notify::NotifyState;
use serde::Deserialize;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};

#[derive(Debug, Deserialize)]
struct Config {
    user: u32,
    role: String,
    log: PathBuf,
    behaviour: String,
}

#[derive(Clone, Debug)]
struct Log(Arc<Config>);

impl Log {
    /// One write each, so that lines stay whole.
    fn write(&self, what: &str) {
        let mut file = File::options().append(true).open(&self.0.log).unwrap();
        file.write_all(format!("{} {what}\n", self.0.role).as_bytes())
            .unwrap();
    }
}

pub(crate) fn main() {
    let config = std::env::args().next_back().unwrap();
    let config: Config = toml::from_str(&fs::read_to_string(config).unwrap()).unwrap();
    let log = Log(Arc::new(config));
    let config = &log.0;
    let is_helper = config.role == "privhelper";
    if is_helper {
        // As the real one: it starts as root and gives that up itself.
        let (user, group) = (config.user.into(), config.user.into());
        unistd::setgroups(&[]).unwrap();
        unistd::setresgid(group, group, group).unwrap();
        unistd::setresuid(user, user, user).unwrap();
    }
    assert!(!Uid::effective().is_root());
    prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    log.write(&format!(
        "start {} {}",
        std::process::id(),
        wall_clock().as_millis()
    ));
    if config.behaviour == "fail" {
        std::process::exit(3);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(serve(&log, is_helper));
}

async fn serve(log: &Log, is_helper: bool) {
    let mut fds = ListenFd::from_env();
    assert_eq!(fds.len(), if is_helper { 2 } else { 1 });
    let face = fds.take_unix_listener(usize::from(is_helper)).unwrap();
    let face = face.unwrap();
    face.set_nonblocking(true).unwrap();
    let face = UnixListener::from_std(face).unwrap();
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let mut drop_clients = signal(SignalKind::user_defined1()).unwrap();
    let mut say_more = signal(SignalKind::user_defined2()).unwrap();
    let mut ping = tokio::time::interval(Duration::from_secs(5));
    let mut clients = Vec::new();
    let incarnation = RandomState::new().build_hasher().finish();
    if log.0.behaviour != "mute" {
        sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("fine")]).unwrap();
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => {
                log.write("term");
                if log.0.behaviour != "stubborn" {
                    return;
                }
            }
            _ = drop_clients.recv() => clients.clear(),
            _ = say_more.recv() => sd_notify::notify(&[NotifyState::Status("more")]).unwrap(),
            _ = ping.tick() => sd_notify::notify(&[NotifyState::Watchdog]).unwrap(),
            stream = bus::accept(&face, |uid| uid == 0) => {
                let server = bus::server(stream.unwrap());
                let log = log.clone();
                let server = if is_helper {
                    server.serve_at(bus::PRIVHELPER_PATH, Helper { log, incarnation })
                } else {
                    server.serve_at(bus::CALC_PATH, Calc { log, incarnation })
                };
                clients.extend(server.build().await);
            }
        }
    }
}

struct Helper {
    log: Log,
    incarnation: u64,
}

#[zbus::interface(name = "io.cairn.PrivHelper1")]
impl Helper {
    #[zbus(property)]
    fn incarnation(&self) -> u64 {
        self.log.write("incarnation asked");
        self.incarnation
    }
}

struct Calc {
    log: Log,
    incarnation: u64,
}

#[zbus::interface(name = "io.cairn.Calc1")]
impl Calc {
    fn resync(&self) -> u64 {
        self.log.write("resync");
        1
    }

    #[zbus(property)]
    fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

fn wall_clock() -> Duration {
    std::time::UNIX_EPOCH.elapsed().unwrap()
}
