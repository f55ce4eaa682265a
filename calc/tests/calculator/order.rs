//! What is wanted follows from what is present, whatever came before and in whichever order: a change
//! that does not reach all that depends on it shows up as a difference from a calculator that never
//! knew anything else.

use std::{collections::BTreeMap, mem};

use calc::event::Event;
use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config as RunnerConfig, TestCaseError, TestRunner},
};

use crate::{
    generate::{script, start},
    world::{Instance, World},
};

fn run(script: Vec<(Event, bool)>, shuffle: &[Index], size: usize) -> Result<World, TestCaseError> {
    let mut world = World::default();
    let mut instance = Instance::default();
    // The same, but hears of all at once that comes between two calculations.
    let (mut at_once, mut come) = (Instance::default(), Vec::new());
    let start = start().into_iter().map(|event| (event, false));
    for (event, resolve) in start.chain(script) {
        world.apply(event.clone());
        come.push(event.clone());
        instance.calculator.handle(event);
        if resolve {
            instance.resolve();
            at_once.calculator.handle_all(mem::take(&mut come));
            at_once.resolve();
            prop_assert_eq!(&at_once.desired, &instance.desired, "one by one matters");
        }
    }
    instance.resolve();
    prop_assert_eq!(&instance.desired, &world.desired(), "history matters");

    let mut events = World::default().changes(&world);
    for (at, other) in (0..events.len()).zip(shuffle) {
        let other = other.index(events.len());
        events.swap(at, other);
    }
    let (mut shuffled, mut at_once) = (Instance::default(), Instance::default());
    at_once.calculator.handle_all(events.clone());
    at_once.resolve();
    prop_assert_eq!(&at_once.desired, &instance.desired, "order at once matters");
    let mut in_parts = Instance::default();
    in_parts.calculator.handle_all(events.clone());
    in_parts.resolve_early(1 + size);
    prop_assert_eq!(&in_parts.desired, &instance.desired, "parts matter");
    for event in events {
        shuffled.calculator.handle(event);
        shuffled.resolve();
    }
    prop_assert_eq!(&shuffled.desired, &instance.desired, "order matters");

    let changes = world.changes(&World::default());
    for mut instance in [instance, in_parts] {
        instance.calculator.handle_all(changes.clone());
        instance.resolve();
        prop_assert!(
            instance.desired.0.is_empty(),
            "left over: {:?}",
            instance.desired
        );
        prop_assert_eq!(instance.calculator.routes().count(), 0);
    }
    Ok(world)
}

#[test]
fn neither_history_nor_order_matters() {
    let mut runner = TestRunner::new(RunnerConfig {
        cases: 600,
        failure_persistence: None,
        ..RunnerConfig::default()
    });
    let seen = std::cell::RefCell::new(BTreeMap::<String, u32>::new());
    runner
        .run(&(script(), 0..8_usize), |((script, shuffle), size)| {
            let world = run(script, &shuffle, size)?;
            let mut seen = seen.borrow_mut();
            for key in world.desired().0.into_keys() {
                let kind = key.split(' ').next().unwrap_or_default();
                *seen.entry(kind.to_owned()).or_default() += 1;
            }
            Ok(())
        })
        .unwrap();
    // A generator that leads nowhere would find nothing.
    for kind in ["settings", "device", "neighbour", "fdb", "bpf", "route"] {
        let times = seen.borrow().get(kind).copied().unwrap_or_default();
        assert!(times > 40, "{kind} was wanted only {times} times");
    }
}
