//! What subscribers of the real face hear, beside what the helper holds.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{Stream, StreamExt};
use ipc_proto::{Feed, Link, LinkEvent, LinkRole, LinkState, bus::RouteRow};
use zbus::Connection;

use super::*;
use crate::dataplane::model::signal;

/// Documents of so many pools.
fn pools(count: u16) -> String {
    let pool = |n: u16| {
        let [high, low] = n.to_be_bytes();
        format!(
            "---\napiVersion: projectcalico.org/v3\nkind: IPPool\n\
             metadata: {{name: pool-{n}}}\nspec: {{cidr: 10.{high}.{low}.0/24}}\n"
        )
    };
    (0..count).map(pool).collect()
}

/// An interface with an address that others can send to.
fn uplink() -> LinkState {
    LinkState {
        link: Link {
            index: 2,
            name: "eth0".parse().unwrap(),
        },
        role: LinkRole::Uplink,
        up: true,
        carrier: true,
        mac: None,
        mtu: 1500,
        addresses: vec!["192.0.2.7/24".parse().unwrap()],
    }
}

async fn heard<T>(signals: &mut (impl Stream<Item = T> + Unpin)) -> T {
    let signal = timeout(DEADLINE, signals.next()).await;
    signal.unwrap().unwrap()
}

/// Reads all pages, and returns the number of the first as well.
async fn snapshot(calc: &Calc1Proxy<'_>) -> (u64, Vec<String>, BTreeMap<String, RouteRow>) {
    let first = calc.snapshot("").await.unwrap();
    let (seq, host_ips) = (first.seq, first.host_ips);
    let (mut rows, mut next) = (first.routes, first.next);
    while !next.is_empty() {
        let page = calc.snapshot(&next).await.unwrap();
        rows.extend(page.routes);
        next = page.next;
    }
    let routes = rows.into_iter().map(|row| (row.prefix.clone(), row));
    (seq, host_ips, routes.collect())
}

async fn feed(connection: &Connection, seq: u64, state: LinkState) {
    let events = vec![LinkEvent::Set(state)];
    let drift = BTreeSet::new();
    signal(connection, &Feed { seq, events, drift }).await;
}

fn in_kernel(helper: &Helper) -> BTreeMap<String, RouteRow> {
    let state = helper.0.lock().unwrap();
    let rows = state
        .bpf
        .iter()
        .map(|(key, value)| RouteRow::new(*key, value));
    rows.map(|row| (row.prefix.clone(), row)).collect()
}

