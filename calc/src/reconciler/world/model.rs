//! The kernel, as far as it matters here, and the helper in front of it.

use std::collections::{BTreeMap, VecDeque};

use ipc_proto::{
    Ack, Batch, BpfRoute, BpfTarget, Flags, Hop, IfName, Incarnation, KernelRoute, Lease, Link,
    LinkEvent, LinkRole, LinkState, Mac, NeighbourKey, Observed, Op, OpError, Protocol, RouteKey,
    RouteKind, SnapshotId, Table, Welcome,
};
use ipnet::IpNet;

use super::script::Slot;
use crate::reconciler::Output;

/// The flags of a BPF route that are against the policy.
pub(super) const DENIED: u8 = 2;
const MAX_STEPS: u32 = 3;
/// The size of the BPF route map.
pub(super) const BPF_MAX_ENTRIES: usize = 3;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const ENETDOWN: i32 = 100;

fn prefix(n: u8) -> IpNet {
    format!("10.0.{n}.0/24").parse().unwrap()
}

/// Returns the op that a slot's value is on a certain interface.
pub(super) fn op(slot: Slot, value: Option<u8>, link: Option<&Link>) -> Option<Op> {
    let neighbour = |n: u8| {
        Some(NeighbourKey {
            link: link?.clone(),
            address: [192, 0, 2, n].into(),
        })
    };
    Some(match slot {
        Slot::Bpf(n) => {
            let route = value.map(|value| BpfRoute {
                flags: Flags(value.into()),
                target: BpfTarget::None,
            });
            Op::BpfRoute(prefix(n), route)
        }
        Slot::Neighbour(n) => Op::Neighbour(neighbour(n)?, value.map(|value| Mac([value; 6]))),
        Slot::Route(n) => {
            let route = match value {
                None => None,
                Some(n @ 0..2) => {
                    let NeighbourKey { link, address } = neighbour(n)?;
                    Some(RouteKind::Unicast(Hop {
                        link,
                        via: Some(address),
                        onlink: true,
                    }))
                }
                Some(_) => Some(RouteKind::Blackhole),
            };
            let route = route.map(|kind| KernelRoute {
                kind,
                protocol: Protocol::Safe,
                source: None,
                mtu: None,
            });
            Op::KernelRoute(RouteKey::new(Table::Main, prefix(n), 0), route)
        }
    })
}

fn link_of(route: &KernelRoute) -> Option<&Link> {
    match &route.kind {
        RouteKind::Unicast(hop) => Some(&hop.link),
        _ => None,
    }
}

fn errno(errno: i32) -> OpError {
    OpError::Kernel {
        call: "model".to_owned(),
        errno,
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) bpf: BTreeMap<IpNet, BpfRoute>,
    pub(super) neighbours: BTreeMap<NeighbourKey, Mac>,
    /// Drift can add a second route under one key.
    pub(super) routes: BTreeMap<RouteKey, Vec<KernelRoute>>,
    pub(super) link: Option<LinkState>,
}

