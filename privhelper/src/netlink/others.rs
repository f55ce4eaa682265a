//! Hears what others change of what is ours, and has the feed say so, by kind.
//!
//! The helper's own changes are known by the port of its sockets, and those of the kernel's by port
//! 0: they follow from interfaces, of which `watch` tells. (So do changes by the old ioctls, which
//! the next reading finds.) Both are dropped before they are queued. Nothing is kept but that there
//! was something: calc has all read. Messages that were lost may have been of anything.

use std::{collections::BTreeSet, io, mem, sync::Arc, time::Duration};

use futures_util::FutureExt;
use ipc_proto::{LinkRole, Mac, Table, view::Kind};
use libc::{
    AF_BRIDGE, AF_INET, AF_INET6, RTM_DELNEIGH, RTM_DELROUTE, RTM_DELRULE, RTM_NEWNEIGH,
    RTM_NEWROUTE, RTM_NEWRULE,
};
use netlink_packet_core::{NLM_F_REPLACE, NetlinkBuffer};
use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, TokioSocket};
use tokio::{task::unconstrained, time::sleep};

use super::{
    attributes::{attributes, ip, u16_at, u32_at},
    made::Made,
    neighbour::PERMANENT,
    route::Report,
    socket::{PORTS, PORTS_MASK},
};
use crate::{
    bpf::sys::filter::{self, Instruction},
    links::Links,
    policy::Policy,
    watch::Watched,
};

/// `RTMGRP_NEIGH`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE` and IPv6 rules.
const GROUPS: u32 = 0x4 | 0x40 | 0x80 | 0x400 | 0x4_0000;
/// The kinds that are listened for.
const KINDS: [Kind; 4] = [Kind::KernelRoutes, Kind::Neighbours, Kind::Fdb, Kind::Rules];
/// Room for about ten thousand messages.
const BUFFER: usize = 8 << 20;
/// The longest message that is looked at whole.
const READ: usize = 32 << 10;
/// How many messages are looked at in one go; others are served on this thread.
const BURST: usize = 1024;
/// How long after that it is looked again: however much others change, little is done about it.
const REST: Duration = Duration::from_millis(10);
/// The length of `struct ndmsg` and `struct fib_rule_hdr`.
const HEADER: usize = 12;
/// `NTF_SELF`: an entry of the device itself, and not of the bridge that it is part of.
const OWN: u8 = 2;

/// Attributes of a rule.
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;

/// See the [module](self).
#[expect(missing_debug_implementations, reason = "the socket has none")]
pub struct Others {
    socket: TokioSocket,
    policy: Arc<Policy>,
    watched: Watched,
    made: Made,
}

