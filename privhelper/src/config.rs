//! The administrator's file: who the helper becomes, whom it serves, and what it may touch.
//!
//! Only root can write it, so that nothing of less than root's power widens the policy. It is read
//! once, before privileges are given up.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use ipc_proto::{IfName, InvalidIfName};
use ipnet::IpNet;
use nix::unistd::{Gid, Uid, User};
use serde::Deserialize;

use crate::policy::{Policy, Uplinks};

/// Where the file is if no other is named.
pub const DEFAULT_PATH: &str = "/etc/cairn/privhelper.toml";

/// Group and others' permission to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Tables that are not anyone's to own: unspecified, default, main, local.
const RESERVED_TABLES: [u32; 4] = [0, 253, 254, 255];
/// Protocols that the kernel gives to its own routes: unspecified, redirect, kernel, ra.
const KERNEL_PROTOCOLS: [u8; 4] = [0, 1, 2, 9];
/// Protocols that other programs are known to use (`/etc/iproute2/rt_protos`): what marks all routes
/// as ours must not be one of them.
const OTHERS_PROTOCOLS: [u8; 18] = [
    3, 4, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 99, 186, 187, 188, 189, 192,
];

/// A user of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub uid: Uid,
    /// Its primary group.
    pub gid: Gid,
}

/// The checked contents of the file.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whom the helper becomes when root starts it.
    pub user: Account,
    /// Whose `calc` it serves.
    pub calc: Uid,
    /// Users who may look at its face, besides root and whom its socket belongs to.
    pub face_users: Vec<u32>,
    /// The directory of the pins.
    pub pin_dir: PathBuf,
    /// The size of each BPF route map in entries.
    pub map_size: u32,
    /// What requests may ask for.
    pub policy: Policy,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Someone other than root could have written it.
    #[error(
        "{path} must be owned by root and writable by root alone (it has owner {uid}, mode \
         {mode:04o}): chown root {path}; chmod go-w {path}"
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It is not what this version understands.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value cannot be.
    #[error("{path}: {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Which and why.
        problem: Problem,
    },
}

