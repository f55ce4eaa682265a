//! A real directory under real notifications.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use calc::{
    datastore::{FileDatastore, Standing, Told, Update},
    event::Event,
};
use ipnet::IpNet;
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{cluster, pool};

/// How long the outside world may take.
const DEADLINE: Duration = Duration::from_mins(1);
/// What has stood for so long counts as done, be it a directory that is being filled or a file that is not
/// closed.
const REST: Duration = Duration::from_secs(2);

/// A followed directory and what was heard of it.
struct Followed {
    root: TempDir,
    asked: watch::Sender<u64>,
    told: mpsc::Receiver<Told>,
    task: JoinHandle<Result<(), calc::datastore::Error>>,
    /// The last request that is answered.
    answered: u64,
    pools: BTreeSet<IpNet>,
    last: Update,
    /// All changes of pools, in order.
    history: Vec<String>,
}

impl Followed {
    /// Follows the directory `store`, which `fill` may make before.
    fn new(fill: impl FnOnce(&Path)) -> Self {
        #![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
        let root = TempDir::new().unwrap();
        let dir = root.path().join("store");
        fill(&dir);
        let (asked, asked_receiver) = watch::channel(0);
        let (sender, told) = mpsc::channel(1);
        let task = FileDatastore::run(dir, "node-1".to_owned(), asked_receiver, sender);
        Self {
            root,
            asked,
            told,
            task: tokio::spawn(task),
            answered: 0,
            pools: BTreeSet::new(),
            last: Update::default(),
            history: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("store").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        #![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
        fs::write(self.path(name), text).unwrap();
    }

    /// Listens until `holds`.
    async fn eventually(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        #![expect(clippy::panic, reason = "a test that cannot go on panics")]
        while !holds(self) {
            let heard = tokio::time::timeout(DEADLINE, self.told.recv()).await;
            let Ok(Some(told)) = heard else {
                panic!(
                    "{what}: not so: {:?}, {:?}, {:?}, {heard:?}",
                    self.history, self.last.problems, self.last.complete
                );
            };
            let update = match told {
                Told::Update(update) => update,
                Told::Answer(number) => {
                    self.answered = number;
                    continue;
                }
            };
            for event in &update.events {
                if let Event::Pool(cidr, pool) = event {
                    if pool.is_some() {
                        self.pools.insert(*cidr);
                    } else {
                        self.pools.remove(cidr);
                    }
                    let sign = if pool.is_some() { '+' } else { '-' };
                    self.history.push(format!("{sign}{cidr}"));
                }
            }
            self.last = update;
        }
    }

    /// Takes in all that has been written.
    async fn hears_all(&mut self) {
        let number = *self.asked.borrow() + 1;
        self.asked.send_replace(number);
        self.eventually("an answer", |followed| followed.answered == number)
            .await;
    }

    async fn has(&mut self, pools: &[&str]) {
        self.eventually(&format!("{pools:?}"), |followed| {
            followed
                .pools
                .iter()
                .map(ToString::to_string)
                .eq(pools.iter().copied())
        })
        .await;
    }
}

/// How fast a writer is who must not rest.
struct Pace {
    last: Instant,
    longest: Duration,
}

impl Pace {
    fn new() -> Self {
        Self {
            last: now(),
            longest: Duration::ZERO,
        }
    }

    /// Takes a step. Between the beginning of the one before and its end there is no rest.
    fn step(&mut self, step: impl FnOnce()) {
        let begun = now();
        step();
        self.longest = self.longest.max(self.last.elapsed());
        self.last = begun;
    }

