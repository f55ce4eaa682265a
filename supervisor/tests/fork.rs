//! The real supervisor with real child processes: stand-ins that speak only what the real ones
//! speak. Needs root, since the children have users of their own.

#[path = "fork/stage.rs"]
mod stage;
#[path = "fork/stand_in.rs"]
mod stand_in;

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    os::unix::{fs::MetadataExt, net::UnixDatagram},
    time::Duration,
};

use nix::sys::signal::Signal;

use self::stage::{CALC_UID, HELPER_UID, Stage, eventually};

#[test]
#[ignore = "it is what the supervisor starts in the other tests, not a test"]
fn stand_in() {
    if std::env::var_os("CAIRN_SUPERVISED").is_some() {
        stand_in::main();
    }
}

#[test]
fn both_come_up_each_as_its_own_user_with_nothing_but_what_it_needs() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    stage.parent_hears(&["READY=1", "STATUS=privhelper up: fine; calc up: fine"]);

    let status = stage.proc_status("calc");
    for id in ["Uid", "Gid"] {
        assert_eq!(
            status[id],
            [CALC_UID.to_string().as_str(); 4].join("\t"),
            "{id}"
        );
    }
    assert_eq!(status["Groups"].trim(), "");
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(
        stage.proc_status("privhelper")["Uid"],
        [HELPER_UID.to_string().as_str(); 4].join("\t")
    );

    let common = [
        "CAIRN_SUPERVISED",
        "GLIBC_TUNABLES",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "NOTIFY_SOCKET",
        "PATH",
        "WATCHDOG_USEC",
    ];
    let wanted: BTreeSet<_> = common.map(str::to_owned).into();
    for (role, names) in [
        ("privhelper", "dataplane:privhelper-face"),
        ("calc", "calc-face"),
    ] {
        let environment = stage.environment(role);
        let mut seen: BTreeSet<_> = environment.keys().cloned().collect();
        // The one is kept where it is set, the other comes from the stand-in's shell.
        seen.retain(|name| !["RUST_BACKTRACE", "PWD"].contains(&name.as_str()));
        assert_eq!(seen, wanted, "{role}");
        assert_eq!(environment["LISTEN_FDNAMES"], names);
        assert_eq!(environment["WATCHDOG_USEC"], "30000000");
    }
    for (name, uid) in [
        ("dataplane.sock", CALC_UID),
        ("calc.sock", 0),
        ("privhelper.sock", 0),
        ("supervisor.sock", 0),
        ("calc.notify", CALC_UID),
        ("privhelper.notify", HELPER_UID),
    ] {
        let metadata = fs::metadata(stage.run_dir().join(name)).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.mode() & 0o777),
            (uid, 0o600),
            "{name}"
        );
    }
    let face = stage.face();
    assert_eq!(face["CalcState"], "\"up\"");
    assert_eq!(face["HelperState"], "\"up\"");
    assert_eq!(face["CalcStatus"], "\"fine\"");
    assert_eq!(face["CalcPid"], stage.pid("calc").to_string());
    assert_eq!(face["HelperPid"], stage.pid("privhelper").to_string());
    assert_eq!(face["CalcRestarts"], "0");
    assert_eq!(face["Version"], format!("{:?}", env!("CARGO_PKG_VERSION")));
    assert_ne!(face["Incarnation"], "0");
    assert_eq!(face["CalcRestartIn"], u64::MAX.to_string(), "it is up");
    assert_ne!(face["CalcStateAge"], u64::MAX.to_string());
    assert_eq!(face.len(), 15);
}

#[test]
fn a_child_that_is_down_tells_since_when_why_and_until_when() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    // Each death keeps it down for longer, until two readings fall within one time down, however
    // slow the machine is. A reading is of one moment.
    let killed = Cell::new(0);
    let before = Cell::new((0, 0));
    eventually(
        "two readings while it is down, and time goes by",
        &stage,
        || {
            let face = stage.face();
            let number = |name: &str| -> u64 { face[name].parse().unwrap() };
            if face["CalcState"] != "\"down\"" {
                let pid = stage.pid("calc");
                if number("CalcPid") == u64::from(pid) && killed.replace(pid) != pid {
                    stage.kill("calc");
                }
                before.set((0, 0));
                return false;
            }
            assert_eq!(face["CalcStatus"], "\"killed by SIGKILL\"");
            assert_eq!(face["CalcPid"], "0");
            let (left, age) = (number("CalcRestartIn"), number("CalcStateAge"));
            assert!(left <= 30_000 && age <= 30_000, "{left} {age}");
            let (left_before, age_before) = before.replace((left, age));
            left < left_before && age > age_before
        },
    );
}

