//! The map of endpoints: the hardware addresses of both ends of a workload's link, by its index.
//!
//! An entry of an index that is no workload's is of no use to anyone and goes at the next reading.

use aya::{
    Ebpf,
    maps::{HashMap, MapData},
};
use ipc_proto::{Endpoint, Link, LinkRole, Mac, Observed, OpError};
use nix::errno::Errno;

use super::{BpfError, errno};
use crate::{dataplane::errno_number, links::Links};

/// The bytes of [`ebpf::Endpoint`].
type Value = [u8; size_of::<ebpf::Endpoint>()];

/// See the [module](self).
#[derive(Debug)]
pub struct Endpoints(HashMap<MapData, u32, Value>);

impl Endpoints {
    pub(super) fn take(object: &mut Ebpf) -> Result<Self, BpfError> {
        const NAME: &str = ebpf::MAP_ENDPOINTS;
        let map = object.take_map(NAME).ok_or(BpfError::Absent(NAME))?;
        let map = HashMap::try_from(map).map_err(|error| BpfError::Map(NAME, Box::new(error)))?;
        Ok(Self(map))
    }

    /// Makes the entry of a link so.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn set(&mut self, link: &Link, endpoint: Option<&Endpoint>) -> Result<(), OpError> {
        let (call, result) = match endpoint {
            Some(endpoint) => (
                "BPF_MAP_UPDATE_ELEM",
                self.0.insert(link.index, value(endpoint), 0),
            ),
            None => ("BPF_MAP_DELETE_ELEM", self.0.remove(&link.index)),
        };
        match result.map_err(|error| errno(&error)) {
            Err(Errno::ENOENT) if endpoint.is_none() => Ok(()),
            result => result.map_err(|errno| OpError::Kernel {
                call: format!("{call} {}", ebpf::MAP_ENDPOINTS),
                errno: errno_number(errno),
            }),
        }
    }

    /// Gives all entries of workloads' links to `sink` and removes the others.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn snapshot(
        &mut self,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<(), BpfError> {
        let read: Result<Vec<_>, _> = self.0.iter().collect();
        let read = read.map_err(|error| BpfError::Read(ebpf::MAP_ENDPOINTS, errno(&error)))?;
        for (index, bytes) in read {
            match links.by_index(index) {
                Some(state) if state.role == LinkRole::Workload => {
                    sink(Observed::Endpoint(state.link.clone(), endpoint(bytes)));
                }
                Some(_) | None => {
                    // Another reading tries again.
                    if let Err(error) = self.0.remove(&index) {
                        tracing::debug!(index, %error, "the endpoint stays");
                    }
                }
            }
        }
        Ok(())
    }
}

fn value(endpoint: &Endpoint) -> Value {
    let mut value = Value::default();
    let bytes = endpoint
        .workload_mac
        .0
        .into_iter()
        .chain(endpoint.host_mac.0);
    for (byte, to) in bytes.zip(&mut value) {
        *to = byte;
    }
    value
}

fn endpoint(value: Value) -> Option<Endpoint> {
    let (workload_mac, host_mac) = value.split_first_chunk()?;
    Some(Endpoint {
        host_mac: Mac(host_mac.try_into().ok()?),
        workload_mac: Mac(*workload_mac),
        // The programs take them from the routes.
        sources: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_back_as_written_and_starts_a_frame_to_the_workload() {
        let written = Endpoint {
            host_mac: Mac([0xee; 6]),
            workload_mac: Mac([2, 0, 0, 0, 0, 9]),
            sources: Vec::new(),
        };
        let bytes = value(&written);
        assert_eq!(
            bytes,
            [2, 0, 0, 0, 0, 9, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee]
        );
        assert_eq!(endpoint(bytes), Some(written));
    }
}