    /// Checks what holds for one who does not rest, and returns whether this one did not.
    fn in_time(self, check: impl FnOnce()) -> bool {
        let in_time = self.longest < REST;
        if in_time {
            check();
        }
        in_time
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests wait for files")]
fn now() -> Instant {
    Instant::now()
}

/// Tries until it was fast enough to show anything.
async fn in_time(mut attempt: impl AsyncFnMut() -> bool) {
    #![expect(clippy::panic, reason = "a test that cannot go on panics")]
    for _ in 0..20 {
        if attempt().await {
            return;
        }
    }
    panic!("this machine is never fast enough");
}

fn dir_with(files: &[(&str, &str)]) -> impl FnOnce(&Path) {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
    move |dir: &Path| {
        fs::create_dir(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }
}

#[tokio::test]
async fn the_first_update_is_the_whole_directory() {
    let mut followed = Followed::new(|dir| {
        fs::create_dir(dir).unwrap();
        for (name, text) in cluster::files() {
            fs::write(dir.join(name), text).unwrap();
        }
        fs::write(dir.join("README.md"), "kind: [").unwrap();
        fs::write(dir.join(".hidden.yaml"), "kind: [").unwrap();
        fs::create_dir(dir.join("sub.yaml")).unwrap();
    });
    followed
        .eventually("first", |followed| !followed.last.events.is_empty())
        .await;
    assert_eq!(followed.pools.len(), 6);
    assert_eq!(followed.last.events.len(), 2 + 3 + 6 + 10 + 10);
    assert_eq!(followed.last.problems, Vec::<String>::new());
    assert!(followed.last.complete);
}

#[tokio::test]
async fn files_come_change_move_and_go() {
    let (one, two, three) = (
        pool("a", "10.1.0.0/20"),
        pool("b", "10.2.0.0/20"),
        pool("c", "10.3.0.0/20"),
    );
    let mut followed = Followed::new(dir_with(&[("a.yaml", &one)]));
    followed.has(&["10.1.0.0/20"]).await;
    followed.write("b.JSON", &two);
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    followed.write("b.JSON", &three);
    followed.has(&["10.1.0.0/20", "10.3.0.0/20"]).await;
    // As an editor or a configuration tool writes.
    followed.write(".a.yaml.tmp", &two);
    fs::rename(followed.path(".a.yaml.tmp"), followed.path("a.yaml")).unwrap();
    followed.has(&["10.2.0.0/20", "10.3.0.0/20"]).await;
    fs::rename(followed.path("a.yaml"), followed.path("a.yaml~")).unwrap();
    followed.has(&["10.3.0.0/20"]).await;
    fs::remove_file(followed.path("b.JSON")).unwrap();
    followed.has(&[]).await;
    assert!(followed.last.complete);
    symlink("a.yaml~", followed.path("link.yml")).unwrap();
    followed.has(&["10.2.0.0/20"]).await;
}

#[tokio::test]
async fn half_a_file_is_never_seen() {
    in_time(async || writes_a_half().await).await;
}

/// Writes one half of a file and then the other, and returns whether that was fast enough to show
/// anything.
async fn writes_a_half() -> bool {
    #![expect(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "a test that cannot go on panics"
    )]
    let whole = pool("a", "10.1.0.0/20") + &pool("b", "10.2.0.0/20");
    let mut followed = Followed::new(dir_with(&[("a.yaml", &whole), ("m.yaml", "")]));
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    let heard = followed.history.len();

    let mut pace = Pace::new();
    let mut file = File::create(followed.path("a.yaml")).unwrap();
    file.write_all(pool("a", "10.1.0.0/20").as_bytes()).unwrap();
    fs::set_permissions(followed.path("a.yaml"), PermissionsExt::from_mode(0o600)).unwrap();
    // Another file is read meanwhile, and then even all of them.
    followed.write("z.yaml", &pool("z", "10.9.0.0/20"));
    followed
        .eventually("z is read", |followed| followed.history.len() > heard)
        .await;
    fs::create_dir(followed.path("sub")).unwrap();
    fs::remove_file(followed.path("z.yaml")).unwrap();
    followed
        .eventually("z is gone", |followed| followed.history.len() > heard + 1)
        .await;
    let seen = followed.history[heard..].to_vec();

    pace.step(|| file.write_all(pool("b", "10.3.0.0/20").as_bytes()).unwrap());
    drop(file);
    followed.has(&["10.1.0.0/20", "10.3.0.0/20"]).await;
    pace.in_time(|| assert_eq!(seen, ["+10.9.0.0/20", "-10.9.0.0/20"]))
}

#[tokio::test]
async fn a_file_that_is_never_closed_counts_when_it_is_at_rest() {
    let mut followed = Followed::new(dir_with(&[("a.yaml", "")]));
    followed
        .eventually("first", |followed| !followed.last.events.is_empty())
        .await;
    let mut file = OpenOptions::new()
        .append(true)
        .open(followed.path("a.yaml"))
        .unwrap();
    file.write_all(pool("a", "10.1.0.0/20").as_bytes()).unwrap();
    followed.has(&["10.1.0.0/20"]).await;
    // A hard link is not closed either.
    followed.write("b.tmp", &pool("b", "10.2.0.0/20"));
    fs::hard_link(followed.path("b.tmp"), followed.path("b.yaml")).unwrap();
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    drop(file);
}

/// As Kubernetes mounts a config map: links to links, of which one is swapped.
#[tokio::test]
async fn a_swapped_link_changes_all_files_at_once() {
    let mut followed = Followed::new(|dir| {
        for (version, cidr) in [("..1", "10.1.0.0/20"), ("..2", "10.2.0.0/20")] {
            fs::create_dir_all(dir.join(version)).unwrap();
            fs::write(dir.join(version).join("pool.yaml"), pool("a", cidr)).unwrap();
        }
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/pool.yaml", dir.join("pool.yaml")).unwrap();
    });
    followed.has(&["10.1.0.0/20"]).await;
    symlink("..2", followed.path("..tmp")).unwrap();
    fs::rename(followed.path("..tmp"), followed.path("..data")).unwrap();
    followed.has(&["10.2.0.0/20"]).await;
    assert_eq!(
        followed.history,
        ["+10.1.0.0/20", "-10.1.0.0/20", "+10.2.0.0/20"]
    );
    // A link to nothing is no deletion.
    fs::remove_dir_all(followed.path("..2")).unwrap();
    fs::remove_file(followed.path("..data")).unwrap();
    followed
        .eventually("a problem", |followed| !followed.last.problems.is_empty())
        .await;
    assert!(
        followed.last.problems[0].contains("link to nothing"),
        "{:?}",
        followed.last.problems
    );
    followed.has(&["10.2.0.0/20"]).await;
}

#[tokio::test]
async fn a_broken_file_changes_nothing_until_it_is_repaired() {
    let mut followed = Followed::new(dir_with(&[("a.yaml", &pool("a", "10.1.0.0/20"))]));
    followed.has(&["10.1.0.0/20"]).await;
    followed.write("a.yaml", "kind: [");
    followed
        .eventually("a problem", |followed| !followed.last.problems.is_empty())
        .await;
    assert!(followed.last.complete);
    followed.write("a.yaml", &pool("a", "10.2.0.0/20"));
    followed.has(&["10.2.0.0/20"]).await;
    assert_eq!(
        followed.history,
        ["+10.1.0.0/20", "-10.1.0.0/20", "+10.2.0.0/20"]
    );
    assert_eq!(followed.last.problems, Vec::<String>::new());

    fs::remove_file(followed.path("a.yaml")).unwrap();
    nix::unistd::mkfifo(&followed.path("a.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    followed
        .eventually("a problem", |followed| !followed.last.problems.is_empty())
        .await;
    assert!(followed.last.problems[0].contains("not a regular file"));
}

#[tokio::test]
async fn a_directory_that_is_missing_is_waited_for() {
    let mut followed = Followed::new(|_| {});
    let dir = followed.path("");
    followed
        .eventually("first", |followed| !followed.last.events.is_empty())
        .await;
    let missing = followed.last.problems[0].clone();
    for part in [
        "/store: cannot be watched",
        "(os error 2)",
        "nothing is changed",
    ] {
        assert!(missing.contains(part), "no {part} in {missing}");
    }
    assert_eq!(followed.last.standing, Standing::Unread);
    fs::create_dir(&dir).unwrap();
    // An empty one may be a mount that is missing.
    followed
        .eventually("emptiness", |followed| {
            followed.last.problems[0].contains("holds no")
        })
        .await;
    assert!(!followed.last.complete);
    assert_eq!(followed.last.standing, Standing::Unread);
    followed.write("a.yaml", &pool("a", "10.1.0.0/20"));
    followed.has(&["10.1.0.0/20"]).await;
    assert!(followed.last.complete);
    assert_eq!(followed.last.standing, Standing::Current);
    assert_eq!(followed.last.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_directory_that_goes_takes_nothing_with_it() {
    let (one, two) = (pool("a", "10.1.0.0/20"), pool("b", "10.2.0.0/20"));
    let mut followed = Followed::new(dir_with(&[("a.yaml", &one), ("b.yaml", &two)]));
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    let dir = followed.path("");
    for way in ["removed", "renamed"] {
        let heard = followed.history.len();
        if way == "removed" {
            fs::remove_dir_all(&dir).unwrap();
        } else {
            fs::rename(&dir, followed.root.path().join("elsewhere")).unwrap();
        }
        followed
            .eventually("a problem", |followed| !followed.last.problems.is_empty())
            .await;
        assert!(
            followed.last.problems[0].contains("cannot be watched"),
            "{:?}",
            followed.last.problems
        );
        assert!(followed.last.complete);
        assert_eq!(followed.last.standing, Standing::Lost);
        fs::create_dir(&dir).unwrap();
        followed
            .eventually("emptiness", |followed| {
                followed.last.problems[0].contains("holds no")
            })
            .await;
        assert!(followed.last.complete);
        followed.write(".a", &one);
        followed.write(".b", &two);
        fs::rename(followed.path(".b"), followed.path("b.yaml")).unwrap();
        fs::rename(followed.path(".a"), followed.path("a.yaml")).unwrap();
        followed
            .eventually("no problem", |followed| followed.last.problems.is_empty())
            .await;
        followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
        assert_eq!(followed.history[heard..], Vec::<String>::new(), "{way}");
    }
}

#[tokio::test]
async fn a_directory_that_is_filled_again_takes_nothing_with_it_while_that_takes() {
    for lost in [true, false] {
        in_time(async || fills_again(lost).await).await;
    }
}

/// Fills a directory that was removed, or is known to be empty, and returns whether that was fast enough
/// to show anything.
async fn fills_again(lost: bool) -> bool {
    #![expect(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "a test that cannot go on panics"
    )]
    let files = [
        ("a.yaml", "a", "10.1.0.0/20"),
        ("b.yaml", "b", "10.2.0.0/20"),
    ];
    let fill = files.map(|(file, name, cidr)| (file, pool(name, cidr)));
    let written = fill.each_ref().map(|(file, text)| (*file, text.as_str()));
    let mut followed = Followed::new(dir_with(&written));
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    let heard = followed.history.len();
    let dir = followed.root.path().join("store");
    if lost {
        fs::remove_dir_all(&dir).unwrap();
    } else {
        // Known to be empty before it is filled.
        fs::rename(&dir, dir.with_extension("old")).unwrap();
        fs::create_dir(&dir).unwrap();
        followed
            .eventually("trouble", |followed| !followed.last.problems.is_empty())
            .await;
    }
    let mut pace = Pace::new();
    if lost {
        fs::create_dir(&dir).unwrap();
    }
    for (file, text) in &fill {
        pace.step(|| followed.write(file, text));
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    pace.step(|| followed.write("c.yaml", &pool("c", "10.3.0.0/20")));
    followed
        .has(&["10.1.0.0/20", "10.2.0.0/20", "10.3.0.0/20"])
        .await;
    fs::remove_file(followed.path("c.yaml")).unwrap();
    followed.has(&["10.1.0.0/20", "10.2.0.0/20"]).await;
    pace.in_time(|| assert_eq!(followed.history[heard..], ["+10.3.0.0/20", "-10.3.0.0/20"]))
}

#[tokio::test]
async fn what_links_lead_to_is_followed() {
    let mut followed = Followed::new(|dir| {
        let root = dir.parent().unwrap();
        for (version, cidr) in [("v1", "10.1.0.0/20"), ("v2", "10.2.0.0/20")] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("a.yaml"), pool("a", cidr)).unwrap();
        }
        symlink(root.join("v1"), dir).unwrap();
    });
    followed.has(&["10.1.0.0/20"]).await;
    let root = followed.root.path().to_owned();
    // The directory is another one.
    symlink(root.join("v2"), root.join("new")).unwrap();
    fs::rename(root.join("new"), root.join("store")).unwrap();
    followed.has(&["10.2.0.0/20"]).await;
    // A document is elsewhere.
    let elsewhere = root.join("elsewhere");
    fs::write(&elsewhere, pool("b", "10.3.0.0/20")).unwrap();
    symlink(&elsewhere, followed.path("b.yaml")).unwrap();
    followed.has(&["10.2.0.0/20", "10.3.0.0/20"]).await;
    fs::write(&elsewhere, pool("b", "10.4.0.0/20")).unwrap();
    followed.has(&["10.2.0.0/20", "10.4.0.0/20"]).await;
}

#[tokio::test]
async fn many_changes_end_in_the_last_state() {
    let mut followed = Followed::new(dir_with(&[("a.yaml", "")]));
    for round in 0..2_000 {
        let name = format!("{}.yaml", round % 50);
        followed.write(
            &name,
            &pool(
                &format!("p-{name}"),
                &format!("10.{}.{}.0/24", round % 50, round / 50),
            )
            .replace("cidr:", "blockSize: 28, cidr:"),
        );
    }
    let last: Vec<String> = (0..50).map(|file| format!("10.{file}.39.0/24")).collect();
    let mut last: Vec<IpNet> = last.iter().map(|cidr| cidr.parse().unwrap()).collect();
    last.sort();
    followed
        .eventually("the last state", |followed| {
            followed.pools.iter().eq(last.iter())
        })
        .await;
    assert_eq!(followed.last.problems, Vec::<String>::new());
}

#[tokio::test]
async fn whoever_asks_is_answered_after_all_that_was_written_before() {
    let mut followed = Followed::new(dir_with(&[("a.yaml", "")]));
    // One is in the first reading, or after it; nothing else has happened.
    for _ in 0..3 {
        followed.hears_all().await;
    }
    let elsewhere = followed.root.path().join("elsewhere");
    fs::write(&elsewhere, pool("b", "10.2.0.0/20")).unwrap();
    symlink(&elsewhere, followed.path("b.yaml")).unwrap();
    for round in 0..30 {
        let (written, led_to) = (format!("10.1.{round}.0/24"), format!("10.2.{round}.0/24"));
        followed.write("a.yaml", &pool("a", &written));
        if round % 3 == 1 {
            // By then the change is being gathered, or read.
            tokio::time::sleep(Duration::from_millis(round)).await;
        }
        if round % 2 == 0 {
            fs::write(&elsewhere, pool("b", &led_to)).unwrap();
        }
        followed.hears_all().await;
        let has = |net: &String| followed.pools.contains(&net.parse().unwrap());
        assert!(has(&written), "{round}: {:?}", followed.history);
        assert!(
            round % 2 == 1 || has(&led_to),
            "{round}: {:?}",
            followed.history
        );
    }
}

#[tokio::test]
async fn whoever_asks_is_answered_without_a_directory_too() {
    let mut followed = Followed::new(|_| {});
    followed.hears_all().await;
    assert!(followed.last.problems[0].contains("cannot be watched"));
    fs::create_dir(followed.path("")).unwrap();
    followed.write("a.yaml", &pool("a", "10.1.0.0/20"));
    followed.has(&["10.1.0.0/20"]).await;
    fs::remove_dir_all(followed.path("")).unwrap();
    followed.hears_all().await;
    followed.hears_all().await;
    assert_eq!(followed.last.standing, Standing::Lost);
}

#[tokio::test]
async fn whoever_asks_of_an_empty_directory_is_answered_without_a_rest() {
    let mut followed = Followed::new(dir_with(&[]));
    followed.hears_all().await;
    assert!(followed.last.problems[0].contains("holds no"));
    let begin = now();
    for _ in 0..20 {
        followed.hears_all().await;
    }
    assert!(begin.elapsed() < 10 * REST);
    followed.write("a.yaml", &pool("a", "10.1.0.0/20"));
    followed.hears_all().await;
    assert_eq!(followed.history, ["+10.1.0.0/20"]);
    assert_eq!(followed.last.standing, Standing::Current);
}

#[tokio::test]
async fn it_ends_when_nobody_listens() {
    let Followed {
        told, task, root, ..
    } = Followed::new(dir_with(&[]));
    drop(told);
    tokio::time::timeout(DEADLINE, task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    drop(root);
}

#[tokio::test]
async fn a_file_without_permission_keeps_what_it_held() {
    let mut followed = Followed::new(dir_with(&[("a.yaml", &pool("a", "10.1.0.0/20"))]));
    followed.has(&["10.1.0.0/20"]).await;
    fs::set_permissions(followed.path("a.yaml"), PermissionsExt::from_mode(0o000)).unwrap();
    if File::open(followed.path("a.yaml")).is_ok() {
        // Root reads everything: there is nothing to see.
        return;
    }
    followed
        .eventually("a problem", |followed| !followed.last.problems.is_empty())
        .await;
    fs::set_permissions(followed.path("a.yaml"), PermissionsExt::from_mode(0o644)).unwrap();
    followed
        .eventually("no problem", |followed| followed.last.problems.is_empty())
        .await;
    assert_eq!(followed.history, ["+10.1.0.0/20"]);
}
