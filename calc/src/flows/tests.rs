//! What becomes of an address that changes hands, by the reconciler as a whole: the helper's part is
//! played by hand.
#![expect(
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "a test knows few ops, and any instant will do to start with"
)]

use ipc_proto::{
    Ack, BpfRoute, BpfTarget, Flags, Hop, Incarnation, KernelRoute, Link, Observed, Protocol,
    RouteKey, RouteKind, Table, Welcome,
};
use ipnet::IpNet;

use super::*;
use crate::reconciler::{Input, Notice, Output, Reconciler};

const WORKLOAD: u32 = 0b1100;
const REMOTE: u32 = 0b0100;

fn address() -> IpAddr {
    [10, 1, 0, 9].into()
}

fn link(index: u32) -> Link {
    Link {
        index,
        name: format!("cali{index}").parse().unwrap(),
    }
}

/// A route of an address in a BPF map, to a pod here.
fn bpf_of(address: IpAddr, index: u32) -> Op {
    let route = BpfRoute {
        flags: Flags(WORKLOAD),
        target: BpfTarget::Link(link(index)),
    };
    Op::BpfRoute(address.into(), Some(route))
}

fn bpf(index: u32) -> Op {
    bpf_of(address(), index)
}

fn no_bpf() -> Op {
    Op::BpfRoute(address().into(), None)
}

fn unicast(index: u32, via: Option<IpAddr>, mtu: Option<u32>) -> KernelRoute {
    KernelRoute {
        kind: RouteKind::Unicast(Hop {
            link: link(index),
            via,
            onlink: via.is_some(),
        }),
        protocol: Protocol::Device,
        source: None,
        mtu,
    }
}

fn key(metric: u32) -> RouteKey {
    RouteKey::new(Table::Main, IpNet::from(address()), metric)
}

fn kernel(index: u32) -> Op {
    Op::KernelRoute(key(1024), Some(Box::new(unicast(index, None, None))))
}

/// To another node, with the metric of those.
fn tunnel(index: u32) -> Op {
    let via = Some([10, 1, 1, 0].into());
    Op::KernelRoute(key(0), Some(Box::new(unicast(index, via, None))))
}

fn no_kernel(metric: u32) -> Op {
    Op::KernelRoute(key(metric), None)
}

fn observed(op: &Op) -> Observed {
    match op.clone() {
        Op::BpfRoute(key, value) => Observed::BpfRoute(key, value),
        Op::KernelRoute(key, value) => Observed::KernelRoute(key, value.map(|route| *route)),
        other => panic!("{other:?}"),
    }
}

fn errno() -> OpError {
    OpError::Kernel {
        call: "test".to_owned(),
        errno: 12,
    }
}

struct Bench {
    calc: Reconciler,
    now: Instant,
    lease: u64,
    state: Option<BatchId>,
    flows: Option<BatchId>,
    clean: Vec<IpAddr>,
    notices: Vec<Notice>,
}

impl Bench {
    /// Starts a process that finds `there` in the kernel and wants `wanted`.
    fn new(there: &[Op], wanted: &[Op]) -> Self {
        let mut bench = Self {
            // What network plugins make has tests of its own.
            calc: Reconciler::default().with_grace(Duration::ZERO),
            now: Instant::now(),
            lease: 0,
            state: None,
            flows: None,
            clean: Vec::new(),
            notices: Vec::new(),
        };
        bench.want(wanted);
        bench
            .calc
            .handle(bench.now, Input::InSync { complete: true });
        bench.calc.handle(bench.now, Input::Connected);
        let output = bench.calc.poll(bench.now);
        assert!(matches!(output, Some(Output::Hello(_))), "{output:?}");
        bench.welcome(there);
        bench
    }

    /// Starts a process that finds all as it should be: the pod has the link of that number.
    fn settled(index: u32) -> Self {
        let routes = [bpf(index), kernel(index)];
        let mut bench = Self::new(&routes, &routes);
        bench.quiet();
        bench
    }

