//! A subscriber that does what `docs/consumers.md` says, and knows nothing else.

use super::*;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Subscriber {
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
    pub(super) fn routes(&self) -> Option<&BTreeMap<String, RouteRow>> {
        matches!(self.progress, Progress::Following(_)).then_some(&self.routes)
    }

    pub(super) fn host_ips(&self) -> &[String] {
        &self.host_ips
    }

    pub(super) fn hear(&mut self, signal: Signal) {
        if let Signal::Reset { .. } = signal {
            self.progress = Progress::Lost;
            self.heard.clear();
            return;
        }
        match self.progress.clone() {
            Progress::Lost | Progress::Reading(..) => self.heard.push(signal),
            Progress::Following(seq) if signal.seq() <= seq => {}
            Progress::Following(seq) if signal.seq() == seq + 1 => {
                self.progress = Progress::Following(seq + 1);
                self.apply(signal);
            }
            Progress::Following(_) => {
                self.progress = Progress::Lost;
                self.heard = vec![signal];
            }
        }
    }

    pub(super) fn read(&mut self, bench: &Bench) {
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
            Signal::Reset { .. } => {}
        }
    }
}
