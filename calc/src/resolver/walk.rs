//! The way from the widest prefix to one, and what it gathers.
//!
//! Each step adds what the resources say of one prefix to what is known from those around it, so a
//! prefix costs one step whatever it lies in.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    index::{Index, NodeId, User},
    prefix::{self, Family, PrefixMap},
    route::{PoolKind, Route, Tunnels, Types},
};

/// What the resources say of exactly one prefix, and the route that follows.
#[derive(Debug, Default)]
pub(super) struct Record {
    pool: Option<PoolTraits>,
    /// Who owns it by IPAM.
    block: Option<NodeId>,
    /// Who has it otherwise: rare where addresses come in blocks.
    holders: Option<Box<Holders>>,
    pub(super) route: Option<Route<NodeId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolTraits {
    kind: PoolKind,
    nat_outgoing: bool,
    cross_subnet: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Holders {
    /// The node that has it as a host.
    host: Option<NodeId>,
    user: Option<User>,
}

impl Record {
    /// Reads what the resources say of a prefix, by the `owner` of exactly that.
    pub(super) fn read(cidr: &IpNet, owner: Option<NodeId>, index: &Index) -> Self {
        let host = prefix::single(cidr)
            .and_then(|a| index.nodes.host_owner(a))
            .and_then(|name| index.names.find(name));
        let user = index.user(cidr);
        let held = host.is_some() || user.is_some();
        Self {
            pool: index.pools.get(cidr).map(|pool| PoolTraits {
                kind: pool.kind(),
                nat_outgoing: pool.nat_outgoing,
                cross_subnet: pool.cross_subnet(),
            }),
            block: owner,
            holders: held.then(|| Box::new(Holders { host, user })),
            route: None,
        }
    }

    /// One of which nothing but its route is known.
    pub(super) fn told(route: Option<Route<NodeId>>) -> Self {
        Self {
            route,
            ..Self::default()
        }
    }

    /// Takes over all but the route; returns whether anything changed.
    pub(super) fn update(&mut self, desired: Self) -> bool {
        let same = self.pool == desired.pool
            && self.block == desired.block
            && self.holders == desired.holders;
        let route = self.route.take();
        *self = Self { route, ..desired };
        !same
    }

    /// Returns whether no resource names the prefix.
    pub(super) fn is_vacant(&self) -> bool {
        self.pool.is_none() && self.block.is_none() && self.holders.is_none()
    }
}

/// The prefixes that lead to the one last visited, widest first.
#[derive(Debug)]
pub(super) struct Path<'a> {
    index: &'a Index,
    /// This node's own subnets, IPv4 and IPv6.
    subnets: [Option<IpNet>; 2],
    steps: Vec<(IpNet, State)>,
}

impl<'a> Path<'a> {
    pub(super) fn new(index: &'a Index) -> Self {
        Self {
            index,
            subnets: Family::ALL.map(|family| index.nodes.main(index.own, family)),
            steps: Vec::new(),
        }
    }

    /// Goes to just before `root`, which comes after all that was visited.
    pub(super) fn enter(&mut self, root: IpNet, records: &PrefixMap<Record>) {
        // What contains both the last one and `root` is on the path already.
        let shared = self
            .steps
            .last()
            .and_then(|(last, _)| shared_length(last, &root));
        let missing: Vec<_> = records
            .covering_from(root, shared.map_or(0, |shared| shared.saturating_add(1)))
            .collect();
        for (cidr, record) in missing.into_iter().rev() {
            self.step(cidr, record);
        }
    }

    /// Visits a prefix, the next after the last one; returns the route that follows.
    pub(super) fn visit(&mut self, cidr: IpNet, record: &Record) -> Option<Route<NodeId>> {
        let (state, named) = self.step(cidr, record);
        if prefix::single(&cidr).is_some_and(|a| a.is_unspecified()) {
            return None;
        }
        match named {
            Named::Nothing => None,
            Named::Pool => Some(state.pool_route()),
            Named::Node => Some(self.route(&state, &cidr, record)),
        }
    }

    fn step(&mut self, cidr: IpNet, record: &Record) -> (State, Named) {
        let outside = |(around, _): &mut (IpNet, State)| {
            shared_length(around, &cidr) != Some(around.prefix_len())
        };
        while self.steps.pop_if(outside).is_some() {}
        let mut state = self
            .steps
            .last()
            .map_or_else(State::default, |(_, state)| *state);
        let named = state.add(record, self.index.own);
        self.steps.push((cidr, state));
        (state, named)
    }

