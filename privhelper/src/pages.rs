//! A snapshot, cut into pages that fit into messages. Pure.
//!
//! Pages are encoded as items arrive, so that a full map costs its bytes and not its objects.

use ipc_proto::{
    Observed, Page,
    codec::{self, EncodeError},
};

/// How many items a page holds if they are of the usual size.
const ITEMS: usize = 4096;
/// How many bytes a page should have at most, a quarter of what a message may have.
const BYTES: usize = codec::MAX_LEN / 4;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Pages {
    done: Vec<Vec<u8>>,
    items: Vec<Observed>,
}

impl Pages {
    /// Adds an item.
    ///
    /// # Errors
    ///
    /// If an item does not fit into a message.
    pub fn push(&mut self, item: Observed) -> Result<(), EncodeError> {
        self.items.push(item);
        if self.items.len() < ITEMS {
            return Ok(());
        }
        self.encode()
    }

    /// Ends the last page; there is always at least one.
    ///
    /// # Errors
    ///
    /// If an item does not fit into a message.
    pub fn finish(&mut self) -> Result<(), EncodeError> {
        if self.items.is_empty() && !self.done.is_empty() {
            return Ok(());
        }
        self.encode()
    }

    /// Returns how many pages are done.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.done.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether no page is done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Returns a page.
    #[must_use]
    pub fn get(&self, page: u32) -> Option<&Vec<u8>> {
        self.done.get(usize::try_from(page).ok()?)
    }

    fn encode(&mut self) -> Result<(), EncodeError> {
        let mut rest = vec![std::mem::take(&mut self.items)];
        while let Some(mut items) = rest.pop() {
            let page = Page { items };
            match codec::encode(&page) {
                Ok(bytes) if bytes.len() <= BYTES || page.items.len() < 2 => self.done.push(bytes),
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
        let mut pages = Pages::default();
        for item in &items {
            pages.push(item.clone()).unwrap();
        }
        pages.finish().unwrap();
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
        let mut pages = Pages::default();
        pages.finish().unwrap();
        assert_eq!(pages.len(), 1);
        let page: Page = codec::decode(pages.get(0).unwrap()).unwrap();
        assert!(page.items.is_empty());
    }
}