impl Others {
    /// Listens from now on; [`run`](Self::run) looks at what is heard.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn open(policy: Arc<Policy>, watched: Watched, made: Made) -> io::Result<Self> {
        let mut listener = TokioSocket::new(NETLINK_ROUTE)?;
        let socket = listener.socket_mut();
        filter::attach(&*socket, &program(&policy))?;
        // Whatever is lost costs a reading, so a smaller buffer will do.
        if let Err(errno) = setsockopt(&*socket, sockopt::RcvBufForce, &BUFFER) {
            tracing::debug!(%errno, "the netlink receive buffer stays small");
        }
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        Ok(Self {
            socket: listener,
            policy,
            watched,
            made,
        })
    }

    /// Listens until that fails.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub async fn run(self) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(READ);
        let mut overrun = false;
        loop {
            let mut drift = BTreeSet::new();
            let mut heard = Some(self.hear(&mut buffer, &mut drift).await);
            for _ in 0..BURST {
                let Some(result) = heard else {
                    // Until all is read, the kernel goes on dropping, and does not say so again.
                    if mem::take(&mut overrun) {
                        drift.extend(KINDS);
                    }
                    break;
                };
                overrun |= result?;
                // The runtime would have it rest sooner, and the kernel then has no room.
                heard = unconstrained(self.hear(&mut buffer, &mut drift)).now_or_never();
            }
            if !drift.is_empty() {
                tracing::debug!(?drift, "others have changed something");
                self.watched.drift(drift);
            }
            sleep(REST).await;
        }
    }

    /// Waits for a message, adds to `drift` what it says, and returns whether it says that some were
    /// dropped.
    async fn hear(&self, buffer: &mut Vec<u8>, drift: &mut BTreeSet<Kind>) -> io::Result<bool> {
        buffer.clear();
        match self.socket.recv(buffer).await {
            Ok(()) => drift.extend(self.heard(buffer)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                drift.extend(KINDS);
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Returns what a message says that others have changed, if it may be ours.
    fn heard(&self, message: &[u8]) -> Option<Kind> {
        let message = NetlinkBuffer::new_checked(message).ok()?;
        let (kind, body) = (message.message_type(), message.payload());
        let links = self.watched.links();
        match kind {
            RTM_NEWROUTE | RTM_DELROUTE => {
                let report = Report::read(body, &self.policy)?;
                // Of a route that took another's place, the kernel does not tell the other.
                let replaces = message.flags() & NLM_F_REPLACE != 0;
                (replaces || report.is_ours(&self.policy, &links)).then_some(Kind::KernelRoutes)
            }
            RTM_NEWNEIGH | RTM_DELNEIGH => self.entry(kind == RTM_NEWNEIGH, body, &links),
            RTM_NEWRULE | RTM_DELRULE => is_our_rule(body, &self.policy).then_some(Kind::Rules),
            _ => None,
        }
    }

    fn entry(&self, present: bool, body: &[u8], links: &Links) -> Option<Kind> {
        let index = u32_at(body, 4)?;
        let family = i32::from(*body.first()?);
        match (links.by_index(index)?.role, family) {
            (LinkRole::Tunnel(_), AF_BRIDGE) if body.get(10)? & OWN != 0 => {
                let permanent = u16_at(body, 8)? & PERMANENT != 0;
                let (mut mac, mut to) = (None, None);
                for (attribute, value) in attributes(body.get(HEADER..)?) {
                    match attribute {
                        libc::NDA_LLADDR => mac = value.try_into().ok().map(Mac),
                        libc::NDA_DST => to = ip(value),
                        _ => {}
                    }
                }
                let is_there = present && permanent;
                let leads_nowhere = is_there && to.is_none();
                let as_made = self.made.hear(index, mac?, to.filter(|_| is_there));
                (!as_made || leads_nowhere).then_some(Kind::Fdb)
            }
            (LinkRole::Tunnel(_), AF_INET | AF_INET6) | (LinkRole::Workload, AF_INET) => {
                Some(Kind::Neighbours)
            }
            (LinkRole::Tunnel(_) | LinkRole::Workload | LinkRole::Uplink | LinkRole::Other, _) => {
                None
            }
        }
    }
}

fn is_our_rule(body: &[u8], policy: &Policy) -> bool {
    let (mut table, mut protocol) = (None, None);
    for (attribute, value) in attributes(body.get(HEADER..).unwrap_or_default()) {
        match attribute {
            FRA_TABLE => table = u32_at(value, 0),
            FRA_PROTOCOL => protocol = value.first().copied(),
            _ => {}
        }
    }
    table.is_some()
        && table == policy.table(Table::Second)
        && protocol == Some(policy.safe_protocol)
}

/// Lets through what others have done to routes of our tables, to neighbours and to rules, and
/// all forwarding entries.
fn program(policy: &Policy) -> [Instruction; 17] {
    /// `BPF_LD | BPF_ABS` of a word, a half and a byte.
    const WORD: u16 = 0x20;
    const HALF: u16 = 0x28;
    const BYTE: u16 = 0x30;
    /// `BPF_ALU | BPF_AND`, `BPF_JMP | BPF_JEQ` and `BPF_RET`.
    const AND: u16 = 0x54;
    const EQUALS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// In the header of a message, of a route and of a neighbour.
    const KIND: u32 = 4;
    const PORT: u32 = 12;
    const FAMILY: u32 = 16;
    const TABLE: u32 = 20;
    // The program loads in network order.
    let word = |value: u32| u32::from_be_bytes(value.to_ne_bytes());
    let half = |value: u16| u32::from(u16::from_be_bytes(value.to_ne_bytes()));
    // Numbers that do not fit into the header are in an attribute.
    let table = |table| {
        let number = policy.table(table).or(policy.table(Table::Main));
        let byte = number.and_then(|number| u8::try_from(number).ok());
        u32::from(byte.unwrap_or(libc::RT_TABLE_COMPAT))
    };
    let bridge = u32::try_from(AF_BRIDGE).unwrap_or_default();
    [
        (WORD, 0, 0, PORT),
        (EQUALS, 8, 0, 0),
        (AND, 0, 0, word(PORTS_MASK)),
        (EQUALS, 12, 0, word(PORTS)),
        (HALF, 0, 0, KIND),
        (EQUALS, 1, 0, half(RTM_NEWROUTE)),
        (EQUALS, 0, 8, half(RTM_DELROUTE)),
        (BYTE, 0, 0, TABLE),
        (EQUALS, 6, 0, table(Table::Main)),
        (EQUALS, 5, 6, table(Table::Second)),
        // The kernel's own: it does not tell who changes forwarding entries.
        (HALF, 0, 0, KIND),
        (EQUALS, 1, 0, half(RTM_NEWNEIGH)),
        (EQUALS, 0, 3, half(RTM_DELNEIGH)),
        (BYTE, 0, 0, FAMILY),
        (EQUALS, 0, 1, bridge),
        (RETURN, 0, 0, u32::MAX),
        (RETURN, 0, 0, 0),
    ]
}
