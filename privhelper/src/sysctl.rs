//! The sysctls of an interface, by profile.
//!
//! Only those of one interface; never what holds for the host as a whole. Its callers make sure
//! that the name is still that of the interface meant.

use std::{fmt::Display, fs, io, path::PathBuf};

use ipc_proto::{IfName, LinkProfile, OpError};

use crate::dataplane::errno_number;

/// A sysctl of an interface.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// Under `/proc/sys/net`, before and after the interface's name.
    path: (&'static str, &'static str),
    /// What is written if it is not right.
    set: &'static str,
    /// Another value that is right.
    also: Option<&'static str>,
    /// The sysctl that makes it needless where it is on for all interfaces. Each write of a sysctl that
    /// forwards waits for the lock of all links by trying again and again, so no needless one is made.
    moot: Option<&'static str>,
}

const fn is(directory: &'static str, name: &'static str, value: &'static str) -> Setting {
    Setting {
        path: (directory, name),
        set: value,
        also: None,
        moot: None,
    }
}

impl Setting {
    /// Takes another value for right, too.
    const fn or(mut self, value: &'static str) -> Self {
        self.also = Some(value);
        self
    }

    /// Takes any value for right where that sysctl is on for all interfaces.
    const fn unless_all(mut self, name: &'static str) -> Self {
        self.moot = Some(name);
        self
    }
}

const IPV4: &str = "ipv4/conf";
const IPV4_NEIGHBOURS: &str = "ipv4/neigh";
const IPV6: &str = "ipv6/conf";

/// Forwards where the host as a whole does not.
const FORCE_FORWARDING: Setting = is(IPV6, "force_forwarding", "1").unless_all("forwarding");

/// Packets go through; the host answers for the gateway that workloads use, and at once; a
/// workload sends as itself only.
const WORKLOAD: [Setting; 9] = [
    is(IPV4, "forwarding", "1"),
    is(IPV4, "proxy_arp", "1"),
    is(IPV4, "rp_filter", "1"),
    is(IPV4, "send_redirects", "0"),
    is(IPV4_NEIGHBOURS, "proxy_delay", "0"),
    is(IPV6, "accept_ra", "0"),
    is(IPV6, "forwarding", "1"),
    FORCE_FORWARDING,
    is(IPV6, "proxy_ndp", "1"),
];

/// A packet may come in by the tunnel whose answer leaves another way.
const TUNNEL: [Setting; 5] = [
    is(IPV4, "forwarding", "1"),
    is(IPV4, "rp_filter", "2").or("0"),
    is(IPV6, "accept_ra", "0"),
    is(IPV6, "forwarding", "1"),
    FORCE_FORWARDING,
];

/// A router ignores router advertisements unless told otherwise, and the node may live by them.
const UPLINK: [Setting; 4] = [
    is(IPV4, "forwarding", "1"),
    is(IPV6, "accept_ra", "2").or("0"),
    is(IPV6, "forwarding", "1"),
    FORCE_FORWARDING,
];

fn settings(profile: LinkProfile) -> &'static [Setting] {
    match profile {
        LinkProfile::Workload => &WORKLOAD,
        LinkProfile::Tunnel => &TUNNEL,
        LinkProfile::Uplink => &UPLINK,
    }
}

impl Setting {
    fn path(&self, name: &IfName) -> PathBuf {
        let (directory, file) = self.path;
        path(directory, name, file)
    }

    /// Returns whether it is right; what the kernel does not have is.
    fn is_right(&self, name: &IfName) -> io::Result<bool> {
        let (directory, _) = self.path;
        if let Some(all) = self.moot
            && fs::read_to_string(path(directory, &"all", all))
                .is_ok_and(|value| value.trim() != "0")
        {
            return Ok(true);
        }
        match fs::read_to_string(self.path(name)) {
            Ok(value) => Ok(value.trim() == self.set || Some(value.trim()) == self.also),
            Err(error) if self.may_lack(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// IPv6 can be off, for the host or for the interface, and `force_forwarding` is of 2025.
    fn may_lack(&self, error: &io::Error) -> bool {
        self.path.0 == IPV6 && error.kind() == io::ErrorKind::NotFound
    }
}

fn path(directory: &str, interface: &impl Display, file: &str) -> PathBuf {
    format!("/proc/sys/net/{directory}/{interface}/{file}").into()
}

/// Sets what differs.
///
/// # Errors
///
/// What the kernel said first; the rest is tried nonetheless.
pub fn set(name: &IfName, profile: LinkProfile) -> Result<(), OpError> {
    let mut first = Ok(());
    for setting in settings(profile) {
        let outcome = match setting.is_right(name) {
            Ok(true) => Ok(()),
            Ok(false) => fs::write(setting.path(name), setting.set),
            Err(error) => Err(error),
        };
        if let (Ok(()), Err(error)) = (&first, outcome) {
            first = Err(OpError::Kernel {
                call: format!("write {}", setting.path(name).display()),
                errno: error
                    .raw_os_error()
                    .unwrap_or_else(|| errno_number(nix::errno::Errno::EIO)),
            });
        }
    }
    first
}

/// Returns whether all of a profile is set; not, if it cannot be read.
#[must_use]
pub fn is_set(name: &IfName, profile: LinkProfile) -> bool {
    settings(profile)
        .iter()
        .all(|setting| setting.is_right(name).unwrap_or(false))
}
