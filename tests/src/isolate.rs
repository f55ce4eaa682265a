//! Namespaces that take everything with them: whatever a test or the demo makes in them (network
//! namespaces, mounts, BPF pins, processes) is gone when their first process is, however it ends.

use std::process::{Command, ExitStatus};

/// Set in a process that runs inside.
const INSIDE: &str = "CAIRN_ISOLATED";

/// Returns whether this process runs inside.
#[must_use]
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Returns a command that runs this program again inside: a new network namespace (with `lo` up),
/// with its own mounts, its own empty `/run` and `/sys/fs/bpf`, and its own process ids.
///
/// # Errors
///
/// If this program cannot be found.
pub fn command() -> std::io::Result<Command> {
    // /run: named network namespaces and runtime directories; bpffs: pins. Both die with the mount
    // namespace, and that dies with its processes: each link of the chain is killed with the one
    // before. The shell stays as process 1, to reap what loses its parent.
    let prepare = "mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/netns \
        && { mountpoint -q /sys || mount -t sysfs sysfs /sys; } \
        && mount -t bpf -o mode=700 bpf /sys/fs/bpf && ip link set lo up && \"$0\" \"$@\" || exit";
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--kill-child", "--fork"])
        .args(["--mount", "--net", "--pid", "--ipc", "--mount-proc"])
        .args(["sh", "-ec", prepare])
        .arg(std::env::current_exe()?)
        .env(INSIDE, "1");
    Ok(command)
}

/// Runs `body` inside, as a test named `name` (the path that libtest knows it by) of its own
/// process; fails as it fails.
///
/// # Panics
///
/// If `body` does, or if the namespaces cannot be made: without root there is nothing to test.
pub fn test(name: &str, body: impl FnOnce()) {
    if inside() {
        body();
        return;
    }
    assert!(
        nix::unistd::geteuid().is_root(),
        "{name} needs root: it makes network namespaces"
    );
    let status =
        command().and_then(|mut inside| inside.args(["--exact", name, "--nocapture"]).status());
    assert!(
        status.as_ref().is_ok_and(ExitStatus::success),
        "{name} failed inside: {status:?}"
    );
}

/// Runs this program again inside with the same arguments and returns how it ended.
///
/// # Errors
///
/// If the namespaces cannot be made.
pub fn rerun() -> std::io::Result<ExitStatus> {
    command()?.args(std::env::args_os().skip(1)).status()
}
