//! Batches in the making: within the helper's limits, each route after the neighbour that it needs.
//!
//! A step that needs one of an earlier batch is sent only if all of that one was made.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use ipc_proto::{NeighbourKey, Op, RouteKey, Step, codec};

/// More bytes than any step takes, but for the hops of a multipath route.
const STEP_LEN: usize = 160;
/// More bytes than any hop takes.
const HOP_LEN: usize = 64;
/// More bytes than a batch takes besides its steps.
const BATCH_LEN: usize = 64;
/// As many steps as this, be they the longest but for such a route, are a message.
pub(super) const SHORT: usize = (codec::MAX_LEN - BATCH_LEN) / STEP_LEN;

/// Where a step is: in which batch, and where in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At(usize, u32);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Steps {
    /// Those that are full.
    full: VecDeque<Vec<Step>>,
    last: Vec<Step>,
    /// Where each neighbour is set.
    neighbours: BTreeMap<NeighbourKey, At>,
    batch_size: usize,
    max_batches: usize,
    bytes_left: usize,
}

impl Steps {
    /// Starts with none of at most `max_batches` batches of at most `batch_size` steps.
    pub(super) fn new(batch_size: usize, max_batches: usize) -> Self {
        Self {
            full: VecDeque::new(),
            last: Vec::new(),
            neighbours: BTreeMap::new(),
            batch_size,
            max_batches,
            bytes_left: codec::MAX_LEN - BATCH_LEN,
        }
    }

    /// Adds as many of `ops` as there is room for, in their order.
    pub(super) fn extend(&mut self, ops: impl Iterator<Item = Op>) {
        self.extend_after(ops.map(|op| (op, None)));
    }

    /// As [`extend`](Self::extend), with the step that must have succeeded before each.
    pub(super) fn extend_after(&mut self, ops: impl Iterator<Item = (Op, Option<At>)>) {
        // `ops` costs more per item than this check.
        if !self.has_room(0) {
            return;
        }
        for (op, after) in ops {
            let len = len(&op);
            if len > codec::MAX_LEN - BATCH_LEN {
                // It can never be sent, and must not be in the way of others.
                continue;
            }
            if !self.has_room(len) {
                return;
            }
            self.push(op, after, len);
        }
    }

    /// Returns whether there is room for a step of this length, be it in another batch.
    fn has_room(&self, len: usize) -> bool {
        self.fits(len) || self.full.len() + 1 < self.max_batches
    }

    fn fits(&self, len: usize) -> bool {
        len <= self.bytes_left && self.last.len() < self.batch_size
    }

    fn push(&mut self, op: Op, after: Option<At>, len: usize) {
        if !self.fits(len) {
            self.full.push_back(mem::take(&mut self.last));
            self.bytes_left = codec::MAX_LEN - BATCH_LEN;
        }
        self.bytes_left -= len;
        let batch = self.full.len();
        let needs = after
            .or_else(|| self.needs(&op))
            .filter(|At(other, _)| *other == batch)
            .map(|At(_, index)| index);
        if let (Op::Neighbour(key, Some(_)), Ok(index)) = (&op, u32::try_from(self.last.len())) {
            self.neighbours.insert(key.clone(), At(batch, index));
        }
        self.last.push(Step { op, needs });
    }

    /// Returns where each kernel route is set.
    pub(super) fn routes(&self) -> BTreeMap<RouteKey, At> {
        let batches = (0..).zip(self.full.iter().chain([&self.last]));
        let steps = batches.flat_map(|(batch, steps)| {
            let at = move |index| At(batch, index);
            (0..).map(at).zip(steps)
        });
        steps
            .filter_map(|(at, step)| {
                let Op::KernelRoute(key, Some(_)) = &step.op else {
                    return None;
                };
                Some((key.clone(), at))
            })
            .collect()
    }

    /// Returns the batches, none of them empty.
    pub(super) fn into_batches(self) -> VecDeque<Vec<Step>> {
        let mut batches = self.full;
        batches.push_back(self.last);
        batches.retain(|steps| !steps.is_empty());
        batches
    }

    /// Returns the step that must have succeeded before `op`.
    fn needs(&self, op: &Op) -> Option<At> {
        if self.neighbours.is_empty() {
            return None;
        }
        let Op::KernelRoute(_, Some(route)) = op else {
            return None;
        };
        route.hops().iter().find_map(|hop| {
            let key = NeighbourKey {
                link: hop.link.clone(),
                address: hop.via?,
            };
            self.neighbours.get(&key).copied()
        })
    }
}

