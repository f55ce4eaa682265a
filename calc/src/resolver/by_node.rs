//! The prefixes of the routes to each node. Few changes ask for them, so they are looked for only then.

use ipnet::IpNet;

use crate::{
    index::NodeId,
    prefix::{PrefixMap, Run},
    route::Route,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct ByNode {
    /// By the place of the node's number.
    routes: Vec<PrefixMap<()>>,
}

impl ByNode {
    /// The prefixes of the routes to a node, in order.
    pub(super) fn get(&self, node: NodeId) -> impl Iterator<Item = IpNet> {
        let routes = self.routes.get(node.place()).into_iter();
        routes.flat_map(|routes| routes.iter().map(|(cidr, ())| cidr))
    }

    /// Returns how many routes there are to a node.
    pub(super) fn count(&self, node: NodeId) -> usize {
        self.routes.get(node.place()).map_or(0, PrefixMap::len)
    }
}

/// What becomes of routes, in order. Those that come are noted together, when all are known.
#[derive(Debug)]
pub(super) struct Moves<'a> {
    /// Nothing where nobody has asked for them.
    by_node: Option<&'a mut ByNode>,
    come: Vec<(NodeId, IpNet)>,
}

impl<'a> Moves<'a> {
    /// Starts to note what becomes of routes, where that is `by_node`.
    pub(super) fn new(by_node: Option<&'a mut ByNode>) -> Self {
        Self {
            by_node,
            come: Vec::new(),
        }
    }

    pub(super) fn note(
        &mut self,
        cidr: IpNet,
        former: Option<&Route<NodeId>>,
        desired: Option<&Route<NodeId>>,
    ) {
        let Some(by_node) = &mut self.by_node else {
            return;
        };
        let [former, desired] = [former, desired].map(|route| route.and_then(|route| route.node));
        if former == desired {
            return;
        }
        if let Some(former) = former
            && let Some(routes) = by_node.routes.get_mut(former.place())
        {
            routes.remove(&cidr);
        }
        if let Some(desired) = desired {
            self.come.push((desired, cidr));
        }
    }

    pub(super) fn finish(self) {
        let Some(ByNode { routes: all }) = self.by_node else {
            return;
        };
        let end = self.come.iter().map(|(node, _)| node.place() + 1).max();
        if let Some(end) = end.filter(|end| *end > all.len()) {
            all.resize_with(end, PrefixMap::default);
        }
        if self.come.len() < all.len() {
            for (node, cidr) in self.come {
                if let Some(routes) = all.get_mut(node.place()) {
                    routes.insert(cidr, ());
                }
            }
            return;
        }
        let mut groups = vec![Run::default(); all.len()];
        for (node, cidr) in self.come {
            if let Some(group) = groups.get_mut(node.place()) {
                group.push(cidr, ());
            }
        }
        for (routes, come) in all.iter_mut().zip(groups) {
            routes.absorb(come);
        }
    }
}
