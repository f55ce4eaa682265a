//! The state of a directory of documents: its files, their objects, and what was last told.
//!
//! Holds that a document which cannot be read deletes nothing: what it may have been stays in
//! force until it can be read or its file is gone. What an update costs depends on what has changed,
//! not on what there is. No I/O and no clock.

mod contents;
mod effect;
mod files;
mod objects;
mod packed;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use sha1::{Digest, Sha1};

use self::{
    contents::{Broken, File},
    effect::Subject,
    objects::Objects,
    packed::Packed,
    report::Report,
};
use super::{Standing, Update, document::ObjectKey};
use crate::event::Event;

/// The name of a file in the directory.
type FileName = Arc<str>;

/// Files turned into objects turned into updates.
#[derive(Debug)]
pub struct Store {
    node: String,
    /// What was read since; none for a file that is gone.
    news: BTreeMap<FileName, Option<File>>,
    /// As of the last update.
    objects: Objects,
    /// Files with anything to report.
    noted: BTreeSet<FileName>,
    /// Files with a broken document that was never known, as long as they have broken ones.
    unknown: BTreeSet<FileName>,
    /// Whether there ever was a file.
    seen: bool,
    trouble: Option<String>,
    told: Option<(bool, Standing, Vec<String>)>,
}

impl Store {
    /// An empty store for the node of that name.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            news: BTreeMap::new(),
            objects: Objects::default(),
            noted: BTreeSet::new(),
            unknown: BTreeSet::new(),
            seen: false,
            trouble: None,
            told: None,
        }
    }

    /// The names of its files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let known = self.objects.files.names();
        let known = known.filter(|&file| !self.news.contains_key(file));
        let new = self.news.iter().filter(|(_, content)| content.is_some());
        known.chain(new.map(|(file, _)| file)).map(|file| &**file)
    }

    /// Takes the content of a file. The same content again costs nothing.
    pub fn set(&mut self, file: &str, bytes: &[u8]) {
        self.seen = true;
        let digest = Some(Sha1::digest(bytes).into());
        if self.file(file).is_none_or(|known| known.digest != digest) {
            let read = File {
                digest,
                ..File::read(bytes)
            };
            self.news.insert(file.into(), Some(read));
        }
    }

    /// Takes that a file is there but cannot be read: all that it held stays in force.
    pub fn set_unreadable(&mut self, file: &str, reason: &str) {
        let broken = Broken {
            key: None,
            line: 0,
            text: reason.to_owned(),
        };
        let unread = File {
            broken: vec![broken],
            ..File::default()
        };
        self.news.insert(file.into(), Some(unread));
    }

    /// Takes that a file is gone, and with it what it held.
    pub fn remove(&mut self, file: &str) {
        if self.file(file).is_some() {
            self.news.insert(file.into(), None);
        }
    }

    /// The file of that name as it was last read.
    fn file(&self, name: &str) -> Option<&File> {
        match self.news.get(name) {
            Some(read) => read.as_ref(),
            None => self.objects.files.get(name),
        }
    }

    /// Takes what is wrong with the directory as a whole, if anything.
    pub fn set_trouble(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    /// Whether something is wrong with the directory as a whole.
    #[must_use]
    pub fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// What has changed since the last call, all files taken together; everything at the first
    /// call. None if nothing has.
    pub fn update(&mut self) -> Option<Update> {
        let news = mem::take(&mut self.news);
        let touched = self.touched(&news);
        let subjects = self.subjects(&touched, &news);
        let before = self.told.is_some().then(|| self.meanings(&subjects));
        let mut report = Report::default();
        self.take(news, touched, &mut report);
        let events = changes(before, self.meanings(&subjects));
        self.review(&mut report);
        let complete = self.unknown.is_empty() && (self.trouble.is_none() || self.seen);
        let standing = self.standing();
        let trouble = self.trouble.iter().map(|trouble| {
            let fate = if self.seen {
                "until then the last state stays in force"
            } else {
                "until then nothing is changed on this host"
            };
            format!("{trouble}; {fate}")
        });
        let problems: Vec<String> = trouble.chain(report.lines()).collect();
        let told = Some((complete, standing, problems.clone()));
        if events.is_empty() && self.told == told {
            return None;
        }
        self.told = told;
        Some(Update {
            events,
            complete,
            standing,
            problems,
        })
    }

    /// What is in force.
    fn standing(&self) -> Standing {
        let noted = self.noted.iter();
        let mut noted = noted.filter_map(|name| self.objects.files.get(name));
        match &self.trouble {
            Some(_) if self.seen => Standing::Lost,
            Some(_) => Standing::Unread,
            None if noted.any(|file| !file.broken.is_empty()) => Standing::Partial,
            None => Standing::Current,
        }
    }

    /// The objects of which something else may hold once `news` are taken in.
    fn touched(&self, news: &BTreeMap<FileName, Option<File>>) -> BTreeSet<ObjectKey> {
        let mut touched: BTreeSet<ObjectKey> = self.objects.kept().cloned().collect();
        for (name, new) in news {
            let both = [self.objects.files.get(name), new.as_ref()];
            let [old, new] = both.map(|file| file.map(|file| &file.objects));
            touched.extend(Packed::differing(old, new));
            for broken in both.into_iter().flatten().flat_map(|file| &file.broken) {
                touched.extend(broken.key.clone());
            }
        }
        touched
    }

    /// Takes in what was read, and finds what holds then of the objects that it may touch.
    fn take(
        &mut self,
        news: BTreeMap<FileName, Option<File>>,
        touched: BTreeSet<ObjectKey>,
        report: &mut Report,
    ) {
        let former = self.objects.held_of(&touched);
        for (name, new) in &news {
            let is_noted = |file: &File| !file.broken.is_empty() || !file.notes.is_empty();
            if new.as_ref().is_some_and(is_noted) {
                self.noted.insert(Arc::clone(name));
            } else {
                self.noted.remove(name);
            }
        }
        self.objects.files.take(news);
        self.keep(&former, report);
        for key in touched {
            self.objects.settle(&key, former.get(&key));
        }
    }

    /// Keeps what documents that cannot be read may have been, as of what held before.
    fn keep(&mut self, former: &objects::Former, report: &mut Report) {
        let mut kept = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        let mut by_file: BTreeMap<&FileName, Vec<(&ObjectKey, &objects::Held)>> = BTreeMap::new();
        for (key, held) in former.iter().filter(|(key, _)| !self.objects.defines(key)) {
            by_file.entry(&held.file).or_default().push((key, held));
        }
        let files = self.noted.iter();
        let files = files.filter_map(|name| Some((name, self.objects.files.get(name)?)));
        for (name, file) in files.filter(|(_, file)| !file.broken.is_empty()) {
            // What a document without a name may have been: any that its file no longer shows.
            let missing = by_file.get(name).map(Vec::as_slice).unwrap_or_default();
            if file.broken.iter().any(|broken| broken.key.is_none()) {
                let held =
                    |(key, held): &(&ObjectKey, &objects::Held)| ((*key).clone(), (*held).clone());
                kept.extend(missing.iter().map(held));
            }
            for broken in &file.broken {
                let was = broken
                    .key
                    .as_ref()
                    .and_then(|key| former.get_key_value(key));
                let fate = match (&broken.key, was) {
                    (Some(key), _) if self.objects.defines(key) => {
                        "the other definition of it holds"
                    }
                    (Some(_), Some((key, held))) => {
                        kept.insert(key.clone(), held.moved_to(name));
                        "what it was before stays in force"
                    }
                    (None, _) if !missing.is_empty() => "what its file held before stays in force",
                    (Some(_), None) | (None, _) => {
                        unknown.insert(Arc::clone(name));
                        "nothing is removed from the kernel until it can be read"
                    }
                };
                report.note(name, broken.line, format!("{}; {fate}", broken.text));
            }
            if self.unknown.contains(name) {
                unknown.insert(Arc::clone(name));
            }
        }
        self.unknown = unknown;
        self.objects.keep(kept);
    }

    /// What subjects mean at present.
    fn meanings(&self, subjects: &[Subject]) -> Vec<Event> {
        let sight = self.sight();
        subjects
            .iter()
            .map(|subject| sight.meaning(subject))
            .collect()
    }
}

/// What has changed, with what has gone first.
fn changes(before: Option<Vec<Event>>, after: Vec<Event>) -> Vec<Event> {
    let changed: Vec<Event> = match before {
        None => after
            .into_iter()
            .filter(|event| !effect::is_gone(event))
            .collect(),
        Some(before) => before
            .into_iter()
            .zip(after)
            .filter_map(|(before, after)| (before != after).then_some(after))
            .collect(),
    };
    let (mut gone, set): (Vec<_>, Vec<_>) = changed.into_iter().partition(effect::is_gone);
    gone.extend(set);
    gone
}
