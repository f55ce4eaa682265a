//! All routes, computed for the first time: in one pass over what the resources name, part by part.

use ipnet::IpNet;

use super::{
    Resolver,
    walk::{Path, Record},
};
use crate::{
    index::{Index, NodeId, Owners},
    prefix::{PrefixMap, Run},
    route::Route,
};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Building<'a> {
    index: &'a Index,
    named: std::vec::IntoIter<IpNet>,
    owners: Option<Owners<'a>>,
    path: Path<'a>,
    run: Run<Record>,
    records: &'a mut PrefixMap<Record>,
}

impl Resolver {
    /// Returns whether nothing has been computed: no resource has named a prefix so far.
    pub(crate) fn is_new(&self) -> bool {
        self.told.is_none() && self.records.len() == 0
    }

    /// Returns how many prefixes are to be looked at, those that are named more than once be it as often.
    pub(crate) fn touched_len(&self) -> usize {
        self.touched.len()
    }

    /// Starts to compute all routes, where [nothing was](Self::is_new). To be [ended](Building::end).
    pub(crate) fn build<'a>(&'a mut self, index: &'a Index) -> Building<'a> {
        // All is computed, whatever has changed.
        self.dirty.take();
        self.by_node.take();
        let named = self.touched.take();
        let mut run = Run::default();
        run.reserve(named.len());
        Building {
            index,
            named: named.into_iter(),
            owners: index.block_owners(),
            path: Path::new(index),
            run,
            records: &mut self.records,
        }
    }
}

impl Building<'_> {
    /// Returns how many prefixes have not been looked at.
    pub(crate) fn left(&self) -> usize {
        self.named.len()
    }

    /// Looks at `count` prefixes more, and tells of the routes that there are.
    pub(crate) fn add(&mut self, count: usize, mut tell: impl FnMut(IpNet, Route<NodeId>)) {
        for cidr in self.named.by_ref().take(count) {
            let owner = self.owners.as_mut().and_then(|owners| owners.of(&cidr));
            let mut record = Record::read(&cidr, owner, self.index);
            if record.is_vacant() {
                continue;
            }
            // What contains it has come before.
            record.route = self.path.visit(cidr, &record);
            if let Some(route) = record.route {
                tell(cidr, route);
            }
            self.run.push(cidr, record);
        }
    }

    /// Keeps what was computed.
    pub(crate) fn end(self) {
        self.records.absorb(self.run);
    }
}
