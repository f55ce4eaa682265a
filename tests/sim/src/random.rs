//! The simulator's own source of numbers: the same from the same seed on every machine.

/// `SplitMix64` (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, 0 if that is 0.
    pub(super) fn below(&mut self, end: u16) -> u16 {
        let end = u64::from(end.max(1));
        u16::try_from(self.next() % end).unwrap_or(0)
    }

    /// As [`below`](Self::below), for at most 256.
    pub(super) fn byte(&mut self, end: u16) -> u8 {
        u8::try_from(self.below(end)).unwrap_or(u8::MAX)
    }

    /// Returns true in so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: u16) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `items`.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let end = u16::try_from(items.len()).unwrap_or(u16::MAX);
        items.get(usize::from(self.below(end))).copied()
    }
}
