//! Scripts: mostly of a world that works, by who knows what is there.

use ipc_proto::Tunnel;
use supervisor::machine::Child;

use super::{
    cluster::{BLOCKS, CALIS, NODES, PEER, POOLS, WORKLOADS, is_own, usual},
    random::Random,
    step::{Doc, How, Motion, Slot, Step, Thing},
    world::{Setup, World},
};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Generator {
    random: Random,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }

    pub(super) fn setup(&mut self) -> Setup {
        let random = &mut self.random;
        Setup {
            bpf_max_entries: if random.percent(12) { 9 } else { 120 },
            max_steps: random.pick(&[3, 11, 200]).unwrap_or(200),
            narrow: random.percent(12),
            throttled: random.percent(30),
        }
    }

    /// How many turns a script takes.
    pub(super) fn turns(&mut self) -> u16 {
        20 + self.random.below(40)
    }

    /// A cluster where all is well, as far as it has come.
    pub(super) fn beginning(&mut self) -> Vec<Step> {
        let random = &mut self.random;
        if random.percent(10) {
            return Vec::new();
        }
        let mut steps = Vec::new();
        for n in 0..CALIS {
            steps.push(Step::Link(Slot::Cali(n), Motion::Add));
        }
        let docs = all_docs();
        for doc in docs {
            if random.percent(85) {
                steps.push(Step::Document(doc, Some(usual(doc))));
            }
        }
        if random.percent(90) {
            steps.push(Step::Flow(3 + random.byte(8)));
        }
        steps
    }

    /// What happens next.
    pub(super) fn turn(&mut self, world: &World) -> Vec<Step> {
        match self.random.below(100) {
            0..22 => vec![self.actor(world)],
            22..38 => vec![Step::Flow(1 + self.random.byte(4))],
            38..43 => vec![self.wait()],
            43..63 => self.user(world),
            63..76 => vec![self.cable(world)],
            76..84 => vec![self.drift()],
            84..90 => vec![self.fault()],
            _ => self.trouble(world),
        }
    }

    /// Somebody who has something to do goes on.
    fn actor(&mut self, world: &World) -> Step {
        let mut able = vec![Step::Watch, Step::Think];
        if !world.supervisor.inputs.is_empty() {
            able.push(Step::Supervise);
        }
        if world.messages.is_empty() {
            able.push(Step::Connect);
        } else {
            able.extend([Step::Hear, Step::Hear]);
        }
        if let Some(helper) = &world.helper
            && helper.body.has_work()
        {
            able.extend([Step::Serve, Step::Serve]);
        }
        if let Some(node) = &world.node
            && node.body.is_behind(&world.datastore)
        {
            able.push(Step::Deliver(self.random.byte(8)));
        }
        self.random.pick(&able).unwrap_or(Step::Think)
    }

    fn wait(&mut self) -> Step {
        let ms = match self.random.below(10) {
            0..7 => self.random.below(800),
            7..9 => self.random.below(5_000),
            _ => self.random.below(60_000),
        };
        Step::Wait(ms)
    }

    /// Somebody changes a document, or has a pod come, move or go.
    fn user(&mut self, world: &World) -> Vec<Step> {
        let random = &mut self.random;
        let documents = &world.datastore.documents;
        match random.below(10) {
            0..5 => {
                let slot = random.byte(WORKLOADS.into());
                let doc = Doc::Workload(slot);
                match documents.get(&doc) {
                    None => pod(slot, self.variant(doc)),
                    Some(variant) if random.percent(10) => {
                        vec![Step::Document(doc, Some(variant ^ PEER))]
                    }
                    Some(variant) if random.percent(60) => {
                        let moved = variant ^ (1 + random.below(31));
                        vec![Step::Document(doc, Some(moved))]
                    }
                    Some(_) if random.percent(50) => vec![Step::Document(doc, None)],
                    Some(_) => {
                        let gone = Step::Link(Slot::Cali(slot % CALIS), Motion::Remove);
                        vec![gone, Step::Document(doc, None)]
                    }
                }
            }
            5 => {
                let doc = random.pick(&all_docs()).unwrap_or(Doc::Config);
                vec![Step::Garble(doc)]
            }
            6 if random.percent(50) => {
                // Rarely what it usually is, lest nobody has a peering address.
                vec![Step::Document(Doc::Services, Some(random.below(512)))]
            }
            _ => {
                let doc = random.pick(&all_docs()).unwrap_or(Doc::Config);
                if documents.contains_key(&doc) && random.percent(30) {
                    vec![Step::Document(doc, None)]
                } else {
                    vec![Step::Document(doc, Some(self.variant(doc)))]
                }
            }
        }
    }

    fn variant(&mut self, doc: Doc) -> u16 {
        if self.random.percent(55) {
            usual(doc)
        } else if let Doc::Config = doc {
            // Rarely more than one setting at a time.
            1 << self.random.below(9)
        } else {
            self.random.below(1024)
        }
    }

    fn cable(&mut self, world: &World) -> Step {
        let random = &mut self.random;
        let slot = match random.below(10) {
            0..6 => Slot::Cali(random.byte(CALIS.into())),
            6..8 => Slot::Uplink,
            8 => Slot::Tunnel(Tunnel::VxlanV4),
            _ => Slot::Tunnel(Tunnel::VxlanV6),
        };
        let motion = match random.below(21) {
            0..3 => Motion::Down,
            3..7 => Motion::Up,
            7..9 => Motion::Swap,
            9 => Motion::Remove,
            10..13 => Motion::Add,
            13 => Motion::Plug,
            14 => Motion::Name,
            15 => Motion::Carrier(random.percent(60)),
            16 => Motion::Mac(random.byte(3)),
            17 => Motion::Mtu(random.pick(&[1500, 1400, 1200]).unwrap_or(1500)),
            18 => Motion::Rename(random.byte(2 * u16::from(CALIS))),
            _ => Motion::Addresses {
                ipv6: random.percent(50),
                present: random.percent(60),
            },
        };
        // Without an uplink there is little to see.
        let removed = matches!(motion, Motion::Remove) && slot == Slot::Uplink;
        if removed && world.is_connected() && random.percent(70) {
            return Step::Link(slot, Motion::Swap);
        }
        Step::Link(slot, motion)
    }

    fn drift(&mut self) -> Step {
        const THINGS: [Thing; 7] = [
            Thing::Bpf,
            Thing::Route,
            Thing::Route,
            Thing::Neighbour,
            Thing::Fdb,
            Thing::Settings,
            Thing::Address,
        ];
        const HOWS: [How; 4] = [How::Remove, How::Alter, How::Stray, How::Double];
        let random = &mut self.random;
        if random.percent(30) {
            return Step::Foreign(random.byte(10));
        }
        if random.percent(20) {
            return Step::Bird(random.byte(192));
        }
        let thing = random.pick(&THINGS).unwrap_or(Thing::Bpf);
        let how = random.pick(&HOWS).unwrap_or(How::Remove);
        Step::Drift(thing, how, random.byte(16))
    }

    fn fault(&mut self) -> Step {
        let random = &mut self.random;
        match random.below(3) {
            0 => Step::Fuse(random.byte(6)),
            _ => Step::Fail(1 + random.byte(4), random.percent(30)),
        }
    }

    fn trouble(&mut self, world: &World) -> Vec<Step> {
        let random = &mut self.random;
        let answer = [Step::Think, Step::Serve, Step::Serve];
        let step = match random.below(24) {
            0..3 => Step::Crash(Child::Calc),
            3..6 => Step::Crash(Child::Helper),
            6 if random.percent(40) => Step::CrashSupervisor,
            7 if random.percent(40) => Step::Hang(Child::Calc),
            8 if random.percent(40) => Step::Hang(Child::Helper),
            9..11 => Step::Cut,
            11..13 => {
                let how = random.pick(&[Step::LoseReply, Step::Cut]);
                return answer.into_iter().chain(how).collect();
            }
            13..15 => {
                let news = [self.cable(world), Step::Watch, Step::LoseFeed];
                return news
                    .into_iter()
                    .chain([self.cable(world), Step::Watch])
                    .collect();
            }
            20 => Step::Sleep(1 + random.below(600)),
            21 => return self.restart_with_less(),
            22..24 => return self.flap(),
            15 => Step::LateAck,
            19 => Step::Stall,
            16 => Step::Late,
            17..19 => Step::Resync,
            _ => Step::Flow(1),
        };
        vec![step]
    }
}

