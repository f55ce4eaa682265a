//! Why the recorded program has something else than Cairn, which has what it should. Pure.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt};

use ipc_proto::Mac;

use super::{
    check::text,
    event::{Config, Route},
    model::{is_ours, is_workload, safe},
    owners::Owner,
};
use crate::vectors::Rule;

/// A key under which the routes differ.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own that a rule asks for"
)]
pub(super) struct Difference<'a> {
    pub(super) config: &'a Config,
    pub(super) cairn: Option<&'a Route>,
    pub(super) felix: Option<&'a Route>,
    /// What was there before Cairn's apply.
    pub(super) before: Option<&'a Route>,
    /// What Cairn wants there.
    pub(super) wanted: Option<&'a Route>,
    /// What Cairn wants for the prefix under any metric.
    pub(super) winner: Option<&'a Route>,
    /// What the recorded program wants there.
    pub(super) asked: Option<&'a Route>,
    /// What the recorded program had there after the step before.
    pub(super) last: Option<&'a Route>,
    /// Why that differed.
    pub(super) carried: Option<Rule>,
    /// Whether the recorded program knows the interfaces of all of these as they are.
    pub(super) told: bool,
    /// What others have left of the prefix since the recorded program listed all routes.
    pub(super) unseen: Option<&'a [Route]>,
    /// Whether others have changed it since Cairn has read.
    pub(super) unread: bool,
    /// Whether the recorded program spares its route, though nobody wants it.
    pub(super) spared: bool,
    /// Whether Cairn waits before it tries again what failed.
    pub(super) waits: bool,
}

impl Difference<'_> {
    /// Returns the rule by which Cairn's is the better one, if there is one.
    pub(super) fn rule(&self) -> Option<Rule> {
        let rules = [
            self.others(),
            self.not_looked(),
            self.as_asked(),
            self.left_over(),
        ];
        let rule = rules.into_iter().flatten().next();
        rule.or_else(|| self.carried.filter(|_| self.felix == self.last))
    }

    /// Another program's route is where the recorded one has or had its own.
    fn others(&self) -> Option<Rule> {
        let others = |route: &Route| !is_ours(route, self.config);
        let stays = self.cairn.is_some_and(others) && self.cairn == self.before;
        let took = self.felix.is_some()
            || self.last.is_some()
            || self.carried == Some(Rule::OthersRoutesStay);
        (stays && took && self.felix == self.asked).then_some(Rule::OthersRoutesStay)
    }

    /// One of both has not seen yet what others have done.
    fn not_looked(&self) -> Option<Rule> {
        let left = |unseen: &[Route]| self.felix.is_none_or(|felix| unseen.contains(felix));
        if self.cairn == self.wanted && self.felix != self.asked && self.unseen.is_some_and(left) {
            return Some(Rule::RepairsSooner);
        }
        let unread = self.unread && self.cairn == self.before && self.felix == self.asked;
        unread.then_some(Rule::ReadWhenAsked)
    }

    /// The recorded program has what it wants.
    fn as_asked(&self) -> Option<Rule> {
        if self.felix != self.asked {
            return None;
        }
        match (self.felix, self.cairn) {
            (Some(felix), Some(cairn)) if *cairn == with_scope(felix, cairn.scope) => {
                // Only what leads nowhere or several ways has no scope of its own.
                (cairn.gw.is_none() && cairn.dev.is_empty()).then_some(Rule::ScopeOfKind)
            }
            (Some(felix), Some(cairn))
                if cairn.proto == safe(self.config)
                    && *cairn == with_protocol(felix, cairn)
                    && !self.is_marked(felix) =>
            {
                Some(Rule::SafeProtocol)
            }
            (Some(_), None) if self.wanted.is_none() && self.winner.is_some() => {
                Some(Rule::OneRoutePerPrefix)
            }
            (Some(_), None) if self.wanted.is_some() && self.waits => Some(Rule::BackOff),
            _ if !self.told && self.cairn == self.wanted => Some(Rule::LinksAlwaysTold),
            _ => None,
        }
    }

    /// The recorded program has lost what it wants, or has what it does not want.
    fn left_over(&self) -> Option<Rule> {
        if self.felix == self.asked || self.cairn != self.wanted {
            return None;
        }
        if !self.told && (self.felix.is_none() || self.felix == self.last) {
            return Some(Rule::LinksAlwaysTold);
        }
        let felix = self.felix?;
        let as_found = self.felix == self.last || self.felix == self.before;
        (self.spared && as_found && is_ours(felix, self.config)).then_some(Rule::GraceSinceSeen)
    }

    /// Returns whether the interface of a route marks it as ours.
    fn is_marked(&self, route: &Route) -> bool {
        route.dev == self.config.vxlan_iface || is_workload(&route.dev, self.config)
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, route) in [
            ("there is", self.cairn),
            ("recorded", self.felix),
            ("before", self.before),
            ("wanted", self.wanted),
            ("of the prefix", self.winner),
            ("asked for", self.asked),
            ("recorded last", self.last),
        ] {
            write!(f, "\n  {what} {}", text(route))?;
        }
        let Self {
            carried,
            told,
            unread,
            spared,
            waits,
            ..
        } = self;
        write!(
            f,
            "\n  carried {carried:?} told {told} unseen {:?} unread {unread} spared {spared} \
             waits {waits}",
            self.unseen
        )
    }
}

fn with_scope(route: &Route, scope: u8) -> Route {
    Route {
        scope,
        ..route.clone()
    }
}

/// Returns a route with the protocol of another, and its scope where that is of no matter.
fn with_protocol(route: &Route, other: &Route) -> Route {
    let nowhere = route.gw.is_none() && route.dev.is_empty();
    Route {
        proto: other.proto,
        scope: if nowhere { other.scope } else { route.scope },
        ..route.clone()
    }
}

/// An address whose flows one of both has forgotten.
#[derive(Clone, Debug)]
pub(super) struct Flush<'a> {
    /// Whether it is the recorded program.
    pub(super) felix: bool,
    /// Who has had it since Cairn last forgot its flows.
    pub(super) past: &'a BTreeSet<Owner>,
    /// Who shall have it.
    pub(super) now: &'a BTreeSet<Owner>,
}

impl Flush<'_> {
    /// Returns the rule by which Cairn is the one that is right, if there is one.
    pub(super) fn rule(&self) -> Option<Rule> {
        let former: Vec<&Owner> = self.past.difference(self.now).collect();
        match (self.felix, former.as_slice()) {
            (false, []) => None,
            (false, [Owner::Unknown]) => Some(Rule::FlushAtStart),
            (false, _) => Some(Rule::OwedFlush),
            (true, []) if self.past.is_empty() => Some(Rule::NothingToForget),
            (true, []) => Some(Rule::SameOwner),
            (true, _) => None,
        }
    }
}

/// A neighbour that differs: an address on an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    pub(super) cairn: Option<Mac>,
    pub(super) felix: Option<Mac>,
    /// What the recorded program had after the step before.
    pub(super) last: Option<Mac>,
    /// Whether the recorded program knows the interface as it is.
    pub(super) told: bool,
    /// Whether what the recorded program has was ever asked for.
    pub(super) asked: bool,
}

impl Neighbour {
    /// Returns the rule by which Cairn's is the better one, if there is one.
    pub(super) fn rule(&self) -> Option<Rule> {
        match (self.felix, self.cairn) {
            (Some(_), None) if self.asked => Some(Rule::NeighbourGoes),
            (_, Some(_)) if !self.told && self.felix == self.last => Some(Rule::LinksAlwaysTold),
            _ => None,
        }
    }
}
