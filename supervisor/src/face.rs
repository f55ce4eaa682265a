//! `io.cairn.Supervisor1`: what the operator sees of the supervisor. It shows and changes nothing, and
//! looks at the clock for a time that is asked for, and for nothing else.
#![expect(
    clippy::disallowed_types,
    reason = "zbus's macro looks properties up in a map"
)]

use std::{
    fmt,
    future::pending,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence},
};
use tokio::{sync::watch, time::sleep};

/// How long to wait after accept(2) failed, usually for want of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// What there is to see of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChildView {
    pub(crate) state: &'static str,
    /// Since when that is so.
    pub(crate) since: Option<Instant>,
    /// When it is to be started, if it is down.
    pub(crate) until: Option<Instant>,
    /// 0 if there is no process.
    pub(crate) pid: u32,
    pub(crate) restarts: u32,
    pub(crate) status: String,
}

impl ChildView {
    /// Takes over from what was seen before since when the state is so.
    fn follow(&mut self, before: &Self, now: Instant) {
        let same = before.state == self.state && before.pid == self.pid;
        self.since = before.since.filter(|_| same).or(Some(now));
    }
}

/// What there is to see of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) helper: ChildView,
    pub(crate) calc: ChildView,
}

impl View {
    /// Takes over from what was seen before since when all is so.
    pub(crate) fn follow(&mut self, before: &Self, now: Instant) {
        self.helper.follow(&before.helper, now);
        self.calc.follow(&before.calc, now);
    }
}

impl fmt::Display for View {
    /// Writes it as one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (separator, name, view) in
            [("", "privhelper", &self.helper), ("; ", "calc", &self.calc)]
        {
            write!(f, "{separator}{name} {}", view.state)?;
            if !view.status.is_empty() {
                write!(f, ": {}", view.status)?;
            }
        }
        Ok(())
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Face {
    incarnation: Incarnation,
    view: watch::Receiver<View>,
    presence: Presence,
}

impl Face {
    pub(crate) fn new(view: watch::Receiver<View>) -> Self {
        Self {
            incarnation: Incarnation::fresh(),
            view,
            presence: Presence::default(),
        }
    }

    /// Shows it to root and on the system bus, for good.
    pub(crate) async fn serve(self, listener: UnixListener) {
        loop {
            let served = async {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                bus::show(listener, Vec::new(), bus::SUPERVISOR_PATH, self.clone()).await
            };
            if let Err(error) = served.await {
                tracing::warn!(%error, "cannot accept a client of the supervisor's face");
            }
            sleep(PAUSE).await;
        }
    }
}

impl bus::Face for Face {
    fn presence(&self) -> &Presence {
        &self.presence
    }

    async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Returns how far two instants are apart, in milliseconds; 2^64-1 if there are not two.
fn millis(from: Option<Instant>, to: Option<Instant>) -> u64 {
    let time = from
        .zip(to)
        .map(|(from, to)| to.saturating_duration_since(from).as_millis());
    time.map_or(u64::MAX, |time| u64::try_from(time).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "a time that is asked for")]
fn now() -> Instant {
    Instant::now()
}

#[zbus::interface(name = "io.cairn.Supervisor1")]
impl Face {
    /// The version of the program.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "a property is a method")]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Which life of the process this is.
    #[zbus(property(emits_changed_signal = "const"))]
    fn incarnation(&self) -> u64 {
        self.incarnation.0
    }

    /// down, starting, up or stopping.
    #[zbus(property)]
    fn calc_state(&self) -> String {
        self.view.borrow().calc.state.to_owned()
    }

    /// How long it has been in that state, in milliseconds.
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_state_age(&self) -> u64 {
        millis(self.view.borrow().calc.since, Some(now()))
    }

    /// In how many milliseconds it is started again; 2^64-1 if it is not down, or systemd starts it.
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_restart_in(&self) -> u64 {
        millis(Some(now()), self.view.borrow().calc.until)
    }

    /// Its process id; 0 if there is none, or systemd keeps it: its own face tells.
    #[zbus(property)]
    fn calc_pid(&self) -> u32 {
        self.view.borrow().calc.pid
    }

    /// How often it was started again.
    #[zbus(property)]
    fn calc_restarts(&self) -> u32 {
        self.view.borrow().calc.restarts
    }

    /// What it last said of itself; while it is down, how it ended.
    #[zbus(property)]
    fn calc_status(&self) -> String {
        self.view.borrow().calc.status.clone()
    }

    /// down, starting, up or stopping.
    #[zbus(property)]
    fn helper_state(&self) -> String {
        self.view.borrow().helper.state.to_owned()
    }

    /// How long it has been in that state, in milliseconds.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_state_age(&self) -> u64 {
        millis(self.view.borrow().helper.since, Some(now()))
    }

    /// In how many milliseconds it is started again; 2^64-1 if it is not down, or systemd starts it.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_restart_in(&self) -> u64 {
        millis(Some(now()), self.view.borrow().helper.until)
    }

    /// Its process id; 0 if there is none, or systemd keeps it: its own face tells.
    #[zbus(property)]
    fn helper_pid(&self) -> u32 {
        self.view.borrow().helper.pid
    }

    /// How often it was started again.
    #[zbus(property)]
    fn helper_restarts(&self) -> u32 {
        self.view.borrow().helper.restarts
    }

    /// What it last said of itself; while it is down, how it ended.
    #[zbus(property)]
    fn helper_status(&self) -> String {
        self.view.borrow().helper.status.clone()
    }

    /// The name on the system bus, or why there is none.
    #[zbus(property)]
    fn system_bus(&self) -> String {
        self.presence.text()
    }
}
