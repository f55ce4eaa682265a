//! What is read of kinds of which whoever asks knows a sum.

use ipc_proto::{BpfRoute, Known, Many, Observed, Op, Protocol, RouteKind, Sum};
use tests::{helper::Calc, netns::shell};

use super::{
    routes::{hop, key, route, set, world},
    test,
};

#[test]
fn what_is_as_known_is_not_sent_and_what_others_have_changed_is() {
    test(
        "known::what_is_as_known_is_not_sent_and_what_others_have_changed_is",
        || async {
            let (_helper, mut calc) = world().await;
            let entry = |number: u32| {
                let prefix = format!("10.1.{number}.0/24").parse().unwrap();
                Op::BpfRoute(prefix, Some(BpfRoute::default()))
            };
            let kernel = |number: u32| {
                let key = key(&format!("10.1.{number}.0/24"), 0);
                let kind = RouteKind::Unicast(hop("eth0", Some("192.0.2.8"), true));
                set((key, route(kind, Protocol::Safe)))
            };
            calc.must_apply((0..200).map(entry).chain((0..200).map(kernel)))
                .await;
            let items = calc.hello().await.1;
            let are = |items: &[Observed]| {
                [false, true].map(|bpf| {
                    let is = |item: &&Observed| {
                        matches!(item, Observed::BpfRoute(..) if bpf)
                            || matches!(item, Observed::KernelRoute(..) if !bpf)
                    };
                    items.iter().filter(is).count()
                })
            };
            assert_eq!(are(&items), [200, 200]);
            let sum = |bpf: bool, items: &[Observed]| {
                let mut sum = Sum::default();
                for item in items {
                    if matches!(item, Observed::BpfRoute(..)) == bpf {
                        sum.add_observed(7, item);
                    }
                }
                Some(sum)
            };
            let known = Known {
                seed: 7,
                bpf_v4: sum(true, &items),
                bpf_v6: Some(Sum::default()),
                kernel_routes: sum(false, &items),
            };
            let read = async |calc: &mut Calc| {
                let pages = calc.pages::<Vec<Observed>>(known).await.1;
                let items: Vec<Observed> = pages.into_iter().flatten().collect();
                let mut as_known = Vec::new();
                for item in &items {
                    if let Observed::AsKnown(many) = item {
                        as_known.push(*many);
                    }
                }
                let rivals = items
                    .iter()
                    .filter(|item| matches!(item, Observed::Rivals(_)));
                assert_eq!(rivals.count(), 1, "whatever is left out");
                (as_known, are(&items))
            };
            shell("ip route append 10.1.8.0/24 via 192.0.2.7 dev eth0 proto bird");
            let all = [Many::KernelRoutes, Many::BpfV4, Many::BpfV6];
            assert_eq!(read(&mut calc).await, (all.to_vec(), [0, 0]));
            // The number of routes stays.
            shell("ip route replace 10.1.7.0/24 via 192.0.2.9 dev eth0 proto 80");
            assert_eq!(
                read(&mut calc).await,
                (vec![Many::BpfV4, Many::BpfV6], [200, 0])
            );
            calc.must_apply([Op::BpfRoute("10.1.9.0/24".parse().unwrap(), None)])
                .await;
            assert_eq!(read(&mut calc).await, (vec![Many::BpfV6], [200, 199]));
        },
    );
}
