//! What the reconciler does when others undo what it has made.

use ipc_proto::{Tunnel, TunnelDevice};

use super::*;

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

fn set() -> Op {
    Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device())))
}

/// The device as it is seen when it is as it was made.
fn seen(index: u32) -> LinkState {
    LinkState {
        link: Link {
            index,
            name: "vxlan.calico".parse().unwrap(),
        },
        role: LinkRole::Tunnel(Tunnel::VxlanV4),
        mac: Some(device().mac),
        mtu: device().mtu,
        addresses: vec!["10.0.0.1/32".parse().unwrap()],
        ..state(index, true)
    }
}

/// Starts with the device in place.
fn standing() -> Bench {
    let mut bench = Bench::new(vec![
        Observed::Link(seen(7)),
        Observed::TunnelDevice(Tunnel::VxlanV4, Some(device())),
    ]);
    bench.want(&set());
    assert_eq!(bench.poll(), None);
    bench
}

impl Bench {
    fn link(&mut self, state: LinkState) {
        self.handle(Input::Link(LinkEvent::Set(state)));
    }

    /// Expects the device to be made, and has it made with this index.
    #[track_caller]
    fn repair(&mut self, index: u32) {
        assert_eq!(self.ops(), [set()]);
        self.ack(Vec::new());
        self.link(seen(index));
        assert_eq!(self.poll(), None);
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn contested(&self) -> Vec<String> {
        let contested = self.calc.contested();
        contested.map(|contested| contested.to_string()).collect()
    }
}

#[test]
fn a_device_that_somebody_keeps_removing_is_made_ever_more_rarely() {
    let mut bench = standing();
    let mut index = 7;
    let mut remove = |bench: &mut Bench| {
        let link = seen(index).link;
        bench.handle(Input::Link(LinkEvent::Gone(link)));
        index += 1;
        index
    };
    let next = remove(&mut bench);
    bench.repair(next);
    assert!(bench.calc.is_in_sync());
    for wait in [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000] {
        let next = remove(&mut bench);
        assert_eq!(bench.poll(), None, "it waits");
        let counts = bench.calc.totals();
        assert_eq!((counts.pending, counts.held, counts.contested), (0, 0, 1));
        assert!(!bench.calc.is_in_sync());
        let due = bench.now + Duration::from_millis(wait);
        assert_eq!(bench.calc.poll_timeout(), Some(due));
        bench.pass(wait - 1);
        assert_eq!(bench.poll(), None);
        bench.pass(1);
        bench.repair(next);
    }
    // One line, which does not change, until it has stood for a minute.
    let told = [
        "tunnel device VxlanV4: another program undoes it again and again (3 times within 500ms; \
         last: vxlan.calico was removed or renamed), so that it is repaired ever more rarely, at \
         most every 30 s: see who does it (ip monitor link) and have it leave the interface alone, \
         as by excluding it from NetworkManager or systemd-networkd",
    ];
    assert_eq!(bench.contested(), told);
    bench.pass(59_999);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.contested(), told);
    bench.pass(1);
    assert_eq!(bench.poll(), None);
    assert!(bench.contested().is_empty());
    assert_eq!(bench.calc.poll_timeout(), None);
    let next = remove(&mut bench);
    bench.repair(next);
    assert!(bench.contested().is_empty(), "it begins anew");
}

#[test]
fn what_is_done_to_a_device_is_named_and_put_right_at_once() {
    let other = |change: fn(&mut LinkState)| {
        let mut state = seen(7);
        change(&mut state);
        state
    };
    for (deed, state) in [
        ("vxlan.calico was set down", other(|state| state.up = false)),
        (
            "vxlan.calico got another MAC address",
            other(|state| state.mac = Some(Mac([4; 6]))),
        ),
        (
            "vxlan.calico got the MTU 1500",
            other(|state| state.mtu = 1500),
        ),
        (
            "vxlan.calico got other addresses",
            other(|state| state.addresses.clear()),
        ),
        (
            "vxlan.calico got other addresses",
            other(|state| {
                state.addresses.push("169.254.7.7/16".parse().unwrap());
            }),
        ),
    ] {
        let mut bench = standing();
        bench.link(state.clone());
        bench.repair(7);
        for wait in [500, 1000] {
            bench.link(state.clone());
            assert_eq!(bench.poll(), None, "it waits");
            bench.pass(wait);
            bench.repair(7);
        }
        let [line] = bench.contested().try_into().unwrap();
        assert!(line.contains(deed), "{line}");
    }
    // What the kernel adds by itself is no deed.
    let mut bench = standing();
    bench.link(other(|state| {
        state.addresses.push("fe80::1/64".parse().unwrap());
    }));
    assert_eq!(bench.poll(), None);
}

