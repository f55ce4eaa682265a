//! The two sides of a key: what it should be and what it is.

use std::mem;

/// What a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Actual<V> {
    /// Not there.
    #[default]
    Absent,
    /// This, and nothing else.
    Is(V),
    /// There, but not as any single value could make it; or perhaps there: it is not known.
    Wrong,
}

impl<V> Actual<V> {
    /// Borrows the value.
    pub(crate) fn as_ref(&self) -> Actual<&V> {
        match self {
            Self::Absent => Actual::Absent,
            Self::Is(value) => Actual::Is(value),
            Self::Wrong => Actual::Wrong,
        }
    }

    /// Makes something else of the value.
    pub(crate) fn map<T>(self, map: impl FnOnce(V) -> T) -> Actual<T> {
        match self {
            Self::Absent => Actual::Absent,
            Self::Is(value) => Actual::Is(map(value)),
            Self::Wrong => Actual::Wrong,
        }
    }

    /// Returns the value, if it is known.
    pub(crate) fn known(self) -> Option<V> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Wrong => None,
        }
    }
}

/// What it takes to make the two sides of a key agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// It is there and shall have another value.
    Update,
    /// It is absent and shall be there.
    Insert,
    /// It shall be absent, after this process has wanted it.
    Clear,
    /// It shall be absent, and this process never wanted it.
    Sweep,
}

impl Change {
    /// Returns whether something shall be there.
    #[must_use]
    pub(crate) fn sets(self) -> bool {
        match self {
            Self::Update | Self::Insert => true,
            Self::Clear | Self::Sweep => false,
        }
    }
}

/// The sides of a key that are not alike.
#[derive(Clone, Debug)]
pub(super) struct Sides<V> {
    pub(super) desired: Option<V>,
    pub(super) actual: Actual<V>,
    /// Whether it was wanted since it was last absent on both sides.
    pub(super) claimed: bool,
}

impl<V> Default for Sides<V> {
    fn default() -> Self {
        Self {
            desired: None,
            actual: Actual::Absent,
            claimed: false,
        }
    }
}

impl<V> Sides<V> {
    pub(super) fn is_present(&self) -> bool {
        !matches!(self.actual, Actual::Absent)
    }
}

/// What is known of a key. Keys are many and nearly all have one value, of which no copy is kept.
#[derive(Clone, Debug, Default)]
pub(super) enum Entry<V> {
    /// Absent, and should be: it is not kept.
    #[default]
    Nowhere,
    /// It is what it should be.
    Settled(V),
    /// It should be this, and is absent.
    Wanted(V),
    /// It is this, and should be absent.
    Stray { value: V, claimed: bool },
    /// Otherwise.
    Other(Box<Sides<V>>),
}

impl<V> Entry<V> {
    /// Returns what it should be.
    pub(super) fn desired(&self) -> Option<&V> {
        match self {
            Self::Settled(value) | Self::Wanted(value) => Some(value),
            Self::Nowhere | Self::Stray { .. } => None,
            Self::Other(sides) => sides.desired.as_ref(),
        }
    }

    /// Returns what it is.
    pub(super) fn actual(&self) -> Actual<&V> {
        match self {
            Self::Settled(value) | Self::Stray { value, .. } => Actual::Is(value),
            Self::Nowhere | Self::Wanted(_) => Actual::Absent,
            Self::Other(sides) => sides.actual.as_ref(),
        }
    }

    /// Returns what it takes to make the two sides agree, if they do not.
    pub(super) fn change(&self) -> Option<Change> {
        match self {
            Self::Nowhere | Self::Settled(_) => None,
            Self::Wanted(_) => Some(Change::Insert),
            Self::Stray { claimed: true, .. } => Some(Change::Clear),
            Self::Stray { claimed: false, .. } => Some(Change::Sweep),
            Self::Other(sides) => Some(match (&sides.desired, &sides.actual) {
                (Some(_), Actual::Absent) => Change::Insert,
                (Some(_), Actual::Is(_) | Actual::Wrong) => Change::Update,
                (None, _) if sides.claimed => Change::Clear,
                (None, _) => Change::Sweep,
            }),
        }
    }

    pub(super) fn is_nowhere(&self) -> bool {
        matches!(self, Self::Nowhere)
    }
}

impl<V: Eq + Clone> Entry<V> {
    /// Takes in that it is what it should be, and was absent.
    pub(super) fn settle(&mut self) {
        if let Self::Wanted(value) = mem::take(self) {
            *self = Self::Settled(value);
        }
    }

    /// Makes a change of the sides. Returns what it takes to make them agree, before and after.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut Sides<V>)) -> Turn {
        let before = self.change();
        let mut sides = mem::take(self).into_sides();
        change(&mut sides);
        *self = sides.into();
        Turn {
            before,
            after: self.change(),
        }
    }

    fn into_sides(self) -> Sides<V> {
        let wanted = |value, actual| Sides {
            desired: Some(value),
            actual,
            claimed: true,
        };
        match self {
            Self::Nowhere => Sides::default(),
            Self::Settled(value) => wanted(value.clone(), Actual::Is(value)),
            Self::Wanted(value) => wanted(value, Actual::Absent),
            Self::Stray { value, claimed } => Sides {
                desired: None,
                actual: Actual::Is(value),
                claimed,
            },
            Self::Other(sides) => *sides,
        }
    }
}

impl<V: Eq> From<Sides<V>> for Entry<V> {
    fn from(sides: Sides<V>) -> Self {
        match sides {
            Sides {
                desired: None,
                actual: Actual::Absent,
                ..
            } => Self::Nowhere,
            Sides {
                desired: Some(desired),
                actual: Actual::Is(actual),
                ..
            } if desired == actual => Self::Settled(desired),
            Sides {
                desired: Some(desired),
                actual: Actual::Absent,
                ..
            } => Self::Wanted(desired),
            Sides {
                desired: None,
                actual: Actual::Is(value),
                claimed,
            } => Self::Stray { value, claimed },
            sides => Self::Other(Box::new(sides)),
        }
    }
}

/// How many keys there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Those that should be there.
    pub(super) desired: usize,
    /// Those that are, be it that it is not known how.
    pub(super) present: usize,
    /// Those of which that is not known.
    pub(super) wrong: usize,
}

impl Counts {
    pub(super) fn enter<V>(&mut self, entry: &Entry<V>) {
        let actual = entry.actual();
        self.desired += usize::from(entry.desired().is_some());
        self.present += usize::from(!matches!(actual, Actual::Absent));
        self.wrong += usize::from(matches!(actual, Actual::Wrong));
    }

    pub(super) fn leave<V>(&mut self, entry: &Entry<V>) {
        let actual = entry.actual();
        self.desired -= usize::from(entry.desired().is_some());
        self.present -= usize::from(!matches!(actual, Actual::Absent));
        self.wrong -= usize::from(matches!(actual, Actual::Wrong));
    }
}

/// What it takes to make the two sides of a key agree, before and after something was said of it;
/// nothing where they agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) before: Option<Change>,
    pub(crate) after: Option<Change>,
}