#[tokio::test]
async fn consumers_are_told_what_the_helper_has_acknowledged() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let document = config.datastore_dir.join("pools.yaml");
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    helper.0.lock().unwrap().links.push(uplink());
    // On the heap: all that these streams hold is large.
    beside(
        config,
        listener,
        Box::pin(async {
            let calc = face(&dir).await;
            let mut routes = calc.receive_routes_changed().await.unwrap();
            let mut host_ips = calc.receive_host_ips_changed().await.unwrap();
            let mut resets = calc.receive_reset().await.unwrap();
            let error = calc.snapshot("").await.unwrap_err().to_string();
            assert!(error.contains("io.cairn.Error.NotReady"), "{error}");

            let connection = helper.accept(&socket).await;
            let reset = heard(&mut resets).await;
            assert_eq!(*reset.args().unwrap().seq(), 1);
            let (seq, addresses, mut known) = snapshot(&calc).await;
            assert_eq!((seq, addresses), (1, vec!["192.0.2.7".to_owned()]));
            assert_eq!(known, in_kernel(&helper));

            fs::write(&document, pools(3)).unwrap();
            let change = heard(&mut routes).await;
            let change = change.args().unwrap();
            assert_eq!((*change.seq(), change.updates().len()), (2, 3));
            assert!(change.deletes().is_empty());
            known.extend(
                change
                    .updates()
                    .iter()
                    .map(|row| (row.prefix.clone(), row.clone())),
            );
            assert_eq!(known, in_kernel(&helper));

            // Somebody joins late.
            let late = face(&dir).await;
            let mut late_routes = late.receive_routes_changed().await.unwrap();
            let mut late_resets = late.receive_reset().await.unwrap();
            let (seq, _, all) = snapshot(&late).await;
            assert_eq!((seq, all), (2, known));
            fs::write(&document, pools(2)).unwrap();
            for routes in [&mut routes, &mut late_routes] {
                let change = heard(routes).await;
                let change = change.args().unwrap();
                assert_eq!((*change.seq(), change.updates().len()), (3, 0));
                assert_eq!(*change.deletes(), ["10.0.2.0/24"]);
            }

            // An address is added to the interface, and told after its entry.
            let mut state = uplink();
            state.addresses.push("192.0.2.8/24".parse().unwrap());
            feed(&connection, 1, state).await;
            let change = heard(&mut routes).await;
            assert_eq!(*change.args().unwrap().seq(), 4);
            let change = heard(&mut host_ips).await;
            let change = change.args().unwrap();
            assert_eq!((*change.seq(), change.addresses().len()), (5, 2));

            // More than is told one by one.
            fs::write(&document, pools(1500)).unwrap();
            for resets in [&mut resets, &mut late_resets] {
                let reset = heard(resets).await;
                assert_eq!(*reset.args().unwrap().seq(), 6);
            }
            let (seq, addresses, all) = snapshot(&late).await;
            assert_eq!((seq, addresses.len(), all.len()), (6, 2, 1502));
            assert_eq!(all, in_kernel(&helper));

            // A crash of the helper is no news; the next change is.
            drop(connection.close().await);
            let _connection = helper.accept(&socket).await;
            let in_sync = || async { calc.in_sync().await.unwrap() };
            eventually("in sync again", in_sync).await;
            fs::write(&document, pools(1501)).unwrap();
            let change = heard(&mut routes).await;
            assert_eq!(*change.args().unwrap().seq(), 7);

            let error = calc.snapshot("10").await.unwrap_err().to_string();
            assert!(error.contains("InvalidCursor"), "{error}");
        }),
    )
    .await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_holds_up_nobody_and_is_reset() {
    let dir = TempDir::new().unwrap();
    let (config, listener) = config(&dir, None);
    let socket = Helper::listen(dir.path());
    let helper = Helper::default();
    helper.0.lock().unwrap().links.push(uplink());
    let mut many = uplink();
    many.addresses = (0..400_u16)
        .map(|n| {
            format!("198.51.{}.{}/32", n / 200, n % 200 + 1)
                .parse()
                .unwrap()
        })
        .collect();
    // On the heap: all that these streams hold is large.
    beside(
        config,
        listener,
        Box::pin(async {
            // It takes in no more once so much is unread.
            let slow = face(&dir).await;
            let mut unread = slow.receive_routes_changed().await.unwrap();
            let mut slow_resets = slow.receive_reset().await.unwrap();
            let calc = face(&dir).await;
            let mut resets = calc.receive_reset().await.unwrap();
            let mut host_ips = calc.receive_host_ips_changed().await.unwrap();
            let connection = helper.accept(&socket).await;
            for resets in [&mut resets, &mut slow_resets] {
                let reset = heard(resets).await;
                assert_eq!(*reset.args().unwrap().seq(), 1);
            }

            for round in 1..=100_u64 {
                let (state, addresses) = if round.is_multiple_of(2) {
                    (uplink(), 1)
                } else {
                    (many.clone(), 400)
                };
                feed(&connection, round, state).await;
                let change = heard(&mut host_ips).await;
                let change = change.args().unwrap();
                assert_eq!(*change.seq(), 1 + 2 * round);
                assert_eq!(change.addresses().len(), addresses);
            }

            let reset = async {
                loop {
                    tokio::select! {
                        _ = unread.next() => {}
                        reset = slow_resets.next() => return reset,
                    }
                }
            };
            let reset = timeout(DEADLINE, reset).await.unwrap().unwrap();
            let seq = *reset.args().unwrap().seq();
            assert!((2..201).contains(&seq), "{seq}");
            let (seq, _, all) = snapshot(&slow).await;
            assert_eq!((seq, all), (201, in_kernel(&helper)));
        }),
    )
    .await;
}
