//! The packet programs on the hooks of workloads' links.
//!
//! A pin of its TCX link keeps each attached, whatever becomes of this process. The next helper takes the links over, so that a hook never has two of our programs,
//! and none is missing for a moment. The pins tell what is attached: asking the kernel would take
//! `CAP_SYS_ADMIN`.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
};

use ipc_proto::{AttachmentKey, Hook, LinkRole, Observed, OpError};
use nix::errno::Errno;

use crate::{
    bpf::{Programs, sys::link::TcxLink},
    dataplane::errno_number,
    links::Links,
    sandbox::{PinDir, SandboxError},
};

/// The directory of the links' pins, in that of the maps' pins.
const DIRECTORY: &str = "links";

/// Why the attached programs cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum TcError {
    /// There is no place for the pins.
    #[error(transparent)]
    Directory(#[from] SandboxError),
    /// The pins cannot be listed.
    #[error("cannot list the pins in {DIRECTORY}: {0}")]
    List(#[from] io::Error),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Attachments {
    programs: Programs,
    pins: PinDir,
}

/// What a pin's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    ifindex: u32,
    hook: Hook,
}

impl Place {
    fn of(key: &AttachmentKey) -> Self {
        Self {
            ifindex: key.link.index,
            hook: key.hook,
        }
    }

    fn name(self) -> String {
        let hook = match self.hook {
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
        };
        format!("{}_{hook}", self.ifindex)
    }

    fn parse(name: &str) -> Option<Self> {
        let (ifindex, hook) = name.split_once('_')?;
        let place = Self {
            ifindex: ifindex.parse().ok()?,
            hook: match hook {
                "ingress" => Hook::Ingress,
                "egress" => Hook::Egress,
                _ => return None,
            },
        };
        (place.name() == name).then_some(place)
    }
}

fn kernel(call: &str) -> impl Fn(Errno) -> OpError {
    move |errno| OpError::Kernel {
        call: call.to_owned(),
        errno: errno_number(errno),
    }
}

impl Attachments {
    /// Takes over what is attached, with these programs in place of those of the former helper.
    ///
    /// # Errors
    ///
    /// If the pins cannot be read.
    pub fn open(pins: &PinDir, programs: Programs) -> Result<Self, TcError> {
        let attachments = Self {
            programs,
            pins: pins.make(DIRECTORY)?,
        };
        for place in attachments.places()? {
            match attachments.link(place) {
                Ok(Some(link)) => {
                    if let Err(errno) = link.update(attachments.program(place.hook)) {
                        tracing::warn!(%errno, pin = place.name(), "keeps its former program");
                    }
                }
                Ok(None) => {}
                Err(errno) => tracing::warn!(%errno, pin = place.name(), "cannot be taken over"),
            }
        }
        Ok(attachments)
    }

    /// Attaches or detaches a program; one that is attached is replaced by this helper's.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn set(&self, key: &AttachmentKey, attached: bool) -> Result<(), OpError> {
        let place = Place::of(key);
        if !attached {
            return self.unpin(place).map_err(kernel("unlink"));
        }
        let program = self.program(place.hook);
        if let Some(link) = self.link(place).map_err(kernel("BPF_OBJ_GET"))? {
            return link.update(program).map_err(kernel("BPF_LINK_UPDATE"));
        }
        let link = TcxLink::create(program, place.ifindex, place.hook)
            .map_err(kernel("BPF_LINK_CREATE"))?;
        // Without a pin it is detached when `link` goes out of scope.
        link.pin(&self.pins.entry(&place.name()))
            .map_err(kernel("BPF_OBJ_PIN"))
    }

    /// Gives the attachments on workloads' links to `sink` and removes the others: interface
    /// numbers are used again.
    ///
    /// # Errors
    ///
    /// If the pins cannot be read.
    pub fn snapshot(&self, links: &Links, sink: &mut impl FnMut(Observed)) -> Result<(), TcError> {
        for place in self.places()? {
            let state = links
                .by_index(place.ifindex)
                .filter(|state| state.role == LinkRole::Workload);
            match (state, self.link(place)) {
                (Some(state), Ok(Some(_))) => sink(Observed::Attachment(AttachmentKey {
                    link: state.link.clone(),
                    hook: place.hook,
                })),
                (Some(_), Ok(None)) => {}
                (Some(_), Err(errno)) => {
                    tracing::debug!(%errno, pin = place.name(), "cannot be opened");
                }
                (None, _) => {
                    if let Err(errno) = self.unpin(place) {
                        tracing::debug!(%errno, pin = place.name(), "stays");
                    }
                }
            }
        }
        Ok(())
    }

    /// Opens a link; a pin of anything else is removed.
    fn link(&self, place: Place) -> Result<Option<TcxLink>, Errno> {
        let link = match TcxLink::open(&self.pins.entry(&place.name())) {
            Ok(link) => link,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if link.is_at(place.ifindex, place.hook)? {
            return Ok(Some(link));
        }
        self.unpin(place)?;
        Ok(None)
    }

    /// Detaches a program and removes the pin.
    fn unpin(&self, place: Place) -> Result<(), Errno> {
        if let Ok(link) = TcxLink::open(&self.pins.entry(&place.name()))
            && let Err(errno) = link.detach()
        {
            // Its interface is gone, or it is no link.
            tracing::debug!(%errno, pin = place.name(), "nothing to detach");
        }
        match fs::remove_file(self.pins.entry(&place.name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the places that the pins name.
    fn places(&self) -> Result<Vec<Place>, TcError> {
        let mut places = Vec::new();
        for entry in fs::read_dir(self.pins.entry(""))? {
            if let Some(place) = entry?.file_name().to_str().and_then(Place::parse) {
                places.push(place);
            }
        }
        Ok(places)
    }

    fn program(&self, hook: Hook) -> BorrowedFd<'_> {
        match hook {
            Hook::Ingress => self.programs.from_workload.as_fd(),
            Hook::Egress => self.programs.to_workload.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pins_name_tells_its_place_and_nothing_else_does() {
        for hook in [Hook::Ingress, Hook::Egress] {
            let place = Place { ifindex: 7, hook };
            assert_eq!(Place::parse(&place.name()), Some(place));
        }
        for name in [
            "",
            "7",
            "7_",
            "_ingress",
            "07_ingress",
            "+7_egress",
            "7_ingress_",
            "x_egress",
        ] {
            assert_eq!(Place::parse(name), None, "{name:?}");
        }
    }
}
