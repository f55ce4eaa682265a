//! Keeps the table of interfaces as the kernel has it.
//!
//! A message of the multicast socket says that something has changed; what, is read from the kernel
//! on another socket. What a reading cannot show is that an interface was down, or without one of
//! its addresses, in between, and so lost routes: that is taken from the messages. The subscription
//! comes first, and each message is followed by a reading that began after it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::BoxStream};
use ipc_proto::{Link, LinkRole, LinkState, Mac, Protocol, view::Kind};
use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
    link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage},
};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection, sys::AsyncSocket};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    links::{Links, Unseen},
    netlink::socket::Requests,
    policy::Policy,
};

/// How long to wait for more messages after one.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// How many times longer than it took a reading is waited with before the next one.
const REST: u32 = 4;
/// Room for about ten thousand messages.
const BUFFER: usize = 8 << 20;

/// Why the interfaces cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A netlink socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[from] io::Error),
    /// The interfaces cannot be read.
    #[error("cannot read the interfaces: {0}")]
    Read(#[from] Errno),
    /// The thread that reads them has ended.
    #[error("reading the interfaces failed: {0}")]
    Thread(#[from] JoinError),
    /// The socket is gone.
    #[error("the netlink socket was closed")]
    Closed,
}

/// The table of interfaces, shared by who keeps it and who looks at it.
#[derive(Clone, Debug)]
pub struct Watched {
    links: Arc<Mutex<Links>>,
    changed: Arc<Notify>,
    refresh: mpsc::Sender<oneshot::Sender<()>>,
}

impl Watched {
    /// Returns the table.
    pub fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the table has changed since this was last waited for.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Has the next feed say that others have changed something of these kinds.
    pub fn drift(&self, kinds: BTreeSet<Kind>) {
        self.links().drift(kinds);
        self.changed.notify_one();
    }

    /// Waits until the table is at least as new as this call; not for use on the runtime's thread.
    pub fn refresh(&self) {
        let (done, wait) = oneshot::channel();
        // If the watch has ended, so will the process.
        if self.refresh.blocking_send(done).is_ok() {
            drop(wait.blocking_recv());
        }
    }
}

/// What keeps the table.
#[expect(missing_debug_implementations, reason = "a stream has none")]
pub struct Watch {
    policy: Arc<Policy>,
    watched: Watched,
    requests: mpsc::Receiver<oneshot::Sender<()>>,
    /// None while a reading is under way.
    socket: Option<Requests>,
    messages: BoxStream<'static, Heard>,
    /// What was heard since the last reading and it may not show.
    unseen: Unseen,
    /// Without it the subscription's socket closes.
    _subscription: Handle,
}

impl Watch {
    /// Subscribes, reads the interfaces, and returns the keeper and the kept.
    ///
    /// # Errors
    ///
    /// If there is no netlink, or not enough memory.
    pub async fn start(policy: Arc<Policy>) -> Result<(Self, Watched), WatchError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
        ];
        let (mut connection, subscription, messages) = new_multicast_connection(&groups)?;
        // A missed message costs a reading, so a smaller buffer will do.
        if let Err(errno) = setsockopt(
            connection.socket_mut().socket_mut(),
            sockopt::RcvBufForce,
            &BUFFER,
        ) {
            tracing::debug!(%errno, "the netlink receive buffer stays small");
        }
        tokio::spawn(connection);
        let (refresh, requests) = mpsc::channel(1);
        let watched = Watched {
            links: Arc::default(),
            changed: Arc::default(),
            refresh,
        };
        let mut watch = Self {
            policy,
            watched: watched.clone(),
            requests,
            socket: Some(Requests::open()?),
            messages: messages.map(|(message, _)| heard(&message)).boxed(),
            unseen: Unseen::default(),
            _subscription: subscription,
        };
        while !watch.read().await? {
            sleep(DEBOUNCE).await;
        }
        Ok((watch, watched))
    }

    /// Keeps the table until something fails.
    ///
    /// # Errors
    ///
    /// If the kernel can no longer be asked.
    pub async fn run(mut self) -> Result<(), WatchError> {
        let mut waiting = Vec::new();
        let mut rest = DEBOUNCE;
        let mut disturbed = false;
        loop {
            if !disturbed {
                tokio::select! {
                    message = self.messages.next() => self.hear(message)?,
                    Some(done) = self.requests.recv() => waiting.push(done),
                }
            }
            let until = Instant::now() + rest;
            while waiting.is_empty() || disturbed {
                tokio::select! {
                    message = self.messages.next() => self.hear(message)?,
                    Some(done) = self.requests.recv() => waiting.push(done),
                    () = sleep_until(until) => break,
                }
            }
            let start = Instant::now();
            disturbed = !self.read().await?;
            rest = DEBOUNCE.max(start.elapsed() * REST);
            if disturbed {
                continue;
            }
            for done in waiting.drain(..) {
                if done.send(()).is_err() {
                    tracing::debug!("who asked for the interfaces has given up");
                }
            }
        }
    }

    /// Notes what a message tells beyond that something has changed.
    fn hear(&mut self, message: Option<Heard>) -> Result<(), WatchError> {
        match message.ok_or(WatchError::Closed)? {
            Heard::Change => {}
            Heard::Down(index) => {
                self.unseen.down.insert(index);
            }
            Heard::Lost(index, address) => {
                // It has come and gone since the last reading, so that no difference will tell.
                let came_and_went = |state: &LinkState| {
                    state.role == LinkRole::Workload
                        && !state.addresses.iter().any(|own| own.addr() == address)
                };
                let state = self.watched.links().by_index(index).cloned();
                if !is_kernels(address) && state.as_ref().is_some_and(came_and_went) {
                    self.watched.drift([Kind::LinkAddresses].into());
                }
                let lost = self.unseen.lost.entry(index).or_default();
                lost.insert(address);
            }
            Heard::Set(index, address, protocol) => {
                // Ours has another's protocol, or none: it is another program's since.
                let was_there = |state: &LinkState| {
                    state.role == LinkRole::Workload
                        && state.addresses.iter().any(|own| own.addr() == address)
                };
                let is_ours = protocol == self.policy.protocol(Protocol::Safe);
                let state = self.watched.links().by_index(index).cloned();
                if !is_ours && !is_kernels(address) && state.as_ref().is_some_and(was_there) {
                    self.watched.drift([Kind::LinkAddresses].into());
                }
            }
            Heard::Enslaved(index) => {
                let is_tunnel = |state: &LinkState| matches!(state.role, LinkRole::Tunnel(_));
                let device = self.watched.links().by_index(index).is_some_and(is_tunnel);
                if device {
                    self.watched.drift([Kind::TunnelDevices].into());
                }
            }
            Heard::Overrun => self.watched.links().miss(),
        }
        Ok(())
    }

    /// Reads all, and returns false if they changed all the while, so that it counts for nothing.
    async fn read(&mut self) -> Result<bool, WatchError> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => Requests::open()?,
        };
        let policy = Arc::clone(&self.policy);
        // The kernel may take its time, and others are served on this thread.
        let reading = spawn_blocking(move || (interfaces(&mut socket, &policy), socket));
        let (actual, socket) = reading.await?;
        self.socket = Some(socket);
        let actual = match actual {
            Err(Errno::EINTR) => {
                tracing::debug!("the interfaces change too fast to be read");
                return Ok(false);
            }
            other => other?,
        };
        let unseen = mem::take(&mut self.unseen);
        if self.watched.links().update(actual, &unseen) {
            self.watched.changed.notify_one();
        }
        Ok(true)
    }
}

