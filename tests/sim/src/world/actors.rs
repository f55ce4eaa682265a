//! What the processes do when it is their turn.

use ipc_proto::Lane;
use supervisor::machine::{Action, Child, Input};

use super::{Process, World};
use crate::{
    bug::Bug,
    helper::{Arrival, Ground, Helper, Message, Served},
    kernel::Key,
    node::Node,
    peers,
    rules::{Broken, broken},
};

impl World {
    pub(super) fn deliver(&mut self, from: u8) {
        if !self.stalled
            && let Some(node) = self.node.as_mut().filter(|node| !node.hung)
            && node.body.is_behind(&self.datastore)
        {
            node.body.deliver(self.now, &self.datastore, from);
        }
    }

    /// `calc` connects. While the helper is being restarted it waits in the socket's queue.
    pub(super) fn connect(&mut self) {
        let now = self.now;
        if self.is_connected() || self.live_helper_ref().is_none() {
            return;
        }
        let peer = self.helper.as_ref().map(|helper| helper.incarnation);
        if let Some(node) = self.live_node() {
            node.connect(now);
            self.peer = peer;
            self.messages.clear();
        }
    }

    /// The connection ends. What is in the helper's queue will still be done.
    pub(super) fn disconnect(&mut self) {
        self.messages.clear();
        if self.is_served()
            && let Some(helper) = &mut self.helper
        {
            helper.body.arrivals.push_back(Arrival::End);
        }
        if let Some(node) = &mut self.node {
            node.body.disconnect(self.now);
        }
    }

    pub(super) fn hear(&mut self) -> Result<(), Broken> {
        let now = self.now;
        if self.node.as_ref().is_none_or(|node| node.hung) {
            return Ok(());
        }
        let Some(message) = self.messages.pop_front() else {
            return Ok(());
        };
        if let Message::Ack(ack) = &message {
            self.late_acks.push(ack.clone());
        }
        let Some(node) = self.live_node().filter(|node| node.connected) else {
            return Ok(());
        };
        if let Err(why) = node.hear(now, message) {
            self.tally.add(match why {
                "gap" => "gaps noticed",
                _ => "connections ended",
            });
            self.disconnect();
            return Ok(());
        }
        let (sent, is_late) = node.go_on(now)?;
        if !sent.is_empty() {
            self.tally.add(if is_late {
                "batches called back too late"
            } else {
                "batches that follow by themselves"
            });
        }
        self.post(sent, is_late)
    }

    pub(super) fn think(&mut self) -> Result<(), Broken> {
        let now = self.now;
        let Some(node) = self.live_node() else {
            return Ok(());
        };
        let sent = node.think(now)?;
        if node.throttled {
            self.tally.add("applies put off");
        }
        self.post(sent, false)?;
        self.tell_ready();
        Ok(())
    }

    /// Brings requests to the helper. Those that were called back too late are what was wanted a moment ago.
    fn post(&mut self, sent: Vec<Arrival>, is_late: bool) -> Result<(), Broken> {
        for arrival in sent {
            if let Arrival::Apply(batch) = &arrival {
                if batch.lane == Lane::State {
                    self.watch_batch(batch, is_late)?;
                }
                self.late.push(batch.clone());
            }
            if self.is_served()
                && let Some(helper) = &mut self.helper
            {
                helper.body.arrivals.push_back(arrival);
            }
        }
        Ok(())
    }

