//! A ping that counts what it loses.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    net::IpAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{sys::signal, unistd::Pid};

use crate::{netns::Netns, wait::eventually};

/// How many answers make a ping that says something: a second's.
const ENOUGH: usize = 100;

/// A running ping, one packet each 10 ms.
#[derive(Debug)]
pub struct Ping {
    child: Child,
    answered: Arc<AtomicUsize>,
    replies: thread::JoinHandle<BTreeSet<u32>>,
}

/// What became of a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// How many packets were answered.
    pub answered: usize,
    /// The numbers of those that were not.
    pub lost: Vec<u32>,
}

impl Ping {
    /// Starts pinging `to` from `from` and waits for the first answer.
    ///
    /// # Panics
    ///
    /// If ping cannot be started, or ends before an answer comes.
    #[must_use]
    pub fn start(from: &Netns, to: IpAddr) -> Self {
        let mut child = from
            .command("ping")
            .args(["-n", "-i", "0.01", "-W", "1", &to.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        let replies = thread::spawn(move || {
            let mut replies = BTreeSet::new();
            for number in output
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| reply(&line))
            {
                replies.insert(number);
                count.store(replies.len(), Ordering::Relaxed);
            }
            replies
        });
        let ping = Self {
            child,
            answered,
            replies,
        };
        ping.wait_for(1);
        ping
    }

    fn wait_for(&self, answers: usize) {
        eventually("answers to ping", || {
            match self.answered.load(Ordering::Relaxed) {
                answered if answered >= answers => Ok(()),
                answered => Err(format!("{answered} of {answers} came")),
            }
        });
    }

    /// Ends it, once it has been answered for at least a second, and tells what was lost since the
    /// first answer.
    ///
    /// # Panics
    ///
    /// If ping has already ended by itself.
    #[must_use]
    pub fn stop(mut self) -> Loss {
        self.wait_for(ENOUGH.max(self.answered.load(Ordering::Relaxed) + 1));
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        signal::kill(pid, signal::Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
        let replies = self.replies.join().unwrap();
        let numbers = *replies.first().unwrap()..=*replies.last().unwrap();
        let lost = numbers.filter(|number| !replies.contains(number)).collect();
        Loss {
            answered: replies.len(),
            lost,
        }
    }
}

/// Returns the number of the packet that a line says was answered.
fn reply(line: &str) -> Option<u32> {
    let (_, rest) = line.split_once("icmp_seq=")?;
    let (number, rest) = rest.split_once(' ')?;
    rest.contains("time=").then(|| number.parse().ok())?
}

/// Returns whether one ping is answered within `patience`, in whole seconds.
///
/// # Panics
///
/// If ping cannot be started.
#[must_use]
pub fn once(from: &Netns, to: IpAddr, patience: Duration) -> bool {
    let mut ping: Command = from.command("ping");
    ping.args(["-n", "-c", "1", "-W", &patience.as_secs().to_string()]);
    ping.arg(to.to_string());
    ping.output().unwrap().status.success()
}
