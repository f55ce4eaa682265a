//! What is not as it should be is repaired or told, and what is right is left alone.
#![expect(
    clippy::missing_errors_doc,
    reason = "a claim's error is the part of it that does not hold; it panics where the world breaks"
)]

use nix::sys::signal::Signal;

use super::{Drift, Seen, ensure, ms};
use crate::{
    wait::eventually,
    world::{Process, World, signal},
};

/// What is changed behind Cairn's back is put right.
pub fn drift_is_repaired(world: &mut World, drift: Drift) -> Seen {
    let [node, _] = &world.nodes;
    let look = || (node.kernel_state(), node.netns.run(PROXY_ARP));
    let before = look();
    // It would be put right before it has been looked at.
    let calc = node.pid(Process::Calc);
    signal(calc, Signal::SIGSTOP);
    let what = drift.make(node);
    let differs = look() != before;
    signal(calc, Signal::SIGCONT);
    ensure(differs, || format!("{what}, but nothing differs"))?;
    let ((), took) = eventually("the repair", || {
        let after = look();
        ensure(after == before, || {
            format!("{what}; before:\n{before:?}\nafter:\n{after:?}")
        })
    });
    Ok(format!("{what}; repaired after {}", ms(took)))
}

const PROXY_ARP: &str = "sysctl -n net.ipv4.conf.cali-frontend.proxy_arp";

/// Reading the kernel back writes nothing where all is right: no link, address, route, rule, neighbour
/// or forwarding entry.
pub fn reading_back_writes_nothing(world: &mut World) -> Seen {
    const MARK: &str = "198.51.100.7";
    let node = &world.nodes[0];
    let told = node.document("told").with_extension("log");
    let mut monitor = node
        .netns
        .command("ip")
        .args(["-o", "monitor", "all"])
        .stdout(std::fs::File::create(&told).map_err(|error| error.to_string())?)
        .spawn()
        .map_err(|error| error.to_string())?;
    let lines = || {
        let text = std::fs::read_to_string(&told).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let count = |lines: &[String]| lines.iter().filter(|line| line.contains(MARK)).count();
    // It listens from the first mark that it tells on.
    eventually("the monitor", || {
        let mark = format!("ip route replace blackhole {MARK}");
        node.netns.run(&mark);
        node.netns.run(&format!("ip route del blackhole {MARK}"));
        ensure(count(&lines()) >= 2, || "nothing told".to_owned())
    });
    let resyncs = || {
        let status = node.status();
        let number = status.pointer("/calc/properties/Resyncs");
        number
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let start = resyncs();
    eventually("three readings", || {
        let read = resyncs() - start;
        ensure(read >= 3, || format!("{read} readings"))
    });
    let marks = count(&lines());
    node.netns
        .run(&format!("ip route replace blackhole {MARK}"));
    eventually("the end", || {
        ensure(count(&lines()) > marks, || "not told".to_owned())
    });
    monitor
        .kill()
        .and_then(|()| monitor.wait())
        .map_err(|error| error.to_string())?;
    // What the kernel does with neighbours of its own is its own affair.
    let passing = [
        "STALE",
        "REACHABLE",
        "DELAY",
        "PROBE",
        "FAILED",
        "INCOMPLETE",
    ];
    let written: Vec<String> = lines()
        .into_iter()
        .filter(|line| !line.contains(MARK) && !passing.iter().any(|state| line.contains(state)))
        .collect();
    node.netns.run(&format!("ip route del blackhole {MARK}"));
    ensure(written.is_empty(), || written.join("\n"))?;
    Ok("three readings, nothing written".to_owned())
}

/// `cairnctl diff` tells what is not as it should be, and why, and nothing else.
pub fn differences_are_told_with_their_reason(world: &mut World) -> Seen {
    let node = &world.nodes[0];
    let diff = |arguments: &str| {
        let (success, text) = match node.cairnctl(arguments).output() {
            Ok(output) => (output.status.success(), output.stdout),
            Err(error) => (false, error.to_string().into_bytes()),
        };
        (success, String::from_utf8_lossy(&text).into_owned())
    };
    let clean = (
        true,
        "all is as it should be, as of the last reading of the kernel\n".to_owned(),
    );
    ensure(diff("diff") == clean, || format!("{:?}", diff("diff")))?;
    let taken = "10.244.1.2/32 dev eth0 metric 1024";
    node.netns
        .run(&format!("ip route replace {taken} proto static"));
    node.resync();
    let (lines, _) = eventually("the difference", || {
        let (success, text) = diff("diff");
        let told = text.contains("another program's route") && text.lines().count() == 2;
        ensure(told && !success, || text.clone())?;
        Ok(text)
    });
    let (_, json) = diff("--json diff");
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(&json).map_err(|error| error.to_string())?;
    let states: Vec<_> = rows
        .iter()
        .map(|row| ["type", "state"].map(|name| row.get(name).cloned().unwrap_or_default()))
        .collect();
    // The block around it has no line of its own, although its packets are taken as well.
    let failing = ["kernel-route", "failing"].map(serde_json::Value::from);
    ensure(states == [failing], || json.clone())?;
    node.netns
        .run(&format!("ip route del {taken} proto static"));
    node.resync();
    eventually("no difference", || {
        ensure(diff("diff") == clean, || format!("{:?}", diff("diff")))
    });
    Ok(format!("\n{lines}"))
}
