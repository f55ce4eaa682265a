//! `io.cairn.Supervisor1`: what the operator sees of the supervisor. It shows and changes nothing.
#![expect(
    clippy::disallowed_types,
    reason = "zbus's macro looks properties up in a map"
)]

use std::{
    fmt,
    future::pending,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::net::UnixListener,
    time::Duration,
};

use ipc_proto::bus::{self, Presence};
use tokio::{sync::watch, time::sleep};

/// How long to wait after accept(2) failed, usually for want of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// What there is to see of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChildView {
    pub(crate) state: &'static str,
    /// 0 if there is no process.
    pub(crate) pid: u32,
    pub(crate) restarts: u32,
    pub(crate) status: String,
}

/// What there is to see of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) helper: ChildView,
    pub(crate) calc: ChildView,
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
    incarnation: u64,
    view: watch::Receiver<View>,
    presence: Presence,
}

impl Face {
    pub(crate) fn new(view: watch::Receiver<View>) -> Self {
        // The one source of randomness that std has.
        let incarnation = RandomState::new().build_hasher().finish();
        Self {
            incarnation,
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
        self.incarnation
    }

    /// down, starting, up or stopping.
    #[zbus(property)]
    fn calc_state(&self) -> String {
        self.view.borrow().calc.state.to_owned()
    }

    /// Its process id; 0 if there is none or systemd keeps it.
    #[zbus(property)]
    fn calc_pid(&self) -> u32 {
        self.view.borrow().calc.pid
    }

    /// How often it was started again.
    #[zbus(property)]
    fn calc_restarts(&self) -> u32 {
        self.view.borrow().calc.restarts
    }

    /// What it last said of itself.
    #[zbus(property)]
    fn calc_status(&self) -> String {
        self.view.borrow().calc.status.clone()
    }

    /// down, starting, up or stopping.
    #[zbus(property)]
    fn helper_state(&self) -> String {
        self.view.borrow().helper.state.to_owned()
    }

    /// Its process id; 0 if there is none or systemd keeps it.
    #[zbus(property)]
    fn helper_pid(&self) -> u32 {
        self.view.borrow().helper.pid
    }

    /// How often it was started again.
    #[zbus(property)]
    fn helper_restarts(&self) -> u32 {
        self.view.borrow().helper.restarts
    }

    /// What it last said of itself.
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