/// A value that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No such user.
    #[error("{key}: this host has no user {name:?}; create it, or give a number")]
    NoUser {
        /// The key.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// The helper would stay root.
    #[error("user: must not be root, since root's files are all that is left to protect")]
    Root,
    /// `calc` could do to the helper what it likes.
    #[error("calc_user: must differ from user, or calc could control the helper")]
    SameUser,
    /// Not an interface name.
    #[error("{0}: {1}")]
    Name(&'static str, InvalidIfName),
    /// It would match every interface.
    #[error("workload_prefixes: an empty prefix matches every interface")]
    EmptyPrefix,
    /// Two roles for one interface.
    #[error("{0}: {1} is a workload's interface, the other tunnel or excluded by the other keys")]
    Ambiguous(&'static str, IfName),
    /// A protocol number of the kernel's own.
    #[error("{0}: {1} is a number that the kernel uses itself (not 0, 1, 2 or 9)")]
    Protocol(&'static str, u8),
    /// A protocol number of other programs'.
    #[error(
        "{0}: {1} is given by other programs, such as `ip` itself, to their routes, and all routes that \
         have it would count as Cairn's: choose a number of its own, such as 80"
    )]
    Others(&'static str, u8),
    /// A table that is not ours to own.
    #[error("second_table: {0} is the kernel's or the main table (not 0, 253, 254 or 255)")]
    Table(u32),
    /// Not a network.
    #[error("allow: {0} has bits beyond its prefix length")]
    HostBits(IpNet),
    /// A map without room.
    #[error("bpf_map_size_route: must be at least 1")]
    NoRoom,
    /// A relative path.
    #[error("pin_dir: {0} is not an absolute path")]
    Relative(PathBuf),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum UserName {
    Number(u32),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum UplinkNames {
    Auto(Auto),
    Listed(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Auto {
    Auto,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    user: UserName,
    calc_user: UserName,
    face_users: Vec<u32>,
    pin_dir: PathBuf,
    bpf_map_size_route: u32,
    workload_prefixes: Vec<String>,
    tunnel_v4: String,
    tunnel_v6: String,
    uplinks: UplinkNames,
    interface_exclude: Vec<String>,
    device_protocol: u8,
    safe_protocol: u8,
    former_protocols: Vec<u8>,
    second_table: Option<u32>,
    remove_external_routes: bool,
    allow: Vec<IpNet>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            user: UserName::Name("cairn-priv".into()),
            calc_user: UserName::Name("cairn-calc".into()),
            face_users: Vec::new(),
            pin_dir: "/sys/fs/bpf/cairn".into(),
            bpf_map_size_route: ebpf::DEFAULT_MAX_ENTRIES,
            workload_prefixes: vec!["cali".into()],
            tunnel_v4: "vxlan.calico".into(),
            tunnel_v6: "vxlan-v6.calico".into(),
            uplinks: UplinkNames::Auto(Auto::Auto),
            interface_exclude: vec!["kube-ipvs0".into()],
            device_protocol: 3,
            safe_protocol: 80,
            former_protocols: Vec::new(),
            second_table: None,
            remove_external_routes: true,
            allow: Vec::new(),
        }
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, others than root could have written it, or it does not make sense.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let path = || path.to_owned();
        let read = |source| ConfigError::Read {
            path: path(),
            source,
        };
        let mut file = File::open(path()).map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        if meta.uid() != 0 || meta.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(ConfigError::Writable {
                path: path(),
                uid: meta.uid(),
                mode: meta.mode() & 0o7777,
            });
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(read)?;
        let document: Document = toml::from_str(&text).map_err(|source| ConfigError::Syntax {
            path: path(),
            source: Box::new(source),
        })?;
        document.check().map_err(|problem| ConfigError::Value {
            path: path(),
            problem,
        })
    }
}

impl Document {
    fn check(self) -> Result<Config, Problem> {
        let user = self.user.find("user")?;
        let calc = self.calc_user.find("calc_user")?;
        if user.uid.is_root() {
            return Err(Problem::Root);
        }
        if user.uid == calc.uid {
            return Err(Problem::SameUser);
        }
        if self.bpf_map_size_route == 0 {
            return Err(Problem::NoRoom);
        }
        if !self.pin_dir.is_absolute() {
            return Err(Problem::Relative(self.pin_dir));
        }
        let former = self.former_protocols.iter();
        let former = former.map(|protocol| ("former_protocols", *protocol));
        for (key, protocol) in [("safe_protocol", self.safe_protocol)]
            .into_iter()
            .chain(former)
        {
            if KERNEL_PROTOCOLS.contains(&protocol) {
                return Err(Problem::Protocol(key, protocol));
            }
            if OTHERS_PROTOCOLS.contains(&protocol) {
                return Err(Problem::Others(key, protocol));
            }
        }
        if KERNEL_PROTOCOLS.contains(&self.device_protocol) {
            return Err(Problem::Protocol("device_protocol", self.device_protocol));
        }
        if let Some(table) = self.second_table.filter(|t| RESERVED_TABLES.contains(t)) {
            return Err(Problem::Table(table));
        }
        if let Some(network) = self.allow.iter().find(|net| **net != net.trunc()) {
            return Err(Problem::HostBits(*network));
        }
        if self.workload_prefixes.iter().any(String::is_empty) {
            return Err(Problem::EmptyPrefix);
        }
        let policy = Policy {
            tunnel_v4: name("tunnel_v4", &self.tunnel_v4)?,
            tunnel_v6: name("tunnel_v6", &self.tunnel_v6)?,
            uplinks: match self.uplinks {
                UplinkNames::Auto(Auto::Auto) => Uplinks::Auto,
                UplinkNames::Listed(list) => Uplinks::Listed(names("uplinks", &list)?),
            },
            excluded: names("interface_exclude", &self.interface_exclude)?,
            workload_prefixes: self.workload_prefixes,
            device_protocol: self.device_protocol,
            safe_protocol: self.safe_protocol,
            former_protocols: self.former_protocols,
            second_table: self.second_table,
            remove_external_routes: self.remove_external_routes,
            allow: self.allow,
        };
        for (key, tunnel) in [
            ("tunnel_v4", &policy.tunnel_v4),
            ("tunnel_v6", &policy.tunnel_v6),
        ] {
            let is_other = policy.is_workload(tunnel) || policy.is_excluded(tunnel);
            if is_other || policy.tunnel_v4 == policy.tunnel_v6 {
                return Err(Problem::Ambiguous(key, tunnel.clone()));
            }
        }
        Ok(Config {
            user,
            calc: calc.uid,
            face_users: self.face_users,
            pin_dir: self.pin_dir,
            map_size: self.bpf_map_size_route,
            policy,
        })
    }
}

impl UserName {
    /// Looks the user up. A number need not have an entry: its group then has the same number.
    fn find(&self, key: &'static str) -> Result<Account, Problem> {
        let found = match self {
            Self::Number(number) => User::from_uid(Uid::from_raw(*number)),
            Self::Name(name) => User::from_name(name),
        };
        match (found.ok().flatten(), self) {
            (Some(User { uid, gid, .. }), _) => Ok(Account { uid, gid }),
            (None, Self::Number(number)) => Ok(Account {
                uid: Uid::from_raw(*number),
                gid: Gid::from_raw(*number),
            }),
            (None, Self::Name(name)) => Err(Problem::NoUser {
                key,
                name: name.clone(),
            }),
        }
    }
}

fn name(key: &'static str, name: &str) -> Result<IfName, Problem> {
    name.parse().map_err(|error| Problem::Name(key, error))
}

fn names(key: &'static str, names: &[String]) -> Result<Vec<IfName>, Problem> {
    names.iter().map(|one| name(key, one)).collect()
}

#[cfg(test)]
mod tests;
