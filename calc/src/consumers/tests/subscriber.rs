//! A subscriber that does what `docs/consumers.md` says, and knows nothing else.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// How much the helper does at a time: more than is told one by one, and less than is wanted at once.
const MAX_STEPS: u32 = 1100;

/// See the [module](self).
#[derive(Debug, Default)]
struct Subscriber {
    routes: BTreeMap<String, RouteRow>,
    host_ips: Vec<String>,
    progress: Progress,
    /// What it has heard since it began to read.
    heard: Vec<Signal>,
}

#[derive(Clone, Debug, Default)]
enum Progress {
    /// It is to read the first page.
    #[default]
    Lost,
    /// It has read some pages, the first as of this number, and is to read on from there.
    Reading(u64, String),
    /// It has all up to this number.
    Following(u64),
}

impl Subscriber {
    fn routes(&self) -> Option<&BTreeMap<String, RouteRow>> {
        matches!(self.progress, Progress::Following(_)).then_some(&self.routes)
    }

    fn host_ips(&self) -> &[String] {
        &self.host_ips
    }

    fn hear(&mut self, signal: Signal) {
        if let Signal::Reset { .. } = signal {
            self.progress = Progress::Lost;
            self.heard.clear();
            return;
        }
        match self.progress.clone() {
            Progress::Lost | Progress::Reading(..) => self.heard.push(signal),
            Progress::Following(seq) if signal.after() < seq => {}
            Progress::Following(seq) if signal.after() == seq => {
                self.progress = Progress::Following(seq + 1);
                self.apply(signal);
            }
            Progress::Following(_) => {
                self.progress = Progress::Lost;
                self.heard = vec![signal];
            }
        }
    }

    fn read(&mut self, bench: &Bench) {
        let after = match &self.progress {
            Progress::Lost => String::new(),
            Progress::Reading(_, next) => next.clone(),
            Progress::Following(_) => return,
        };
        let Some(page) = bench.page(&after) else {
            // Not ready: a reset tells when.
            return;
        };
        let first = match self.progress {
            Progress::Reading(first, _) => first,
            Progress::Lost | Progress::Following(_) => {
                self.routes.clear();
                self.host_ips.clear();
                page.seq
            }
        };
        self.host_ips.extend(page.host_ips);
        let rows = page.routes.into_iter();
        self.routes
            .extend(rows.map(|row| (row.prefix.clone(), row)));
        if page.next.is_empty() {
            self.progress = Progress::Following(first);
            for signal in std::mem::take(&mut self.heard) {
                self.hear(signal);
            }
        } else {
            self.progress = Progress::Reading(first, page.next);
        }
    }

    fn apply(&mut self, signal: Signal) {
        match signal {
            Signal::Routes {
                updates, deletes, ..
            } => {
                for row in updates {
                    self.routes.insert(row.prefix.clone(), row);
                }
                for prefix in deletes {
                    self.routes.remove(&prefix);
                }
            }
            Signal::HostIps { addresses, .. } => self.host_ips = addresses,
            Signal::Clean { .. } | Signal::Reset { .. } | Signal::InSync { .. } => {}
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A route is wanted or not.
    Want(u16, Option<u32>),
    /// So many are.
    WantMany(u16, Option<u32>),
    /// The host has an address or not.
    Address(u8, bool),
    /// The helper answers.
    Ack,
    /// It dies after it has done what was asked, or before.
    Crash(bool),
    /// It cannot be reached for a while.
    Gone,
    /// Somebody else takes a route away, or sets it.
    Drift(u16, bool),
    /// The subscriber hears what was signalled.
    Hear,
    /// So do those that were signalled first, but for one that gets lost.
    Lose,
    /// It reads a page, if it needs one.
    Read,
    /// It starts anew.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = || option::weighted(0.7, 1..4_u32);
    prop_oneof![
        6 => (0..12_u16, flags()).prop_map(|(n, flags)| Step::Want(n, flags)),
        1 => (990..3300_u16, flags()).prop_map(|(n, flags)| Step::WantMany(n, flags)),
        2 => (0..6_u8, any::<bool>()).prop_map(|(n, there)| Step::Address(n, there)),
        6 => Just(Step::Ack),
        1 => any::<bool>().prop_map(Step::Crash),
        1 => Just(Step::Gone),
        1 => (0..12_u16, any::<bool>()).prop_map(|(n, set)| Step::Drift(n, set)),
        5 => Just(Step::Hear),
        1 => Just(Step::Lose),
        5 => Just(Step::Read),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However late it comes, whatever it misses and whenever it reads: in the end it has what the
    /// kernel holds.
    #[test]
    fn a_subscriber_catches_up_without_a_gap(steps in vec(step(), 0..80)) {
        let mut bench = Bench::starting();
        bench.max_steps = MAX_STEPS;
        bench.in_sync();
        bench.connect();
        let mut queue = VecDeque::new();
        let mut subscriber = Subscriber::default();
        for step in steps {
            match step {
                Step::Want(n, flags) => bench.want(n, flags),
                Step::WantMany(many, flags) => (0..many).for_each(|n| bench.want(n, flags)),
                Step::Address(n, true) => drop(bench.local.insert([192, 0, 2, n].into())),
                Step::Address(n, false) => drop(bench.local.remove(&IpAddr::from([192, 0, 2, n]))),
                Step::Ack => bench.ack(),
                Step::Crash(carried_out) => {
                    if carried_out {
                        bench.apply();
                    }
                    bench.connect();
                }
                Step::Gone => {
                    bench.batch = None;
                    bench.handle(Input::Disconnected);
                }
                Step::Drift(n, true) => drop(bench.kernel.insert(prefix(n), route(9))),
                Step::Drift(n, false) => drop(bench.kernel.remove(&prefix(n))),
                Step::Hear => queue.drain(..).for_each(|signal| subscriber.hear(signal)),
                Step::Lose => {
                    if queue.pop_front().is_some() && let Some(signal) = queue.pop_front() {
                        subscriber.hear(signal);
                    }
                }
                Step::Read => subscriber.read(&bench),
                Step::Restart => {
                    // What was signalled before is not for it.
                    queue.clear();
                    subscriber = Subscriber::default();
                }
            }
            queue.extend(bench.signals());
        }
        // All comes to rest; the last signal tells of a loss that no other has told of.
        bench.connect();
        for n in 0..3 {
            queue.extend(bench.signals());
            bench.ack();
            bench.want(2, Some(20 + n));
        }
        for _ in 0..10 {
            queue.extend(bench.signals());
            bench.ack();
        }
        queue.extend(bench.signals());
        for _ in 0..20 {
            queue.drain(..).for_each(|signal| subscriber.hear(signal));
            subscriber.read(&bench);
        }
        let kernel = bench.kernel.iter().map(|(key, value)| RouteRow::new(*key, value));
        let kernel: BTreeMap<_, _> = kernel.map(|row| (row.prefix.clone(), row)).collect();
        prop_assert_eq!(subscriber.routes(), Some(&kernel));
        let local: Vec<_> = bench.local.iter().map(IpAddr::to_string).collect();
        prop_assert_eq!(subscriber.host_ips(), local);
    }
}
