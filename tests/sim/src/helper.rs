//! The helper's process around its real policy, table of interfaces and order of steps.
//!
//! A request is served in two halves, between which anything can happen to the kernel: interfaces
//! are read and the rest after them; steps are checked and carried out after that.

mod watch;
mod write;

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

use ipc_proto::{
    Ack, Batch, Feed, FlowsDone, Incarnation, Known, Lane, Lease, LinkState, Mac, Many, Observed,
    Op, OpError, Sum, VERSION, Welcome,
};
use ipnet::IpNet;
use privhelper::{
    links::{Links, Unseen},
    order::{self, Checked},
    policy::Policy,
};

use super::{
    bug::Bug,
    kernel::{Device, Disturbed, Entry, Kernel},
    rules::{Broken, Sight, Watchman},
    tally::Tally,
};

/// What arrives at the helper, in order.
#[derive(Clone, Debug)]
pub(super) enum Arrival {
    Hello(Known),
    Apply(Batch),
    /// A batch of who is gone.
    Late(Batch),
    /// The client is gone.
    End,
}

/// What the helper says, in order.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Welcome(Welcome, Vec<Observed>),
    Ack(Ack),
    Flushed(FlowsDone),
    Refused,
    Feed(Feed),
    /// It is gone.
    Closed,
}

/// The second half of a request.
#[derive(Debug)]
enum Job {
    Read {
        states: Vec<LinkState>,
        feed: u64,
        known: Known,
    },
    CarryOut {
        batch: Batch,
        checked: Vec<Checked>,
        /// The interfaces by which they were, before and after one looked stale.
        links: Box<[Links; 2]>,
        late: bool,
    },
}

/// What goes wrong with writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// How many writes fail.
    pub(super) failing: u8,
    /// Whether those are made nonetheless.
    pub(super) made: bool,
    /// After how many writes the process dies.
    pub(super) fuse: Option<u8>,
}

/// What the helper works on.
pub(super) struct Ground<'a> {
    pub(super) kernel: &'a mut Kernel,
    pub(super) policy: &'a Policy,
    pub(super) faults: &'a mut Faults,
    pub(super) watchman: &'a mut Watchman,
    pub(super) tally: &'a mut Tally,
    pub(super) max_steps: u32,
    pub(super) bug: Option<Bug>,
}

/// How a half went.
#[derive(Debug)]
pub(super) enum Served {
    Nothing,
    HalfDone,
    Answer(Message),
    Died,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Helper {
    incarnation: u64,
    bug: Option<Bug>,
    links: Links,
    /// The devices that the table shows.
    seen: BTreeMap<u32, Device>,
    lease: Option<Lease>,
    job: Option<Job>,
    /// What the thread for flows has to do.
    flushes: VecDeque<(Batch, Vec<Checked>)>,
    pub(super) arrivals: VecDeque<Arrival>,
    leases: u64,
    /// Whether a loss of an interface's state went unseen.
    pub(super) missed_loss: bool,
    remembered: BTreeMap<(u32, IpAddr), Entry<Mac>>,
}

impl Helper {
    pub(super) fn new(
        incarnation: u64,
        kernel: &mut Kernel,
        policy: &Policy,
        bug: Option<Bug>,
    ) -> Self {
        let mut helper = Self {
            incarnation,
            bug,
            links: Links::default(),
            seen: BTreeMap::new(),
            lease: None,
            job: None,
            flushes: VecDeque::new(),
            arrivals: VecDeque::new(),
            leases: 0,
            missed_loss: false,
            remembered: BTreeMap::new(),
        };
        helper.read_links(kernel, policy);
        // It listens from now on.
        kernel.others.clear();
        helper
    }

    /// Returns whether the lease is the present one.
    pub(super) fn grants(&self, lease: Lease) -> bool {
        self.lease == Some(lease)
    }

    pub(super) fn has_work(&self) -> bool {
        self.job.is_some() || !self.arrivals.is_empty() || !self.flushes.is_empty()
    }

