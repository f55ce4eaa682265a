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

#[test]
fn another_programs_route_that_wins_over_ours_is_told_until_it_is_gone() {
    test(
        "others::another_programs_route_that_wins_over_ours_is_told_until_it_is_gone",
        |world| {
            let [node, _] = &world.nodes;
            let before = node.kernel_state();
            let settled = || {
                node.resync();
                node.converged();
                let diff = node.cairnctl("diff").output().unwrap();
                let diff = String::from_utf8(diff.stdout).unwrap();
                (node.problems().unwrap(), diff)
            };
            let pod = node.netns.run("ip route show 10.244.1.2");
            assert!(pod.contains("metric 1024"), "{pod}");
            for (metric, effect) in [
                (1023, "another program's route wins"),
                (1024, "another program's route is beside it"),
            ] {
                let way = format!("10.244.1.2 dev eth0 proto static metric {metric}");
                node.netns.run(&format!("ip route append {way}"));
                let (problems, diff) = settled();
                assert!(
                    matches!(&problems[..], [problem] if problem.contains(effect)),
                    "{problems:?}"
                );
                let lines: Vec<&str> = diff.lines().skip(1).collect();
                assert!(
                    matches!(lines[..], [line] if line.contains("10.244.1.2/32")
                        && line.contains(&format!("foreign: {effect}"))
                        && line.contains(&format!("metric {metric} protocol static dev eth0"))),
                    "{diff}"
                );
                let both = node.netns.run("ip route show 10.244.1.2");
                assert_eq!(both.lines().count(), 2, "{both}");
                assert!(!node.cairnctl("status").status().unwrap().success());
                let routes = node.cairnctl("routes --kernel").output().unwrap();
                let routes = String::from_utf8(routes.stdout).unwrap();
                assert!(routes.contains(&format!("foreign: {effect}")), "{routes}");

                node.netns.run(&format!("ip route del {way}"));
                let (problems, diff) = settled();
                assert!(problems.is_empty(), "{problems:?}");
                assert!(diff.starts_with("all is as it should be"), "{diff}");
                assert!(node.cairnctl("status").status().unwrap().success());
            }
            // One that lies within the other node's block takes its packets by its length.
            let way = "10.244.2.7 dev eth0 proto static metric 9000";
            node.netns.run(&format!("ip route add {way}"));
            let (problems, diff) = settled();
            let effect = "another program's route to 10.244.2.7/32 within it wins there: metric 9000 \
                          protocol static dev eth0";
            assert!(
                matches!(&problems[..], [problem] if problem.contains("10.244.2.0/26")
                    && problem.contains(effect)),
                "{problems:?}"
            );
            let line = diff.lines().nth(1).unwrap_or_default();
            assert!(
                line.contains("10.244.2.0/26") && line.contains(effect),
                "{diff}"
            );
            node.netns.run(&format!("ip route del {way}"));
            assert!(settled().0.is_empty());
            is_again(node, &before);
        },
    );
}
