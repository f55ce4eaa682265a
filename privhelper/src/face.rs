//! What the helper shows of itself. Read only; nothing here can change anything.

use std::{collections::BTreeMap, future::pending};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence},
};
use tokio::sync::watch;
use zbus::fdo;

use crate::{bpf::Verdicts, watch::Watched};

/// The object at [`PRIVHELPER_PATH`](ipc_proto::bus::PRIVHELPER_PATH).
#[derive(Clone, Debug)]
pub struct Face {
    /// Which life of the process this is.
    pub incarnation: Incarnation,
    /// Whether `calc` holds a lease.
    pub leased: watch::Receiver<bool>,
    /// The directory of the pins.
    pub pin_dir: String,
    /// The size of each BPF route map in entries.
    pub map_size: u32,
    /// The interfaces.
    pub watched: Watched,
    /// The counters of the packet programs.
    pub verdicts: Verdicts,
    /// Whether this is on the system bus.
    pub presence: Presence,
}

impl bus::Face for Face {
    fn presence(&self) -> &Presence {
        &self.presence
    }

    async fn changed(&mut self) {
        if self.leased.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

#[zbus::interface(name = "io.cairn.PrivHelper1")]
impl Face {
    /// The version of the program.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "zbus asks for it")]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Which life of the process this is.
    #[zbus(property(emits_changed_signal = "const"))]
    fn incarnation(&self) -> u64 {
        self.incarnation.0
    }

    /// The id of the process.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "zbus asks for it")]
    fn pid(&self) -> u32 {
        std::process::id()
    }

    /// Whether calc holds the right to write.
    #[zbus(property)]
    fn leased(&self) -> bool {
        *self.leased.borrow()
    }

    /// The capabilities that the process has.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "zbus asks for it")]
    fn capabilities(&self) -> Vec<String> {
        let mut names: Vec<String> = caps::read(None, caps::CapSet::Effective)
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect();
        names.sort_unstable();
        names
    }

    /// The directory of the pins.
    #[zbus(property(emits_changed_signal = "const"))]
    fn pin_dir(&self) -> &str {
        &self.pin_dir
    }

    /// The size of each BPF route map in entries.
    #[zbus(property(emits_changed_signal = "const"))]
    fn map_size(&self) -> u32 {
        self.map_size
    }

    /// How many interfaces there are.
    #[zbus(property(emits_changed_signal = "false"))]
    fn links(&self) -> u32 {
        u32::try_from(self.watched.links().len()).unwrap_or(u32::MAX)
    }

    /// What the packet programs did, in packets since the counters were made.
    #[zbus(property(emits_changed_signal = "false"))]
    fn verdicts(&self) -> fdo::Result<BTreeMap<String, u64>> {
        self.verdicts
            .read()
            .map_err(|error| fdo::Error::Failed(error.to_string()))
    }

    /// The name on the system bus, or why there is none.
    #[zbus(property)]
    fn system_bus(&self) -> String {
        self.presence.text()
    }
}