/// Reads all interfaces with their addresses.
fn interfaces(socket: &mut Requests, policy: &Policy) -> Result<Vec<LinkState>, Errno> {
    let mut message = LinkMessage::default();
    let terse = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    message.attributes.push(terse);
    let links = socket.dump(&RouteNetlinkMessage::GetLink(message), |message| {
        let RouteNetlinkMessage::NewLink(link) = message else {
            return None;
        };
        Some(link)
    })?;
    let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let addresses = socket.dump(&message, |message| {
        let RouteNetlinkMessage::NewAddress(address) = message else {
            return None;
        };
        Some((address.header.index, own_address(&address)?))
    })?;
    let mut by_index: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
    for (index, own) in addresses {
        by_index.entry(index).or_default().push(own);
    }
    let state = |message: &LinkMessage| {
        let own = by_index.remove(&message.header.index).unwrap_or_default();
        link_state(message, own, policy)
    };
    Ok(links.iter().filter_map(state).collect())
}

/// What a message of the kernel's tells.
enum Heard {
    /// Something is other than before.
    Change,
    /// The interface with this index is down.
    Down(u32),
    /// It has become, or is, a part of another one, of which [`LinkState`] does not tell.
    Enslaved(u32),
    /// It is without this address.
    Lost(u32, IpAddr),
    /// It has this address, perhaps since before, with this protocol.
    Set(u32, IpAddr, Option<u8>),
    /// Messages were lost.
    Overrun,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the rest is read from the kernel"
)]
fn heard(message: &NetlinkMessage<RouteNetlinkMessage>) -> Heard {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) if !is_up(link) => {
            Heard::Down(link.header.index)
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) if is_enslaved(link) => {
            Heard::Enslaved(link.header.index)
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(address)) => {
            let own = local(address);
            own.map_or(Heard::Change, |own| Heard::Lost(address.header.index, own))
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => {
            let index = address.header.index;
            local(address).map_or(Heard::Change, |own| {
                Heard::Set(index, own, protocol(address))
            })
        }
        NetlinkPayload::Overrun(_) => Heard::Overrun,
        _ => Heard::Change,
    }
}

