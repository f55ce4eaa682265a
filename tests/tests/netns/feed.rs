//! The feed where the kernel tells more than can be read at its pace.

use std::{collections::BTreeSet, process::Command, sync::Arc};

use futures_util::StreamExt;
use ipc_proto::{Link, LinkEvent, LinkProfile, LinkRole, Observed, Op, OpError};
use tests::{
    helper::{self, Helper},
    netns::shell,
    world::built,
};

use super::test;

/// What the helper logs of a reading that counts for nothing.
const CHANGED: &str = "a dump counts for nothing, and is asked for again";

#[test]
fn interfaces_that_stay_are_never_told_gone_however_fast_others_change() {
    test(
        "feed::interfaces_that_stay_are_never_told_gone_however_fast_others_change",
        || async {
            shell(
                "for n in $(seq 500); do echo link add stay$n type bridge; done | ip -batch -
                 for n in $(seq 500); do echo link set stay$n up; done | ip -batch -",
            );
            let mut command = Command::new(built().join("cairn-privhelper"));
            command.env("CAIRN_LOG", "debug");
            let helper = Arc::new(Helper::start_by(command, ""));
            let mut calc = helper.connect().await;
            let mut feeds = calc.proxy.receive_links_changed().await.unwrap();
            let (_, items) = calc.hello().await;
            let stay = |link: &Link| link.name.as_str().starts_with("stay");
            let read = |items: &[Observed]| -> BTreeSet<Link> {
                let links = items.iter().filter_map(Observed::link);
                links.map(|state| state.link.clone()).filter(stay).collect()
            };
            let all = read(&items);
            assert_eq!(all.len(), 500);
            // Whether a reading of its own falls among the changes is chance, so they go on until then.
            let log = move || helper.log();
            let logged = log.clone();
            let churn = std::thread::spawn(move || {
                for _ in 0..100 {
                    shell(
                        "for n in $(seq 150); do
                           echo link add blip$n type bridge; echo link del blip$n
                         done | ip -batch -",
                    );
                    if logged().contains(CHANGED) {
                        break;
                    }
                }
                shell("ip link add last type bridge");
            });
            let last = loop {
                let signal = feeds.next().await.unwrap();
                let events = helper::feed(signal.args().unwrap().feed()).events;
                let gone = events.iter().find_map(|event| match event {
                    LinkEvent::Gone(link) => stay(link).then_some(link),
                    LinkEvent::Set(_) => None,
                });
                assert_eq!(gone, None);
                let is_last = |event: &LinkEvent| match event {
                    LinkEvent::Set(state) => state.link.name.as_str() == "last",
                    LinkEvent::Gone(_) => false,
                };
                if events.iter().any(is_last) {
                    break calc.hello().await.1;
                }
            };
            churn.join().unwrap();
            assert_eq!(read(&last), all);
            assert!(log().contains(CHANGED), "{}", log());
        },
    );
}

#[test]
fn what_the_kernel_could_not_tell_leaves_a_gap_in_the_numbers() {
    test(
        "feed::what_the_kernel_could_not_tell_leaves_a_gap_in_the_numbers",
        || async {
            shell("ip link add blip type bridge");
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            let mut feeds = calc.proxy.receive_links_changed().await.unwrap();
            let (welcome, _) = calc.hello().await;
            // It does not listen for longer than there is room.
            helper.signal("STOP");
            shell(
                "for n in $(seq 10000); do
                   echo link set blip up; echo link set blip down
                 done | ip -batch -",
            );
            helper.signal("CONT");
            let signal = feeds.next().await.unwrap();
            let feed = helper::feed(signal.args().unwrap().feed());
            assert!(feed.seq > welcome.feed + 1, "{feed:?}");
            // What there is now is read, and told from then on as ever.
            let (welcome, items) = calc.hello().await;
            assert!(!helper::link_state(&items, "blip").up);
            shell("ip link set blip up");
            // More than one gap may have been told before the reading.
            let mut seq = 0;
            while seq <= welcome.feed {
                let signal = feeds.next().await.unwrap();
                seq = helper::feed(signal.args().unwrap().feed()).seq;
            }
            assert_eq!(seq, welcome.feed + 1);
        },
    );
}

#[test]
fn an_excluded_interface_has_no_address_and_no_role() {
    test(
        "feed::an_excluded_interface_has_no_address_and_no_role",
        || async {
            // As kube-proxy and a DNS cache keep services' addresses.
            shell(
                "ip link add kube-ipvs0 type bridge; ip address add 10.96.0.10/32 dev kube-ipvs0
                 ip link add nodelocaldns type bridge; ip address add 10.96.0.20/32 dev nodelocaldns",
            );
            let own = "10.96.0.20/32".parse().unwrap();
            for (excluded, seen) in [
                ("", (vec![own], LinkRole::Uplink)),
                (
                    "interface_exclude = ['kube-ipvs0', 'nodelocaldns']",
                    (Vec::new(), LinkRole::Other),
                ),
            ] {
                let helper = Helper::start(excluded);
                let mut calc = helper.connect().await;
                let mut feeds = calc.proxy.receive_links_changed().await.unwrap();
                let (_, items) = calc.hello().await;
                let ipvs = helper::link_state(&items, "kube-ipvs0");
                assert_eq!((&*ipvs.addresses, ipvs.role), (&[][..], LinkRole::Other));
                let dns = helper::link_state(&items, "nodelocaldns");
                assert_eq!((dns.addresses, dns.role), seen);

                // What is told later has none either.
                shell(
                    "ip address add 10.96.0.11/32 dev kube-ipvs0; ip link set kube-ipvs0 mtu 1400",
                );
                let signal = feeds.next().await.unwrap();
                let events = helper::feed(signal.args().unwrap().feed()).events;
                let [LinkEvent::Set(state)] = events.as_slice() else {
                    panic!("{events:?}");
                };
                assert_eq!((state.mtu, &*state.addresses), (1400, &[][..]));
                let profile = LinkProfile::Uplink;
                let failed = calc
                    .apply([Op::LinkSettings(state.link.clone(), Some(profile))])
                    .await;
                assert!(
                    matches!(&failed[..], [(0, OpError::Denied(_))]),
                    "{failed:?}"
                );
                shell(
                    "ip address del 10.96.0.11/32 dev kube-ipvs0; ip link set kube-ipvs0 mtu 1500",
                );
            }
        },
    );
}
