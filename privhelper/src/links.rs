//! The table of interfaces: what the helper last saw, and what has not been told yet.
//!
//! Pure. Invariant: a client that applies a snapshot and then every feed that follows it, without a
//! gap in the numbers, has the same table. What is not told yet is bounded by [`MAX_PENDING`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipc_proto::{Feed, Link, LinkEvent, LinkRole, LinkState, view::Kind};
use ipnet::IpNet;

/// The most changes that wait to be told; beyond that the client must read everything again.
const MAX_PENDING: usize = 4096;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Links {
    by_index: Arc<BTreeMap<u32, LinkState>>,
    /// Those among them that are uplinks, which each route is compared with.
    uplinks: Arc<[LinkState]>,
    pending: BTreeMap<Link, LinkEvent>,
    /// Those that have been down since the last feed, whatever they are at its end.
    went_down: BTreeSet<Link>,
    /// The addresses that those have been without since the last feed, whatever they have at its end.
    lost: BTreeMap<Link, BTreeSet<IpNet>>,
    /// Of which kinds others have changed something since the last feed.
    drift: BTreeSet<Kind>,
    seq: u64,
    /// Too much was pending, and all of it was dropped.
    overflowed: bool,
}

/// What was heard between two readings, which no reading may show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// The interfaces that were down, by index.
    pub down: BTreeSet<u32>,
    /// The addresses that were taken away, by interface.
    pub lost: BTreeMap<u32, BTreeSet<IpAddr>>,
}

impl Links {
    /// Returns a table that stays as this one is at this moment; cheap.
    #[must_use]
    pub fn view(&self) -> Self {
        Self {
            by_index: Arc::clone(&self.by_index),
            uplinks: Arc::clone(&self.uplinks),
            ..Self::default()
        }
    }

    /// Returns the interface if index and name are still those of one.
    #[must_use]
    pub fn get(&self, link: &Link) -> Option<&LinkState> {
        self.by_index
            .get(&link.index)
            .filter(|state| state.link == *link)
    }

    /// Returns the interface with this index.
    #[must_use]
    pub fn by_index(&self, index: u32) -> Option<&LinkState> {
        self.by_index.get(&index)
    }

    /// Returns all interfaces by index.
    pub fn iter(&self) -> impl Iterator<Item = &LinkState> {
        self.by_index.values()
    }

    /// Returns the uplinks by index.
    pub fn uplinks(&self) -> impl Iterator<Item = &LinkState> {
        self.uplinks.iter()
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_index.is_empty()
    }

    /// Takes in all interfaces that there are and returns whether there is anything to tell.
    ///
    /// One of those in `unseen` that is up again has still lost what hung on it, so it is told as down
    /// and up; one that is down again may have been up meanwhile, so it is told once more. One that has
    /// an address again has lost the routes that name it, so it is told without and with it.
    pub fn update(&mut self, actual: impl IntoIterator<Item = LinkState>, unseen: &Unseen) -> bool {
        let actual: BTreeMap<u32, LinkState> = actual
            .into_iter()
            .map(|state| (state.link.index, state))
            .collect();
        if actual == *self.by_index && *unseen == Unseen::default() {
            return false;
        }
        let shaken = &unseen.down;
        for (index, before) in self.by_index.iter() {
            let state = actual.get(index).filter(|state| state.link == before.link);
            match state {
                None => {
                    let gone = LinkEvent::Gone(before.link.clone());
                    self.pending.insert(before.link.clone(), gone);
                }
                Some(state) if before.up && (!state.up || shaken.contains(index)) => {
                    self.went_down.insert(before.link.clone());
                    let set = LinkEvent::Set(state.clone());
                    self.pending.insert(before.link.clone(), set);
                }
                Some(state) if shaken.contains(index) && !state.up => {
                    let set = LinkEvent::Set(state.clone());
                    self.pending.insert(before.link.clone(), set);
                }
                Some(_) => {}
            }
            if let Some(state) = state {
                let heard = unseen.lost.get(index);
                let is_lost = |own: &&IpNet| {
                    !state.addresses.contains(own)
                        || heard.is_some_and(|lost| lost.contains(&own.addr()))
                };
                let mut lost = before.addresses.iter().filter(is_lost).copied().peekable();
                if lost.peek().is_some() {
                    let all = self.lost.entry(before.link.clone()).or_default();
                    all.extend(lost);
                    let set = LinkEvent::Set(state.clone());
                    self.pending.insert(before.link.clone(), set);
                }
            }
        }
        for (index, state) in &actual {
            if self.by_index.get(index) != Some(state) {
                let set = LinkEvent::Set(state.clone());
                self.pending.insert(state.link.clone(), set);
            }
        }
        if self.pending.len() > MAX_PENDING {
            self.overflowed = true;
        }
        if self.overflowed {
            self.pending.clear();
            self.went_down.clear();
            self.lost.clear();
        }
        let uplinks = actual
            .values()
            .filter(|state| state.role == LinkRole::Uplink);
        self.uplinks = uplinks.cloned().collect();
        self.by_index = Arc::new(actual);
        !self.pending.is_empty() || self.overflowed
    }