/// Whether the kernel gives an interface such addresses by itself, and takes them away.
fn is_kernels(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_enslaved(message: &LinkMessage) -> bool {
    let controller = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::Controller(_));
    message.attributes.iter().any(controller)
}

fn is_up(message: &LinkMessage) -> bool {
    message.header.flags.contains(LinkFlags::Up)
}

/// Reads a link message; none if the interface has a name that cannot be on the wire.
fn link_state(
    message: &LinkMessage,
    mut addresses: Vec<IpNet>,
    policy: &Policy,
) -> Option<LinkState> {
    let (mut name, mut mac, mut mtu) = (None, None, 0);
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "there are a hundred attributes"
    )]
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = text.parse().ok(),
            LinkAttribute::Address(bytes) => mac = bytes.as_slice().try_into().ok().map(Mac),
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            _ => {}
        }
    }
    addresses.sort_unstable();
    let link = Link {
        index: message.header.index,
        name: name?,
    };
    if policy.is_excluded(&link.name) {
        addresses.clear();
    }
    Some(LinkState {
        role: policy.role(&link.name, &addresses),
        up: is_up(message),
        carrier: message.header.flags.contains(LinkFlags::Running),
        link,
        mac,
        mtu,
        addresses,
    })
}

/// Reads an address message; none if the address is not usable (yet).
fn own_address(message: &AddressMessage) -> Option<IpNet> {
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    let optimistic = message.attributes.iter().any(|attribute| {
        matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Optimistic))
    });
    if message.header.flags.intersects(unusable) && !optimistic {
        return None;
    }
    IpNet::new(local(message)?, message.header.prefix_len).ok()
}

/// Returns who has made the address that a message is about, if it tells.
fn protocol(message: &AddressMessage) -> Option<u8> {
    message.attributes.iter().find_map(|attribute| {
        if let AddressAttribute::Protocol(number) = attribute {
            Some(u8::from(*number))
        } else {
            None
        }
    })
}

/// Returns the address that a message is about.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    let (mut local, mut address) = (None, None);
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only these two are addresses"
    )]
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(own) => local = Some(*own),
            // The other end's, on a point-to-point link.
            AddressAttribute::Address(own) => address = Some(*own),
            _ => {}
        }
    }
    local.or(address)
}