#[test]
fn a_device_that_goes_bit_by_bit_is_told_to_be_gone() {
    let mut bench = standing();
    for undone in 1..=3 {
        bench.link(LinkState {
            addresses: Vec::new(),
            ..seen(7)
        });
        if undone == 1 {
            bench.repair(7);
            continue;
        }
        assert_eq!(bench.poll(), None, "it waits");
        bench.handle(Input::Link(LinkEvent::Gone(seen(7).link)));
        assert_eq!(bench.poll(), None);
        assert!(bench.contested().is_empty(), "more may be seen of it");
        bench.pass(1000);
        bench.repair(7);
    }
    let [line] = bench.contested().try_into().unwrap();
    assert!(line.contains("vxlan.calico was removed"), "{line}");
}

/// The reading comes before what is heard of it.
#[test]
fn what_was_done_to_a_device_is_named_where_a_reading_finds_it() {
    let mut bench = standing();
    for nth in 0..3 {
        bench.handle(Input::Resync);
        bench.welcome(Vec::new());
        if nth > 0 {
            assert_eq!(bench.poll(), None, "it waits");
            bench.pass(500 << (nth - 1));
        }
        bench.repair(8 + nth);
    }
    let [told] = bench.contested().try_into().unwrap();
    let deed = "last: vxlan.calico was removed or renamed)";
    assert!(told.contains(deed), "{told}");
}

#[test]
fn a_device_in_the_making_is_not_undone() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&set());
    assert_eq!(bench.ops(), [set()]);
    // Made, set up, and then complete; all before the answer.
    let bare = LinkState {
        addresses: Vec::new(),
        mtu: 1500,
        ..seen(7)
    };
    bench.link(LinkState {
        up: false,
        ..bare.clone()
    });
    bench.link(bare);
    bench.link(seen(7));
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn a_device_that_came_and_went_unseen_is_missed() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&set());
    assert_eq!(bench.ops(), [set()]);
    bench.ack(Vec::new());
    bench.handle(Input::Link(LinkEvent::Gone(seen(7).link)));
    assert_eq!(bench.ops(), [set()]);
}

#[test]
fn a_device_in_the_place_of_another_is_made_sure_of_and_was_not_undone() {
    let mut bench = standing();
    for index in 8..20 {
        bench.handle(Input::Link(LinkEvent::Gone(seen(index - 1).link)));
        bench.link(seen(index));
        assert_eq!(bench.ops(), [set()]);
        bench.ack(Vec::new());
        assert_eq!(bench.poll(), None);
    }
    assert!(bench.contested().is_empty());
}

#[test]
fn another_device_is_another_matter() {
    let mut bench = standing();
    let other = TunnelDevice {
        port: 4790,
        ..device()
    };
    for _ in 0..2 {
        bench.link(state_down());
        bench.ops();
        if bench.batch.is_some() {
            bench.ack(Vec::new());
        }
    }
    assert_eq!(bench.poll(), None, "it waits");
    let other = Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(other)));
    bench.want(&other);
    assert_eq!(bench.ops(), [other]);
    bench.ack(Vec::new());
    let none = Op::TunnelDevice(Tunnel::VxlanV4, None);
    bench.link(state_down());
    bench.want(&none);
    assert_eq!(bench.ops(), [none]);
    bench.ack(Vec::new());
    assert_eq!(bench.calc.poll_timeout(), None);
}

fn state_down() -> LinkState {
    LinkState {
        up: false,
        ..seen(7)
    }
}

