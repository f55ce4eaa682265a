//! Which programs are attached where, whatever becomes of the helper and the interfaces.

use aya::programs::{SchedClassifier, tc::TcAttachType};
use ipc_proto::{AttachmentKey, Hook, Observed, Op};
use tests::{
    helper::{Helper, link},
    netns::shell,
    packets::{Node, WORKLOAD},
    ping::{self, Ping},
    wait::PATIENCE,
};

use super::test;

/// Returns the ids of the programs at both hooks of an interface, as the kernel tells root.
fn programs(name: &str) -> [Vec<u32>; 2] {
    [TcAttachType::Ingress, TcAttachType::Egress].map(|hook| {
        let (_, programs) = SchedClassifier::query_tcx(name, hook).unwrap();
        programs
            .iter()
            .map(aya::programs::ProgramInfo::id)
            .collect()
    })
}

fn lens(programs: &[Vec<u32>; 2]) -> [usize; 2] {
    [programs[0].len(), programs[1].len()]
}

/// What the helper reads of programs and endpoints.
async fn read(node: &mut Node) -> Vec<Observed> {
    let mut items = node.calc.read().await;
    items.retain(|item| matches!(item, Observed::Attachment(_) | Observed::Endpoint(..)));
    items
}

fn both(name: &str) -> Vec<Observed> {
    [Hook::Ingress, Hook::Egress]
        .map(|hook| {
            Observed::Attachment(AttachmentKey {
                link: link(name),
                hook,
            })
        })
        .to_vec()
}

#[test]
fn a_killed_helpers_programs_go_on_and_are_replaced_by_its_successors() {
    test(
        "attachments::a_killed_helpers_programs_go_on_and_are_replaced_by_its_successors",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            let before = programs("cali-one");
            assert_eq!(lens(&before), [1, 1]);
            // Once more changes nothing but the program's copy.
            node.attach([WORKLOAD; 2]).await;
            assert_eq!(lens(&programs("cali-one")), [1, 1]);
            let told = read(&mut node).await;
            let counts = node.helper.verdicts().await;

            let pings = node.pods[1]
                .addresses
                .map(|to| Ping::start(&node.pods[0].netns, to));
            node.helper.signal("KILL");
            let Node { helper, pods, .. } = node;
            let (status, _) = helper.ended();
            assert!(!status.success());
            assert_eq!(programs("cali-one"), before, "they go on without a helper");
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            let mut node = Node { helper, calc, pods };
            let after = programs("cali-one");
            assert_eq!(lens(&after), [1, 1], "exactly one copy");
            assert_ne!(after, before, "the successor's");
            assert_eq!(read(&mut node).await, told, "all is as it was");
            let mut answered = 0;
            for ping in pings {
                let loss = ping.stop();
                assert!(loss.lost.is_empty(), "{loss:?}");
                answered += u64::try_from(loss.answered).unwrap();
            }
            let now = node.helper.verdicts().await;
            let straight = now["redirected"] - counts["redirected"];
            assert!(
                straight >= answered * 2,
                "{straight} of {answered} echoes both ways"
            );
        },
    );
}

#[test]
fn programs_and_endpoints_are_told_as_long_as_their_interface_is() {
    test(
        "attachments::programs_and_endpoints_are_told_as_long_as_their_interface_is",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            let told = read(&mut node).await;
            let mut wanted: Vec<Observed> = ["cali-one", "cali-two"]
                .into_iter()
                .flat_map(both)
                .collect();
            for pod in &node.pods {
                let Op::Endpoint(link, endpoint) = pod.endpoint() else {
                    return;
                };
                wanted.push(Observed::Endpoint(link, endpoint.map(|endpoint| *endpoint)));
            }
            assert_eq!(told.len(), wanted.len());
            for item in &wanted {
                assert!(told.contains(item), "{item:?} in {told:?}");
            }

            // Detached by us, by somebody who removes the pin, by somebody who detaches the link.
            let detach = node.pods[0].attachment(Hook::Egress, false);
            node.calc.must_apply([detach.clone(), detach]).await;
            assert_eq!(
                lens(&programs("cali-one")),
                [1, 0],
                "it is detached at once"
            );
            let index = node.pods[0].link.index;
            shell(&format!("rm /sys/fs/bpf/cairn/links/{index}_ingress"));
            let two = node.pods[1].link.index;
            shell(&format!(
                "bpftool link detach pinned /sys/fs/bpf/cairn/links/{two}_ingress"
            ));
            let told = read(&mut node).await;
            let left: Vec<_> = told
                .iter()
                .filter(|item| matches!(item, Observed::Attachment(_)))
                .collect();
            assert_eq!(left, [&both("cali-two")[1]]);

            // Its index goes to another interface, which is not to inherit anything.
            shell(&format!(
                "ip link del cali-two && ip link add cali-new index {two} type veth peer name far"
            ));
            let told = read(&mut node).await;
            let attached = told
                .iter()
                .any(|item| matches!(item, Observed::Attachment(_)));
            assert!(!attached, "{told:?}");
            assert_eq!(shell("ls /sys/fs/bpf/cairn/links"), "");
            // And one that is no workload's at all.
            shell(&format!(
                "ip link del cali-new && ip link add other index {two} type veth peer name far"
            ));
            let told = read(&mut node).await;
            let Op::Endpoint(link, endpoint) = node.pods[0].endpoint() else {
                return;
            };
            assert_eq!(
                told,
                [Observed::Endpoint(link, endpoint.map(|endpoint| *endpoint))]
            );
            let entries = shell("bpftool -j map dump pinned /sys/fs/bpf/cairn/cairn_endpoints");
            assert_eq!(entries.matches("key").count(), 1, "{entries}");
        },
    );
}

#[test]
fn a_map_of_ours_that_has_changed_its_shape_is_made_anew() {
    test(
        "attachments::a_map_of_ours_that_has_changed_its_shape_is_made_anew",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            node.helper.signal("TERM");
            let Node { helper, pods, .. } = node;
            let (status, log) = helper.ended();
            assert!(status.success(), "{log}");
            let pin = "/sys/fs/bpf/cairn/cairn_endpoints";
            shell(&format!(
                "rm {pin} && bpftool map create {pin} type hash key 4 value 8 entries 16 name x \
                 && chown {}:0 {pin}",
                Helper::UID
            ));
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            assert_eq!(
                helper.log().matches("made anew").count(),
                1,
                "{}",
                helper.log()
            );
            let mut node = Node { helper, calc, pods };
            // Until calc has told it again, the stack serves.
            let serve = |node: &Node| {
                let to = node.pods[1].addresses[0];
                assert!(ping::once(&node.pods[0].netns, to, PATIENCE));
            };
            serve(&node);
            assert_eq!(node.helper.verdicts().await["redirected"], 0);
            node.attach([WORKLOAD; 2]).await;
            serve(&node);
            assert_eq!(node.helper.verdicts().await["redirected"], 2);
        },
    );
}
