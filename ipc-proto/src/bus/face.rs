//! What a process shows of itself: one object, on a socket of its own and on the system bus.
//!
//! A client that reads a property once and then follows `PropertiesChanged` always comes to know
//! its value, at most [`PAUSE`] late. One that reads too slowly holds up nobody but itself.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    future::{Future, pending},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UnixListener,
    select,
    sync::Semaphore,
    time::{sleep, timeout},
    try_join,
};
use zbus::{
    Connection, OwnedVariant, Variant,
    fdo::Properties,
    names::InterfaceName,
    object_server::{Interface, SignalEmitter},
};

use super::{HANDSHAKE_TIMEOUT, Presence, SYSTEM_BUS, accept, server, show_on_bus};

/// How long after a message about changes there is no other.
const PAUSE: Duration = Duration::from_millis(250);
/// How many connections one user may have at a time, so that none can keep others from the face.
const MAX_CLIENTS: usize = 32;

/// An object that shows a process. Its interface's name is also its name on the system bus.
pub trait Face: Interface + Clone {
    /// Returns where it is told whether this face is on the system bus.
    fn presence(&self) -> &Presence;

    /// Waits until a property may have changed since this was last waited for on this clone.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Emits the signals of the interface, for ever: those from when this clone was made on.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    fn signal(
        &mut self,
        _emitter: &SignalEmitter<'_>,
    ) -> impl Future<Output = zbus::Result<()>> + Send {
        pending()
    }
}

/// Shows `face` at `path`: on the system bus, when there is one that takes it, and to the clients of
/// `listener` that run as root, as the owner of the socket's file or as one of `users`.
///
/// # Errors
///
/// What `accept(2)` said.
pub async fn show<F: Face>(
    listener: UnixListener,
    users: Vec<u32>,
    path: &'static str,
    face: F,
) -> io::Result<()> {
    let owner = owner(&listener);
    let allowed = |uid| uid == 0 || Some(uid) == owner || users.contains(&uid);
    select! {
        result = serve(&listener, allowed, path, &face) => result,
        never = show_on_bus(Path::new(SYSTEM_BUS), path, face.clone()) => match never {},
    }
}

/// Returns whom the service manager has given the socket to, if that can be seen.
fn owner(listener: &UnixListener) -> Option<u32> {
    let address = listener.local_addr().ok()?;
    let metadata = fs::metadata(address.as_pathname()?).ok()?;
    Some(metadata.uid())
}

async fn serve<F: Face>(
    listener: &UnixListener,
    allowed: impl Fn(u32) -> bool,
    path: &'static str,
    face: &F,
) -> io::Result<()> {
    let mut rooms = BTreeMap::<u32, Arc<Semaphore>>::new();
    loop {
        let stream = accept(listener, &allowed).await?;
        let uid = stream.peer_cred()?.uid();
        let room = rooms
            .entry(uid)
            .or_insert_with(|| Arc::new(Semaphore::new(MAX_CLIENTS)));
        let Ok(place) = Arc::clone(room).try_acquire_owned() else {
            tracing::debug!(
                uid,
                "turned away a client: its user has {MAX_CLIENTS} others"
            );
            continue;
        };
        let face = face.clone();
        let builder = server(stream).serve_at(path, face.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, builder.build()).await {
                Ok(Ok(connection)) => select! {
                    () = connection.closed() => {}
                    result = announce(&connection, path, face) => gone(path, result),
                },
                Ok(Err(error)) => gone(path, Err(error)),
                Err(_elapsed) => tracing::debug!("a client of {path} did not introduce itself"),
            }
            drop(place);
        });
    }
}

fn gone(path: &str, result: zbus::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a client of {path} went away");
    }
}

/// Tells `connection` of each change of the properties that `face` has at `path`, and of its signals
/// from when `face` was cloned on. That is to be before a client can call it: what a call returned
/// and what is signalled then leave no gap.
///
/// # Errors
///
/// If the connection has ended.
pub async fn announce<F: Face>(
    connection: &Connection,
    path: &'static str,
    mut face: F,
) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, path)?;
    let changes = announce_changes(&emitter, face.clone());
    try_join!(changes, face.signal(&emitter)).map(|((), ())| ())
}

async fn announce_changes<F: Face>(emitter: &SignalEmitter<'_>, mut face: F) -> zbus::Result<()> {
    let mut presence = face.presence().follow();
    let mut told = properties(&face, emitter).await?;
    loop {
        select! {
            () = face.changed() => {}
            changed = presence.changed() => if changed.is_err() { pending().await },
        }
        let actual = properties(&face, emitter).await?;
        let mut changes = HashMap::<&str, Variant<'_>>::new();
        for (name, value) in &actual {
            if told.get(name) != Some(value) {
                changes.insert(name, value.try_clone()?.into());
            }
        }
        if !changes.is_empty() {
            let name: InterfaceName<'_> = F::name();
            Properties::properties_changed(emitter, name, changes, [].as_slice().into()).await?;
        }
        told = actual;
        sleep(PAUSE).await;
    }
}

async fn properties<F: Face>(
    face: &F,
    emitter: &SignalEmitter<'_>,
) -> zbus::Result<BTreeMap<String, OwnedVariant>> {
    let connection = emitter.connection();
    let server = connection.object_server();
    let properties = face.get_all(server, connection, None, emitter).await?;
    Ok(properties.into_iter().collect())
}
