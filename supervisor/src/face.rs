//! `io.cairn.Supervisor1`: what the operator sees of the supervisor. It shows and changes nothing.
#![expect(
    clippy::disallowed_types,
    reason = "zbus's macro looks properties up in a map"
)]

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::net::UnixListener,
    time::Duration,
};

use ipc_proto::bus;
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
}

impl Face {
    pub(crate) fn new(view: watch::Receiver<View>) -> Self {
        // The one source of randomness that std has.
        let incarnation = RandomState::new().build_hasher().finish();
        Self { incarnation, view }
    }

    /// Serves it to our own user and root, for good.
    pub(crate) async fn serve(self, listener: UnixListener) {
        let own = nix::unistd::geteuid().as_raw();
        loop {
            let served = async {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                let allowed = |uid| uid == own || uid == 0;
                bus::serve_face(listener, allowed, bus::SUPERVISOR_PATH, self.clone()).await
            };
            if let Err(error) = served.await {
                tracing::warn!(%error, "cannot accept a client of the supervisor's face");
            }
            sleep(PAUSE).await;
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
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_state(&self) -> String {
        self.view.borrow().calc.state.to_owned()
    }

    /// Its process id; 0 if there is none.
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_pid(&self) -> u32 {
        self.view.borrow().calc.pid
    }

    /// How often it was started again.
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_restarts(&self) -> u32 {
        self.view.borrow().calc.restarts
    }

    /// What it last said of itself.
    #[zbus(property(emits_changed_signal = "false"))]
    fn calc_status(&self) -> String {
        self.view.borrow().calc.status.clone()
    }

    /// down, starting, up or stopping.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_state(&self) -> String {
        self.view.borrow().helper.state.to_owned()
    }

    /// Its process id; 0 if there is none.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_pid(&self) -> u32 {
        self.view.borrow().helper.pid
    }

    /// How often it was started again.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_restarts(&self) -> u32 {
        self.view.borrow().helper.restarts
    }

    /// What it last said of itself.
    #[zbus(property(emits_changed_signal = "false"))]
    fn helper_status(&self) -> String {
        self.view.borrow().helper.status.clone()
    }
}
