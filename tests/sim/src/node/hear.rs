//! What a node hears of the helper, in the order and at the moments at which the shell has the cores
//! hear of it.

use std::{mem, time::Instant};

use calc::{FeedOrder, Input, Train, event::Event};
use ipc_proto::{Ack, Feed, Observed, OpError};

use super::{Asked, Node};
use crate::{bug::Bug, helper::Message, kernel::ENOSPC};

impl Node {
    /// Takes in an answer of the helper, or news that come before it.
    fn answered(&mut self, now: Instant, input: Input) {
        self.news.answer = true;
        if !matches!(
            input,
            Input::Ack(_) | Input::Recalled(_) | Input::Flushed(_)
        ) {
            self.hear_links(now);
        }
        self.handle(now, input);
    }

    /// The cores hear of what the connection has heard.
    pub(super) fn take_in_heard(&mut self, now: Instant) {
        for input in mem::take(&mut self.heard) {
            self.answered(now, input);
        }
    }

    pub(crate) fn connect(&mut self, now: Instant) {
        self.connected = true;
        self.train = Train::default();
        self.order = FeedOrder::default();
        self.answered(now, Input::Connected);
        self.doubt_forgotten = self.bug == Some(Bug::DoubtForgotten) && self.read;
    }

    pub(crate) fn disconnect(&mut self, now: Instant) {
        self.connected = false;
        self.take_in_heard(now);
        self.recalling = false;
        self.sent.clear();
        self.asked.clear();
        self.answered(now, Input::Disconnected);
    }

    /// Takes in a message, or returns why the connection must end.
    pub(crate) fn hear(&mut self, now: Instant, message: Message) -> Result<(), &'static str> {
        self.take_in_heard(now);
        match message {
            Message::Closed => return Err("closed"),
            Message::Refused => return Err("refused"),
            Message::Feed(mut feed) => {
                if self.bug == Some(Bug::FeedLost) && feed.seq % 7 == 0 {
                    feed.events.clear();
                }
                let feed = self.order.push(feed).map_err(|_gap| "gap")?;
                self.feeds(now, feed);
            }
            Message::Ack(mut ack) => {
                // As on D-Bus, an answer tells which request it is for.
                let id = |asked: &Asked| asked.batch.map(|(_, id)| id);
                let of_this = |asked: &Asked| id(asked) == Some(ack.id);
                let at = match self.bug {
                    Some(Bug::AckOfOlder) => Some(0),
                    _ => self.asked.iter().position(of_this),
                };
                if at.and_then(|at| self.asked.remove(at)).is_none() {
                    return Err("not asked for");
                }
                if self.bug == Some(Bug::FullForEver) {
                    for (_, error) in &mut ack.failed {
                        if matches!(error, OpError::Kernel { errno: ENOSPC, .. }) {
                            *error = OpError::Denied("full".into());
                        }
                    }
                }
                if self.bug == Some(Bug::FailureUnheard) {
                    ack.failed
                        .retain(|(_, error)| matches!(error, OpError::Denied(_)));
                }
                let made = Ack {
                    id: ack.id,
                    failed: Vec::new(),
                };
                self.train.answered(match self.bug {
                    Some(Bug::FollowsFailure) => &made,
                    _ => &ack,
                });
                // Others may have their turn before the cores hear of it.
                let ack = self.of_the_last(ack);
                self.heard.push_back(Input::Ack(ack));
            }
            Message::Flushed(done) => {
                // Only where its acknowledgement, which comes first, was lost is it still waited for.
                let of_this = |asked: &&mut Asked| asked.batch.is_some_and(|(_, id)| id == done.id);
                if let Some(asked) = self.asked.iter_mut().find(of_this) {
                    asked.ended = true;
                }
                self.answered(now, Input::Flushed(done));
            }
            Message::Welcome(welcome, mut observed) => {
                let at = self.asked.iter().position(|asked| asked.batch.is_none());
                if at.and_then(|at| self.asked.remove(at)).is_none() {
                    return Err("not asked for");
                }
                let held = self.order.follow(welcome.feed).map_err(|_gap| "gap")?;
                if self.bug == Some(Bug::SnapshotIgnored) {
                    observed.retain(|item| matches!(item, Observed::Link(_)));
                }
                let links = observed
                    .iter()
                    .filter_map(Observed::link)
                    .cloned()
                    .collect();
                // What was heard before is older than what was read.
                self.hear_links(now);
                self.calculator.handle(Event::Links(links));
                self.news.input = true;
                self.news.reading = true;
                let reading = observed.into_iter().collect();
                self.answered(now, Input::Welcome(welcome, reading));
                self.feeds(now, held);
            }
        }
        Ok(())
    }

    fn of_the_last(&self, ack: Ack) -> Ack {
        match self.batch {
            Some(id) if self.bug == Some(Bug::AckOfOlder) => Ack { id, ..ack },
            Some(_) | None => ack,
        }
    }

    /// Takes in an acknowledgement of who knows when, which the shell would not let through.
    pub(crate) fn late_ack(&mut self, now: Instant, ack: Ack) {
        if self.bug == Some(Bug::AckOfOlder) {
            self.asked.retain(|asked| asked.batch.is_none());
        }
        let ack = self.of_the_last(ack);
        self.answered(now, Input::Ack(ack));
    }

    fn feeds(&mut self, now: Instant, feeds: impl IntoIterator<Item = Feed>) {
        for feed in feeds {
            self.news.input = true;
            self.links.extend(feed.events);
            if !feed.drift.is_empty() && self.bug != Some(Bug::DriftUnheard) {
                self.answered(now, Input::Drift);
            }
        }
    }

    /// The cores hear of changes of interfaces.
    pub(super) fn hear_links(&mut self, now: Instant) {
        for event in mem::take(&mut self.links) {
            if self.bug != Some(Bug::FlapUnheard) {
                self.handle(now, Input::Link(event.clone()));
            }
            self.calculator.handle(Event::Link(event));
        }
    }
}
