//! How long routes that nobody wants are spared on interfaces of workloads that are new. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ipc_proto::LinkRole;

use super::{
    event::{Config, Route},
    kernel::Routes,
    model::Links,
};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Graces {
    period: Duration,
    /// Until when, by the index of the interface; none once a route on it was wanted.
    until: BTreeMap<u32, Option<Instant>>,
}

impl Graces {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            period: Duration::from_secs(config.cleanup_grace_period_s),
            until: BTreeMap::new(),
        }
    }

    /// Takes in all interfaces.
    pub(super) fn see(&mut self, links: &Links, now: Instant) {
        let mut former = std::mem::take(&mut self.until);
        for state in links
            .values()
            .filter(|state| state.role == LinkRole::Workload)
        {
            let index = state.link.index;
            let until = former.remove(&index);
            self.until
                .insert(index, until.unwrap_or(Some(now + self.period)));
        }
    }

    /// Takes in what is wanted.
    pub(super) fn end(&mut self, wanted: &Routes, links: &Links) {
        for route in wanted.values() {
            if let Some(until) = index(route, links).and_then(|index| self.until.get_mut(&index)) {
                *until = None;
            }
        }
    }

    /// Returns whether a route is spared.
    pub(super) fn spares(&self, route: &Route, links: &Links, now: Instant) -> bool {
        let until = index(route, links).and_then(|index| self.until.get(&index));
        until.copied().flatten().is_some_and(|until| now < until)
    }
}

fn index(route: &Route, links: &Links) -> Option<u32> {
    let mut links = links.keys();
    let link = links.find(|link| link.name.as_str() == route.dev)?;
    Some(link.index)
}