    fn watch_batch(&mut self, batch: &ipc_proto::Batch, is_late: bool) -> Result<(), Broken> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        let node = &node.body;
        if !is_late {
            peers::sent(
                &batch.steps,
                &node.peers,
                &node.wanted.ever,
                &self.kernel,
                &self.policy,
            )?;
        }
        let ipv6 = |prefix: &ipnet::IpNet| matches!(prefix, ipnet::IpNet::V6(_));
        let is_crowded = [false, true].into_iter().any(|family| {
            let here = self
                .kernel
                .bpf
                .keys()
                .filter(|prefix| ipv6(prefix) == family);
            let new =
                node.wanted.bpf.iter().filter(|prefix| {
                    ipv6(prefix) == family && !self.kernel.bpf.contains_key(*prefix)
                });
            here.count() + new.count() > self.kernel.bpf_max_entries
        });
        let disturbed = self.kernel.disturbed.keys.iter();
        let excused = is_late
            || is_crowded
            || node
                .reconciler
                .counts(ipc_proto::view::Kind::BpfRoutes)
                .held
                > 0
            || disturbed.into_iter().any(|key| matches!(key, Key::Bpf(_)));
        let waiting = node.reconciler.waiting_for_flows().collect();
        self.watchman.sent(
            &batch.steps,
            &node.wanted.bpf,
            &self.kernel,
            excused,
            node.disputed(),
            &waiting,
        );
        Ok(())
    }

    /// `calc` is ready when it holds a lease.
    fn tell_ready(&mut self) {
        if let Some(node) = &mut self.node
            && !node.ready
            && node.body.reconciler.is_connected()
        {
            node.ready = true;
            let seen = Input::Seen(Child::Calc, node.incarnation);
            self.supervisor
                .inputs
                .extend([Input::Ready(Child::Calc), seen]);
        }
    }

    pub(super) fn serve(&mut self) -> Result<(), Broken> {
        let Some(helper) = self.helper.as_mut().filter(|helper| !helper.hung) else {
            return Ok(());
        };
        let served = helper.body.serve(&mut Ground {
            kernel: &mut self.kernel,
            policy: &self.policy,
            faults: &mut self.faults,
            watchman: &mut self.watchman,
            tally: &mut self.tally,
            max_steps: self.setup.max_steps.into(),
            bug: self.bug,
        })?;
        self.note_loss();
        match served {
            Served::Nothing | Served::HalfDone => {}
            Served::Answer(message) => {
                if matches!(message, Message::Welcome(..)) && std::mem::take(&mut self.is_new) {
                    self.kernel.orphan_flows(&self.policy);
                }
                // An answer to who is gone goes nowhere; who came after has asked nothing yet.
                let orphaned = self.helper.as_ref().is_some_and(|helper| {
                    let mut arrivals = helper.body.arrivals.iter();
                    arrivals.any(|arrival| matches!(arrival, Arrival::End))
                });
                if !orphaned && self.is_served() {
                    self.messages.push_back(message);
                }
            }
            Served::Died => {
                self.tally.add("helper crashes");
                self.end(Child::Helper);
            }
        }
        Ok(())
    }

    pub(super) fn watch(&mut self) {
        let Some(helper) = self.helper.as_mut().filter(|helper| !helper.hung) else {
            return;
        };
        if let Some(feed) = helper.body.watch(&mut self.kernel, &self.policy)
            && self.is_served()
        {
            self.messages.push_back(Message::Feed(feed));
        }
        self.note_loss();
    }

    fn note_loss(&mut self) {
        if let Some(helper) = &mut self.helper
            && std::mem::take(&mut helper.body.missed_loss)
        {
            self.tally.add("losses too short to be seen");
            self.drifted = true;
        }
    }

    pub(super) fn supervise(&mut self) -> Result<(), Broken> {
        self.supervisor.hear(self.now);
        self.act()
    }

    pub(super) fn act(&mut self) -> Result<(), Broken> {
        for action in self.supervisor.actions(self.now, &mut self.tally)? {
            match action {
                Action::Spawn(child) => self.spawn(child)?,
                Action::Kill(child, _) | Action::Terminate(child) => {
                    if self.bug == Some(Bug::EarlyBurial) {
                        self.supervisor.inputs.push_back(Input::Exited(child));
                    } else if !self.end(child) {
                        return broken("only who lives is killed", child);
                    }
                }
                Action::Resync => {
                    let now = self.now;
                    match self.live_node() {
                        Some(node) => node.resync(now),
                        None => self.supervisor.machine.handle(now, Input::ResyncFailed),
                    }
                }
                Action::NotifyReady | Action::Quit => {}
            }
        }
        Ok(())
    }

    fn spawn(&mut self, child: Child) -> Result<(), Broken> {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        match child {
            Child::Helper if self.helper.is_none() => {
                let body = Helper::new(incarnation, &mut self.kernel, &self.policy, self.bug);
                self.helper = Some(Process {
                    body,
                    incarnation,
                    hung: false,
                    ready: true,
                });
                self.faults.fuse = None;
                self.supervisor.inputs.extend([
                    Input::Ready(Child::Helper),
                    Input::Seen(Child::Helper, incarnation),
                ]);
            }
            Child::Calc if self.node.is_none() => {
                self.is_new = true;
                self.node = Some(Process {
                    body: Node::new(self.now, self.setup.throttled, self.bug),
                    incarnation,
                    hung: false,
                    ready: false,
                });
            }
            Child::Helper | Child::Calc => {
                return broken("there is never more than one of a child", child);
            }
        }
        Ok(())
    }

    /// A process ends, if there is one. What it has said before can still be heard.
    pub(super) fn end(&mut self, child: Child) -> bool {
        let ended = match child {
            Child::Helper => {
                if self.is_served() {
                    self.messages.push_back(Message::Closed);
                }
                self.helper.take().is_some()
            }
            Child::Calc => {
                if self.is_connected() {
                    self.disconnect();
                }
                // Batches have their numbers within a life.
                self.late_acks.clear();
                self.node.take().is_some()
            }
        };
        if ended {
            // The face's connection and the process end at once; either may be noticed first.
            let news = [Input::Lost(child), Input::Exited(child)];
            let order = if self.incarnations.is_multiple_of(2) {
                [0, 1]
            } else {
                [1, 0]
            };
            let news = order.into_iter().filter_map(|at: usize| news.get(at));
            self.supervisor.inputs.extend(news.copied());
        }
        ended
    }
}
