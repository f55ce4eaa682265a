//! What can happen, and how often.

use proptest::prelude::*;

/// What is wanted, before it is known which interface there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// A BPF route; the value 2 is against the policy.
    Bpf(u8),
    /// A neighbour on the interface.
    Neighbour(u8),
    /// A kernel route: by one of the neighbours, or to nowhere.
    Route(u8),
}

/// One thing that can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Want(Slot, Option<u8>),
    InSync(bool),
    Connect,
    ConnectIfGone,
    Resync,
    Poll,
    Serve,
    Receive,
    /// The next change of an interface is heard of.
    Feed,
    LoseReply,
    /// A request that was thought lost arrives after all.
    ServeLate,
    CrashHelper,
    CrashCalc,
    Drift(Slot, Option<u8>),
    LinkGone,
    LinkNew,
    LinkDown,
    LinkUp,
    FailNext,
    Wait(u16),
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![
        (0..4_u8).prop_map(Slot::Bpf),
        (0..2_u8).prop_map(Slot::Neighbour),
        (0..2_u8).prop_map(Slot::Route),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let change = || (slot(), prop::option::of(0..3_u8));
    prop_oneof![
        10 => change().prop_map(|(slot, value)| Event::Want(slot, value)),
        1 => any::<bool>().prop_map(Event::InSync),
        2 => Just(Event::ConnectIfGone),
        1 => Just(Event::Connect),
        1 => Just(Event::Resync),
        8 => Just(Event::Poll),
        8 => Just(Event::Serve),
        8 => Just(Event::Receive),
        4 => Just(Event::Feed),
        1 => Just(Event::LoseReply),
        1 => Just(Event::ServeLate),
        1 => Just(Event::CrashHelper),
        1 => Just(Event::CrashCalc),
        1 => change().prop_map(|(slot, value)| Event::Drift(slot, value)),
        2 => prop_oneof![
            Just(Event::LinkGone), Just(Event::LinkNew), Just(Event::LinkDown), Just(Event::LinkUp)
        ],
        1 => Just(Event::FailNext),
        1 => (0..1000_u16).prop_map(Event::Wait),
    ]
}

/// A script most of which happens to a world that works.
pub(super) fn script() -> impl Strategy<Value = Vec<Event>> {
    (
        proptest::bool::weighted(0.8),
        any::<bool>(),
        proptest::collection::vec(event(), 0..50),
    )
        .prop_map(|(started, complete, events)| {
            let start = [
                Event::InSync(complete),
                Event::Connect,
                Event::Poll,
                Event::Serve,
                Event::Receive,
            ];
            start
                .into_iter()
                .filter(|_| started)
                .chain(events)
                .collect()
        })
}
