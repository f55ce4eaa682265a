//! What it takes to add a kind: one file, here [`masquerade`], and one line, in [`with_another`].

mod masquerade;

use ipc_proto::{Link, LinkRole, LinkState, Op};

use self::masquerade::Masquerade;
use super::{Kind, all};
use crate::{
    calculator::Calculator,
    event::{Event, Node, Pool},
};

/// All kinds, and another one among the packet filter's tables.
fn with_another() -> Vec<Box<dyn Kind>> {
    let mut kinds = all();
    kinds.insert(8, Box::new(Masquerade::default()));
    kinds
}

#[test]
fn a_kind_is_one_file_and_one_line() {
    let mut calculator = Calculator::with_kinds("node-1".to_owned(), with_another());
    calculator.handle(Event::Node("node-1".to_owned(), Some(Node::default())));
    let pool = Pool {
        nat_outgoing: true,
        ..Pool::default()
    };
    let cidr = "10.244.0.0/16".parse().unwrap();
    calculator.handle(Event::Pool(cidr, Some(pool.clone())));
    calculator.handle(Event::Links(vec![LinkState {
        link: Link {
            index: 7,
            name: "cali-frontend".parse().unwrap(),
        },
        role: LinkRole::Workload,
        up: true,
        carrier: true,
        mac: None,
        mtu: 1500,
        addresses: vec!["192.0.2.7/24".parse().unwrap()],
    }]));
    let ops = calculator.resolve();
    let place = |is: fn(&Op) -> bool| ops.iter().position(is);
    let own = place(|op| matches!(op, Op::Masquerade(Some(_)))).expect("what it wants");
    let route = place(|op| matches!(op, Op::BpfRoute(..))).expect("what another one wants");
    assert!(route < own, "in the order of the list: {ops:?}");
    assert_eq!(
        ops.len(),
        1 + ops
            .iter()
            .filter(|op| matches!(op, Op::BpfRoute(..)))
            .count()
    );

    // It is asked about what it has marked alone, and wants what follows from the world then.
    calculator.handle(Event::Pool(cidr, Some(pool)));
    assert_eq!(calculator.resolve(), [], "nothing new");
    calculator.handle(Event::Pool(cidr, None));
    let ops = calculator.resolve();
    assert!(ops.contains(&Op::Masquerade(None)), "{ops:?}");
}