impl Kernel {
    /// Makes an op true, or says why not.
    pub(super) fn make(&mut self, op: Op) -> Result<(), OpError> {
        let up = |link: &Link| match &self.link {
            Some(state) if state.link == *link => Ok(state.up),
            _ => Err(OpError::StaleLink(link.clone())),
        };
        match op {
            Op::BpfRoute(key, Some(value)) => {
                if self.bpf.len() >= BPF_MAX_ENTRIES && !self.bpf.contains_key(&key) {
                    return Err(errno(ENOSPC));
                }
                self.bpf.insert(key, value);
            }
            Op::BpfRoute(key, None) => drop(self.bpf.remove(&key)),
            Op::Neighbour(key, value) => {
                up(&key.link)?;
                match value {
                    Some(mac) => self.neighbours.insert(key, mac),
                    None => self.neighbours.remove(&key),
                };
            }
            Op::KernelRoute(key, Some(route)) => {
                if let Some(link) = link_of(&route)
                    && !up(link)?
                {
                    return Err(errno(ENETDOWN));
                }
                self.routes.insert(key, vec![route]);
            }
            Op::KernelRoute(key, None) => drop(self.routes.remove(&key)),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn is_so(&self, op: &Op) -> bool {
        match op {
            Op::BpfRoute(key, value) => self.bpf.get(key) == value.as_ref(),
            Op::Neighbour(key, value) => self.neighbours.get(key) == value.as_ref(),
            Op::KernelRoute(key, value) => {
                let want: Vec<_> = value.iter().cloned().collect();
                self.routes.get(key).cloned().unwrap_or_default() == want
            }
            other => panic!("{other:?}"),
        }
    }

    /// The interface's routes and neighbours go away.
    fn flush(&mut self) {
        self.neighbours.clear();
        self.routes.retain(|_, routes| {
            routes.retain(|route| link_of(route).is_none());
            !routes.is_empty()
        });
    }

    fn read(&self) -> Vec<Observed> {
        let bpf = self.bpf.clone().into_iter();
        let neighbours = self.neighbours.clone().into_iter();
        let routes = self.routes.iter();
        let link = self.link.iter().cloned().map(Observed::Link);
        link.chain(bpf.map(|(k, v)| Observed::BpfRoute(k, Some(v))))
            .chain(neighbours.map(|(k, v)| Observed::Neighbour(k, v)))
            .chain(routes.flat_map(|(k, all)| {
                all.iter()
                    .map(|v| Observed::KernelRoute(k.clone(), Some(v.clone())))
            }))
            .collect()
    }
}

#[derive(Debug)]
pub(super) enum Reply {
    Welcome(Welcome, Vec<Observed>),
    Ack(Ack),
    Refused,
}

/// The helper in front of it.
#[derive(Debug, Default)]
pub(super) struct Helper {
    pub(super) kernel: Kernel,
    pub(super) lease: Option<Lease>,
    leases: u64,
    indexes: u32,
    pub(super) fail_next: bool,
    /// Writes of what was so already.
    pub(super) redundant: u64,
    pub(super) feed: VecDeque<(u64, LinkEvent)>,
    seq: u64,
}

impl Helper {
    pub(super) fn serve(&mut self, request: Output) -> Reply {
        match request {
            Output::Hello => {
                self.leases += 1;
                let lease = Lease(self.leases);
                self.lease = Some(lease);
                let welcome = Welcome {
                    version: ipc_proto::VERSION,
                    incarnation: Incarnation(1),
                    lease,
                    max_steps: MAX_STEPS,
                    bpf_max_entries: u32::try_from(BPF_MAX_ENTRIES).unwrap(),
                    snapshot: SnapshotId(1),
                    pages: 1,
                    feed: self.seq,
                };
                Reply::Welcome(welcome, self.kernel.read())
            }
            Output::Apply(batch) if Some(batch.lease) == self.lease => {
                Reply::Ack(self.apply(batch))
            }
            Output::Apply(_) => Reply::Refused,
            Output::Notice(_) => panic!("not for the helper"),
        }
    }

    fn apply(&mut self, batch: Batch) -> Ack {
        assert!((1..=3).contains(&batch.steps.len()), "{batch:?}");
        let mut failed: Vec<(u32, OpError)> = Vec::new();
        for (index, step) in (0..).zip(batch.steps) {
            let failed_before = |need: &u32| failed.iter().any(|(index, _)| index == need);
            assert!(step.needs.is_none_or(|need| need < index), "needs a later");
            let result = if let Some(need) = step.needs.filter(failed_before) {
                Err(OpError::NotTried(need))
            } else if std::mem::take(&mut self.fail_next) {
                Err(errno(ENOMEM))
            } else if matches!(&step.op, Op::BpfRoute(_, Some(route)) if route.flags.0 == u32::from(DENIED))
            {
                Err(OpError::Denied("model".to_owned()))
            } else {
                self.redundant += u64::from(self.kernel.is_so(&step.op));
                self.kernel.make(step.op)
            };
            failed.extend(result.err().map(|error| (index, error)));
        }
        Ack {
            id: batch.id,
            failed,
        }
    }

    fn link(&mut self, event: LinkEvent) {
        self.seq += 1;
        self.kernel.link = match event.clone() {
            LinkEvent::Set(state) => Some(state),
            LinkEvent::Gone(_) => None,
        };
        if !self.kernel.link.as_ref().is_some_and(|link| link.up) {
            self.kernel.flush();
        }
        self.feed.push_back((self.seq, event));
    }

    pub(super) fn set_up(&mut self, up: bool) {
        if let Some(state) = self.kernel.link.clone().filter(|state| state.up != up) {
            self.link(LinkEvent::Set(LinkState { up, ..state }));
        }
    }

    pub(super) fn end_link(&mut self) {
        if let Some(state) = self.kernel.link.clone() {
            self.link(LinkEvent::Gone(state.link));
        }
    }

    pub(super) fn new_link(&mut self) {
        self.end_link();
        self.indexes += 1;
        let name: IfName = "cali1".parse().unwrap();
        self.link(LinkEvent::Set(LinkState {
            link: Link {
                index: self.indexes,
                name,
            },
            role: LinkRole::Workload,
            up: true,
            mac: None,
            mtu: 1500,
            addresses: Vec::new(),
        }));
    }

    pub(super) fn drift(&mut self, slot: Slot, value: Option<u8>) {
        let link = self.kernel.link.clone().map(|state| state.link);
        match op(slot, value, link.as_ref()) {
            Some(Op::KernelRoute(key, Some(route))) => {
                let routes = self.kernel.routes.entry(key).or_default();
                if !routes.contains(&route) {
                    routes.push(route);
                }
            }
            Some(op) => drop(self.kernel.make(op)),
            None => {}
        }
    }
}