    /// Returns the route of a prefix that a node has (L14 to L16).
    fn route(&self, state: &State, cidr: &IpNet, record: &Record) -> Route<NodeId> {
        let family = Family::of_net(cidr);
        let main = |id| self.index.nodes.main(id, family);
        let node_ip = state.node.and_then(main).map(|net| net.addr());
        let subnet = family.of_both(&self.subnets);
        let in_own_subnet =
            |address: &IpAddr| subnet.as_ref().is_some_and(|own| own.contains(address));
        let any = |a, b| state.types.contains(a) || state.types.contains(b);
        let is_host = any(Types::LOCAL_HOST, Types::REMOTE_HOST);
        let is_tunnel = any(Types::LOCAL_TUNNEL, Types::REMOTE_TUNNEL);
        let block_counts = !is_host && (!is_tunnel || record.block.is_some());
        Route {
            types: if block_counts {
                state.types.with(state.block_types)
            } else {
                state.types
            },
            pool: state.pool,
            node: state.node,
            node_ip,
            same_subnet: state.cross_subnet && node_ip.as_ref().is_some_and(in_own_subnet),
            nat_outgoing: state.nat_outgoing,
            local_workload: state.types.contains(Types::LOCAL_WORKLOAD),
            borrowed: state.borrowed,
            tunnels: state.tunnels,
        }
    }
}

/// Returns how many leading bits two prefixes have in common; nothing if they are of two families.
fn shared_length(a: &IpNet, b: &IpNet) -> Option<u8> {
    let same = match (a, b) {
        (IpNet::V4(a), IpNet::V4(b)) => (u32::from(a.addr()) ^ u32::from(b.addr())).leading_zeros(),
        (IpNet::V6(a), IpNet::V6(b)) => {
            (u128::from(a.addr()) ^ u128::from(b.addr())).leading_zeros()
        }
        (IpNet::V4(_), IpNet::V6(_)) | (IpNet::V6(_), IpNet::V4(_)) => return None,
    };
    let shortest = a.prefix_len().min(b.prefix_len());
    Some(u8::try_from(same).map_or(shortest, |same| same.min(shortest)))
}

/// What the resources name a prefix as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// Nothing that counts.
    Nothing,
    /// A pool and nothing else.
    Pool,
    /// A node's, or a workload's on it.
    Node,
}

/// What is known from the prefixes so far.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    pool: PoolKind,
    nat_outgoing: bool,
    cross_subnet: bool,
    /// Who has it by the innermost prefix that says so.
    node: Option<NodeId>,
    /// The owner of the outermost block.
    block: Option<NodeId>,
    block_types: Types,
    borrowed: bool,
    /// All but blocks.
    types: Types,
    tunnels: Tunnels,
}

impl State {
    /// Adds what is said of one more prefix, seen from the node `own` (L10 to L13).
    fn add(&mut self, record: &Record, own: NodeId) -> Named {
        let mut named = Named::Nothing;
        if let Some(pool) = record.pool {
            named = Named::Pool;
            if pool.kind != PoolKind::None {
                self.pool = pool.kind;
            }
            self.nat_outgoing |= pool.nat_outgoing;
            self.cross_subnet |= pool.cross_subnet;
        }
        if let Some(owner) = record.block {
            named = Named::Node;
            self.differs_from_block(owner);
            self.block.get_or_insert(owner);
            self.block_types = self.block_types.with(if owner == own {
                Types::LOCAL_WORKLOAD
            } else {
                Types::REMOTE_WORKLOAD
            });
            self.node = Some(owner);
        }
        let Some(holders) = &record.holders else {
            return named;
        };
        if let Some(host) = holders.host {
            named = Named::Node;
            self.types = self.types.with(if host == own {
                Types::LOCAL_HOST
            } else {
                Types::REMOTE_HOST
            });
            self.node = Some(host);
        }
        if let Some(user) = holders.user
            && !self.waits(user)
        {
            named = Named::Node;
            // The block around a tunnel's end says nothing of it (L14).
            if user.workload || record.block.is_some() {
                self.differs_from_block(user.node);
            }
            self.types = self.types.with(match (user.node == own, user.workload) {
                (true, true) => Types::LOCAL_WORKLOAD,
                (false, true) => Types::REMOTE_WORKLOAD,
                (true, false) => Types::LOCAL_TUNNEL,
                (false, false) => Types::REMOTE_TUNNEL,
            });
            if !user.workload {
                self.tunnels = user.tunnels;
            }
            self.node = Some(user.node);
        }
        named
    }

    /// The target of a live migration has its address only once no other node has it.
    fn waits(&self, user: User) -> bool {
        user.waits && self.node.is_some_and(|node| node != user.node)
    }

    fn differs_from_block(&mut self, node: NodeId) {
        self.borrowed |= self.block.is_some_and(|block| block != node);
    }

    /// Returns the route of a prefix that is nothing but a pool's: it tells of pools alone, whatever it
    /// lies in.
    fn pool_route(&self) -> Route<NodeId> {
        Route {
            pool: self.pool,
            nat_outgoing: self.nat_outgoing,
            ..Route::default()
        }
    }
}
