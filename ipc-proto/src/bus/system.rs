//! The system bus, as one more place where a face is seen.
//!
//! Nothing depends on it: a host without a bus, or a bus that refuses us, costs a line in the log
//! and an attempt now and then.

use std::{convert::Infallible, path::Path, time::Duration};

use tokio::{
    net::UnixStream,
    select,
    sync::watch,
    time::{sleep, timeout},
};
use zbus::{Connection, connection::Builder};

use super::{Face, announce, guard::Guarded};

/// Where the system bus listens.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// How long after a failure or the end of the bus it is tried again.
const PAUSE: Duration = Duration::from_secs(30);
/// How long the bus may take to let us in.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a face is on the system bus: its name there, or why not.
#[derive(Clone, Debug)]
pub struct Presence(watch::Sender<String>);

impl Default for Presence {
    fn default() -> Self {
        Self(watch::Sender::new("not yet".to_owned()))
    }
}

impl Presence {
    /// Returns it in words.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.borrow().clone()
    }

    pub(super) fn follow(&self) -> watch::Receiver<String> {
        self.0.subscribe()
    }

    /// Returns whether that is new.
    fn set(&self, text: String) -> bool {
        self.0.send_if_modified(|told| {
            let new = *told != text;
            *told = text;
            new
        })
    }
}

/// Why a face is not on the bus.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("no system bus at {0}")]
    NoBus(String),
    #[error("the system bus does not answer")]
    Silent,
    #[error("the system bus refuses us: {0}")]
    Refused(#[from] zbus::Error),
    #[error("the system bus ended the connection")]
    Ended,
}

/// Shows `face` at `path` on the bus that listens at `bus`, whenever there is one.
pub async fn show_on_bus<F: Face>(bus: &Path, path: &'static str, face: F) -> Infallible {
    let presence = face.presence().clone();
    let name = F::name();
    loop {
        let announced = face.clone();
        let refusal = match timeout(PATIENCE, join(bus, path, face.clone())).await {
            Ok(Ok(connection)) => {
                presence.set(name.to_string());
                tracing::info!("on the system bus as {name}");
                select! {
                    () = connection.closed() => Refusal::Ended,
                    result = announce(&connection, path, announced) => match result {
                        // A signal written as the bus dies fails before its end is read.
                        Ok(()) | Err(zbus::Error::InputOutput(_)) => Refusal::Ended,
                        Err(error) => error.into(),
                    }
                }
            }
            Ok(Err(refusal)) => refusal,
            Err(_) => Refusal::Silent,
        };
        if presence.set(refusal.to_string()) {
            tracing::info!("{name} is seen on its own socket alone: {refusal}");
        }
        sleep(PAUSE).await;
    }
}

async fn join<F: Face>(bus: &Path, path: &str, face: F) -> Result<Connection, Refusal> {
    let stream = UnixStream::connect(bus)
        .await
        .map_err(|error| Refusal::NoBus(format!("{}: {error}", bus.display())))?;
    let name = F::name();
    let connection = Builder::socket(Guarded::client(stream))
        .serve_at(path, face)
        .name(name.as_str())
        .build()
        .await?;
    Ok(connection)
}
