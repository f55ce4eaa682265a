//! What Cairn did in a step beside what the recorded program did.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::Mac;

use super::{
    Outcome,
    check::Applied,
    differ::{Difference, Flush, Neighbour},
    kernel::{Key, Neighbours, Routes},
    model::Asked,
    node::Node,
};
use crate::vectors::Rule;

impl Node<'_> {
    /// Compares what was done with what the recorded program did, and returns the rule for each
    /// difference, or what has none.
    pub(super) fn compare(
        &mut self,
        applied: &Applied<'_>,
        felix: Outcome,
    ) -> Vec<Result<Rule, String>> {
        let mut found = self.compare_routes(applied, &felix.routes);
        found.extend(self.compare_neighbours(applied, &felix.neighbours));
        let [flushed, _] = &applied.flushed;
        if self.config.conntrack_cleanup {
            for address in flushed.symmetric_difference(&felix.flushed) {
                let flush = Flush {
                    felix: felix.flushed.contains(address),
                    past: &applied.past.of(address),
                    now: &applied.owners.get(address).cloned().unwrap_or_default(),
                };
                let unexplained = || format!("flows of {address}: {flush:?}");
                found.push(flush.rule().ok_or_else(unexplained));
            }
        }
        // Where another program's route stays, that is told as a failure.
        let refused: Vec<&String> = applied.refused().collect();
        if felix.ok != refused.is_empty() {
            found.push(Err(format!(
                "all was made: {}, in Cairn failed: {refused:?}",
                felix.ok
            )));
        }
        if felix.writes.is_some_and(|writes| writes != applied.writes) {
            found.push(Err(format!(
                "routes were written {} times, should be {:?}",
                applied.writes, felix.writes
            )));
        }
        self.recorded.routes = felix.routes;
        self.recorded.neighbours = felix.neighbours;
        found
    }

    fn compare_routes(
        &mut self,
        applied: &Applied<'_>,
        felix: &Routes,
    ) -> Vec<Result<Rule, String>> {
        let asked: Vec<Asked<'_>> = self.model.asked().collect();
        let asked = self.recorded.want(&asked, self.config);
        let keys: BTreeSet<&Key> = applied.after.keys().chain(felix.keys()).collect();
        let differ = |key: &&Key| applied.after.get(*key) != felix.get(*key);
        let mut differed = BTreeMap::new();
        let mut found = Vec::new();
        for key in keys.into_iter().filter(differ) {
            let difference = self.difference(applied, felix, &asked, key);
            let rule = difference.rule();
            differed.extend(rule.map(|rule| (*key, rule)));
            found.push(rule.ok_or_else(|| difference.to_string()));
        }
        self.recorded.differed = differed;
        found
    }

    fn difference<'b>(
        &'b self,
        applied: &'b Applied<'_>,
        felix: &'b Routes,
        asked: &'b Routes,
        key: &Key,
    ) -> Difference<'b> {
        let (cairn, felix) = (applied.after.get(key), felix.get(key));
        let (wanted, asked) = (applied.wanted.get(key), asked.get(key));
        let mut wants = applied.wanted.values();
        let devs = [cairn, felix, wanted, asked].into_iter().flatten();
        let mut devs = devs.map(|route| route.dev.as_str());
        Difference {
            config: self.config,
            cairn,
            felix,
            before: applied.before.get(key),
            wanted,
            winner: wants.find(|route| (route.dst, route.tos) == (key.0, key.1)),
            asked,
            last: self.recorded.routes.get(key),
            carried: self.recorded.differed.get(key).copied(),
            told: devs.all(|dev| dev.is_empty() || self.recorded.knows(dev, &applied.links)),
            unseen: self.recorded.unseen(&key.0),
            unread: applied.unread(key),
            spared: felix.is_some_and(|route| self.recorded.spares(route, self.config, self.now)),
            waits: applied.failed.contains_key(key) || applied.contested.contains(key),
        }
    }

    fn compare_neighbours(
        &self,
        applied: &Applied<'_>,
        felix: &Neighbours,
    ) -> Vec<Result<Rule, String>> {
        let [cairn, _] = &applied.neighbours;
        let keys: BTreeSet<_> = cairn.keys().chain(felix.keys()).collect();
        let differ = |key: &&(String, IpAddr)| cairn.get(*key) != felix.get(*key);
        let mut found = Vec::new();
        for key in keys.into_iter().filter(differ) {
            let of = |neighbours: &Neighbours| -> Option<Mac> { neighbours.get(key).copied() };
            let neighbour = Neighbour {
                cairn: of(cairn),
                felix: of(felix),
                last: of(&self.recorded.neighbours),
                told: self.recorded.knows(&key.0, &applied.links),
                asked: self.recorded.was_asked(key, of(felix)),
            };
            let unexplained = || format!("neighbour {key:?}: {neighbour:?}");
            found.push(neighbour.rule().ok_or_else(unexplained));
        }
        found
    }
}