    /// Goes half of the way with a request.
    pub(super) fn serve(&mut self, ground: &mut Ground<'_>) -> Result<Served, Broken> {
        match self.job.take() {
            Some(Job::Read {
                states,
                feed,
                known,
            }) => Ok(Served::Answer(self.welcome(states, feed, &known, ground))),
            Some(Job::CarryOut {
                batch,
                checked,
                links,
                late,
            }) => Ok(match self.carry_out(&batch, &checked, links, ground)? {
                Served::Answer(_) if late => Served::HalfDone,
                served
                @ (Served::Nothing | Served::HalfDone | Served::Answer(_) | Served::Died) => served,
            }),
            None => match self.arrivals.pop_front() {
                // Flows take longer than anything else.
                None => match self.flushes.pop_front() {
                    None => Ok(Served::Nothing),
                    Some((batch, checked)) => {
                        let links = Box::new([self.links.view(), self.links.view()]);
                        self.carry_out(&batch, &checked, links, ground)
                    }
                },
                Some(Arrival::End) => {
                    self.lease = None;
                    Ok(Served::HalfDone)
                }
                Some(Arrival::Hello(known)) => {
                    self.lease = None;
                    self.read_links(ground.kernel, ground.policy);
                    let (states, feed) = self.links.snapshot();
                    ground.kernel.disturbed = Disturbed::default();
                    self.job = Some(Job::Read {
                        states,
                        feed,
                        known,
                    });
                    Ok(Served::HalfDone)
                }
                Some(Arrival::Apply(batch)) => Ok(self.apply(batch, false, ground)),
                Some(Arrival::Late(batch)) => Ok(match self.apply(batch, true, ground) {
                    Served::Answer(_) => Served::HalfDone,
                    served @ (Served::Nothing | Served::HalfDone | Served::Died) => served,
                }),
            },
        }
    }

    fn welcome(
        &mut self,
        states: Vec<LinkState>,
        feed: u64,
        known: &Known,
        ground: &mut Ground<'_>,
    ) -> Message {
        let mut links = Links::default();
        links.update(states.iter().cloned(), &Unseen::default());
        let mut observed: Vec<Observed> = states.into_iter().map(Observed::Link).collect();
        if ground.bug == Some(Bug::NeighboursByMemory) {
            let mut remembering = ground.kernel.clone();
            remembering.neighbours.clone_from(&self.remembered);
            observed.extend(remembering.observe(ground.policy, &links));
        } else {
            observed.extend(ground.kernel.observe(ground.policy, &links));
        }
        if ground.bug == Some(Bug::OthersRoutes) {
            let keys = ground.kernel.routes.keys().cloned();
            observed.extend(keys.map(|key| Observed::KernelRoute(key, None)));
        }
        if ground.bug == Some(Bug::OthersAddresses) {
            observed.extend(ground.kernel.strange_addresses(ground.policy, &links));
        }
        leave_out_known(&mut observed, known, ground);
        self.leases += 1;
        let lease = Lease(self.incarnation << 32 | self.leases);
        self.lease = Some(lease);
        ground.tally.add("leases");
        let welcome = Welcome {
            version: VERSION,
            incarnation: Incarnation(self.incarnation),
            lease,
            max_steps: ground.max_steps,
            bpf_max_entries: u32::try_from(ground.kernel.bpf_max_entries).unwrap_or(u32::MAX),
            feed,
        };
        Message::Welcome(welcome, observed)
    }

