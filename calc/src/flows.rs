//! Addresses that change hands: their flows are to be forgotten before the new owner gets a route.
//!
//! For each single address it knows whose flows the kernel may track: of every owner that a route of
//! it led to, as read or as sent, until a flush has ended. That is all the memory there is, so no
//! failed delete, reading or restart of a flush loses an obligation. Pure; it holds up nothing but
//! routes of the same address, and those only until a deadline.

mod owner;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::{Duration, Instant},
};

use ipc_proto::{Batch, BatchId, FlowsDone, Lane, Lease, LinkRole, LinkState, Op, OpError, Step};

pub(crate) use self::owner::{Owner, Pods, is_others, of_bpf, of_kernel};
use crate::{delta::Actual, reading::Reading, table::backoff};

/// How long a new owner waits for the flows of the former one to be forgotten.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long the helper has for a flush: longer than for any answer.
const FLUSH_TIMEOUT: Duration = Duration::from_mins(1);

/// One route of an address: to whom it should lead, and to whom it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// Whether it should be there for something else than a pod, as a node's own address is.
    pub(crate) is_others: bool,
    /// Whether it is a kernel route, which tells who the owner is where routes disagree: two pods
    /// claim the address.
    pub(crate) decides: bool,
    /// Whom it should lead to, if to anybody.
    pub(crate) desired: Option<Owner>,
    /// Whom it leads to, if there is one and it leads to anybody.
    pub(crate) actual: Actual<Option<Owner>>,
}

/// Where the routes of an address are looked up.
pub(crate) trait Leads {
    /// Returns all routes of the address.
    fn leads(&self, address: IpAddr, pods: &Pods) -> Vec<Lead>;
    /// Returns whether, without a route of its own, the address should lead to pods of another node.
    fn is_elsewhere(&self, address: IpAddr) -> bool;
}

/// What may be done with a change of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It may be made.
    Open,
    /// Not yet.
    Shut,
    /// Not yet, and what there is in its place leads to the former owner and must go.
    Break,
}

/// An address whose former owner's flows are to be forgotten.
#[derive(Clone, Debug, Default)]
struct Duty {
    /// Who waits for it, since when.
    desired: BTreeSet<Owner>,
    since: Option<Instant>,
    /// A route still leads, or may lead, to a former owner.
    blocked: bool,
    /// When to try again what failed, how often it did, and why at last.
    not_before: Option<Instant>,
    attempts: u32,
    error: Option<OpError>,
    /// Nobody waits for it any more.
    overdue: bool,
}

/// Flushes that have not ended.
#[derive(Debug)]
struct Flight {
    lease: Lease,
    id: BatchId,
    addresses: Vec<IpAddr>,
    until: Instant,
    /// The batch is answered: it has begun. Its end may be heard of before.
    acked: bool,
    done: Option<FlowsDone>,
}

/// What came of a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nobody has the address, and nothing is left of who had it.
    Clean(IpAddr),
    /// The new owner got its route although the flows of the former one may be there.
    Kept(IpAddr, Option<OpError>),
    /// They are forgotten after all.
    Forgotten(IpAddr),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// Whose flows may be tracked.
    past: BTreeMap<IpAddr, BTreeSet<Owner>>,
    duties: BTreeMap<IpAddr, Duty>,
    /// Addresses of which an entry could not be read, and that were then something else than a pod's, as a
    /// node's own is, whose flows must stay. It may have been a pod's before: nothing is owed until one
    /// gets it.
    others: BTreeSet<IpAddr>,
    /// Addresses to be looked at again.
    dirty: BTreeSet<IpAddr>,
    /// Addresses of which routes are being set, and how many.
    setting: BTreeMap<IpAddr, usize>,
    flight: Option<Flight>,
    pods: Pods,
    /// Whether this process has written anything.
    started: bool,
    /// Nobody's flows are of any interest.
    off: bool,
}

impl Flows {
    /// Owes nothing to anybody from here on.
    pub(crate) fn turn_off(&mut self) {
        *self = Self {
            off: true,
            ..Self::default()
        };
    }

    /// Takes in that it is known to be wanted otherwise than before.
    pub(crate) fn want(&mut self, op: &Op) {
        self.dirty.extend(owner::address(op));
    }

    /// Takes in an interface.
    pub(crate) fn link(&mut self, state: &LinkState) {
        if state.role == LinkRole::Workload {
            self.pods.insert(state.link.index);
        }
    }

    /// Takes in all that the helper has read.
    pub(crate) fn observed(&mut self, reading: &Reading) {
        self.flight = None;
        for state in &reading.links {
            self.link(state);
        }
        if self.off {
            return;
        }
        for (address, owner) in owner::read(reading, &self.pods) {
            self.past.entry(address).or_default().insert(owner);
        }
        self.dirty.extend(self.past.keys());
    }

