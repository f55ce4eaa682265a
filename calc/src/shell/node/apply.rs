//! An apply: from what has come in to what is asked of the helper, phase by phase.
//!
//! What came in waits for the gate of the datastore and for a token; nothing is lost meanwhile, it
//! is one apply. Answers of the helper wait for no token: a load of many batches goes on as fast as
//! it is answered. The gate of the interfaces is the reconciler's: it asks for nothing but a reading
//! before it has one.

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use ipc_proto::{Op, Tunnel};
use tokio::sync::mpsc;

use super::Node;
use crate::{
    dataplane::Request,
    event::Event,
    load,
    reconciler::{Input, Output},
};

impl Node {
    /// Does what follows from what has come in, as far as it may. Returns whether it has applied.
    pub(in crate::shell) fn settle(&mut self, now: Instant) -> bool {
        let admitted = self.admit(now);
        let answered = mem::take(&mut self.news.answer);
        if admitted {
            self.apply(now);
        } else if answered || self.complete.is_none() {
            self.send(now);
        }
        self.publish(now);
        admitted
    }

    /// Takes in how long an apply took.
    pub(in crate::shell) fn took(&mut self, time: Duration) {
        self.throttle.took(time);
    }

    /// Returns when to [`settle`](Self::settle) again if nothing happens.
    pub(in crate::shell) fn poll_timeout(&self) -> Option<Instant> {
        // A timer that is over counts as long as it is not looked at.
        if self.throttled {
            self.throttle.next()
        } else {
            self.timer()
        }
    }

    /// Whether to apply now: the datastore has been read, there is a cause, and there is a token.
    fn admit(&mut self, now: Instant) -> bool {
        let reading = mem::take(&mut self.news.reading);
        if self.complete.is_none() {
            // Nothing follows from them yet.
            self.hear_links(now);
            return false;
        }
        let is_due = self.news.input || self.timer().is_some_and(|at| at <= now);
        let admitted = is_due && (reading || self.throttle.admit(now));
        let throttled = is_due && !admitted;
        if self.throttled != throttled {
            self.throttled = throttled;
            tracing::debug!(throttled, "changes come faster than they are applied");
        }
        admitted
    }

    /// Returns when one of the cores has something to do if nothing happens. Before the datastore
    /// has been read, none has.
    fn timer(&self) -> Option<Instant> {
        self.complete?;
        let timers = [
            self.reconciler.poll_timeout(),
            self.convergence.poll_timeout(),
            self.refresh.due(),
        ];
        timers.into_iter().flatten().min()
    }

    /// The phases, in order. What fails in one of them keeps none of the others from being done.
    fn apply(&mut self, now: Instant) {
        self.news.input = false;
        self.applies += 1;
        self.end_convergence(now);
        self.hear_links(now);
        self.resolve(now);
        self.begin_reading(now);
        self.send(now);
    }

    /// The cores hear of changes of interfaces.
    pub(super) fn hear_links(&mut self, now: Instant) {
        for event in self.links.drain(..) {
            self.reconciler.handle(now, Input::Link(event.clone()));
            self.calculator.handle(Event::Link(event));
        }
    }

    /// Workloads that moved here long enough ago are like any other from now on.
    fn end_convergence(&mut self, now: Instant) {
        for event in self.convergence.poll(now) {
            self.calculator.handle(event);
        }
    }

    /// Each kind resolves what is marked, in their order, and the reconciler is told what should be.
    ///
    /// Without this node in the datastore nothing is touched: everything on it would look like a
    /// leftover or another node's.
    fn resolve(&mut self, now: Instant) {
        let Some(complete) = self.complete else {
            return;
        };
        if !self.calculator.knows_own_node() {
            self.obstacles.set([format!(
                "the datastore has no Node {}, so nothing is changed on this host: correct \
                 node_name in calc.toml, or add the Node",
                self.name
            )]);
            return;
        }
        let syncs = self.calculator.syncs_routes();
        self.reconciler.handle(now, Input::RouteSync(syncs));
        let peers = self.calculator.bgp_peers();
        self.reconciler.handle(now, Input::BgpPeers(peers));
        let Self {
            calculator,
            reconciler,
            requests,
            ..
        } = self;
        let mut wanted = load::resolve(calculator, reconciler, |output| {
            ask(requests.as_ref(), output);
        });
        let tunnels: BTreeSet<Tunnel> = self.calculator.tunnels().collect();
        wanted.retain(|op| {
            let Op::TunnelDevice(tunnel, device) = op else {
                return true;
            };
            let stays = device.is_none() && tunnels.contains(tunnel);
            if stays {
                self.kept.insert(*tunnel);
            } else {
                self.kept.remove(tunnel);
            }
            !stays
        });
        let over = self
            .kept
            .extract_if(.., |tunnel| !tunnels.contains(tunnel))
            .map(|tunnel| Op::TunnelDevice(tunnel, None));
        wanted.extend(over);
        if let Err(error) = self.reconciler.want_all(wanted) {
            tracing::error!("{error}");
        }
        // Before the first lease, no interface is known.
        if self.reconciler.resyncs() > 0 {
            self.obstacles.set(self.calculator.obstacles());
        }
        // While an obstacle hides what a device is made of, it is no leftover.
        let complete = complete && !self.calculator.lacks_uplink();
        self.reconciler.handle(now, Input::InSync { complete });
    }

    /// If it is time, what comes next is a reading of the kernel.
    fn begin_reading(&mut self, now: Instant) {
        if self.refresh.due().is_some_and(|at| at <= now) {
            self.refresh.stop();
            self.reconciler.handle(now, Input::Resync);
        }
    }

    /// Has nothing more sent of what follows by itself, if that is no longer right.
    pub(super) fn call_back(&mut self) {
        if let Some(output) = self.reconciler.call_back() {
            ask(self.requests.as_ref(), output);
        }
    }

    /// Asks the helper for all that can be asked at present, and tells others what has come of what
    /// was asked before. The rest follows its answers.
    fn send(&mut self, now: Instant) {
        let mut clean = Vec::new();
        while let Some(output) = self.reconciler.poll(now) {
            match output {
                Output::AddressClean(address) => clean.push(address),
                Output::Notice(notice) => self.notice(&notice),
                Output::Hello(_) => {
                    self.begun = self.asked;
                    ask(self.requests.as_ref(), output);
                }
                Output::Apply(_) | Output::Follow(_) | Output::Recall => {
                    ask(self.requests.as_ref(), output);
                }
            }
        }
        self.tell(&clean);
    }
}

/// Asks the helper for what is to be asked.
fn ask(requests: Option<&mpsc::UnboundedSender<Request>>, output: Output) {
    let request = match output {
        Output::Hello(known) => Request::Hello(known),
        Output::Apply(batch) => Request::Apply(batch),
        Output::Follow(batch) => Request::Follow(batch),
        Output::Recall => Request::Recall,
        Output::Notice(_) | Output::AddressClean(_) => return,
    };
    if let Some(requests) = requests {
        // If the connection has just ended, this is about to be told.
        drop(requests.send(request));
    }
}