    /// Takes in that something was missed: there will be a gap in the numbers.
    pub fn miss(&mut self) {
        self.overflowed = true;
        self.pending.clear();
    }

    /// Takes in that others have changed something of these kinds.
    pub fn drift(&mut self, kinds: BTreeSet<Kind>) {
        self.drift.extend(kinds);
    }

    /// Takes what has not been told yet; what is gone comes first, since its name may be in use
    /// again. After an overflow there is a gap in the numbers.
    pub fn take_feed(&mut self) -> Option<Feed> {
        if self.pending.is_empty() && !self.overflowed && self.drift.is_empty() {
            return None;
        }
        self.seq += 1 + u64::from(std::mem::take(&mut self.overflowed));
        let went_down = std::mem::take(&mut self.went_down);
        let lost = std::mem::take(&mut self.lost);
        let (gone, set): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_values()
            .partition(|event| matches!(event, LinkEvent::Gone(_)));
        let set = set.into_iter().flat_map(|event| {
            let between = match &event {
                LinkEvent::Set(state) => {
                    let fell = state.up && went_down.contains(&state.link);
                    let mut between = LinkState {
                        up: state.up && !fell,
                        carrier: state.carrier && !fell,
                        ..state.clone()
                    };
                    let lost = lost.get(&state.link);
                    let stays = |own: &IpNet| lost.is_none_or(|lost| !lost.contains(own));
                    between.addresses.retain(stays);
                    (between != *state).then_some(LinkEvent::Set(between))
                }
                LinkEvent::Gone(_) => None,
            };
            between.into_iter().chain([event])
        });
        Some(Feed {
            seq: self.seq,
            events: gone.into_iter().chain(set).collect(),
            drift: std::mem::take(&mut self.drift),
        })
    }