    fn apply(&mut self, batch: Batch, late: bool, ground: &mut Ground<'_>) -> Served {
        if self.lease != Some(batch.lease) && ground.bug != Some(Bug::OldLease) {
            ground.tally.add("batches refused");
            return Served::Answer(Message::Refused);
        }
        let first = self.links.view();
        let mut refreshed = false;
        let mut checked = Vec::with_capacity(batch.steps.len());
        for step in &batch.steps {
            let ask = |links: &Links| ground.policy.check(batch.lane, step.op.clone(), links);
            let mut verdict = ask(&self.links);
            if matches!(verdict, Err(OpError::StaleLink(_))) && !refreshed {
                refreshed = true;
                self.read_links(ground.kernel, ground.policy);
                verdict = ask(&self.links);
            }
            if ground.bug == Some(Bug::NeighboursByMemory)
                && let (Op::Neighbour(key, to), Ok(_)) = (&step.op, &verdict)
            {
                let key = (key.link.index, key.address);
                match *to {
                    Some(to) => self.remembered.insert(
                        key,
                        Entry {
                            to,
                            permanent: true,
                        },
                    ),
                    None => self.remembered.remove(&key),
                };
            }
            if verdict.is_err() {
                ground.watchman.fault();
            }
            checked.push((step.needs, verdict));
        }
        if batch.lane == Lane::Flows {
            let id = batch.id;
            let verdicts = (0..).zip(&checked);
            let failed = verdicts
                .filter_map(|(at, (_, verdict))| Some((at, verdict.as_ref().err()?.clone())))
                .collect();
            self.flushes.push_back((batch, checked));
            return Served::Answer(Message::Ack(Ack { id, failed }));
        }
        self.job = Some(Job::CarryOut {
            batch,
            checked,
            links: Box::new([first, self.links.view()]),
            late,
        });
        Served::HalfDone
    }

    fn carry_out(
        &self,
        batch: &Batch,
        checked: &[Checked],
        links: Box<[Links; 2]>,
        ground: &mut Ground<'_>,
    ) -> Result<Served, Broken> {
        let sight = Sight {
            checked: links,
            latest: self.links.view(),
        };
        let mut broken = Ok(());
        let mut died = false;
        let failed = order::carry_out(checked, |group, outcomes| {
            for permitted in group.ops() {
                if broken.is_err() || ground.faults.fuse == Some(0) {
                    died = true;
                    break;
                }
                if let Some(fuse) = &mut ground.faults.fuse {
                    *fuse -= 1;
                }
                match write::write(permitted, &sight, ground) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(rule) => broken = Err(rule),
                }
            }
        });
        broken?;
        if died || ground.faults.fuse == Some(0) {
            ground.tally.add("helper died among writes");
            return Ok(Served::Died);
        }
        ground.tally.add("batches");
        ground.tally.add_many("steps", batch.steps.len());
        for (_, error) in &failed {
            ground.tally.add(match error {
                OpError::Denied(_) => "denied",
                OpError::StaleLink(_) => "stale",
                OpError::Kernel { .. } => "kernel refused",
                OpError::NotTried(_) => "not tried",
                OpError::Unsupported(_) => "unsupported",
            });
        }
        let (lease, id) = (batch.lease, batch.id);
        Ok(Served::Answer(match batch.lane {
            Lane::State => Message::Ack(Ack { id, failed }),
            Lane::Flows => Message::Flushed(FlowsDone { lease, id, failed }),
        }))
    }
}

/// Leaves out what is as who asked knows it.
fn leave_out_known(observed: &mut Vec<Observed>, known: &Known, ground: &mut Ground<'_>) {
    for many in [Many::BpfV4, Many::BpfV6, Many::KernelRoutes] {
        let Some(claimed) = known.of(many) else {
            continue;
        };
        let mut sum = Sum::default();
        for item in observed.iter().filter(|item| kind(item) == Some(many)) {
            sum.add_observed(known.seed, item);
        }
        if sum == claimed || ground.bug == Some(Bug::SumUnread) {
            ground.tally.add("kinds read back as known");
            observed.retain(|item| kind(item) != Some(many));
            observed.push(Observed::AsKnown(many));
        } else {
            ground.tally.add("kinds read back otherwise than known");
        }
    }
}

/// Returns which of the kinds of which there are many an item is of.
fn kind(item: &Observed) -> Option<Many> {
    match item {
        Observed::BpfRoute(IpNet::V4(_), _) => Some(Many::BpfV4),
        Observed::BpfRoute(IpNet::V6(_), _) => Some(Many::BpfV6),
        Observed::KernelRoute(..) => Some(Many::KernelRoutes),
        Observed::Link(_)
        | Observed::LinkSettings(..)
        | Observed::TunnelDevice(..)
        | Observed::Neighbour(..)
        | Observed::Fdb(..)
        | Observed::LinkAddress(..)
        | Observed::Endpoint(..)
        | Observed::Attachment(_)
        | Observed::Rule(_)
        | Observed::AsKnown(_)
        | Observed::Rivals(_) => None,
    }
}
