use proptest::{prelude::*, sample::select};

use super::{Action as A, Child::*, Fault::*, Input as I, *};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// A machine with a clock of its own.
struct World {
    now: Instant,
    machine: Machine,
}

impl World {
    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do to start from"
    )]
    fn new() -> Self {
        let now = Instant::now();
        let machine = Machine::new(now);
        Self { now, machine }
    }

    /// Returns a world in which both children are up.
    fn up() -> Self {
        let mut world = Self::new();
        assert_eq!(world.actions(), [A::Spawn(Helper), A::Spawn(Calc)]);
        assert_eq!(world.on(I::Ready(Helper)), []);
        assert_eq!(world.on(I::Ready(Calc)), [A::NotifyReady]);
        world
    }

    fn on(&mut self, input: Input) -> Vec<Action> {
        self.machine.handle(self.now, input);
        self.actions()
    }

    fn after(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(action) = self.machine.poll(self.now) {
            actions.push(action);
            if action == A::Quit {
                break;
            }
            assert!(actions.len() < 16, "it never comes to rest: {actions:?}");
        }
        actions
    }

    /// What it does when `limit` is over, having done nothing until just before.
    fn at(&mut self, limit: Duration) -> Vec<Action> {
        assert_eq!(self.after(limit.saturating_sub(MILLI)), []);
        self.after(MILLI)
    }

    /// How long it wants to be left alone.
    fn rest(&self) -> Option<Duration> {
        let due = self.machine.poll_timeout()?;
        Some(due.saturating_duration_since(self.now))
    }

    fn keep_alive(&mut self, time: Duration) {
        for _ in 0..time.as_secs() {
            assert_eq!(self.after(SECOND), []);
            self.all_alive();
        }
    }

    fn all_alive(&mut self) {
        for child in Child::ALL {
            assert_eq!(self.on(I::Alive(child)), []);
        }
    }
}

#[test]
fn readiness_is_announced_once_and_only_when_both_are_up() {
    let mut world = World::new();
    world.actions();
    assert_eq!(world.on(I::Ready(Calc)), []);
    assert_eq!(world.on(I::Ready(Calc)), []);
    assert_eq!(world.on(I::Ready(Helper)), [A::NotifyReady]);
    world.on(I::Exited(Calc));
    assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Calc)]);
    assert_eq!(world.on(I::Ready(Calc)), []);
}

#[test]
fn after_a_crash_of_the_helper_calc_resyncs_once_the_next_is_ready() {
    let mut world = World::up();
    assert_eq!(world.on(I::Seen(Helper, 1)), []);
    assert_eq!(world.on(I::Lost(Helper)), []);
    assert_eq!(world.on(I::Exited(Helper)), []);
    assert_eq!(world.rest(), Some(FIRST_DELAY));
    assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Helper)]);
    assert_eq!(world.on(I::Ready(Helper)), [A::Resync]);
    // The same crash, seen from the other side, and late.
    assert_eq!(world.on(I::Lost(Helper)), []);
    assert_eq!(world.on(I::Seen(Helper, 2)), []);
}

#[test]
fn what_the_face_of_a_dead_child_showed_is_no_second_crash() {
    let mut world = World::up();
    assert_eq!(world.on(I::Exited(Helper)), []);
    assert_eq!(world.on(I::Seen(Helper, 1)), []);
    assert_eq!(world.on(I::Lost(Helper)), []);
    assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Helper)]);
    assert_eq!(world.on(I::Ready(Helper)), [A::Resync]);
    assert_eq!(world.on(I::Seen(Helper, 2)), []);
}

#[test]
fn a_crash_that_only_the_face_shows_is_a_crash() {
    for child in Child::ALL {
        let mut world = World::up();
        assert_eq!(world.on(I::Seen(child, 1)), []);
        assert_eq!(world.on(I::Seen(child, 1)), []);
        assert_eq!(
            world.on(I::Seen(child, 2)),
            [A::Resync],
            "another incarnation"
        );
        assert_eq!(world.on(I::Lost(child)), []);
        assert_eq!(world.on(I::Seen(child, 2)), [A::Resync], "connection lost");
        assert_eq!(world.on(I::Seen(child, 2)), []);
    }
}

#[test]
fn a_new_calc_needs_no_telling() {
    for [first, second] in [[Helper, Calc], [Calc, Helper]] {
        let mut world = World::up();
        world.on(I::Exited(first));
        world.on(I::Exited(second));
        assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Helper), A::Spawn(Calc)]);
        assert_eq!(world.on(I::Ready(Helper)), []);
        assert_eq!(world.on(I::Ready(Calc)), []);
    }
}

