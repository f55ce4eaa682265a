//! What we tell others of ourselves: our own service manager, and whoever looks at the face.
//!
//! Telling never blocks: a service manager that does not listen is told later, and the children
//! are looked after meanwhile.

use std::{
    ffi::OsString,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::face::View;

/// How often the status may change, and how long after a failure the next attempt is made.
const PAUSE: Duration = Duration::from_secs(1);

/// What the service manager knows or is to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    ready: bool,
    stopping: bool,
    status: String,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Report {
    view: watch::Sender<View>,
    /// Where the service manager listens, if there is one.
    socket: Option<OsString>,
    actual: State,
    desired: State,
    /// When the next message that is not urgent may be sent.
    next: Instant,
    /// How often the service manager wants to hear of us, and when next.
    watchdog: Option<(Duration, Instant)>,
    fails: bool,
}

impl Report {
    /// Starts with nothing told.
    pub(super) fn new(view: watch::Sender<View>, now: Instant) -> Self {
        Self {
            view,
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
            actual: State::default(),
            desired: State::default(),
            next: now,
            // Half the limit, as `sd_watchdog_enabled(3)` advises.
            watchdog: sd_notify::watchdog_enabled().map(|limit| (limit / 2, now)),
            fails: false,
        }
    }

    /// From the next [`Self::update`] on, we are ready.
    pub(super) fn ready(&mut self) {
        self.desired.ready = true;
    }

    /// From the next [`Self::update`] on, we are stopping.
    pub(super) fn stopping(&mut self) {
        self.desired.stopping = true;
    }

    /// Returns when to call [`Self::update`] even if nothing changes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.socket.as_ref()?;
        let untold = (self.actual != self.desired).then_some(self.next);
        let watchdog = self
            .watchdog
            .map(|(_, due)| if self.fails { due.max(self.next) } else { due });
        untold.into_iter().chain(watchdog).min()
    }

    /// Shows what there is to see, and tells what has not been told.
    pub(super) fn update(&mut self, now: Instant, mut view: View) {
        self.desired.status = view.to_string();
        self.view.send_if_modified(|shown| {
            view.follow(shown, now);
            let changed = *shown != view;
            *shown = view;
            changed
        });
        let Some(socket) = &self.socket else { return };
        let alive = self.watchdog.is_some_and(|(_, due)| due <= now);
        let urgent = alive
            || self.actual.ready != self.desired.ready
            || self.actual.stopping != self.desired.stopping;
        let wanted = urgent || self.actual != self.desired;
        let wait = self.fails || !urgent;
        if !wanted || (wait && now < self.next) {
            return;
        }
        let told = send(socket, &self.message(alive));
        self.next = now + PAUSE;
        match told {
            Ok(()) => {
                self.fails = false;
                self.actual.clone_from(&self.desired);
                if let Some((period, due)) = &mut self.watchdog
                    && alive
                {
                    *due = now + *period;
                }
            }
            Err(error) => {
                if !self.fails {
                    let socket = socket.display();
                    tracing::warn!("cannot tell the service manager at {socket}: {error}");
                }
                self.fails = true;
            }
        }
    }

    fn message(&self, alive: bool) -> String {
        let mut message = format!("STATUS={}\n", self.desired.status);
        for (said, line) in [
            (self.desired.ready && !self.actual.ready, "READY=1\n"),
            (
                self.desired.stopping && !self.actual.stopping,
                "STOPPING=1\n",
            ),
            (alive, "WATCHDOG=1\n"),
        ] {
            if said {
                message.push_str(line);
            }
        }
        message
    }
}

/// Sends one message (`sd_notify(3)`), or fails at once.
fn send(socket: &OsString, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::ChildView;

    struct Stage {
        now: Instant,
        report: Report,
        manager: UnixDatagram,
        _dir: tempfile::TempDir,
    }

    impl Stage {
        #[expect(
            clippy::disallowed_methods,
            reason = "any instant will do to start from"
        )]
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("notify");
            let manager = UnixDatagram::bind(&path).unwrap();
            manager.set_nonblocking(true).unwrap();
            let now = Instant::now();
            let mut report = Report::new(watch::channel(View::default()).0, now);
            report.socket = Some(path.into());
            report.watchdog = None;
            let mut stage = Self {
                now,
                report,
                manager,
                _dir: dir,
            };
            stage.update("up");
            assert_eq!(stage.heard(), ["STATUS=privhelper up; calc ", ""]);
            stage
        }

        fn update(&mut self, state: &'static str) {
            let helper = ChildView {
                state,
                ..ChildView::default()
            };
            let view = View {
                helper,
                ..View::default()
            };
            self.report.update(self.now, view);
        }

        fn heard(&self) -> Vec<String> {
            let mut heard = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(len) = self.manager.recv(&mut buffer) {
                let message = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default());
                heard.extend(message.split('\n').map(str::to_owned));
            }
            heard
        }
    }

    #[test]
    fn a_status_that_flickers_is_told_once_a_second() {
        let mut stage = Stage::new();
        stage.update("down");
        stage.update("starting");
        assert_eq!(stage.heard(), Vec::<String>::new());
        assert_eq!(stage.report.due(), Some(stage.now + PAUSE));
        stage.now += PAUSE;
        stage.update("starting");
        assert_eq!(stage.heard(), ["STATUS=privhelper starting; calc ", ""]);
        assert_eq!(stage.report.due(), None);
    }

    #[test]
    fn readiness_is_told_at_once_and_once() {
        let mut stage = Stage::new();
        stage.report.ready();
        stage.update("up");
        stage.update("up");
        assert_eq!(
            stage.heard(),
            ["STATUS=privhelper up; calc ", "READY=1", ""]
        );
        stage.report.stopping();
        stage.update("up");
        assert_eq!(
            stage.heard(),
            ["STATUS=privhelper up; calc ", "STOPPING=1", ""]
        );
    }

    #[test]
    fn a_service_manager_that_does_not_listen_is_told_when_it_does() {
        let mut stage = Stage::new();
        while send(stage.report.socket.as_ref().unwrap(), "X=1").is_ok() {}
        stage.report.ready();
        stage.update("up");
        assert_eq!(stage.report.due(), Some(stage.now + PAUSE));
        assert!(!stage.heard().contains(&"READY=1".to_owned()));
        stage.update("up");
        assert_eq!(stage.heard(), Vec::<String>::new(), "too soon");
        stage.now += PAUSE;
        stage.update("up");
        assert_eq!(
            stage.heard(),
            ["STATUS=privhelper up; calc ", "READY=1", ""]
        );
        assert_eq!(stage.report.due(), None);
    }

    #[test]
    fn the_watchdog_is_fed_in_time_and_never_spins() {
        let mut stage = Stage::new();
        let period = PAUSE / 4;
        stage.report.watchdog = Some((period, stage.now));
        for _ in 0..5 {
            assert_eq!(stage.report.due(), Some(stage.now));
            stage.update("up");
            assert_eq!(stage.heard().get(1), Some(&"WATCHDOG=1".to_owned()));
            stage.now += period;
        }
        while send(stage.report.socket.as_ref().unwrap(), "X=1").is_ok() {}
        stage.update("up");
        assert_eq!(stage.report.due(), Some(stage.now + PAUSE));
    }
}
