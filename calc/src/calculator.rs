//! From events to what should be. Pure: it knows the policy and no time.
//!
//! What should be follows from what is present, whatever the order in which it came. Each call
//! computes only what the changes since the last one touch.

use std::net::IpAddr;

use ipc_proto::Op;
use ipnet::IpNet;

use crate::{
    event::Event,
    index::Index,
    kind::{self, Kind, World},
    resolver::Resolver,
    route::Route,
};

/// See the [module](self).
#[derive(Debug)]
pub struct Calculator {
    index: Index,
    resolver: Resolver,
    kinds: Vec<Box<dyn Kind>>,
}

impl Calculator {
    /// Starts with an empty datastore and no interfaces, for the node of this name.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self {
            index: Index::new(node),
            resolver: Resolver::default(),
            kinds: kind::all(),
        }
    }

    /// Takes in a change. Nothing is computed before [`resolve`](Self::resolve).
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Links(states) => {
                for change in self.index.links.replacements(states) {
                    self.take_in(Event::Link(change));
                }
            }
            event @ (Event::Node(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Config(_)
            | Event::Services(_)
            | Event::Link(_)) => self.take_in(event),
        }
    }

    fn take_in(&mut self, event: Event) {
        if self.index.holds(&event) {
            return;
        }
        self.resolver.on_event(&event, &self.index);
        for kind in &mut self.kinds {
            kind.on_event(&event, &self.index);
        }
        self.index.apply(event);
    }

    /// Computes what the changes since the last call touched, and returns what should be: one op
    /// for each key whose desired value has changed, kind by kind in the order in which they are to
    /// be made.
    pub fn resolve(&mut self) -> Vec<Op> {
        let changed = self.resolver.resolve(&self.index);
        let world = World {
            index: &self.index,
            routes: &self.resolver,
            changed: &changed,
        };
        let mut ops = Vec::new();
        for kind in &mut self.kinds {
            kind.resolve_batch(&world, &mut ops);
        }
        ops
    }

    /// The graph's routes as of the last [`resolve`](Self::resolve), in order.
    pub fn routes(&self) -> impl Iterator<Item = (&IpNet, &Route)> {
        self.resolver.routes()
    }

    /// Returns whether a tunnel device is wanted that has not been seen up with its address: more
    /// will be wanted then.
    #[must_use]
    pub fn awaits_tunnel(&self) -> bool {
        kind::tunnel_awaited(&self.index)
    }

    /// This host's own addresses that others can send to, ascending: node ports are served on them.
    pub fn host_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.index.links.local_addresses()
    }
}
