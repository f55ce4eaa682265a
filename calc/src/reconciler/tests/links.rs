//! What the reconciler does when interfaces change.

use ipc_proto::{LinkProfile, LinkRole, Tunnel, TunnelDevice};

use super::*;

#[test]
fn a_link_that_flaps_gets_its_routes_again() {
    let before = vec![
        Observed::Link(state(7, true)),
        observed(neighbour(Some(1))),
        observed(route(true)),
    ];
    let flap = [false, true].map(|up| Input::Link(LinkEvent::Set(state(7, up))));
    let mut bench = Bench::new(before.clone());
    bench.want(&route(true));
    bench.want(&neighbour(Some(1)));
    assert_eq!(bench.poll(), None);
    for input in flap {
        bench.handle(input);
    }
    assert_eq!(bench.ops(), [neighbour(Some(1)), route(true)]);

    // The kernel may have dropped them after they were set, and the answer come last.
    let flap = [false, true].map(|up| Input::Link(LinkEvent::Set(state(7, up))));
    for input in flap {
        bench.handle(input);
    }
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), [neighbour(Some(1)), route(true)]);
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
}

#[test]
fn what_failed_on_a_link_is_tried_again_when_the_link_changes() {
    let mut bench = Bench::new(vec![Observed::Link(state(7, false))]);
    bench.want(&route(true));
    bench.settle_failing();
    assert_eq!(
        bench.poll(),
        Some(Output::Notice(Notice::Failed(route(true), errno(12))))
    );
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Set(state(7, true))));
    assert_eq!(bench.ops(), [route(true)]);
}

#[test]
fn what_hung_on_a_link_that_is_gone_is_not_asked_for() {
    let mut bench = Bench::new(vec![
        Observed::Link(state(7, true)),
        observed(neighbour(Some(1))),
    ]);
    bench.want(&neighbour(Some(1)));
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    bench.want(&neighbour(None));
    assert_eq!(bench.poll(), None);
}

#[test]
fn the_route_of_a_moved_address_is_cleared_although_its_link_is_down() {
    let before = vec![Observed::Link(state(7, true)), observed(route(true))];
    let mut bench = Bench::new(before);
    bench.want(&route(true));
    bench.handle(Input::Link(LinkEvent::Set(state(7, false))));
    bench.want(&route(false));
    // Without a carrier the kernel has kept it.
    assert_eq!(bench.ops(), [route(false)]);
}

#[test]
fn a_clear_on_a_link_that_is_gone_is_done() {
    let mut bench = Bench::new(vec![observed(neighbour(Some(1)))]);
    assert_eq!(bench.ops(), [neighbour(None)]);
    bench.ack(vec![(0, OpError::StaleLink(link(7)))]);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn settings_are_left_alone_where_nobody_wants_any() {
    let set = Op::LinkSettings(link(7), Some(LinkProfile::Workload));
    let mut bench = Bench::new(vec![
        observed(set.clone()),
        observed(Op::LinkSettings(link(8), Some(LinkProfile::Uplink))),
    ]);
    assert_eq!(bench.poll(), None);
    bench.want(&set);
    assert_eq!(bench.poll(), None, "it is so already");
    bench.want(&Op::LinkSettings(link(7), None));
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
    assert_eq!(bench.rows(view::Kind::LinkSettings, 0, 9), []);
}

fn device() -> TunnelDevice {
    TunnelDevice {
        vni: 4096,
        port: 4789,
        local: [192, 0, 2, 9].into(),
        parent: link(2),
        mac: Mac([2; 6]),
        mtu: 1450,
        address: [10, 0, 0, 1].into(),
    }
}

#[test]
fn a_device_that_was_made_in_part_is_cleared_when_it_is_not_wanted() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device()))));
    bench.settle_failing();
    bench.want(&Op::TunnelDevice(Tunnel::VxlanV4, None));
    assert_eq!(bench.notices().len(), 1);
    assert_eq!(bench.ops(), [Op::TunnelDevice(Tunnel::VxlanV4, None)]);
}

#[test]
fn a_device_that_somebody_removed_is_made_at_once() {
    let set = Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device())));
    let tunnel = LinkState {
        role: LinkRole::Tunnel(Tunnel::VxlanV4),
        ..state(7, true)
    };
    let mut bench = Bench::new(vec![
        Observed::Link(tunnel),
        Observed::TunnelDevice(Tunnel::VxlanV4, Some(device())),
    ]);
    bench.want(&set);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    assert_eq!(bench.ops(), [set]);
}

#[test]
fn a_device_that_was_made_anew_is_cleared_when_it_is_not_wanted() {
    let tunnel = LinkState {
        role: LinkRole::Tunnel(Tunnel::VxlanV4),
        ..state(7, true)
    };
    let mut bench = Bench::new(vec![
        Observed::Link(tunnel),
        Observed::TunnelDevice(Tunnel::VxlanV4, Some(device())),
    ]);
    let other = TunnelDevice {
        port: 4790,
        ..device()
    };
    bench.want(&Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(other))));
    assert_eq!(bench.ops().len(), 1);
    bench.ack(Vec::new());
    // This is the end of the former one.
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    bench.want(&Op::TunnelDevice(Tunnel::VxlanV4, None));
    assert_eq!(bench.ops(), [Op::TunnelDevice(Tunnel::VxlanV4, None)]);
}

