//! Calls to the processes' faces. Nothing waits for ever: a socket may take a connection that
//! nobody answers.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use ipc_proto::{
    bus::{self, Calc1Proxy, socket},
    codec,
    view::{Kind, Row, Rows, RowsRequest},
};
use serde_bytes::ByteBuf;
use tokio::time::{Instant, sleep, timeout};
use zbus::{Connection, OwnedVariant, proxy::CacheProperties};

/// How long a process may take to answer a connection or say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long until a process is asked again whether it is done.
const PAUSE: Duration = Duration::from_millis(10);

/// A process, by its face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    Supervisor,
    PrivHelper,
    Calc,
}

impl Face {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::PrivHelper => "privhelper",
            Self::Calc => "calc",
        }
    }

    const fn socket(self) -> &'static str {
        match self {
            Self::Supervisor => socket::SUPERVISOR,
            Self::PrivHelper => socket::PRIVHELPER,
            Self::Calc => socket::CALC,
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Supervisor => bus::SUPERVISOR_PATH,
            Self::PrivHelper => bus::PRIVHELPER_PATH,
            Self::Calc => bus::CALC_PATH,
        }
    }

    const fn interface(self) -> &'static str {
        match self {
            Self::Supervisor => "io.cairn.Supervisor1",
            Self::PrivHelper => "io.cairn.PrivHelper1",
            Self::Calc => "io.cairn.Calc1",
        }
    }
}

/// What a process shows of itself.
pub(crate) type Properties = BTreeMap<String, OwnedVariant>;

/// A process cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("is Cairn running? looked for {}", .0.display())]
    NoSocket(PathBuf),
    #[error("it is not running: nobody listens at {}", .0.display())]
    Refused(PathBuf),
    #[error("you may not connect to {}: run as root", .0.display())]
    Forbidden(PathBuf),
    #[error("no answer at {} within {} s: it is starting or hangs", .0.display(), PATIENCE.as_secs())]
    Silent(PathBuf),
    #[error("it hung up at {}: {source}", socket.display())]
    Failed {
        socket: PathBuf,
        source: zbus::Error,
    },
}

impl Unreachable {
    fn new(socket: PathBuf, error: zbus::Error) -> Self {
        let kind = if let zbus::Error::InputOutput(error) = &error {
            Some(error.kind())
        } else {
            None
        };
        match kind {
            Some(io::ErrorKind::NotFound) => Self::NoSocket(socket),
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused(socket),
            Some(io::ErrorKind::PermissionDenied) => Self::Forbidden(socket),
            _ => Self::Failed {
                socket,
                source: error,
            },
        }
    }
}

/// Connects to a process.
pub(crate) async fn open(runtime_dir: &Path, face: Face) -> Result<Connection, Unreachable> {
    let path = runtime_dir.join(face.socket());
    match timeout(PATIENCE, bus::connect(&path)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(Unreachable::new(path, error)),
        Err(_) => Err(Unreachable::Silent(path)),
    }
}

/// Asks a process for all that it shows.
pub(crate) async fn properties(runtime_dir: &Path, face: Face) -> Result<Properties, Unreachable> {
    let connection = open(runtime_dir, face).await?;
    let get_all = async {
        let reply = connection
            .call_method(
                None::<&str>,
                face.path(),
                Some("org.freedesktop.DBus.Properties"),
                "GetAll",
                &face.interface(),
            )
            .await?;
        reply.body().deserialize()
    };
    let path = runtime_dir.join(face.socket());
    match timeout(PATIENCE, get_all).await {
        Ok(Ok(properties)) => Ok(properties),
        Ok(Err(error)) => Err(Unreachable::new(path, error)),
        Err(_) => Err(Unreachable::Silent(path)),
    }
}

/// A table could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    #[error("{0}")]
    Call(#[from] zbus::Error),
    #[error("{0}")]
    Encode(#[from] codec::EncodeError),
    #[error("its answer makes no sense (is it of the same version?): {0}")]
    Decode(#[from] codec::DecodeError),
    #[error("its table does not end")]
    Endless,
}

/// Asks `calc` for a whole table, or for all of it that is not as it should be.
pub(crate) async fn rows(
    calc: &Connection,
    kind: Kind,
    differing: bool,
) -> Result<Vec<Row>, RowsError> {
    let proxy = calc_proxy(calc).await?;
    let mut all = Vec::new();
    loop {
        let Ok(skip) = u32::try_from(all.len()) else {
            return Err(RowsError::Endless);
        };
        let request = codec::encode(&RowsRequest {
            kind,
            skip,
            differing,
        })?;
        let answer = proxy.rows(&ByteBuf::from(request)).await?;
        let page: Rows = codec::decode(&answer)?;
        if page.rows.is_empty() {
            return Ok(all);
        }
        all.extend(page.rows);
    }
}

/// Has `calc` read the kernel back, and what was written in the datastore, and returns how long it took
/// until it had, by a reading that began after that was asked for; nothing if that is longer than `patience`.
pub(crate) async fn resync(
    calc: &Connection,
    patience: Duration,
) -> zbus::Result<Option<Duration>> {
    let calc = calc_proxy(calc).await?;
    let start = Instant::now();
    let number = calc.resync().await?;
    let read = async {
        while calc.answered().await? < number {
            sleep(PAUSE).await;
        }
        Ok(start.elapsed())
    };
    match timeout(patience, read).await {
        Ok(read) => read.map(Some),
        Err(_) => Ok(None),
    }
}

/// Makes calls to `calc`.
pub(crate) async fn calc_proxy(connection: &Connection) -> zbus::Result<Calc1Proxy<'_>> {
    Calc1Proxy::builder(connection)
        .cache_properties(CacheProperties::No)
        .build()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_said_becomes_what_to_do() {
        for (kind, wanted) in [
            (
                io::ErrorKind::NotFound,
                "is Cairn running? looked for /r/calc.sock",
            ),
            (
                io::ErrorKind::ConnectionRefused,
                "it is not running: nobody listens at /r/calc.sock",
            ),
            (
                io::ErrorKind::PermissionDenied,
                "you may not connect to /r/calc.sock: run as root",
            ),
        ] {
            let error = io::Error::from(kind).into();
            let error = Unreachable::new("/r/calc.sock".into(), error);
            assert_eq!(error.to_string(), wanted);
        }
    }
}