/// Returns a number of bytes that is more than the step of an op takes.
fn len(op: &Op) -> usize {
    let hops = match op {
        Op::KernelRoute(_, Some(route)) => route.hops().len(),
        Op::KernelRoute(_, None)
        | Op::LinkSettings(..)
        | Op::TunnelDevice(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::BpfRoute(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => 0,
    };
    STEP_LEN + hops * HOP_LEN
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ipc_proto::{
        Batch, BatchId, BpfRoute, BpfTarget, FdbKey, Flags, Hop, KernelRoute, Lane, Lease, Link,
        LinkProfile, Mac, Protocol, RouteKind, Table, Tunnel, TunnelDevice,
    };
    use ipnet::IpNet;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    fn link() -> Link {
        Link {
            index: u32::MAX,
            name: "0123456789abcde".parse().unwrap(),
        }
    }

    fn neighbour() -> NeighbourKey {
        NeighbourKey {
            link: link(),
            address: ADDRESS,
        }
    }

    fn route(kind: RouteKind) -> Op {
        let key = RouteKey::new(Table::Second, IpNet::new(ADDRESS, 128).unwrap(), 7);
        let route = KernelRoute {
            kind,
            protocol: Protocol::Safe,
            source: Some(ADDRESS),
            mtu: Some(1),
        };
        Op::KernelRoute(key, Some(Box::new(route)))
    }

    fn hop() -> Hop {
        Hop {
            link: link(),
            via: Some(ADDRESS),
            onlink: true,
        }
    }

    /// The longest of each kind.
    fn longest() -> Vec<Op> {
        let mac = Mac([0xff; 6]);
        let device = TunnelDevice {
            vni: 1,
            port: 2,
            local: ADDRESS,
            parent: link(),
            mac,
            mtu: 3,
            address: ADDRESS,
        };
        let bpf = BpfRoute {
            flags: Flags(u32::MAX),
            target: BpfTarget::Link(link()),
        };
        let fdb = FdbKey { link: link(), mac };
        vec![
            Op::LinkSettings(link(), Some(LinkProfile::Uplink)),
            Op::TunnelDevice(Tunnel::VxlanV6, Some(Box::new(device))),
            Op::Neighbour(neighbour(), Some(mac)),
            Op::Fdb(fdb, Some(ADDRESS)),
            Op::BpfRoute(IpNet::new(ADDRESS, 128).unwrap(), Some(bpf)),
            route(RouteKind::Unicast(hop())),
            route(RouteKind::Multipath(vec![hop(); 256])),
        ]
    }

    #[test]
    fn a_full_batch_of_the_longest_steps_is_a_message() {
        for op in longest() {
            let mut steps = Steps::new(Batch::MAX_STEPS, 2);
            steps.extend(std::iter::repeat_n(op.clone(), codec::MAX_LEN / 50));
            let batches = steps.into_batches();
            assert_eq!(batches.len(), 2);
            for steps in batches {
                let batch = Batch {
                    lease: Lease(u64::MAX),
                    lane: Lane::State,
                    id: BatchId(u64::MAX),
                    steps,
                };
                assert!(batch.steps.len() <= Batch::MAX_STEPS);
                let bytes = codec::encode(&batch).unwrap();
                assert_eq!(codec::decode::<Batch>(&bytes).unwrap(), batch, "{op:?}");
            }
        }
    }

    #[test]
    fn a_route_needs_the_neighbour_of_its_hop_if_it_is_set_in_the_same_batch() {
        let elsewhere = Hop {
            via: Some("192.0.2.1".parse().unwrap()),
            ..hop()
        };
        let set = Op::Neighbour(neighbour(), Some(Mac([1; 6])));
        let clear = Op::Neighbour(neighbour(), None);
        let other = route(RouteKind::Unicast(elsewhere.clone()));
        let direct = route(RouteKind::Unicast(Hop { via: None, ..hop() }));
        let one = route(RouteKind::Unicast(hop()));
        let two = route(RouteKind::Multipath(vec![elsewhere, hop()]));
        for (ops, needs) in [
            (vec![set.clone(), one.clone()], vec![None, Some(0)]),
            (
                vec![direct.clone(), set.clone(), two],
                vec![None, None, Some(1)],
            ),
            (vec![set, other, direct], vec![None, None, None]),
            (vec![clear, one], vec![None, None]),
        ] {
            let mut steps = Steps::new(9, 1);
            steps.extend(ops.into_iter());
            let [batch] = Vec::from(steps.into_batches()).try_into().unwrap();
            let got: Vec<_> = batch.iter().map(|step| step.needs).collect();
            assert_eq!(got, needs);
        }
    }

    #[test]
    fn what_does_not_fit_goes_into_the_next_batch_and_needs_nothing_of_the_former() {
        let set = Op::Neighbour(neighbour(), Some(Mac([1; 6])));
        let one = route(RouteKind::Unicast(hop()));
        let mut steps = Steps::new(2, 2);
        let ops = [set, one.clone(), one.clone(), one.clone(), one];
        steps.extend(ops.clone().into_iter());
        let batches = steps.into_batches();
        let needs = batches.iter().map(|batch| {
            let needs = batch.iter().map(|step| step.needs);
            needs.collect::<Vec<_>>()
        });
        let needs: Vec<_> = needs.collect();
        assert_eq!(needs, [[None, Some(0)], [None, None]]);
        let made: Vec<Op> = batches.into_iter().flatten().map(|step| step.op).collect();
        assert_eq!(made, ops[..4]);
    }

    #[test]
    fn a_step_too_large_for_any_batch_is_not_in_the_way() {
        let huge = route(RouteKind::Multipath(vec![
            hop();
            codec::MAX_LEN / HOP_LEN + 1
        ]));
        let small = Op::Neighbour(neighbour(), None);
        let mut steps = Steps::new(9, 2);
        steps.extend([huge, small.clone()].into_iter());
        let [batch] = Vec::from(steps.into_batches()).try_into().unwrap();
        let ops: Vec<_> = batch.into_iter().map(|step| step.op).collect();
        assert_eq!(ops, [small]);
    }
}
