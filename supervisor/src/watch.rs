//! A client of a child's face: sees which life it shows, and when the connection ends.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ipc_proto::bus::{self, Calc1Proxy, PrivHelper1Proxy};
use tokio::{sync::mpsc::Sender, time::sleep};
use zbus::{Connection, proxy::CacheProperties};

use crate::machine::{Child, Input};

/// How long to wait before connecting again. Not for a child to start: its socket takes the
/// connection and it answers when it can.
const PAUSE: Duration = Duration::from_secs(1);

/// Reports [`Input::Seen`] and [`Input::Lost`] until nobody listens.
pub(crate) async fn watch(child: Child, socket: PathBuf, inputs: Sender<Input>) {
    loop {
        match look(child, &socket).await {
            Ok((connection, incarnation)) => {
                if inputs.send(Input::Seen(child, incarnation)).await.is_err() {
                    return;
                }
                connection.closed().await;
                if inputs.send(Input::Lost(child)).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "{}: no answer from its face", child.name()),
        }
        sleep(PAUSE).await;
    }
}

async fn look(child: Child, socket: &Path) -> zbus::Result<(Connection, u64)> {
    let connection = bus::connect(socket).await?;
    let incarnation = incarnation(child, &connection).await?;
    Ok((connection, incarnation))
}

async fn incarnation(child: Child, connection: &Connection) -> zbus::Result<u64> {
    match child {
        Child::Helper => {
            PrivHelper1Proxy::builder(connection)
                .cache_properties(CacheProperties::No)
                .build()
                .await?
                .incarnation()
                .await
        }
        Child::Calc => calc(connection).await?.incarnation().await,
    }
}

/// Tells `calc` to begin anew.
pub(crate) async fn resync(socket: &Path) -> zbus::Result<()> {
    let told = async {
        let connection = bus::connect(socket).await?;
        calc(&connection).await?.resync().await.map(drop)
    };
    // The time of the call is limited already, that of the connection is not.
    tokio::time::timeout(bus::CALL_TIMEOUT, told)
        .await
        .unwrap_or_else(|_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(late.into())
        })
}

async fn calc(connection: &Connection) -> zbus::Result<Calc1Proxy<'_>> {
    Calc1Proxy::builder(connection)
        .cache_properties(CacheProperties::No)
        .build()
        .await
}
