//! D-Bus between two processes: object paths, proxies, and the sockets that carry them.
//!
//! The only I/O of this crate. A server checks who is at the other end (`SO_PEERCRED`) before the
//! first byte is read, and refuses oversized messages before they are allocated.

mod face;
mod faces;
mod guard;
mod routes;
mod system;

use std::{io, path::Path, time::Duration};

use tokio::net::{UnixListener, UnixStream};
use zbus::{Connection, Guid, connection::Builder};

use self::guard::Guarded;
pub use self::{
    face::{Face, announce, show},
    faces::{Calc1Proxy, DataplaneProxy, PrivHelper1Proxy, Supervisor1Proxy},
    guard::Hangup,
    routes::{RouteRow, SnapshotPage},
    system::{Presence, SYSTEM_BUS, show_on_bus},
};

/// The object path of the helper's data path.
pub const DATAPLANE_PATH: &str = "/io/cairn/Dataplane1";
/// The object path of `calc`'s face.
pub const CALC_PATH: &str = "/io/cairn/Calc1";
/// The object path of the helper's face.
pub const PRIVHELPER_PATH: &str = "/io/cairn/PrivHelper1";
/// The object path of the supervisor's face.
pub const SUPERVISOR_PATH: &str = "/io/cairn/Supervisor1";

/// The sockets' file names in the runtime directory.
pub mod socket {
    /// The helper's data path, for `calc` alone.
    pub const DATAPLANE: &str = "dataplane.sock";
    /// `calc`'s face.
    pub const CALC: &str = "calc.sock";
    /// The helper's face.
    pub const PRIVHELPER: &str = "privhelper.sock";
    /// The supervisor's face.
    pub const SUPERVISOR: &str = "supervisor.sock";
}

/// The longest body of a message in bytes that a server reads.
pub const MAX_BODY: usize = 2 << 20;

/// How long a request may take; a flow flush or a full table is far below it.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the server at `path`.
///
/// # Errors
///
/// If nobody listens there, or it does not speak D-Bus.
pub async fn connect(path: &Path) -> zbus::Result<Connection> {
    let stream = UnixStream::connect(path).await?.into_std()?;
    Builder::unix_stream(stream)
        .p2p()
        .method_timeout(CALL_TIMEOUT)
        .build()
        .await
}

/// Accepts the next client whose user is allowed; others are turned away unread.
///
/// # Errors
///
/// What `accept(2)` said.
pub async fn accept(
    listener: &UnixListener,
    allowed: impl Fn(u32) -> bool,
) -> io::Result<UnixStream> {
    let mut turned_away = None;
    loop {
        let (stream, _) = listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        if allowed(uid) {
            return Ok(stream);
        }
        // One that keeps trying is news once.
        if turned_away.replace(uid) != Some(uid) {
            tracing::warn!(
                uid,
                "turned away a client: its user may not use this socket"
            );
        }
    }
}

/// How long a client may take to introduce itself.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a builder for the server's end of an accepted connection, without fear of its peer.
pub fn server(stream: UnixStream) -> Builder<'static> {
    server_until(stream, &Hangup::default())
}

/// The same for a connection that can be hung up.
pub fn server_until(stream: UnixStream, hangup: &Hangup) -> Builder<'static> {
    Builder::socket(Guarded::server(stream, hangup))
        .server(Guid::generate())
        .p2p()
}
