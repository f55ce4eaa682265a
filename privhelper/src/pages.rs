//! A snapshot on its way: cut into pages that fit into messages.
//!
//! Items are checked and encoded as they arrive, so that a full map costs its bytes and not its
//! objects, by a thread of their own, so that reading the kernel goes on meanwhile; and pages are had
//! before all is read.
//! Of a kind of which there are many, and of which whoever asked knows a sum, that is compared first: where
//! it is right, nothing is sent. Where it is wrong all is read once more, which costs time and no memory.
//! They wait in memory for whoever is slow to ask: nobody can stop the reading, and what is read is
//! bounded by the size of the maps.

use std::{
    mem,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
};

use ipc_proto::{
    Known, Lease, Many, Observed, Page, PageRequest, Sum,
    codec::{self, EncodeError},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{dataplane::SnapshotError, session::Refusal};

/// How many items a page holds if they are of the usual size.
const ITEMS: usize = 4096;
/// How many bytes a page should have at most, a quarter of what a message may have.
const BYTES: usize = codec::MAX_LEN / 4;

/// How many pages wait to be encoded at most.
const WAITING: usize = 4;

/// The pages of one snapshot, as they come.
#[derive(Debug)]
pub struct Pages {
    lease: Lease,
    next: u32,
    coming: UnboundedReceiver<Coming>,
}

/// Whether a page is the last and its bytes, or why there are no more.
pub type Coming = Result<(bool, Vec<u8>), Refusal>;

impl Pages {
    /// Has the snapshot for `lease` come from there.
    #[must_use]
    pub fn new(lease: Lease, coming: UnboundedReceiver<Coming>) -> Self {
        Self {
            lease,
            next: 0,
            coming,
        }
    }

    /// Serves [`PageRequest`], as soon as there is a page.
    ///
    /// # Errors
    ///
    /// [`Refusal`], also where the rest of the snapshot cannot be read.
    pub async fn serve(&mut self, request: &[u8]) -> Coming {
        let PageRequest { lease, page } = codec::decode(request)?;
        if (lease, page) != (self.lease, self.next) {
            return Err(Refusal::NoPage);
        }
        let page = self.coming.recv().await.ok_or(Refusal::NoPage)?;
        self.next = self.next.saturating_add(1);
        page
    }
}

/// Takes the items of a snapshot that is being read.
#[derive(Debug)]
pub struct Sink {
    items: Vec<Observed>,
    full: SyncSender<Full>,
    /// Room that is free again.
    empty: Receiver<Vec<Observed>>,
    known: Known,
}

/// What there is for the thread that encodes.
#[derive(Debug)]
enum Full {
    /// Items of a page, and whether it is the last.
    Page(bool, Vec<Observed>),
    /// Items that are only added up.
    Addends(Vec<Observed>),
    /// Who wants to know what they add up to.
    Sum(SyncSender<Sum>),
}

impl Sink {
    /// Adds an item.
    pub fn push(&mut self, item: Observed) {
        self.items.push(item);
        if self.items.len() == ITEMS {
            self.turn(|items| Full::Page(false, items));
        }
    }

    /// Adds what `read` gives of a kind, or only that it is as known.
    ///
    /// # Errors
    ///
    /// Those of `read`, which may be called twice.
    pub fn read_many<E>(
        &mut self,
        many: Many,
        mut read: impl FnMut(&mut dyn FnMut(Observed)) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(known) = self.known.of(many) {
            let page = mem::take(&mut self.items);
            read(&mut |item| {
                self.items.push(item);
                if self.items.len() == ITEMS {
                    self.turn(Full::Addends);
                }
            })?;
            self.turn(Full::Addends);
            let is_right = self.sum() == Some(known);
            self.items = page;
            if is_right {
                self.push(Observed::AsKnown(many));
                return Ok(());
            }
            tracing::debug!(?many, "not as whoever asked knows it");
        }
        read(&mut |item| self.push(item))
    }

    /// Returns what all has added up to since the last sum; nothing if the encoder has failed.
    fn sum(&self) -> Option<Sum> {
        let (sender, sum) = mpsc::sync_channel(1);
        self.full.send(Full::Sum(sender)).ok()?;
        sum.recv().ok()
    }

    fn turn(&mut self, full: impl FnOnce(Vec<Observed>) -> Full) {
        let empty = self.empty.try_recv();
        let empty = empty.unwrap_or_else(|_| Vec::with_capacity(ITEMS));
        let items = mem::replace(&mut self.items, empty);
        // An encoder that has failed has said so.
        drop(self.full.send(full(items)));
    }
}

/// Has `read` give all items to a sink, and gives the pages of those that are `reported` away, less what is
/// as `known`; if it fails, that in place of the last.
pub fn cut(
    pages: &UnboundedSender<Coming>,
    known: Known,
    reported: impl Fn(&Observed) -> bool + Send,
    read: impl FnOnce(&mut Sink) -> Result<(), SnapshotError>,
) {
    thread::scope(|scope| {
        let (full, waiting) = mpsc::sync_channel::<Full>(WAITING);
        let (emptied, empty) = mpsc::channel();
        let given = pages.clone();
        scope.spawn(move || {
            let mut sum = Sum::default();
            for full in waiting {
                let mut items = match full {
                    Full::Page(last, mut items) => {
                        items.retain(&reported);
                        let mut page = Page { items };
                        if let Err(error) = encode(last, &mut page, &given) {
                            // Who asked may be gone.
                            drop(given.send(Err(error.into())));
                            return;
                        }
                        page.items
                    }
                    Full::Addends(items) => {
                        for item in items.iter().filter(|item| reported(item)) {
                            sum.add_observed(known.seed, item);
                        }
                        items
                    }
                    Full::Sum(asked) => {
                        // Who asked waits.
                        asked.send(mem::take(&mut sum)).unwrap_or_default();
                        continue;
                    }
                };
                items.clear();
                // All may have been read.
                drop(emptied.send(items));
            }
        });
        let items = Vec::with_capacity(ITEMS);
        let mut sink = Sink {
            items,
            full,
            empty,
            known,
        };
        match read(&mut sink) {
            Ok(()) => sink.turn(|items| Full::Page(true, items)),
            // As above.
            Err(error) => drop(pages.send(Err(error.into()))),
        }
    });
}

/// Gives a page away, in several if it is too long for one.
fn encode(last: bool, page: &mut Page, pages: &UnboundedSender<Coming>) -> Result<(), EncodeError> {
    let len = page.items.len();
    match codec::encode(page) {
        Ok(bytes) if bytes.len() <= BYTES || len < 2 => {
            // Who asked may be gone.
            drop(pages.send(Ok((last, bytes))));
            Ok(())
        }
        Err(error) if len < 2 => Err(error),
        Ok(_) | Err(_) => {
            let items = page.items.split_off(len / 2);
            encode(false, page, pages)?;
            encode(last, &mut Page { items }, pages)
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_proto::{KernelRoute, Protocol, RouteKey, RouteKind, Rule, Table};
    use nix::errno::Errno;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::{
        bpf::BpfError,
        policy::tests::{hop, link},
    };

    fn item(number: u32, hops: usize) -> Observed {
        let prefix = format!("10.{}.{}.0/24", number >> 8, number & 255);
        let route = KernelRoute {
            kind: RouteKind::Multipath(vec![hop(link(1, "eth0"), Some("192.0.2.1")); hops]),
            protocol: Protocol::Safe,
            source: None,
            mtu: None,
        };
        let key = RouteKey::new(Table::Main, prefix.parse().unwrap(), 0);
        Observed::KernelRoute(key, Some(route))
    }

    fn rule(ipv6: bool) -> Rule {
        Rule {
            ipv6,
            priority: 1,
            mark: None,
            invert: false,
        }
    }

    fn read(items: &[Observed], end: Result<(), SnapshotError>) -> Vec<Coming> {
        let (sender, mut coming) = unbounded_channel();
        let reported = |item: &Observed| !matches!(item, Observed::Rule(_));
        cut(&sender, Known::default(), reported, |sink| {
            for item in items {
                sink.push(item.clone());
            }
            end
        });
        drop(sender);
        std::iter::from_fn(|| coming.try_recv().ok()).collect()
    }

    fn page(coming: &Coming) -> (bool, Page) {
        let (last, bytes) = coming.as_ref().unwrap();
        assert!(bytes.len() <= BYTES);
        (*last, codec::decode(bytes).unwrap())
    }

    #[test]
    fn all_items_come_back_in_order_whatever_their_size() {
        let items: Vec<Observed> = (0..10_000)
            .map(|number| item(number, usize::try_from(number % 64).unwrap()))
            .collect();
        let pages: Vec<_> = read(&items, Ok(())).iter().map(page).collect();
        let (last, others) = pages.split_last().unwrap();
        assert!(last.0 && !others.iter().any(|(last, _)| *last));
        let back = pages.into_iter().flat_map(|(_, page)| page.items);
        let back: Vec<Observed> = back.collect();
        assert!(back == items);
    }

    #[test]
    fn a_snapshot_of_nothing_has_one_empty_page() {
        let unreported = Observed::Rule(rule(false));
        for items in [&[][..], &[unreported]] {
            let [only] = read(items, Ok(())).try_into().unwrap();
            assert_eq!(page(&only), (true, Page::default()));
        }
    }

    #[test]
    fn what_adds_up_to_what_is_known_is_left_out_and_the_rest_stays_in_order() {
        // More than a page of the kind, and one of another before and after.
        let routes: Vec<Observed> = (0..5000).map(|number| item(number, 1)).collect();
        let [before, after] = [false, true].map(|ipv6| Observed::Rule(rule(ipv6)));
        let reported = |item: &Observed| *item != routes[7];
        let seed = 3;
        let mut sum = Sum::default();
        for route in routes.iter().filter(|route| reported(route)) {
            sum.add_observed(seed, route);
        }
        let mut all = sum;
        all.add_observed(seed, &routes[7]);
        for (claimed, readings) in [(Some(sum), 1), (Some(all), 2), (None, 1)] {
            let known = Known {
                seed,
                kernel_routes: claimed,
                ..Known::default()
            };
            let (sender, mut coming) = unbounded_channel();
            let mut read = 0;
            cut(&sender, known, reported, |sink| {
                sink.push(before.clone());
                sink.read_many(Many::KernelRoutes, |push| {
                    read += 1;
                    routes.iter().cloned().for_each(push);
                    Ok::<(), SnapshotError>(())
                })?;
                sink.push(after.clone());
                Ok(())
            });
            drop(sender);
            let coming = std::iter::from_fn(|| coming.try_recv().ok());
            let items = coming.flat_map(|coming| page(&coming).1.items);
            let items: Vec<Observed> = items.collect();
            let kind = if claimed == Some(sum) {
                vec![Observed::AsKnown(Many::KernelRoutes)]
            } else {
                routes
                    .iter()
                    .filter(|route| reported(route))
                    .cloned()
                    .collect()
            };
            let expected = [vec![before.clone()], kind, vec![after.clone()]].concat();
            assert!(items == expected, "{} items", items.len());
            assert_eq!(read, readings);
        }
    }

    #[test]
    fn what_cannot_be_read_to_its_end_has_no_last_page() {
        let items: Vec<Observed> = (0..5000).map(|number| item(number, 1)).collect();
        let error = BpfError::Read(ebpf::MAP_V4, Errno::EIO);
        let pages = read(&items, Err(error.into()));
        let failed = pages.iter().position(Result::is_err).unwrap();
        assert!(matches!(pages[failed], Err(Refusal::Snapshot(_))));
        let read = pages.iter().filter(|page| page.is_ok());
        assert!(!read.map(page).any(|(last, _)| last));
    }

    #[tokio::test]
    async fn each_page_is_had_once_and_in_order() {
        let lease = Lease(7);
        let (sender, coming) = unbounded_channel();
        let mut pages = Pages::new(lease, coming);
        for byte in [1, 2] {
            sender.send(Ok((false, vec![byte]))).unwrap();
        }
        drop(sender);
        let request = |lease, page| codec::encode(&PageRequest { lease, page }).unwrap();
        for (number, expected) in [(1, None), (0, Some(1)), (0, None), (1, Some(2)), (2, None)] {
            let got = pages.serve(&request(lease, number)).await.ok();
            let got = got.map(|(_, bytes)| bytes);
            assert_eq!(got, expected.map(|byte| vec![byte]), "{number}");
        }
        assert!(pages.serve(&request(Lease(8), 2)).await.is_err());
    }
}