#[test]
fn what_another_process_says_on_a_childs_behalf_is_ignored() {
    let mut stage = Stage::new();
    stage.behave("calc", "mute");
    stage.start();
    eventually("calc has started", &stage, || {
        stage.log_count("calc start") == 1
    });
    // Root may send there, as may all processes of the child's user.
    let to = stage.run_dir().join("calc.notify");
    let said = b"READY=1\nSTATUS=forged";
    UnixDatagram::unbound().unwrap().send_to(said, to).unwrap();
    // The other child's word is taken in after it.
    eventually("the helper is up", &stage, || {
        stage.face()["HelperState"] == "\"up\""
    });
    stage.signal_child("privhelper", Signal::SIGUSR2);
    eventually("the helper has said more", &stage, || {
        stage.face()["HelperStatus"] == "\"more\""
    });
    // Not ready as it is, it may have been given up by now.
    let face = stage.face();
    assert_ne!(face["CalcState"], "\"up\"");
    assert!(!face["CalcStatus"].contains("forged"), "{face:?}");
}

#[test]
fn a_killed_helper_comes_back_and_calc_lives_on_and_resyncs_once() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    eventually("its face is watched", &stage, || {
        stage.log_count("privhelper incarnation asked") == 1
    });
    let (helper, calc) = (stage.pid("privhelper"), stage.pid("calc"));
    stage.kill("privhelper");
    eventually("calc is told", &stage, || {
        stage.log_count("calc resync") == 1
    });
    stage.both_up();
    assert_ne!(stage.pid("privhelper"), helper);
    assert_eq!(stage.pid("calc"), calc);
    assert_eq!(stage.face()["HelperRestarts"], "1");
    // Its face is seen again, which is no second crash.
    eventually("the new face is watched", &stage, || {
        stage.log_count("privhelper incarnation asked") == 2
    });
    stage.signal(Signal::SIGHUP);
    eventually("calc is told by request", &stage, || {
        stage.log_count("calc resync") == 2
    });
    assert!(stage.stderr().contains("privhelper: killed by SIGKILL"));
}

#[test]
fn a_killed_calc_comes_back_and_the_helper_lives_on() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    let (helper, calc) = (stage.pid("privhelper"), stage.pid("calc"));
    stage.kill("calc");
    eventually("another calc", &stage, || {
        stage.log_count("calc start") == 2
    });
    stage.both_up();
    assert_eq!(stage.pid("privhelper"), helper);
    assert_ne!(stage.pid("calc"), calc);
    assert_eq!(
        stage.log_count("calc resync"),
        0,
        "a new calc says hello itself"
    );
}

#[test]
fn a_crash_that_only_the_face_shows_makes_calc_resync() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    eventually("the face is watched", &stage, || {
        stage.log_count("privhelper incarnation asked") == 1
    });
    stage.signal_child("privhelper", Signal::SIGUSR1);
    eventually("calc is told", &stage, || {
        stage.log_count("calc resync") == 1
    });
    assert_eq!(stage.log_count("privhelper start"), 1);
}

#[test]
fn a_stop_ends_calc_first_and_leaves_no_socket() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    stage.signal(Signal::SIGTERM);
    assert_eq!(stage.exit_code(), Some(0));
    let ends: Vec<_> = stage
        .log()
        .into_iter()
        .filter(|line| line.ends_with("term"))
        .collect();
    assert_eq!(ends, ["calc term", "privhelper term"]);
    stage.parent_hears(&["STOPPING=1"]);
    let left: Vec<_> = fs::read_dir(stage.run_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["supervisor.lock"]);
}

