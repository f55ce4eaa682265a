//! The two sides of a key: what it should be and what it is.

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

/// A key whose sides differ.
#[derive(Clone, Debug)]
pub(super) struct Sides<V> {
    pub(super) desired: Option<V>,
    pub(super) actual: Actual<V>,
    /// Whether it was wanted since it was last absent on both sides.
    pub(super) claimed: bool,
}

impl<V> Sides<V> {
    pub(super) fn wanted(value: V) -> Self {
        Self {
            desired: Some(value),
            actual: Actual::Absent,
            claimed: true,
        }
    }

    pub(super) fn present(value: V) -> Self {
        Self {
            desired: None,
            actual: Actual::Is(value),
            claimed: true,
        }
    }

    pub(super) fn is_present(&self) -> bool {
        !matches!(self.actual, Actual::Absent)
    }

    pub(super) fn change(&self) -> Change {
        match (&self.desired, &self.actual) {
            (Some(_), Actual::Absent) => Change::Insert,
            (Some(_), Actual::Is(_) | Actual::Wrong) => Change::Update,
            (None, _) if self.claimed => Change::Clear,
            (None, _) => Change::Sweep,
        }
    }
}

impl<V: Eq> Sides<V> {
    pub(super) fn place(&self) -> Place {
        match (&self.desired, &self.actual) {
            (Some(desired), Actual::Is(actual)) if desired == actual => Place::Settled,
            (None, Actual::Absent) => Place::Nowhere,
            (Some(_) | None, _) => Place::Differing,
        }
    }
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

/// How many of the keys whose sides differ are wanted, and how many are present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unsettled {
    pub(super) desired: usize,
    pub(super) present: usize,
}

impl Unsettled {
    pub(super) fn enter<V>(&mut self, sides: &Sides<V>) {
        self.desired += usize::from(sides.desired.is_some());
        self.present += usize::from(sides.is_present());
    }

    pub(super) fn leave<V>(&mut self, sides: &Sides<V>) {
        self.desired -= usize::from(sides.desired.is_some());
        self.present -= usize::from(sides.is_present());
    }
}

/// What it takes to make the two sides of a key agree, before and after something was said of it;
/// nothing where they agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) before: Option<Change>,
    pub(crate) after: Option<Change>,
}

/// Where a key belongs.
pub(super) enum Place {
    Settled,
    Differing,
    Nowhere,
}