    fn welcome(&mut self, there: &[Op]) {
        self.lease += 1;
        (self.state, self.flows) = (None, None);
        let links = (1..=4).map(|index| {
            Observed::Link(LinkState {
                link: link(index),
                role: LinkRole::Workload,
                up: true,
                carrier: true,
                mac: None,
                mtu: 1500,
                addresses: Vec::new(),
            })
        });
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(self.lease),
            max_steps: 100,
            bpf_max_entries: 1000,
            feed: 0,
        };
        let observed = links.chain(there.iter().map(observed)).collect();
        self.calc
            .handle(self.now, Input::Welcome(welcome, observed));
    }

    fn want(&mut self, ops: &[Op]) {
        for op in ops {
            self.calc.want(op.clone()).unwrap();
        }
    }

    /// Returns what is asked for, on either lane.
    fn asks(&mut self) -> Option<Vec<Op>> {
        loop {
            let batch = match self.calc.poll(self.now)? {
                Output::Apply(batch) => batch,
                Output::AddressClean(address) => {
                    self.clean.push(address);
                    continue;
                }
                Output::Notice(notice) => {
                    self.notices.push(notice);
                    continue;
                }
                output @ (Output::Hello(_) | Output::Follow(_) | Output::Recall) => {
                    panic!("{output:?}")
                }
            };
            let lane = match batch.lane {
                Lane::State => &mut self.state,
                Lane::Flows => &mut self.flows,
            };
            assert_eq!(*lane, None, "one batch at a time on a lane");
            *lane = Some(batch.id);
            if batch.lane == Lane::Flows {
                let (id, failed) = (batch.id, Vec::new());
                self.calc.handle(self.now, Input::Ack(Ack { id, failed }));
            }
            return Some(batch.steps.iter().map(|step| step.op.clone()).collect());
        }
    }

    fn expect(&mut self, ops: &[Op]) {
        assert_eq!(self.asks().as_deref(), Some(ops));
    }

    fn quiet(&mut self) {
        assert_eq!(self.asks(), None);
    }

    fn ack(&mut self, failed: &[u32]) {
        let id = self.state.take().unwrap();
        let failed = failed.iter().map(|at| (*at, errno())).collect();
        self.calc.handle(self.now, Input::Ack(Ack { id, failed }));
    }

    fn flushed_with(&mut self, failed: Vec<(u32, OpError)>) {
        let (lease, id) = (Lease(self.lease), self.flows.take().unwrap());
        let done = FlowsDone { lease, id, failed };
        self.calc.handle(self.now, Input::Flushed(done));
    }

    fn flushed(&mut self) {
        self.flushed_with(Vec::new());
    }

    fn wait(&mut self) {
        let at = self.calc.poll_timeout().expect("something to wait for");
        assert!(at > self.now, "no timer spins");
        self.now = at;
    }
}

fn flush() -> Op {
    Op::FlowFlush(address())
}

/// S102, and S102b since no reading is in between.
#[test]
fn a_pod_gets_a_moved_address_after_its_routes_are_cleared_and_its_flows_forgotten() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.quiet();
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.quiet();
    bench.flushed();
    bench.expect(&[bpf(2), kernel(2)]);
    bench.ack(&[]);
    bench.quiet();
    assert!(bench.calc.is_in_sync());
    assert!(bench.clean.is_empty(), "somebody has it");
    assert_eq!(bench.calc.poll_timeout(), None);
}

/// S104, and field case B56.
#[test]
fn others_wait_for_nobody() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    let other = bpf_of([10, 1, 0, 10].into(), 3);
    bench.want(std::slice::from_ref(&other));
    bench.expect(&[other]);
    bench.ack(&[]);
    bench.quiet();
}