    /// Takes in that a change is sent.
    pub(crate) fn sent(&mut self, op: &Op) {
        if let Some((address, Some(owner))) = owner::set(op, &self.pods).filter(|_| !self.off) {
            self.past.entry(address).or_default().insert(owner);
            *self.setting.entry(address).or_default() += 1;
        }
    }

    /// Takes in that a change was not sent after all.
    pub(crate) fn unsent(&mut self, op: &Op) {
        if let Some(address) = owner::address(op) {
            self.ended(address, op);
        }
    }

    /// Takes in that a change was made, or why not, or that neither is known.
    pub(crate) fn settled(&mut self, now: Instant, op: &Op, failed: Option<&OpError>) {
        let Some(address) = owner::address(op) else {
            return;
        };
        self.ended(address, op);
        if let (Some(error), Some(duty)) = (failed, self.duties.get_mut(&address)) {
            duty.fail(now, error.clone());
        }
    }

    /// Takes in that a change is under way no longer.
    fn ended(&mut self, address: IpAddr, op: &Op) {
        if let (Some((_, Some(_))), Some(count)) =
            (owner::set(op, &self.pods), self.setting.get_mut(&address))
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.setting.remove(&address);
            }
        }
        self.dirty.insert(address);
    }

    /// Forgets what is under way: the helper may carry it out or not.
    pub(crate) fn restart(&mut self) {
        self.flight = None;
        self.dirty.extend(mem::take(&mut self.setting).into_keys());
    }

    /// Takes in that this process begins to write: where it is to set the first route of a pod, one
    /// that ended after it cleared the route of another may have left flows.
    pub(crate) fn start(&mut self, sets: impl Iterator<Item = Op>) {
        if mem::replace(&mut self.started, true) || self.off {
            return;
        }
        for op in sets {
            if let Some((address, Some(Owner::Here(_)))) = owner::set(&op, &self.pods) {
                let past = self.past.entry(address).or_default();
                if past.is_empty() {
                    past.insert(Owner::Unknown);
                }
                self.dirty.insert(address);
            }
        }
    }

    /// Sees what has come of time and of all that was taken in.
    pub(crate) fn review(&mut self, now: Instant, routes: &impl Leads, news: &mut Vec<News>) {
        for address in mem::take(&mut self.dirty) {
            self.look_at(now, address, routes);
        }
        if self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.until <= now)
        {
            self.flight = None;
        }
        for (address, duty) in &mut self.duties {
            duty.not_before = duty.not_before.filter(|at| *at > now);
            let waits_long = duty.since.is_some_and(|since| since + DEADLINE <= now);
            if waits_long && !mem::replace(&mut duty.overdue, true) {
                news.push(News::Kept(*address, duty.error.clone()));
            }
        }
    }

    /// Sees whether flows of an address are to be forgotten, and whether that can begin.
    fn look_at(&mut self, now: Instant, address: IpAddr, routes: &impl Leads) {
        let Some(past) = self.past.get(&address) else {
            return;
        };
        let leads = routes.leads(address, &self.pods);
        let desired = desired(&leads);
        let is_known = past.iter().any(|owner| *owner != Owner::Unknown);
        if !is_known && desired.is_empty() {
            if leads.iter().any(|lead| lead.is_others) {
                self.others.insert(address);
            }
            if self.others.contains(&address) {
                self.duties.remove(&address);
                return;
            }
        }
        self.others.remove(&address);
        // Whom a route of its own led to may have it by that of its block.
        let same_by_block = desired.is_empty()
            && past.iter().all(|owner| *owner == Owner::Elsewhere)
            && routes.is_elsewhere(address);
        if past.is_subset(&desired) || same_by_block {
            self.duties.remove(&address);
            return;
        }
        let leads_astray = |lead: &Lead| match lead.actual {
            Actual::Absent | Actual::Is(None) => false,
            Actual::Is(Some(owner)) => !desired.contains(&owner),
            Actual::Wrong => true,
        };
        let duty = self.duties.entry(address).or_default();
        duty.blocked = self.setting.contains_key(&address) || leads.iter().any(leads_astray);
        duty.since = (!desired.is_empty()).then(|| duty.since.unwrap_or(now));
        duty.desired = desired;
    }

    /// Returns what may be done with a change; `actual` is whom the route that there is leads to.
    pub(crate) fn gate(
        &self,
        op: &Op,
        actual: impl FnOnce(&Pods) -> Actual<Option<Owner>>,
    ) -> Gate {
        if self.duties.is_empty() {
            return Gate::Open;
        }
        let Some((address, Some(_))) = owner::set(op, &self.pods) else {
            return Gate::Open;
        };
        let Some(duty) = self.duties.get(&address).filter(|duty| !duty.overdue) else {
            return Gate::Open;
        };
        let leads_astray = match actual(&self.pods) {
            Actual::Absent | Actual::Is(None) => false,
            Actual::Is(Some(owner)) => !duty.desired.contains(&owner),
            Actual::Wrong => true,
        };
        if leads_astray && duty.not_before.is_none() {
            Gate::Break
        } else {
            Gate::Shut
        }
    }

    /// Returns the flushes that can begin.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        lease: Lease,
        id: BatchId,
        max: usize,
    ) -> Option<Batch> {
        if self.flight.is_some() {
            return None;
        }
        let due = self
            .duties
            .iter()
            .filter(|(_, duty)| !duty.blocked && duty.not_before.is_none());
        let addresses: Vec<IpAddr> = due.map(|(address, _)| *address).take(max).collect();
        if addresses.is_empty() {
            return None;
        }
        let step = |address: &IpAddr| Step {
            op: Op::FlowFlush(*address),
            needs: None,
        };
        let steps = addresses.iter().map(step).collect();
        self.flight = Some(Flight {
            lease,
            id,
            addresses,
            until: now + FLUSH_TIMEOUT,
            acked: false,
            done: None,
        });
        Some(Batch {
            lease,
            lane: Lane::Flows,
            id,
            steps,
        })
    }

    /// Returns whether a batch is not answered yet.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| !flight.acked)
    }

    /// Takes in that a batch is answered. Returns its end, if that was heard of before.
    pub(crate) fn acked(&mut self, id: BatchId) -> Option<FlowsDone> {
        let flight = self.flight.as_mut().filter(|flight| flight.id == id)?;
        flight.acked = true;
        flight.done.take()
    }

    /// Takes in that flushes have ended.
    pub(crate) fn done(
        &mut self,
        now: Instant,
        done: FlowsDone,
        routes: &impl Leads,
        news: &mut Vec<News>,
    ) {
        let is_that = |flight: &mut Flight| (flight.lease, flight.id) == (done.lease, done.id);
        let Some(mut flight) = self.flight.take_if(is_that) else {
            return;
        };
        if !flight.acked {
            flight.done = Some(done);
            self.flight = Some(flight);
            return;
        }
        let mut failed: BTreeMap<u32, OpError> = done.failed.into_iter().collect();
        for (at, address) in (0..).zip(flight.addresses) {
            // It may have changed hands meanwhile.
            self.dirty.remove(&address);
            self.look_at(now, address, routes);
            let Some(duty) = self.duties.get_mut(&address) else {
                continue;
            };
            let error = failed.remove(&at);
            match error {
                Some(error) if error.is_transient() => duty.fail(now, error),
                _ if duty.blocked => {}
                error => self.fulfil(address, error, routes, news),
            }
        }
    }

    /// Ends a duty: it is done, or can never be.
    fn fulfil(
        &mut self,
        address: IpAddr,
        error: Option<OpError>,
        routes: &impl Leads,
        news: &mut Vec<News>,
    ) {
        let Some(duty) = self.duties.remove(&address) else {
            return;
        };
        let leads = routes.leads(address, &self.pods);
        let present: BTreeSet<Owner> = leads
            .iter()
            .filter_map(|lead| match lead.actual {
                Actual::Is(owner) => owner,
                Actual::Absent | Actual::Wrong => None,
            })
            .collect();
        if present.is_empty() {
            self.past.remove(&address);
        } else {
            self.past.insert(address, present);
        }
        match error {
            Some(error) => news.push(News::Kept(address, Some(error))),
            None if duty.overdue => news.push(News::Forgotten(address)),
            None if duty.desired.is_empty() => news.push(News::Clean(address)),
            None => {}
        }
    }

    /// Returns when there is something to do if nothing happens. Never is that in the past.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let flight = self.flight.as_ref().map(|flight| flight.until);
        let duties = self.duties.values().flat_map(|duty| {
            let deadline = duty.since.filter(|_| !duty.overdue);
            [duty.not_before, deadline.map(|since| since + DEADLINE)]
        });
        duties.chain([flight]).flatten().min()
    }

    /// Returns the addresses whose new owner waits.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = IpAddr> {
        let waits = |duty: &Duty| !duty.overdue && !duty.desired.is_empty();
        let duties = self.duties.iter();
        duties
            .filter(move |(_, duty)| waits(duty))
            .map(|(address, _)| *address)
    }

    /// Returns the addresses whose new owner got its route although flows of the former one may be
    /// there, and why.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = (IpAddr, Option<&OpError>)> {
        let overdue = self.duties.iter().filter(|(_, duty)| duty.overdue);
        overdue.map(|(address, duty)| (*address, duty.error.as_ref()))
    }
}

/// Returns who should have the address of these routes.
fn desired(leads: &[Lead]) -> BTreeSet<Owner> {
    let of = |decides| {
        let leads = leads.iter().filter(move |lead| lead.decides == decides);
        leads.filter_map(|lead| lead.desired).collect()
    };
    let decided: BTreeSet<Owner> = of(true);
    if decided.is_empty() {
        of(false)
    } else {
        decided
    }
}

impl Duty {
    fn fail(&mut self, now: Instant, error: OpError) {
        self.not_before = Some(now + backoff(self.attempts));
        self.attempts = self.attempts.saturating_add(1);
        self.error = Some(error);
    }
}