    /// Returns all interfaces, and the number of the last feed that they include; the next one
    /// tells what changes after this.
    pub fn snapshot(&mut self) -> (Vec<LinkState>, u64) {
        self.pending.clear();
        self.went_down.clear();
        self.lost.clear();
        // What is there is read after this.
        self.drift.clear();
        self.overflowed = false;
        (self.by_index.values().cloned().collect(), self.seq)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(index: u32, name: &str, up: bool) -> LinkState {
        LinkState {
            link: Link {
                index,
                name: name.parse().unwrap(),
            },
            role: LinkRole::Other,
            up,
            carrier: up,
            mac: None,
            mtu: 1500,
            addresses: Vec::new(),
        }
    }

    fn none() -> Unseen {
        Unseen::default()
    }

    fn down(indexes: impl IntoIterator<Item = u32>) -> Unseen {
        Unseen {
            down: indexes.into_iter().collect(),
            ..Unseen::default()
        }
    }

    #[test]
    fn a_rename_is_told_as_the_end_of_the_old_name_first() {
        let mut links = Links::default();
        links.update([state(7, "a", true)], &none());
        links.snapshot();
        assert!(links.update([state(7, "b", true)], &none()));
        let feed = links.take_feed().unwrap();
        assert_eq!(
            feed.events,
            [
                LinkEvent::Gone(state(7, "a", true).link),
                LinkEvent::Set(state(7, "b", true)),
            ]
        );
        assert!(links.get(&state(7, "a", true).link).is_none());
    }

    #[test]
    fn what_stays_the_same_is_not_told() {
        let mut links = Links::default();
        links.update([state(7, "a", true)], &none());
        links.snapshot();
        assert!(!links.update([state(7, "a", true)], &none()));
        assert_eq!(links.take_feed(), None);
    }

    #[test]
    fn what_went_down_in_between_is_told_as_down_and_up() {
        let up_and_down = |tell_between: bool| {
            let mut links = Links::default();
            links.update([state(7, "a", true), state(8, "b", true)], &none());
            links.snapshot();
            if tell_between {
                assert!(links.update([state(7, "a", true), state(8, "b", true)], &down([7])));
            } else {
                assert!(links.update([state(7, "a", false), state(8, "b", true)], &none()));
                assert!(links.update([state(7, "a", true), state(8, "b", true)], &none()));
            }
            links.take_feed().unwrap().events
        };
        let told = [false, true].map(|up| LinkEvent::Set(state(7, "a", up)));
        assert_eq!(up_and_down(true), told);
        assert_eq!(up_and_down(false), told);
    }

    #[test]
    fn an_address_that_was_away_in_between_is_told_as_lost_and_found() {
        let with = |nets: &[&str]| LinkState {
            addresses: nets.iter().map(|net| net.parse().unwrap()).collect(),
            ..state(7, "a", true)
        };
        let [both, one] = [
            with(&["192.0.2.1/24", "192.0.2.2/32"]),
            with(&["192.0.2.1/24"]),
        ];
        let heard = Unseen {
            lost: [(7, ["192.0.2.2".parse().unwrap()].into())].into(),
            ..Unseen::default()
        };
        for seen in [false, true] {
            let mut links = Links::default();
            links.update([both.clone()], &none());
            links.snapshot();
            if seen {
                assert!(links.update([one.clone()], &none()));
                assert!(links.update([both.clone()], &none()));
            } else {
                assert!(links.update([both.clone()], &heard));
            }
            let told = [&one, &both].map(|state| LinkEvent::Set(state.clone()));
            assert_eq!(links.take_feed().unwrap().events, told);
            // What is gone for good is told once.
            assert!(links.update([one.clone()], &heard));
            let told = [LinkEvent::Set(one.clone())];
            assert_eq!(links.take_feed().unwrap().events, told);
        }
    }

    #[test]
    fn what_comes_up_has_lost_nothing() {
        let mut links = Links::default();
        links.update([state(7, "a", false)], &none());
        links.snapshot();
        assert!(links.update([state(7, "a", true)], &down([7])));
        assert_eq!(
            links.take_feed().unwrap().events,
            [LinkEvent::Set(state(7, "a", true))]
        );
    }

    #[test]
    fn what_others_changed_is_told_once_and_not_after_a_reading_that_includes_it() {
        let kinds = || BTreeSet::from([Kind::KernelRoutes]);
        let mut links = Links::default();
        let (_, seq) = links.snapshot();
        links.drift(kinds());
        links.drift([Kind::Rules].into());
        let feed = links.take_feed().unwrap();
        assert_eq!((feed.seq, feed.events), (seq + 1, Vec::new()));
        assert_eq!(feed.drift, [Kind::KernelRoutes, Kind::Rules].into());
        assert_eq!(links.take_feed(), None);
        links.drift(kinds());
        assert_eq!(links.snapshot().1, feed.seq);
        assert_eq!(links.take_feed(), None);
    }

    #[test]
    fn what_came_up_and_went_down_again_in_between_is_told() {
        let mut links = Links::default();
        links.update([state(7, "a", false), state(8, "b", false)], &none());
        links.snapshot();
        assert!(links.update([state(7, "a", false), state(8, "b", false)], &down([7])));
        assert_eq!(
            links.take_feed().unwrap().events,
            [LinkEvent::Set(state(7, "a", false))]
        );
    }

    #[test]
    fn too_much_untold_leaves_a_gap_in_the_numbers() {
        let mut links = Links::default();
        let (_, seq) = links.snapshot();
        let many = u32::try_from(MAX_PENDING).unwrap() + 1;
        links.update((1..=many).map(|index| state(index, "a", true)), &none());
        links.update([state(1, "a", false)], &none());
        let feed = links.take_feed().unwrap();
        assert_eq!((feed.seq, feed.events), (seq + 2, Vec::new()));
        assert_eq!(links.take_feed(), None);
    }

    proptest! {
        /// A client that follows the feed has the helper's table at every feed.
        #[test]
        fn a_follower_ends_with_the_same_table(
            rounds in proptest::collection::vec(
                (proptest::collection::btree_map(1_u32..5, (0_u8..3, any::<bool>()), 0..4), any::<bool>()),
                0..12,
            ),
        ) {
            let mut links = Links::default();
            let (snapshot, mut seq) = links.snapshot();
            let mut follower: BTreeMap<Link, LinkState> =
                snapshot.into_iter().map(|state| (state.link.clone(), state)).collect();
            let last = (BTreeMap::new(), true);
            for (round, tell) in rounds.into_iter().chain([last]) {
                let shaken = round.iter().filter(|(_, (name, _))| *name == 0);
                let unseen = down(shaken.map(|(index, _)| *index));
                links.update(
                    round.into_iter().map(|(index, (name, up))| {
                        state(index, ["a", "b", "c"][usize::from(name)], up)
                    }),
                    &unseen,
                );
                if !tell {
                    continue;
                }
                if let Some(feed) = links.take_feed() {
                    prop_assert_eq!(feed.seq, seq + 1);
                    seq = feed.seq;
                    for event in feed.events {
                        match event {
                            LinkEvent::Set(state) => follower.insert(state.link.clone(), state),
                            LinkEvent::Gone(link) => follower.remove(&link),
                        };
                    }
                }
                prop_assert!(follower.values().eq(links.iter()));
            }
        }
    }
}
