//! The life cycle of the two processes: when to start, wait, restart, end and resync.
//!
//! Pure: it takes in what happened and returns what to do. There is never more than one live copy
//! of a child, and it never quits while one lives. If a service manager keeps the children, it starts
//! and ends none, and their faces alone tell how they are.

mod life;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use self::life::{Life, Record};

/// How long a child may be silent (`WATCHDOG=1`) once it is ready.
pub const WATCHDOG: Duration = Duration::from_secs(30);
/// How long a child may take to be ready, as long as systemd gives it: on a host that is busy with its own
/// start, one that is killed too soon would never come up. `calc` is ready when it holds a lease, so its
/// time runs only while the helper is up.
pub const START_LIMIT: Duration = Duration::from_secs(90);
/// How long a child may take to end when asked.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long a child must be up for its next failure to count as the first.
pub const STABLE: Duration = Duration::from_mins(1);
/// How long a child stays down after its first failure; doubled by each one that follows.
pub const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest that a child stays down.
pub const LAST_DELAY: Duration = Duration::from_secs(30);
/// How long after a failed resync it is tried again.
pub const RESYNC_DELAY: Duration = Duration::from_secs(1);

/// One of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Child {
    /// The privileged one.
    Helper,
    /// The one that computes.
    Calc,
}

impl Child {
    /// Both, in the order in which they start.
    pub const ALL: [Self; 2] = [Self::Helper, Self::Calc];

    /// Returns its name for the operator, which is also that of its section of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Helper => "privhelper",
            Self::Calc => "calc",
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The child said `READY=1`.
    Ready(Child),
    /// The child said `WATCHDOG=1`.
    Alive(Child),
    /// The child is gone, or could not be started.
    Exited(Child),
    /// The child's face answered with this incarnation.
    Seen(Child, u64),
    /// The connection to the child's face ended.
    Lost(Child),
    /// Someone wants a resync.
    Resync,
    /// [`Action::Resync`] did not reach `calc`.
    ResyncFailed,
    /// We are to stop.
    Stop,
}

/// Why a child is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It was not ready within [`START_LIMIT`].
    NotReady,
    /// It was silent for [`WATCHDOG`].
    Silent,
    /// It did not end within [`STOP_LIMIT`].
    WillNotStop,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the child.
    Spawn(Child),
    /// Ask it to end.
    Terminate(Child),
    /// End it.
    Kill(Child, Fault),
    /// Tell `calc` to read the kernel back under a new lease.
    Resync,
    /// Both are up, or seen by their faces, for the first time.
    NotifyReady,
    /// Both are gone and are to stay so.
    Quit,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Machine {
    helper: Record,
    calc: Record,
    /// When `calc` is to be told, if it is.
    resync: Option<Instant>,
    announced: bool,
    stopping: bool,
}