#[test]
fn a_resync_that_failed_is_tried_again_but_not_of_a_dead_calc() {
    let mut world = World::up();
    assert_eq!(world.on(I::Resync), [A::Resync]);
    assert_eq!(world.on(I::ResyncFailed), []);
    assert_eq!(world.rest(), Some(RESYNC_DELAY));
    assert_eq!(world.after(RESYNC_DELAY), [A::Resync]);
    world.on(I::ResyncFailed);
    world.on(I::Exited(Calc));
    assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Calc)]);
    assert_eq!(world.on(I::Ready(Calc)), []);
    assert_eq!(world.after(RESYNC_DELAY), []);
}

#[test]
fn delays_double_up_to_the_last_and_start_over_after_a_stable_time() {
    for child in Child::ALL {
        let mut world = World::up();
        for exponent in 0..12 {
            world.on(I::Exited(child));
            let delay = LAST_DELAY.min(FIRST_DELAY * 2_u32.pow(exponent));
            let half = delay / 2;
            world.all_alive();
            assert_eq!(world.after(half), []);
            world.all_alive();
            assert_eq!(world.at(half), [A::Spawn(child)], "{delay:?}");
            if exponent % 2 == 0 {
                world.on(I::Ready(child));
            }
        }
        world.on(I::Ready(child));
        world.keep_alive(STABLE);
        world.on(I::Exited(child));
        assert_eq!(world.after(FIRST_DELAY), [A::Spawn(child)]);
        assert_eq!(world.machine.restarts(child), 13);
    }
}

#[test]
fn a_child_that_is_not_ready_in_time_is_killed_once_and_restarted() {
    let mut world = World::new();
    world.actions();
    assert_eq!(world.at(START_LIMIT), [A::Kill(Helper, NotReady)]);
    assert_eq!(
        world.after(START_LIMIT * 9),
        [],
        "calc cannot be ready without it"
    );
    assert_eq!(world.machine.state(Helper), "stopping");
    assert_eq!(world.on(I::Ready(Helper)), [], "too late");
    world.on(I::Exited(Helper));
    assert_eq!(world.after(FIRST_DELAY), [A::Spawn(Helper)]);
    assert_eq!(world.on(I::Ready(Helper)), []);
    world.keep_alive(START_LIMIT - SECOND);
    assert_eq!(world.at(SECOND), [A::Kill(Calc, NotReady)]);
}

#[test]
fn a_silent_child_is_killed() {
    for (silent, loud) in [(Helper, Calc), (Calc, Helper)] {
        let mut world = World::up();
        world.after(SECOND);
        world.on(I::Alive(silent));
        for _ in 0..29 {
            world.on(I::Alive(loud));
            assert_eq!(world.after(SECOND), []);
        }
        world.on(I::Alive(loud));
        assert_eq!(world.after(SECOND), [A::Kill(silent, Silent)]);
    }
}

#[test]
fn calc_stops_before_the_helper_and_then_we_quit() {
    let mut world = World::up();
    assert_eq!(world.on(I::Stop), [A::Terminate(Calc)]);
    assert_eq!(world.on(I::Stop), []);
    assert_eq!(world.on(I::Exited(Calc)), [A::Terminate(Helper)]);
    assert_eq!(world.at(STOP_LIMIT), [A::Kill(Helper, WillNotStop)]);
    assert_eq!(world.rest(), None);
    assert_eq!(world.on(I::Exited(Helper)), [A::Quit]);
}

#[test]
fn a_stop_starts_nothing_and_waits_for_who_is_dying() {
    let mut world = World::up();
    world.on(I::Exited(Calc));
    world.after(WATCHDOG);
    assert_eq!(world.machine.state(Helper), "stopping", "killed as silent");
    assert_eq!(world.on(I::Exited(Calc)), []);
    assert_eq!(world.on(I::Stop), []);
    assert_eq!(world.after(LAST_DELAY), []);
    assert_eq!(world.on(I::Exited(Helper)), [A::Quit]);
}