/// S111, S117.
#[test]
fn the_flows_of_pods_that_are_gone_are_forgotten_together_and_that_is_told() {
    let addresses: Vec<IpAddr> = (1..=50).map(|n| [10, 1, 0, n].into()).collect();
    let routes: Vec<Op> = addresses.iter().map(|own| bpf_of(*own, 1)).collect();
    let mut bench = Bench::new(&routes, &routes);
    bench.quiet();
    for own in &addresses {
        bench.want(&[Op::BpfRoute((*own).into(), None)]);
    }
    assert_eq!(bench.asks().map(|ops| ops.len()), Some(50));
    bench.ack(&[]);
    let flushes: Vec<Op> = addresses.iter().copied().map(Op::FlowFlush).collect();
    bench.expect(&flushes);
    assert!(bench.clean.is_empty());
    bench.flushed_with(vec![(7, errno())]);
    bench.quiet();
    assert_eq!(bench.clean.len(), 49);
    bench.wait();
    bench.expect(&[Op::FlowFlush(addresses[7])]);
    bench.flushed();
    bench.quiet();
    assert_eq!(bench.clean.last(), Some(&addresses[7]));
}

/// I5; S105, S106 (WK-18), S118 and CT-6.
#[test]
fn the_same_owner_keeps_its_flows() {
    let narrow = Op::KernelRoute(key(1024), Some(Box::new(unicast(1, None, Some(1400)))));
    let mut bench = Bench::settled(1);
    bench.want(std::slice::from_ref(&narrow));
    bench.expect(&[narrow]);
    bench.ack(&[]);
    bench.quiet();

    // Another metric is another key.
    let other = Op::KernelRoute(key(99), Some(Box::new(unicast(1, None, None))));
    bench.want(&[other.clone(), no_kernel(1024)]);
    bench.expect(&[other, no_kernel(1024)]);
    bench.ack(&[]);
    bench.quiet();

    // Another way to another node, with or without memory.
    for there in [tunnel(8), tunnel(9)] {
        let mut bench = Bench::new(std::slice::from_ref(&there), &[tunnel(9)]);
        if there != tunnel(9) {
            bench.expect(&[tunnel(9)]);
            bench.ack(&[]);
        }
        bench.want(&[tunnel(8)]);
        bench.expect(&[tunnel(8)]);
        bench.ack(&[]);
        bench.quiet();
    }
}

/// WK-7: the address is still the pod's.
#[test]
fn one_of_two_routes_to_a_pod_may_go() {
    let second = Op::KernelRoute(key(7), Some(Box::new(unicast(1, None, None))));
    let routes = [bpf(1), kernel(1), second];
    let mut bench = Bench::new(&routes, &routes);
    bench.quiet();
    bench.want(&[no_kernel(7)]);
    bench.expect(&[no_kernel(7)]);
    bench.ack(&[]);
    bench.quiet();
}