impl Machine {
    /// Starts with both children down and due. They start together: the sockets outlive them, so
    /// whoever is first waits.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            helper: Record::new(now),
            calc: Record::new(now),
            resync: None,
            announced: false,
            stopping: false,
        }
    }

    /// Starts with both children in the hands of a service manager, and not seen yet.
    #[must_use]
    pub fn watching() -> Self {
        Self {
            helper: Record::foreign(),
            calc: Record::foreign(),
            resync: None,
            announced: false,
            stopping: false,
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Ready(child) => {
                let ready = self.record_mut(child).ready(now);
                if ready && child == Child::Helper {
                    self.calc.grant(now);
                }
            }
            Input::Alive(child) => self.record_mut(child).alive(now),
            Input::Exited(child) => {
                self.record_mut(child).exited(now);
                if child == Child::Helper {
                    // The next one knows no lease.
                    self.resync = Some(now);
                }
            }
            Input::Seen(child, incarnation) => {
                let crashed = self.record_mut(child).seen(incarnation);
                // A foreign calc that is new begins with a new lease by itself.
                if crashed && (child == Child::Helper || !self.is_foreign(child)) {
                    self.resync = Some(now);
                }
            }
            Input::Lost(child) => self.record_mut(child).lost(),
            Input::Resync => self.resync = Some(now),
            Input::ResyncFailed => {
                self.resync = self.resync.or(Some(now + RESYNC_DELAY));
            }
            Input::Stop => self.stopping = true,
        }
    }

    /// Returns the next thing to do; call it until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.stopping {
            return self.poll_stopping(now);
        }
        Child::ALL
            .into_iter()
            .find_map(|child| self.poll_child(now, child))
            .or_else(|| self.poll_both(now))
    }

    /// Returns when to call [`Self::poll`] next if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lives = Child::ALL
            .into_iter()
            .filter_map(|child| match self.life(child) {
                Life::Down { until } | Life::Starting { until } | Life::Up { until } => {
                    Some(until).filter(|_| !self.stopping && self.clock_runs(child))
                }
                Life::Stopping { until } => until,
                Life::Foreign { .. } => None,
            });
        let resync = self.resync.filter(|_| !self.stopping && self.both_up());
        lives.chain(resync).min()
    }

    /// Returns what the child is doing, in one word.
    #[must_use]
    pub fn state(&self, child: Child) -> &'static str {
        match self.life(child) {
            Life::Down { .. } | Life::Foreign { seen: false } => "down",
            Life::Starting { .. } => "starting",
            Life::Up { .. } | Life::Foreign { seen: true } => "up",
            Life::Stopping { .. } => "stopping",
        }
    }

    /// Returns when the child is to be started, if it is down and ours to start.
    #[must_use]
    pub fn due(&self, child: Child) -> Option<Instant> {
        match self.life(child) {
            Life::Down { until } if !self.stopping => Some(until),
            Life::Down { .. }
            | Life::Starting { .. }
            | Life::Up { .. }
            | Life::Stopping { .. }
            | Life::Foreign { .. } => None,
        }
    }

    /// Returns how often the child was started anew.
    #[must_use]
    pub fn restarts(&self, child: Child) -> u32 {
        self.record(child).starts.saturating_sub(1)
    }

    fn poll_child(&mut self, now: Instant, child: Child) -> Option<Action> {
        let clock_runs = self.clock_runs(child);
        let record = self.record_mut(child);
        let fault = match record.life {
            Life::Down { until } if until <= now => {
                record.start(now);
                if child == Child::Calc {
                    // It begins with a new lease by itself.
                    self.resync = None;
                }
                return Some(Action::Spawn(child));
            }
            Life::Starting { until } if until <= now && clock_runs => Fault::NotReady,
            Life::Up { until } if until <= now => Fault::Silent,
            Life::Stopping { until: Some(until) } if until <= now => Fault::WillNotStop,
            Life::Down { .. }
            | Life::Starting { .. }
            | Life::Up { .. }
            | Life::Stopping { .. }
            | Life::Foreign { .. } => return None,
        };
        record.life = Life::Stopping { until: None };
        Some(Action::Kill(child, fault))
    }

    fn poll_both(&mut self, now: Instant) -> Option<Action> {
        if !self.both_up() {
            return None;
        }
        if !self.announced {
            self.announced = true;
            return Some(Action::NotifyReady);
        }
        if self.resync.is_some_and(|due| due <= now) {
            self.resync = None;
            return Some(Action::Resync);
        }
        None
    }

    fn poll_stopping(&mut self, now: Instant) -> Option<Action> {
        // calc first: it has nothing to say to a helper that is gone.
        for child in [Child::Calc, Child::Helper] {
            match self.life(child) {
                Life::Down { .. } | Life::Foreign { .. } => {}
                Life::Stopping { .. } => return self.poll_child(now, child),
                Life::Starting { .. } | Life::Up { .. } => {
                    self.record_mut(child).life = Life::Stopping {
                        until: Some(now + STOP_LIMIT),
                    };
                    return Some(Action::Terminate(child));
                }
            }
        }
        Some(Action::Quit)
    }

    /// Returns whether the child's own limit counts: `calc` cannot start without a helper.
    fn clock_runs(&self, child: Child) -> bool {
        match (child, self.life(child)) {
            (Child::Calc, Life::Starting { .. }) => self.is_up(Child::Helper),
            (Child::Calc | Child::Helper, _) => true,
        }
    }

    fn both_up(&self) -> bool {
        Child::ALL.into_iter().all(|child| self.is_up(child))
    }

    fn is_up(&self, child: Child) -> bool {
        matches!(
            self.life(child),
            Life::Up { .. } | Life::Foreign { seen: true }
        )
    }

    fn is_foreign(&self, child: Child) -> bool {
        matches!(self.life(child), Life::Foreign { .. })
    }

    fn life(&self, child: Child) -> Life {
        self.record(child).life
    }

    fn record(&self, child: Child) -> &Record {
        match child {
            Child::Helper => &self.helper,
            Child::Calc => &self.calc,
        }
    }

    fn record_mut(&mut self, child: Child) -> &mut Record {
        match child {
            Child::Helper => &mut self.helper,
            Child::Calc => &mut self.calc,
        }
    }
}