#[test]
fn children_of_a_service_manager_are_watched_and_nothing_else() {
    let mut world = World::up();
    world.machine = Machine::watching();
    assert_eq!(world.actions(), []);
    assert_eq!(world.on(I::Seen(Calc, 1)), []);
    assert_eq!(world.machine.state(Helper), "down");
    assert_eq!(world.on(I::Seen(Helper, 1)), [A::NotifyReady]);
    assert_eq!(world.machine.state(Helper), "up");
    assert_eq!((world.rest(), world.after(STABLE)), (None, vec![]));

    assert_eq!(world.on(I::Lost(Helper)), []);
    assert_eq!(world.machine.state(Helper), "down");
    assert_eq!(world.on(I::Seen(Helper, 2)), [A::Resync]);
    assert_eq!(world.on(I::Seen(Helper, 3)), [A::Resync]);
    assert_eq!(world.machine.restarts(Helper), 2);

    assert_eq!(world.on(I::Lost(Calc)), []);
    assert_eq!(world.on(I::Seen(Calc, 2)), [], "it has a new lease");

    assert_eq!(world.on(I::Lost(Calc)), []);
    assert_eq!(world.on(I::Resync), []);
    assert_eq!(
        world.on(I::Seen(Calc, 3)),
        [A::Resync],
        "not while it is down"
    );

    assert_eq!(
        world.on(I::Stop),
        [A::Quit],
        "the children are not ours to end"
    );
}

/// Something that may happen, as far as the outside lets it.
#[derive(Clone, Copy, Debug)]
enum Event {
    Input(Input),
    Wait(Duration),
    /// Sleep until the machine wants to be called.
    Due,
}

fn event() -> impl Strategy<Value = Event> {
    let child = select(Child::ALL.to_vec());
    let input = (child, 0..8_u8, 0..3_u64).prop_map(|(child, what, incarnation)| match what {
        0 | 1 => I::Ready(child),
        2 => I::Alive(child),
        3 => I::Exited(child),
        4 => I::Seen(child, incarnation),
        5 => I::Lost(child),
        6 => I::Resync,
        _ => I::ResyncFailed,
    });
    prop_oneof![
        8 => input.prop_map(Event::Input),
        2 => (0..70_000_u64).prop_map(|ms| Event::Wait(Duration::from_millis(ms))),
        6 => Just(Event::Due),
        1 => Just(Event::Input(I::Stop)),
    ]
}

/// A [`World`] that knows which children live, and what must never be done.
struct Checked {
    world: World,
    live: Vec<Child>,
    announced: u32,
    stopped: bool,
    quit: bool,
}

impl Checked {
    fn carry_out(&mut self) -> Vec<Action> {
        let actions = self.world.actions();
        for action in &actions {
            match *action {
                A::Spawn(child) => {
                    assert!(!self.stopped, "starts after a stop");
                    assert!(!self.live.contains(&child), "two of {child:?}");
                    self.live.push(child);
                }
                A::Terminate(child) | A::Kill(child, _) => {
                    assert!(self.live.contains(&child), "no {child:?} to end");
                }
                A::Resync => {
                    assert_eq!(self.live.len(), 2);
                    assert_eq!(self.world.machine.state(Calc), "up");
                }
                A::NotifyReady => self.announced += 1,
                A::Quit => {
                    assert_eq!(self.live, [], "quits with a child alive");
                    self.quit = true;
                }
            }
        }
        assert!(self.announced <= 1);
        assert_ne!(self.world.rest(), Some(Duration::ZERO), "it spins");
        actions
    }

    fn happen(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Input(I::Exited(child)) if !self.live.contains(&child) => {}
            Event::Input(input) => {
                if let I::Exited(child) = input {
                    self.live.retain(|other| *other != child);
                }
                self.stopped |= input == I::Stop;
                self.world.machine.handle(self.world.now, input);
            }
            Event::Wait(time) => self.world.now += time,
            Event::Due => self.world.now += self.world.rest().unwrap_or(SECOND),
        }
        self.carry_out()
    }
}

proptest! {
    /// Whatever happens, the rules hold; and when things stop failing, both come up, or, after a
    /// stop, both end.
    #[test]
    fn any_script_keeps_the_rules_and_ends_well(script in proptest::collection::vec(event(), 0..80)) {
        let world = World::new();
        let mut checked = Checked { world, live: vec![], announced: 0, stopped: false, quit: false };
        checked.carry_out();
        for event in script {
            if checked.quit {
                break;
            }
            checked.happen(event);
        }
        // From here on children do as they are told, and what was killed dies.
        for _ in 0..200 {
            if checked.quit {
                break;
            }
            for child in Child::ALL {
                checked.happen(Event::Input(match checked.world.machine.state(child) {
                    "starting" => I::Ready(child),
                    "stopping" => I::Exited(child),
                    _ => I::Alive(child),
                }));
            }
            if checked.quit || (!checked.stopped && checked.world.machine.both_up()) {
                break;
            }
            checked.happen(Event::Due);
        }
        prop_assert_eq!(checked.quit, checked.stopped);
        prop_assert!(checked.quit || (checked.live.len() == 2 && checked.announced == 1));
    }
}