/// S107, and the way back: in IPv4 those are different keys.
#[test]
fn a_pod_that_moves_between_nodes_is_another_owner() {
    let remote = BpfRoute {
        flags: Flags(REMOTE),
        target: BpfTarget::NextHop([192, 0, 2, 9].into()),
    };
    let remote = Op::BpfRoute(address().into(), Some(remote));
    let mut bench = Bench::settled(1);
    bench.want(&[remote.clone(), tunnel(9), no_kernel(1024)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[remote, tunnel(9)]);
    bench.ack(&[]);
    bench.want(&[bpf(1), kernel(1), no_kernel(0)]);
    bench.expect(&[no_kernel(0), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[bpf(1), kernel(1)]);
}

/// A borrowed address whose block goes to the node that has borrowed it.
#[test]
fn a_pod_elsewhere_that_is_routed_by_its_block_from_now_on_keeps_its_flows() {
    let to = |net: &str, present: bool| {
        let route = BpfRoute {
            flags: Flags(REMOTE),
            target: BpfTarget::NextHop([192, 0, 2, 9].into()),
        };
        Op::BpfRoute(net.parse().unwrap(), present.then_some(route))
    };
    let (block, own) = ("10.1.0.0/26", "10.1.0.9/32");
    let both = [to(block, true), to(own, true)];
    let mut bench = Bench::new(&both, &both);
    bench.quiet();
    bench.want(&[to(own, false)]);
    bench.expect(&[to(own, false)]);
    bench.ack(&[]);
    bench.quiet();
    assert!(bench.clean.is_empty(), "it is not free");
    // A pod here is another owner all the same.
    bench.want(&[bpf(1)]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[bpf(1)]);
    bench.ack(&[]);
    // Without a block, it is nobody's.
    bench.want(&[to(block, false), no_bpf()]);
    bench.expect(&[to(block, false), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.quiet();
    assert_eq!(bench.clean, [address()]);
}

/// WK-4.
#[test]
fn an_address_that_comes_back_to_its_owner_is_routed_at_once() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.want(&[bpf(1), kernel(1)]);
    bench.expect(&[bpf(1), kernel(1)]);
    bench.ack(&[]);
    bench.flushed();
    bench.quiet();
    assert!(bench.calc.is_in_sync());
}

/// WK-5.
#[test]
fn an_obligation_survives_a_failed_delete() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[0]);
    bench.quiet();
    bench.wait();
    bench.expect(&[no_kernel(1024)]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.flushed_with(vec![(0, errno())]);
    bench.quiet();
    bench.wait();
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[bpf(2), kernel(2)]);
}

/// WK-6, WK-17 and the restart of the helper: whatever part was carried out.
#[test]
fn an_obligation_survives_a_reading_and_a_restart_of_the_flush() {
    for there in [vec![], vec![bpf(1)], vec![bpf(1), kernel(1)]] {
        for steps in 0..3 {
            let mut bench = Bench::settled(1);
            bench.want(&[bpf(2), kernel(2)]);
            if steps > 0 {
                bench.expect(&[no_kernel(1024), no_bpf()]);
            }
            if steps > 1 {
                bench.ack(&[]);
                bench.expect(&[flush()]);
            }
            bench.calc.handle(bench.now, Input::Connected);
            let output = bench.calc.poll(bench.now);
            assert!(matches!(output, Some(Output::Hello(_))), "{output:?}");
            bench.welcome(&there);
            while let Some(ops) = bench.asks() {
                if ops == [flush()] {
                    break;
                }
                assert!(
                    ops.iter()
                        .all(|op| *op == no_kernel(1024) || *op == no_bpf()),
                    "{ops:?}"
                );
                bench.ack(&[]);
            }
            assert!(bench.flows.is_some());
            bench.flushed();
            bench.expect(&[bpf(2), kernel(2)]);
        }
    }
}

/// The process that was to flush has died: the kernel tells of it by what is missing.
#[test]
fn an_obligation_survives_the_process() {
    // Nothing, or what led to the old owner, or what nobody can read any more.
    for there in [
        vec![],
        vec![kernel(1)],
        vec![Op::BpfRoute(address().into(), None)],
    ] {
        let mut bench = Bench::new(&there, &[bpf(2), kernel(2)]);
        let mut flushed = false;
        while let Some(ops) = bench.asks() {
            if ops == [flush()] {
                bench.flushed();
                flushed = true;
            } else {
                let sets = ops.iter().any(|op| *op == bpf(2) || *op == kernel(2));
                assert!(flushed || !sets, "{there:?}: {ops:?}");
                bench.ack(&[]);
            }
        }
        assert!(flushed && bench.calc.is_in_sync(), "{there:?}");
    }
}

/// What a process that runs is told of a new pod is new: the reference does the same (5.3).
#[test]
fn the_address_of_a_new_pod_is_not_flushed() {
    let mut bench = Bench::new(&[], &[]);
    bench.quiet();
    bench.want(&[bpf(1), kernel(1)]);
    bench.expect(&[bpf(1), kernel(1)]);
    bench.ack(&[]);
    bench.quiet();
}

/// S120, S115.
#[test]
fn a_new_owner_does_not_wait_for_ever_and_the_operator_is_told() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.quiet();
    let asked = bench.now;
    bench.wait();
    assert_eq!(bench.now - asked, DEADLINE);
    bench.expect(&[bpf(2), kernel(2)]);
    assert_eq!(bench.notices, [Notice::FlowsKept(address(), None)]);
    assert_eq!(bench.calc.with_old_flows().count(), 1);
    bench.ack(&[]);
    bench.quiet();
    bench.flushed_with(vec![(0, errno())]);
    bench.quiet();
    bench.wait();
    bench.expect(&[flush()]);
    bench.flushed();
    bench.quiet();
    assert_eq!(
        bench.notices.last(),
        Some(&Notice::FlowsForgotten(address()))
    );
    assert_eq!(bench.calc.with_old_flows().count(), 0);
}

