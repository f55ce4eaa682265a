//! The isolation that all other tests rely on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::process::Command;

use tests::isolate;

fn links() -> String {
    let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn inside_there_is_only_loopback_and_an_empty_bpffs() {
    isolate::test("inside_there_is_only_loopback_and_an_empty_bpffs", || {
        assert_eq!(links().lines().count(), 1, "{}", links());
        assert_eq!(
            std::fs::read_dir("/sys/fs/bpf").unwrap().count(),
            2,
            "maps.debug, progs.debug"
        );
        assert_eq!(
            nix::unistd::getppid().as_raw(),
            1,
            "the shell that reaps orphans"
        );
    });
}
