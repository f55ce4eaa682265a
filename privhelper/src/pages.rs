//! A snapshot, cut into pages that fit into messages. Pure.
//!
//! Pages are encoded as items arrive, so that a full map costs its bytes and not its objects, and by a
//! thread of their own, so that reading the kernel goes on meanwhile.

use std::{
    sync::mpsc::{self, SyncSender},
    thread,
};

use ipc_proto::{
    Observed, Page,
    codec::{self, EncodeError},
};

/// How many items a page holds if they are of the usual size.
const ITEMS: usize = 4096;
/// How many bytes a page should have at most, a quarter of what a message may have.
const BYTES: usize = codec::MAX_LEN / 4;

/// How many pages wait to be encoded at most.
const WAITING: usize = 4;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Pages(Vec<Vec<u8>>);

/// Takes the items of a snapshot that is being read.
#[derive(Debug)]
pub struct Sink {
    items: Vec<Observed>,
    full: SyncSender<Vec<Observed>>,
}

impl Sink {
    /// Adds an item.
    pub fn push(&mut self, item: Observed) {
        self.items.push(item);
        if self.items.len() == ITEMS {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let items = std::mem::replace(&mut self.items, Vec::with_capacity(ITEMS));
        // An encoder that has failed says so at the end.
        drop(self.full.send(items));
    }
}

impl Pages {
    /// Has `read` give all items to a sink and returns their pages, of which there is at least one,
    /// and what `read` returned.
    ///
    /// # Errors
    ///
    /// If an item does not fit into a message.
    pub fn of<T>(read: impl FnOnce(&mut Sink) -> T) -> Result<(Self, T), EncodeError> {
        thread::scope(|scope| {
            let (full, waiting) = mpsc::sync_channel(WAITING);
            let encoder = scope.spawn(move || -> Result<Self, EncodeError> {
                let mut pages = Self::default();
                waiting
                    .into_iter()
                    .try_for_each(|items| pages.encode(items))?;
                Ok(pages)
            });
            let items = Vec::with_capacity(ITEMS);
            let mut sink = Sink { items, full };
            let read = read(&mut sink);
            sink.turn();
            drop(sink);
            // A panic has ended the process.
            let pages = encoder.join().unwrap_or_else(|_| Ok(Self::default()))?;
            Ok((pages, read))
        })
    }

    /// Returns how many pages there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether there is no page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a page.
    #[must_use]
    pub fn get(&self, page: u32) -> Option<&Vec<u8>> {
        self.0.get(usize::try_from(page).ok()?)
    }

    fn encode(&mut self, items: Vec<Observed>) -> Result<(), EncodeError> {
        if items.is_empty() && !self.is_empty() {
            return Ok(());
        }
        let mut rest = vec![items];
        while let Some(mut items) = rest.pop() {
            let page = Page { items };
            match codec::encode(&page) {
                Ok(bytes) if bytes.len() <= BYTES || page.items.len() < 2 => self.0.push(bytes),
                Err(error) if page.items.len() < 2 => return Err(error),
                Ok(_) | Err(_) => {
                    items = page.items;
                    let second = items.split_off(items.len() / 2);
                    rest.push(second);
                    rest.push(items);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ipc_proto::{KernelRoute, Protocol, RouteKey, RouteKind, Table};

    use super::*;
    use crate::policy::tests::{hop, link};

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

    #[test]
    fn all_items_come_back_in_order_whatever_their_size() {
        let items: Vec<Observed> = (0..10_000)
            .map(|number| item(number, usize::try_from(number % 64).unwrap()))
            .collect();
        let (pages, ()) = Pages::of(|sink| {
            for item in &items {
                sink.push(item.clone());
            }
        })
        .unwrap();
        let mut back = Vec::new();
        for number in 0..pages.len() {
            let bytes = pages.get(number).unwrap();
            assert!(bytes.len() <= BYTES);
            back.extend(codec::decode::<Page>(bytes).unwrap().items);
        }
        assert!(back == items);
        assert_eq!(pages.get(pages.len()), None);
    }

    #[test]
    fn a_snapshot_of_nothing_has_one_empty_page() {
        let (pages, ()) = Pages::of(|_| ()).unwrap();
        assert_eq!(pages.len(), 1);
        let page: Page = codec::decode(pages.get(0).unwrap()).unwrap();
        assert!(page.items.is_empty());
    }
}
