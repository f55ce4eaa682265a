//! What becomes of Cairn's state when interfaces and peers change: the real processes on one node of
//! the demo world, whose kernel is watched. Nothing is read back without a cause, so that all that is
//! seen follows from what the kernel tells.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "links/device.rs"]
mod device;
#[path = "links/others.rs"]
mod others;
#[path = "links/peers.rs"]
mod peers;
#[path = "links/settings.rs"]
mod settings;
#[path = "links/workloads.rs"]
mod workloads;

use tests::{
    monitor::Monitor,
    wait::eventually,
    world::{self, Node, World},
};

/// The tunnel device.
const VXLAN: &str = "vxlan.calico";

/// Runs `body` in a world in which Cairn is up on `node-1`.
fn test(name: &str, body: impl FnOnce(&mut World)) {
    world::test(name, |world| {
        let [node, _] = &mut world.nodes;
        node.refresh_never();
        node.start();
        node.converged();
        body(world);
    });
}

/// Sets what the `FelixConfiguration` of the cluster says.
fn felix(node: &Node, spec: &str) {
    let text = format!(
        "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\n\
         metadata: {{name: default}}\nspec: {{{spec}}}\n"
    );
    std::fs::write(node.document("felix.yaml"), text).unwrap();
}

/// Returns the index of an interface of a node, if there is one of the name.
fn index(node: &Node, name: &str) -> Option<u32> {
    let links = node.netns.run("ip -o link show");
    let line = links.lines().find_map(|line| {
        let (index, rest) = line.split_once(": ")?;
        let (full, _) = rest.split_once(':')?;
        (full.split('@').next() == Some(name)).then(|| index.parse().ok())
    });
    line.flatten()
}

/// Listens to the node's kernel from now on.
fn listen(node: &Node) -> Monitor {
    node.netns.within(Monitor::open).join().unwrap()
}

/// Waits until a command on the node prints each of `words`.
#[track_caller]
fn shows(node: &Node, line: &str, words: &[&str]) {
    eventually(&format!("{line}: {words:?}"), || {
        let text = node.netns.run(line);
        let all = words.iter().all(|word| text.contains(word));
        all.then_some(()).ok_or(text)
    });
}

/// Waits until a command on the node prints none of `words`.
#[track_caller]
fn lacks(node: &Node, line: &str, words: &[&str]) {
    eventually(&format!("{line}: none of {words:?}"), || {
        let text = node.netns.run(line);
        let is_there = words.iter().any(|word| text.contains(word));
        (!is_there).then_some(()).ok_or(text)
    });
}

/// Waits until the kernel holds the same as before.
#[track_caller]
fn is_again(node: &Node, before: &str) {
    // Without it the kernel's tools would fail.
    shows(node, "ip -o link show type vxlan", &[VXLAN]);
    eventually("the kernel as before", || {
        let now = node.kernel_state();
        (now == before)
            .then_some(())
            .ok_or_else(|| differing(before, &now))
    });
    node.converged();
}

/// Returns the lines that only one of two texts has.
fn differing(before: &str, now: &str) -> String {
    let only = |sign: &str, a: &str, b: &str| {
        let lines = a
            .lines()
            .filter(|line| !b.lines().any(|other| other == *line));
        lines.fold(String::new(), |text, line| text + sign + line + "\n")
    };
    only("-", before, now) + &only("+", now, before)
}