#[test]
fn what_every_reading_finds_undone_is_told_and_no_longer_when_it_stands() {
    let entry = bpf(1, Some(1));
    let mut bench = Bench::new(vec![observed(entry.clone())]);
    bench.want(&entry);
    for undone in 1..=3 {
        assert_eq!(bench.contested().len(), 0, "{undone}");
        bench.pass(90_000);
        bench.handle(Input::Resync);
        bench.welcome(Vec::new());
        // At once: it is read rarely enough.
        assert_eq!(bench.ops(), std::slice::from_ref(&entry));
        bench.ack(Vec::new());
    }
    let [line] = bench.contested().try_into().unwrap();
    let told = "BPF route 10.0.1.0/24: another program undoes it again and again (3 times within \
                180s; last: was removed)";
    assert!(line.starts_with(told), "{line}");
    assert!(
        line.ends_with("another network agent on this host"),
        "{line}"
    );
    // It is not known to stand before it is read.
    bench.pass(600_000);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.contested().len(), 1);
    bench.handle(Input::Resync);
    bench.welcome(vec![observed(entry)]);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.contested().len(), 0);
}

#[test]
fn a_route_that_others_remove_as_soon_as_it_is_made_waits_ever_longer() {
    let mut bench = Bench::new(vec![observed(route(true))]);
    bench.want(&route(true));
    for wait in [0, 500, 1000, 2000] {
        bench.handle(Input::Resync);
        bench.welcome(Vec::new());
        if wait > 0 {
            bench.pass(wait - 1);
            assert_eq!(bench.poll(), None, "{wait}");
            bench.pass(1);
        }
        assert_eq!(bench.ops(), [route(true)], "{wait}");
        bench.ack(Vec::new());
    }
    let [line] = bench.contested().try_into().unwrap();
    assert!(line.ends_with("(ip monitor route rule)"), "{line}");
}

#[test]
fn what_was_lost_by_a_dead_helper_was_not_undone() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&route(true));
    for _ in 0..5 {
        assert_eq!(bench.ops(), [route(true)]);
        bench.handle(Input::Disconnected);
        bench.connect(Vec::new());
    }
    assert_eq!(bench.contested().len(), 0);
}

#[test]
fn of_what_goes_with_an_address_only_the_address_waits() {
    let key = LinkAddressKey {
        link: link(7),
        address: [169, 254, 0, 1].into(),
    };
    let address = Op::LinkAddress(key.clone(), true);
    let mut bench = Bench::new(Vec::new());
    for op in [&address, &neighbour(Some(1)), &route(true)] {
        bench.want(op);
    }
    assert_eq!(bench.ops().len(), 3);
    bench.ack(Vec::new());
    let addresses = |bench: &Bench| bench.calc.counts(view::Kind::LinkAddresses).contested;
    for undone in 1..=6 {
        // It has come and gone, so no interface looks other than before, and the kernel has dropped the rest.
        bench.handle(Input::Resync);
        let mut read = Vec::new();
        if undone % 2 == 0 {
            // Another program has made it its own.
            read.push(Observed::LinkAddress(key.clone(), false));
        }
        bench.welcome(read);
        let mut ops = vec![neighbour(Some(1)), route(true)];
        if undone == 1 {
            ops.insert(1, address.clone());
        }
        assert_eq!(bench.ops(), ops, "{undone}");
        bench.ack(Vec::new());
        if undone > 1 {
            assert_eq!(addresses(&bench), 1);
            assert_eq!(bench.calc.totals().contested, 1);
            bench.pass(30_000);
            assert_eq!(bench.ops(), std::slice::from_ref(&address));
            bench.ack(Vec::new());
        }
        assert_eq!(
            bench.drift.pop(),
            (undone == 1).then(|| [(view::Kind::LinkAddresses, 1)].into())
        );
    }
    let [line] = bench.contested().try_into().unwrap();
    assert!(line.contains("169.254.0.1"), "{line}");
    // What goes while the address stays is another matter.
    bench.handle(Input::Resync);
    bench.welcome(vec![Observed::LinkAddress(key, true)]);
    assert_eq!(bench.ops(), [neighbour(Some(1)), route(true)]);
    assert_eq!(bench.calc.drift()[&view::Kind::KernelRoutes], 1);
}
