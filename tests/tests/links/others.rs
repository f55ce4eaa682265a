//! What other programs do to Cairn's state is put right because it is heard.

use tests::netns::shell;

use super::{differing, eventually, index, is_again, listen, test};

#[test]
fn what_others_change_is_put_right_without_a_timer_and_counted() {
    test(
        "others::what_others_change_is_put_right_without_a_timer_and_counted",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let fdb = node.netns.run("bridge fdb show dev vxlan.calico");
            let mac = fdb.split_whitespace().next().unwrap();
            let drift = || node.status()["calc"]["properties"]["Drift"].clone();
            assert_eq!(drift(), serde_json::json!({}));
            for (change, kind) in [
                ("ip route del 10.244.2.0/26".to_owned(), "kernel-route"),
                ("ip -6 route del fd00:244::1:2".to_owned(), "kernel-route"),
                (
                    "ip route add 10.99.0.1 dev cali-frontend proto static".to_owned(),
                    "kernel-route",
                ),
                (
                    "ip neigh del 10.244.2.0 dev vxlan.calico".to_owned(),
                    "neighbour",
                ),
                (
                    "ip neigh replace 10.244.1.3 lladdr 02:00:00:00:00:99 dev cali-cart \
                     nud permanent"
                        .to_owned(),
                    "neighbour",
                ),
                (format!("bridge fdb del {mac} dev vxlan.calico"), "fdb"),
            ] {
                let count = drift()[kind].as_u64().unwrap_or_default();
                node.netns.run(&change);
                eventually(&change, || {
                    let counted = drift()[kind].as_u64() > Some(count);
                    counted.then_some(()).ok_or_else(|| drift().to_string())
                });
                is_again(node, &before);
            }
        },
    );
}

#[test]
fn what_others_do_elsewhere_is_not_read() {
    test("others::what_others_do_elsewhere_is_not_read", |world| {
        let [node, _] = &world.nodes;
        let before = node.kernel_state();
        let resyncs = || node.status()["calc"]["properties"]["Resyncs"].as_u64();
        let read = resyncs();
        let flood = node.netns.within(|| {
            shell(
                "for n in $(seq 10000); do
                   echo route add blackhole 10.200.$((n / 250)).$((n % 250)) table 78
                 done | ip -batch -; ip route flush table 78",
            )
        });
        flood.join().unwrap();
        // What comes after it is heard, and is one reading.
        let monitor = listen(node);
        node.netns.run("ip route del 10.244.2.0/26");
        is_again(node, &before);
        let told = monitor.told(index(node, "vxlan.calico").unwrap());
        assert!(
            told.contains(&"+route 10.244.2.0/26".to_owned()),
            "{told:?}"
        );
        assert_eq!(resyncs(), read.map(|read| read + 1));
        assert_eq!(differing(&before, &node.kernel_state()), "");
    });
}