impl Generator {
    /// The feed starts anew, and has less to say than before.
    fn restart_with_less(&mut self) -> Vec<Step> {
        let docs = all_docs();
        let mut steps = Vec::new();
        for _ in 0..=self.random.below(4) {
            steps.extend(self.random.pick(&docs).map(Step::Garble));
        }
        let flow = Step::Flow(1 + self.random.byte(6));
        steps.extend([Step::Crash(Child::Calc), flow, Step::Cut, flow]);
        steps
    }

    /// An interface goes and comes back, again and again.
    fn flap(&mut self) -> Vec<Step> {
        let random = &mut self.random;
        let slot = Slot::Cali(random.byte(CALIS.into()));
        let mut steps = Vec::new();
        for _ in 0..=random.below(3) {
            steps.push(Step::Link(slot, Motion::Down));
            if random.percent(50) {
                steps.push(Step::Watch);
            }
            if random.percent(40) {
                steps.push(Step::Flow(1));
            }
            if random.percent(85) {
                steps.push(Step::Link(slot, Motion::Up));
            }
        }
        steps
    }
}

fn pod(slot: u8, variant: u16) -> Vec<Step> {
    let document = Step::Document(Doc::Workload(slot), Some(variant));
    let link = Slot::Cali(u8::try_from(variant & 3).unwrap_or(0));
    if !is_own(slot) {
        return vec![document];
    }
    // As a CNI plugin does it.
    vec![
        Step::Link(link, Motion::Plug),
        Step::Watch,
        Step::Link(link, Motion::Name),
        document,
    ]
}

fn all_docs() -> Vec<Doc> {
    let nodes = (0..NODES).map(Doc::Node);
    let pools = (0..POOLS).map(Doc::Pool);
    let blocks = (0..BLOCKS).map(Doc::Block);
    let workloads = (0..WORKLOADS).map(Doc::Workload);
    nodes
        .chain(pools)
        .chain(blocks)
        .chain(workloads)
        .chain([Doc::Config, Doc::Services])
        .collect()
}
