//! The feed where the kernel tells more than can be read at its pace.

use std::{collections::BTreeSet, process::Command};

use futures_util::StreamExt;
use ipc_proto::{Link, LinkEvent, Observed};
use tests::{
    helper::{self, Helper},
    netns::shell,
    world::built,
};

use super::test;

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
            let helper = Helper::start_by(command, "");
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
            let churn = std::thread::spawn(|| {
                shell(
                    "for n in $(seq 150); do
                       echo link add blip$n type bridge; echo link del blip$n
                     done | ip -batch -; ip link add last type bridge",
                )
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
            let log = helper.log();
            assert!(log.contains("it has changed while it was read"), "{log}");
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
            let signal = feeds.next().await.unwrap();
            let feed = helper::feed(signal.args().unwrap().feed());
            assert_eq!(feed.seq, welcome.feed + 1);
        },
    );
}