#[test]
fn what_hung_on_a_link_that_has_another_name_is_cleared_and_then_read() {
    let renamed = |index| LinkState {
        link: Link {
            index,
            name: "cali2".parse().unwrap(),
        },
        ..state(index, true)
    };
    let before = vec![
        Observed::Link(state(7, true)),
        observed(neighbour(Some(1))),
        observed(route(true)),
    ];
    let mut bench = Bench::new(before.clone());
    bench.want(&neighbour(Some(1)));
    bench.want(&route(true));
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    bench.handle(Input::Link(LinkEvent::Set(renamed(7))));
    bench.want(&neighbour(None));
    bench.want(&route(false));
    assert_eq!(bench.ops(), [route(false)]);
    bench.ack(Vec::new());
    let stray = NeighbourKey {
        link: renamed(7).link,
        address: [192, 0, 2, 1].into(),
    };
    bench.welcome(vec![Observed::Neighbour(stray.clone(), Mac([1; 6]))]);
    assert_eq!(bench.ops(), [Op::Neighbour(stray, None)]);
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);

    // Nothing is left of one that is gone for good, whatever comes later.
    let mut bench = Bench::new(before);
    bench.handle(Input::InSync { complete: false });
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Set(renamed(7))));
    assert_eq!(bench.poll(), None);
}

fn address(index: u32, text: &str) -> LinkAddressKey {
    LinkAddressKey {
        link: link(index),
        address: text.parse().unwrap(),
    }
}

fn with_addresses(index: u32, up: bool, addresses: &[&str]) -> LinkState {
    let addresses = addresses.iter().map(|one| one.parse().unwrap());
    LinkState {
        addresses: addresses.collect(),
        ..state(index, up)
    }
}

#[test]
fn others_addresses_of_the_kind_go_only_from_links_that_are_to_have_one_of_the_family() {
    let mut bench = Bench::starting();
    let wanted = address(7, "169.254.0.1");
    bench.want(&Op::LinkAddress(wanted.clone(), true));
    bench.handle(Input::InSync { complete: true });
    bench.connect(vec![
        Observed::Link(state(7, true)),
        Observed::Link(state(8, true)),
        // It is there, but by another's doing.
        Observed::LinkAddress(wanted.clone(), false),
        Observed::LinkAddress(address(7, "169.254.0.2"), false),
        Observed::LinkAddress(address(7, "fd00::2"), false),
        Observed::LinkAddress(address(8, "169.254.0.2"), false),
        Observed::LinkAddress(address(8, "169.254.0.3"), true),
    ]);
    assert_eq!(
        bench.ops(),
        [
            Op::LinkAddress(wanted, true),
            Op::LinkAddress(address(7, "169.254.0.2"), false),
            Op::LinkAddress(address(8, "169.254.0.3"), false),
        ]
    );
}

#[test]
fn an_address_that_others_take_away_is_read_and_one_that_the_kernel_drops_is_set_again() {
    let wanted = address(7, "fd00::1");
    let up = || with_addresses(7, true, &["fd00::1/128"]);
    let read = || {
        vec![
            Observed::Link(up()),
            Observed::LinkAddress(wanted.clone(), true),
        ]
    };
    let mut bench = Bench::new(read());
    bench.want(&Op::LinkAddress(wanted.clone(), true));
    assert_eq!(bench.poll(), None);
    // The link is no longer new, which has all read once.
    bench.now += Duration::from_secs(100);
    bench.welcome(read());
    bench.now += Duration::from_secs(100);
    assert_eq!(bench.poll(), None);
    let without = with_addresses(7, true, &[]);
    bench.handle(Input::Link(LinkEvent::Set(without.clone())));
    bench.welcome(vec![Observed::Link(without)]);
    assert_eq!(bench.ops(), [Op::LinkAddress(wanted.clone(), true)]);
    assert_eq!(bench.drift, [[(view::Kind::LinkAddresses, 1)].into()]);
    bench.ack(Vec::new());
    // One of ours that comes is nothing to look at.
    bench.handle(Input::Link(LinkEvent::Set(up())));
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Set(with_addresses(7, false, &[]))));
    bench.handle(Input::Link(LinkEvent::Set(with_addresses(7, true, &[]))));
    assert_eq!(bench.ops(), [Op::LinkAddress(wanted, true)]);
}

#[test]
fn what_the_kernel_drops_with_an_address_of_ours_is_made_again_at_once() {
    let mut bench = Bench::new(Vec::new());
    let address = |set| {
        let key = LinkAddressKey {
            link: link(7),
            address: [169, 254, 0, 1].into(),
        };
        Op::LinkAddress(key, set)
    };
    for op in [address(true), neighbour(Some(1)), route(true)] {
        bench.want(&op);
    }
    assert_eq!(bench.ops().len(), 3);
    bench.ack(Vec::new());
    bench.want(&address(false));
    assert_eq!(bench.ops(), [address(false)]);
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), [neighbour(Some(1)), route(true)]);
}