#[test]
fn what_can_never_be_flushed_is_not_waited_for() {
    let mut bench = Bench::settled(1);
    bench.want(&[bpf(2), kernel(2)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    let denied = OpError::Denied("no".to_owned());
    bench.flushed_with(vec![(0, denied.clone())]);
    bench.expect(&[bpf(2), kernel(2)]);
    assert_eq!(bench.notices, [Notice::FlowsKept(address(), Some(denied))]);
    bench.ack(&[]);
    bench.quiet();
}

/// An end of flushes that is lost costs a wait, not the obligation.
#[test]
fn a_flush_whose_end_is_not_told_is_asked_for_again() {
    let mut bench = Bench::settled(1);
    bench.want(&[no_bpf(), no_kernel(1024)]);
    bench.expect(&[no_kernel(1024), no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.quiet();
    bench.wait();
    bench.flows = None;
    bench.expect(&[flush()]);
    bench.flushed();
    bench.quiet();
    assert_eq!(bench.clean, [address()]);
}

/// B: the order in which the datastore tells of the two pods does not matter.
#[test]
fn a_claim_by_two_pods_holds_up_the_newer_one_until_the_older_is_gone() {
    let mut bench = Bench::settled(1);
    // The newest link gets the kernel's route; the map's is the old one's still.
    bench.want(&[kernel(2)]);
    bench.expect(&[no_kernel(1024)]);
    bench.ack(&[]);
    bench.quiet();
    bench.want(&[bpf(2)]);
    bench.expect(&[no_bpf()]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[bpf(2), kernel(2)]);
}

/// Its link went down and up, or was lost for a moment.
#[test]
fn a_pod_whose_routes_the_kernel_dropped_keeps_its_flows() {
    let mut bench = Bench::settled(1);
    let state = |up| LinkState {
        link: link(1),
        role: LinkRole::Workload,
        up,
        carrier: up,
        mac: None,
        mtu: 1500,
        addresses: Vec::new(),
    };
    for up in [false, true] {
        let event = ipc_proto::LinkEvent::Set(state(up));
        bench.calc.handle(bench.now, Input::Link(event));
        let change = if up { kernel(1) } else { no_kernel(1024) };
        bench.want(std::slice::from_ref(&change));
        bench.expect(&[change]);
        bench.ack(&[]);
    }
    bench.quiet();
}

/// Its link is gone, so that the entry cannot be read, and the process that knew it is dead.
#[test]
fn a_pod_without_a_link_is_no_node() {
    let linkless = BpfRoute {
        flags: Flags(WORKLOAD),
        target: BpfTarget::None,
    };
    let linkless = Op::BpfRoute(address().into(), Some(linkless));
    let mut bench = Bench::new(&[no_bpf()], std::slice::from_ref(&linkless));
    bench.expect(&[linkless]);
    bench.ack(&[]);
    bench.expect(&[flush()]);
    bench.want(&[bpf(2)]);
    bench.quiet();
    bench.flushed();
    bench.expect(&[bpf(2)]);

    // A node's own address is not flushed because its entry cannot be read.
    let node = BpfRoute {
        flags: Flags(0b11000),
        target: BpfTarget::None,
    };
    let node = Op::BpfRoute(address().into(), Some(node));
    let mut bench = Bench::new(&[no_bpf()], std::slice::from_ref(&node));
    bench.expect(&[node]);
    bench.ack(&[]);
    bench.quiet();
    // Nor is it when it is nobody's.
    bench.want(&[no_bpf()]);
    bench.expect(&[no_bpf()]);
    bench.ack(&[]);
    bench.quiet();
    // But it may have been a pod's before that.
    bench.want(&[bpf(2)]);
    bench.expect(&[flush()]);
    bench.flushed();
    bench.expect(&[bpf(2)]);
}
