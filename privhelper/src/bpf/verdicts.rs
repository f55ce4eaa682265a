//! The counters of what the packet programs did. They outlive the helper, as the programs do.

use std::{collections::BTreeMap, fmt, sync::Arc};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
};
use ebpf::Verdict;

use super::{BpfError, errno};

/// See the [module](self).
#[derive(Clone)]
pub struct Verdicts(Arc<PerCpuArray<MapData, u64>>);

impl fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdicts").finish_non_exhaustive()
    }
}

impl Verdicts {
    pub(super) fn take(object: &mut Ebpf) -> Result<Self, BpfError> {
        const NAME: &str = ebpf::MAP_VERDICTS;
        let map = object.take_map(NAME).ok_or(BpfError::Absent(NAME))?;
        let map =
            PerCpuArray::try_from(map).map_err(|error| BpfError::Map(NAME, Box::new(error)))?;
        Ok(Self(Arc::new(map)))
    }

    /// Returns how many packets there were of each verdict, by its name.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn read(&self) -> Result<BTreeMap<String, u64>, BpfError> {
        (0..)
            .zip(Verdict::ALL)
            .map(|(index, (_, name))| {
                let counts = self
                    .0
                    .get(&index, 0)
                    .map_err(|error| BpfError::Read(ebpf::MAP_VERDICTS, errno(&error)))?;
                Ok((name.to_owned(), counts.iter().sum()))
            })
            .collect()
    }
}
