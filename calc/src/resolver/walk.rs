//! The way from the widest prefix to one, and what it gathers.
//!
//! Each step adds what the resources say of one prefix to what is known from those around it, so a
//! prefix costs one step whatever it lies in.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    index::{Index, User},
    prefix::{self, Family, PrefixMap},
    route::{NodeName, PoolKind, Route, Tunnels, Types},
};

/// What the resources say of exactly one prefix, and the route that follows.
#[derive(Debug, Default)]
pub(super) struct Record {
    pool: Option<PoolTraits>,
    /// Who owns it by IPAM.
    block: Option<NodeName>,
    /// Who has it otherwise: rare where addresses come in blocks.
    holders: Option<Box<Holders>>,
    pub(super) route: Option<Route>,
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
    host: Option<NodeName>,
    user: Option<User>,
}

impl Record {
    pub(super) fn read(cidr: &IpNet, index: &Index) -> Self {
        let host = prefix::single(cidr)
            .and_then(|a| index.nodes.host_owner(a))
            .cloned();
        let user = index.user(cidr);
        let held = host.is_some() || user.is_some();
        Self {
            pool: index.pools.get(cidr).map(|pool| PoolTraits {
                kind: pool.kind(),
                nat_outgoing: pool.nat_outgoing,
                cross_subnet: pool.cross_subnet(),
            }),
            block: index.block_owner(cidr).cloned(),
            holders: held.then(|| Box::new(Holders { host, user })),
            route: None,
        }
    }

    /// One of which nothing but its route is known.
    pub(super) fn told(route: Option<Route>) -> Self {
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
#[derive(Debug, Default)]
pub(super) struct Path(Vec<(IpNet, State)>);

impl Path {
    /// Goes to just before `root`, which comes after all that was visited.
    pub(super) fn enter(&mut self, root: IpNet, records: &PrefixMap<Record>, index: &Index) {
        // What contains both the last one and `root` is on the path already.
        let shared = self
            .0
            .last()
            .and_then(|(last, _)| shared_length(last, &root));
        let missing: Vec<_> = records
            .covering_from(root, shared.map_or(0, |shared| shared.saturating_add(1)))
            .collect();
        for (cidr, record) in missing.into_iter().rev() {
            self.step(*cidr, record, index);
        }
    }

    /// Visits a prefix, the next after the last one; returns the route that follows.
    pub(super) fn visit(&mut self, cidr: IpNet, record: &Record, index: &Index) -> Option<Route> {
        let state = self.step(cidr, record, index);
        if record.is_vacant() || prefix::single(&cidr).is_some_and(|a| a.is_unspecified()) {
            return None;
        }
        Some(state.route(&cidr, record, index))
    }

    fn step(&mut self, cidr: IpNet, record: &Record, index: &Index) -> &State {
        let outside = |(around, _): &mut (IpNet, State)| !around.contains(&cidr);
        while self.0.pop_if(outside).is_some() {}
        let mut state = self
            .0
            .last()
            .map_or_else(State::default, |(_, state)| state.clone());
        state.add(record, &index.name);
        &self.0.push_mut((cidr, state)).1
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

/// What is known from the prefixes so far.
#[derive(Clone, Debug, Default)]
struct State {
    pool: PoolKind,
    nat_outgoing: bool,
    cross_subnet: bool,
    /// Who has it by the innermost prefix that says so.
    node: Option<NodeName>,
    /// The owner of the outermost block.
    block: Option<NodeName>,
    block_types: Types,
    borrowed: bool,
    /// All but blocks.
    types: Types,
    tunnels: Tunnels,
}

impl State {
    /// Adds what is said of one more prefix, seen from the node `own` (L10 to L13).
    fn add(&mut self, record: &Record, own: &str) {
        if let Some(pool) = record.pool {
            if pool.kind != PoolKind::None {
                self.pool = pool.kind;
            }
            self.nat_outgoing |= pool.nat_outgoing;
            self.cross_subnet |= pool.cross_subnet;
        }
        if let Some(owner) = &record.block {
            self.differs_from_block(owner);
            self.block.get_or_insert_with(|| NodeName::clone(owner));
            self.block_types = self.block_types.with(if **owner == *own {
                Types::LOCAL_WORKLOAD
            } else {
                Types::REMOTE_WORKLOAD
            });
            self.node = Some(NodeName::clone(owner));
        }
        let Some(holders) = &record.holders else {
            return;
        };
        if let Some(host) = &holders.host {
            self.types = self.types.with(if **host == *own {
                Types::LOCAL_HOST
            } else {
                Types::REMOTE_HOST
            });
            self.node = Some(NodeName::clone(host));
        }
        if let Some(user) = &holders.user {
            // The block around a tunnel's end says nothing of it (L14).
            if user.workload || record.block.is_some() {
                self.differs_from_block(&user.node);
            }
            self.types = self.types.with(match (*user.node == *own, user.workload) {
                (true, true) => Types::LOCAL_WORKLOAD,
                (false, true) => Types::REMOTE_WORKLOAD,
                (true, false) => Types::LOCAL_TUNNEL,
                (false, false) => Types::REMOTE_TUNNEL,
            });
            if !user.workload {
                self.tunnels = user.tunnels;
            }
            self.node = Some(NodeName::clone(&user.node));
        }
    }

    fn differs_from_block(&mut self, node: &NodeName) {
        self.borrowed |= self.block.as_ref().is_some_and(|block| block != node);
    }

    /// Returns the route of the prefix last added (L14 to L16). A prefix that is nothing but a pool's
    /// tells of pools alone, whatever it lies in.
    fn route(&self, cidr: &IpNet, record: &Record, index: &Index) -> Route {
        if record.block.is_none() && record.holders.is_none() {
            return Route {
                pool: self.pool,
                nat_outgoing: self.nat_outgoing,
                ..Route::default()
            };
        }
        let family = Family::of_net(cidr);
        let main = |name: &str| index.nodes.get(name)?.main(family);
        let node_ip = self.node.as_deref().and_then(main).map(|net| net.addr());
        let in_own_subnet =
            |address: &IpAddr| main(&index.name).is_some_and(|own| own.contains(address));
        let any = |a, b| self.types.contains(a) || self.types.contains(b);
        let is_host = any(Types::LOCAL_HOST, Types::REMOTE_HOST);
        let is_tunnel = any(Types::LOCAL_TUNNEL, Types::REMOTE_TUNNEL);
        let block_counts = !is_host && (!is_tunnel || record.block.is_some());
        Route {
            types: if block_counts {
                self.types.with(self.block_types)
            } else {
                self.types
            },
            pool: self.pool,
            node: self.node.clone(),
            node_ip,
            same_subnet: self.cross_subnet && node_ip.as_ref().is_some_and(in_own_subnet),
            nat_outgoing: self.nat_outgoing,
            local_workload: self.types.contains(Types::LOCAL_WORKLOAD),
            borrowed: self.borrowed,
            tunnels: self.tunnels,
        }
    }
}
