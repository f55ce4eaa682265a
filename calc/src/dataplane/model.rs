//! A helper on a real socket, in front of a kernel that has only BPF routes and interfaces.

#![expect(
    clippy::disallowed_types,
    clippy::needless_pass_by_value,
    clippy::wildcard_enum_match_arm,
    reason = "zbus's macro uses a HashMap and passes values, and a model knows few ops"
)]

use std::{
    collections::BTreeMap,
    future::pending,
    mem,
    path::Path,
    sync::{Arc, Mutex},
};

use ipc_proto::{
    Ack, Batch, BpfRoute, Feed, Hello, Incarnation, Lease, LinkState, Observed, Op, OpError, Page,
    PageRequest, Welcome, bus, codec,
};
use ipnet::IpNet;
use serde::Serialize;
use serde_bytes::ByteBuf;
use tokio::{net::UnixListener, sync::Notify};
use zbus::{Connection, fdo};

/// What the helper holds and what it shall do.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) bpf: BTreeMap<IpNet, BpfRoute>,
    pub(crate) links: Vec<LinkState>,
    pub(crate) version: u16,
    pub(crate) seq: u64,
    /// What to signal before the next `Hello` is answered.
    pub(crate) feeds: Vec<Feed>,
    /// Whether the second page never comes.
    pub(crate) stuck: bool,
    /// Told when that is asked for.
    pub(crate) asked: Arc<Notify>,
    lease: u64,
    prepared: Option<ByteBuf>,
    /// Whether the first step of each batch fails.
    pub(crate) fails: bool,
    /// How many batches were applied by their number alone.
    pub(crate) by_number: usize,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Helper(pub(crate) Arc<Mutex<State>>);

impl Default for Helper {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            bpf: BTreeMap::new(),
            links: Vec::new(),
            version: ipc_proto::VERSION,
            seq: 0,
            feeds: Vec::new(),
            stuck: false,
            asked: Arc::default(),
            lease: 0,
            prepared: None,
            fails: false,
            by_number: 0,
        })))
    }
}

impl Helper {
    /// Listens in a directory.
    pub(crate) fn listen(dir: &Path) -> UnixListener {
        let path = dir.join(bus::socket::DATAPLANE);
        drop(std::fs::remove_file(&path));
        UnixListener::bind(path).unwrap()
    }

    /// Serves the next client, until the connection is dropped.
    pub(crate) async fn accept(&self, listener: &UnixListener) -> Connection {
        let stream = bus::accept(listener, |_| true).await.unwrap();
        let builder = bus::server(stream).serve_at(bus::DATAPLANE_PATH, self.clone());
        builder.build().await.unwrap()
    }

    fn is_stuck(&self, page: u32) -> bool {
        let state = self.0.lock().unwrap();
        let stuck = state.stuck && page == 1;
        if stuck {
            state.asked.notify_one();
        }
        stuck
    }

    /// Ends all leases.
    pub(crate) fn fence(&self) {
        self.0.lock().unwrap().lease += 1;
    }
}

/// Signals that interfaces have changed.
pub(crate) async fn signal(connection: &Connection, feed: &Feed) {
    let (path, interface) = (bus::DATAPLANE_PATH, "io.cairn.Dataplane1");
    let body = encode(feed);
    connection
        .emit_signal(None::<&str>, path, interface, "LinksChanged", &body)
        .await
        .unwrap();
}

fn encode<T: Serialize>(message: &T) -> ByteBuf {
    ByteBuf::from(codec::encode(message).unwrap())
}

#[zbus::interface(name = "io.cairn.Dataplane1", spawn = false)]
impl Helper {
    async fn hello(
        &self,
        hello: ByteBuf,
        #[zbus(connection)] connection: &Connection,
    ) -> fdo::Result<ByteBuf> {
        let _: Hello = codec::decode(&hello).unwrap();
        let feeds = mem::take(&mut self.0.lock().unwrap().feeds);
        for feed in &feeds {
            signal(connection, feed).await;
        }
        let mut state = self.0.lock().unwrap();
        state.lease += 1;
        Ok(encode(&Welcome {
            version: state.version,
            incarnation: Incarnation(1),
            lease: Lease(state.lease),
            max_steps: 5000,
            bpf_max_entries: 5000,
            feed: state.seq,
        }))
    }

    async fn page(&self, request: ByteBuf) -> fdo::Result<(bool, ByteBuf)> {
        let request: PageRequest = codec::decode(&request).unwrap();
        if self.is_stuck(request.page) {
            pending::<()>().await;
        }
        let state = self.0.lock().unwrap();
        if request.lease != Lease(state.lease) {
            return Err(fdo::Error::InvalidArgs("another lease".to_owned()));
        }
        let items = match request.page {
            0 => state.links.iter().cloned().map(Observed::Link).collect(),
            1 => {
                let bpf = state.bpf.clone().into_iter();
                bpf.map(|(k, v)| Observed::BpfRoute(k, Some(v))).collect()
            }
            _ => return Err(fdo::Error::InvalidArgs("no such page".to_owned())),
        };
        Ok((request.page == 1, encode(&Page { items })))
    }

    fn prepare(&self, batch: ByteBuf) {
        self.0.lock().unwrap().prepared = Some(batch);
    }

    fn apply_prepared(&self, id: u64) -> fdo::Result<ByteBuf> {
        let prepared = {
            let mut state = self.0.lock().unwrap();
            state.by_number += 1;
            state.prepared.take().unwrap()
        };
        let batch: Batch = codec::decode(&prepared).unwrap();
        assert_eq!(batch.id.0, id);
        self.apply(prepared)
    }

    fn apply(&self, batch: ByteBuf) -> fdo::Result<ByteBuf> {
        let batch: Batch = codec::decode(&batch).unwrap();
        let mut state = self.0.lock().unwrap();
        if batch.lease != Lease(state.lease) {
            return Err(fdo::Error::AccessDenied("not the lease".to_owned()));
        }
        for step in batch.steps {
            match step.op {
                Op::BpfRoute(key, Some(route)) => drop(state.bpf.insert(key, route)),
                Op::BpfRoute(key, None) => drop(state.bpf.remove(&key)),
                other => panic!("{other:?}"),
            }
        }
        let failed = state.fails.then(|| (0, OpError::Denied("no".to_owned())));
        Ok(encode(&Ack {
            id: batch.id,
            failed: failed.into_iter().collect(),
        }))
    }
}