#[test]
fn a_child_that_does_not_stop_is_killed() {
    let mut stage = Stage::new();
    stage.behave("calc", "stubborn");
    stage.start();
    stage.both_up();
    stage.signal(Signal::SIGINT);
    assert_eq!(stage.exit_code(), Some(0));
    assert!(
        stage
            .stderr()
            .contains("calc: it does not stop, so it is killed")
    );
    assert_eq!(stage.log().last().unwrap(), "privhelper term");
}

#[test]
fn a_child_that_keeps_failing_is_started_ever_more_rarely_and_comes_up_when_it_can() {
    let mut stage = Stage::new();
    stage.behave("calc", "fail");
    stage.start();
    eventually("five starts", &stage, || stage.log_count("calc start") == 5);
    let starts = stage.start_times("calc");
    for (gap, delay) in starts.windows(2).zip([100, 200, 400, 800]) {
        let gap = gap[1].saturating_sub(gap[0]);
        let delay = Duration::from_millis(delay);
        // Starting a process takes its time, and the clock is the wall's.
        assert!(
            gap >= delay.mul_f32(0.9),
            "{gap:?} after a delay of {delay:?}"
        );
    }
    assert_eq!(stage.log_count("privhelper start"), 1);
    assert!(stage.stderr().contains("calc: exited with code 3"));
    stage.behave("calc", "serve");
    stage.both_up();
}

#[test]
fn a_program_that_is_missing_is_named_once_and_started_when_it_is_there() {
    let mut stage = Stage::new();
    let (path, aside) = (stage.path("calc"), stage.path("aside"));
    fs::rename(&path, &aside).unwrap();
    stage.start();
    let complaint = format!("calc: cannot start {}: No such file", path.display());
    eventually("a complaint", &stage, || {
        stage.stderr().contains(&complaint)
    });
    eventually("more attempts", &stage, || {
        stage.face()["CalcRestarts"].parse::<u32>().unwrap() >= 3
    });
    assert_eq!(stage.stderr().matches(&complaint).count(), 1);
    fs::rename(&aside, &path).unwrap();
    stage.both_up();
}

#[test]
fn a_second_supervisor_is_refused_and_disturbs_nothing() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    let output = stage.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        complaint.contains(stage.run_dir().to_str().unwrap()),
        "{complaint}"
    );
    assert!(
        complaint.contains(&format!("(pid {})", stage.supervisor_pid())),
        "{complaint}"
    );
    let face = stage.face();
    assert_eq!(
        (&*face["CalcState"], &*face["HelperState"]),
        ("\"up\"", "\"up\"")
    );
    assert_eq!(stage.log_count("start"), 2);
}

#[test]
fn after_a_killed_supervisor_its_children_are_gone_and_the_next_one_works() {
    let mut stage = Stage::new();
    stage.start();
    stage.both_up();
    let before = [stage.pid("privhelper"), stage.pid("calc")];
    stage.signal(Signal::SIGKILL);
    assert_eq!(stage.exit_code(), None);
    assert!(
        stage.run_dir().join("calc.sock").exists(),
        "the next one must meet a stale socket"
    );
    stage.start();
    eventually("other children", &stage, || stage.log_count("start ") == 4);
    stage.both_up();
    for pid in before {
        eventually("the old ones are gone", &stage, || {
            // Init may take its time to bury it.
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
                || !fs::exists(format!("/proc/{pid}")).unwrap()
        });
    }
}

#[test]
fn what_cannot_work_is_said_and_nothing_is_started() {
    for (config, complaint) in [
        (
            "[calc]\nuser = \"no-such-user\"",
            "calc.user: there is no user \"no-such-user\"",
        ),
        ("[calc]\nuser = 64902", "are the same user (uid 64902)"),
        ("[calc]\nuser = 0", "calc.user is root"),
        ("[calc]\nusr = 1", "unknown field `usr`"),
    ] {
        let mut stage = Stage::new();
        stage.configure(config);
        stage.start();
        assert_eq!(stage.exit_code(), Some(1), "{config}");
        assert!(stage.stderr().contains(complaint), "{}", stage.stderr());
        assert_eq!(stage.log(), Vec::<String>::new());
        assert!(!stage.run_dir().exists());
    }
}
