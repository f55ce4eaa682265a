//! What the service manager is told: ready, how things stand, and that the loop is alive.

use std::{
    cell::{Cell, RefCell},
    ops::Deref,
    time::Duration,
};

use sd_notify::NotifyState;

use crate::face::Status;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Service {
    watchdog: Option<Duration>,
    ready: Cell<bool>,
    shown: RefCell<String>,
}

impl Service {
    /// Reads what the service manager has passed.
    pub(super) fn from_env() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled(),
            ..Self::default()
        }
    }

    /// Returns how often to say that the loop is alive, if anybody wants to know.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
            .map(|period| period / 2)
            .filter(|period| !period.is_zero())
    }

    /// Says how things stand, if it has changed. Ready is who shows its face and holds a lease: a
    /// datastore that is down is no reason for a restart.
    pub(super) fn show(&self, status: impl Deref<Target = Status>) {
        if status.connected && !self.ready.replace(true) {
            notify(NotifyState::Ready);
        }
        let text = text(&status);
        if *self.shown.borrow() != text {
            notify(NotifyState::Status(&text));
            self.shown.replace(text);
        }
    }
}

/// Says that the loop is alive.
pub(super) fn alive() {
    notify(NotifyState::Watchdog);
}

fn text(status: &Status) -> String {
    let Status {
        in_sync,
        connected,
        desired,
        pending,
        held,
        ..
    } = status;
    match status.problems.as_slice() {
        _ if *in_sync => format!("in sync, {desired} entries"),
        [problem, ..] if !connected => problem.clone(),
        [] if !connected => "waiting for the helper".to_owned(),
        _ => format!("{desired} entries, {pending} to change, {held} failing"),
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot reach the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_says_that_it_is_alive_at_half_of_what_is_asked() {
        let service = |watchdog| Service {
            watchdog,
            ..Service::default()
        };
        let seconds = Duration::from_secs;
        let asked = service(Some(seconds(20))).watchdog();
        assert_eq!(asked, Some(seconds(10)));
        assert_eq!(service(None).watchdog(), None);
        assert_eq!(service(Some(Duration::ZERO)).watchdog(), None);
    }

    #[test]
    fn the_status_says_what_is_missing() {
        let status = Status::default();
        assert_eq!(text(&status), "waiting for the helper");
        let problems = vec!["cannot reach it".to_owned()];
        assert_eq!(text(&Status { problems, ..status }), "cannot reach it");
        let status = Status {
            connected: true,
            desired: 7,
            pending: 2,
            held: 1,
            ..Status::default()
        };
        assert_eq!(text(&status), "7 entries, 2 to change, 1 failing");
        let in_sync = true;
        assert_eq!(text(&Status { in_sync, ..status }), "in sync, 7 entries");
    }
}
