//! The configuration file of `cairn-calc`, in TOML. An unknown key is an error.

use std::{
    fs, io,
    num::NonZeroU16,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use crate::index::WorkloadTable;

/// Where the kernel tells the host's name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// The configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is not as it should be.
    #[error("{}: {source}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        source: toml::de::Error,
    },
    /// A time makes no sense.
    #[error("{}: {key} is {value}: it must be a number of seconds, from 0 on", path.display())]
    Seconds {
        /// Which file.
        path: PathBuf,
        /// Which of its keys.
        key: &'static str,
        /// What it says.
        value: f64,
    },
    /// There is a rule that leads to the second table, but no route goes there.
    #[error(
        "{}: second_table_rule_priority is given, but workload_table is \"main\": leave it out, or \
         have the routes to workloads in the second table",
        path.display()
    )]
    Rule {
        /// Which file.
        path: PathBuf,
    },
    /// There is no name for this node.
    #[error("{}: node_name is empty", path.display())]
    NodeName {
        /// Which file.
        path: PathBuf,
    },
}

/// What the file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node_name: Option<String>,
    datastore_dir: PathBuf,
    #[serde(default = "runtime_dir")]
    runtime_dir: PathBuf,
    #[serde(default = "route_refresh_interval")]
    route_refresh_interval: f64,
    #[serde(default = "route_cleanup_grace_period")]
    route_cleanup_grace_period: f64,
    #[serde(default = "apply_burst")]
    apply_burst: NonZeroU16,
    #[serde(default = "apply_interval")]
    apply_interval: f64,
    #[serde(default)]
    workload_table: Table,
    second_table_rule_priority: Option<NonZeroU16>,
    #[serde(default)]
    face_users: Vec<u32>,
}

/// A table by role; its number is the helper's.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Table {
    #[default]
    Main,
    Second,
}

fn runtime_dir() -> PathBuf {
    PathBuf::from("/run/cairn")
}

/// Felix's default.
fn route_refresh_interval() -> f64 {
    90.0
}

/// Felix's constant.
fn route_cleanup_grace_period() -> f64 {
    10.0
}

/// Felix's constant.
fn apply_burst() -> NonZeroU16 {
    const { NonZeroU16::new(10).unwrap() }
}

/// Felix's constant.
fn apply_interval() -> f64 {
    0.1
}

/// How `cairn-calc` is set up on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of this node in the datastore. Without one in the file it is the host's name in
    /// lower case, as in Calico.
    pub node_name: String,
    /// The directory with the resources.
    pub datastore_dir: PathBuf,
    /// The directory with the sockets of all processes.
    pub runtime_dir: PathBuf,
    /// How long after a reading the kernel is read back without a cause (Felix's
    /// `RouteRefreshInterval`); `None` is never.
    pub route_refresh_interval: Option<Duration>,
    /// How long routes that nobody wants are spared on a workload's link that is new, since the
    /// datastore may tell of the workload later than the network plugin makes its route.
    pub route_cleanup_grace_period: Duration,
    /// How many applies may follow each other at once after an idle time.
    pub apply_burst: NonZeroU16,
    /// How far apart they are on the average while changes keep coming; zero is not at all.
    pub apply_interval: Duration,
    /// Where routes to workloads of this node go.
    pub workload_table: WorkloadTable,
    /// The users, by number, who may look at this process and ask for a resync; root and whom
    /// its socket belongs to always may.
    pub face_users: Vec<u32>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is not as it should be.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &read(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let path = path.to_owned();
        let file: File = match toml::from_str(text) {
            Ok(file) => file,
            Err(source) => return Err(ConfigError::Parse { path, source }),
        };
        let seconds = |key, value| {
            Duration::try_from_secs_f64(value).map_err(|_nonsense| ConfigError::Seconds {
                path: path.clone(),
                key,
                value,
            })
        };
        let interval = seconds("route_refresh_interval", file.route_refresh_interval)?;
        let grace = seconds(
            "route_cleanup_grace_period",
            file.route_cleanup_grace_period,
        )?;
        let apply_interval = seconds("apply_interval", file.apply_interval)?;
        let rule = file.second_table_rule_priority;
        let workload_table = match (file.workload_table, rule) {
            (Table::Main, Some(_)) => return Err(ConfigError::Rule { path }),
            (Table::Main, None) => WorkloadTable::Main,
            (Table::Second, rule) => WorkloadTable::Second {
                rule: rule.map(|priority| priority.get().into()),
            },
        };
        let node_name = match file.node_name {
            Some(name) => name,
            None => read(Path::new(HOSTNAME))?.trim().to_lowercase(),
        };
        if node_name.is_empty() {
            return Err(ConfigError::NodeName { path });
        }
        Ok(Self {
            node_name,
            datastore_dir: file.datastore_dir,
            runtime_dir: file.runtime_dir,
            route_refresh_interval: (!interval.is_zero()).then_some(interval),
            route_cleanup_grace_period: grace,
            apply_burst: file.apply_burst,
            apply_interval,
            workload_table,
            face_users: file.face_users,
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("calc.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = parse("datastore_dir = '/d'").unwrap();
        let host = fs::read_to_string(HOSTNAME).unwrap();
        assert_eq!(config.node_name, host.trim().to_lowercase());
        assert_eq!(config.runtime_dir, Path::new("/run/cairn"));
        assert_eq!(config.route_refresh_interval, Some(Duration::from_secs(90)));
        assert_eq!(config.route_cleanup_grace_period, Duration::from_secs(10));
        assert_eq!(config.apply_burst.get(), 10);
        assert_eq!(config.apply_interval, Duration::from_millis(100));
        assert_eq!(config.workload_table, WorkloadTable::Main);
        assert!(config.face_users.is_empty());
    }

    #[test]
    fn everything_can_be_said() {
        let text = "
            node_name = 'node-1'
            datastore_dir = '/d'
            runtime_dir = '/r'
            route_refresh_interval = 0.5
            route_cleanup_grace_period = 0
            apply_burst = 3
            apply_interval = 0.25
            workload_table = 'second'
            second_table_rule_priority = 90
            face_users = [1000, 1001]
        ";
        let all = Config {
            node_name: "node-1".to_owned(),
            datastore_dir: "/d".into(),
            runtime_dir: "/r".into(),
            route_refresh_interval: Some(Duration::from_millis(500)),
            route_cleanup_grace_period: Duration::ZERO,
            apply_burst: NonZeroU16::new(3).unwrap(),
            apply_interval: Duration::from_millis(250),
            workload_table: WorkloadTable::Second { rule: Some(90) },
            face_users: vec![1000, 1001],
        };
        assert_eq!(parse(text), Ok(all));
        let never = parse("datastore_dir = '/d'\nroute_refresh_interval = 0").unwrap();
        assert_eq!(never.route_refresh_interval, None);
    }

    #[test]
    fn an_error_names_its_key() {
        for (text, key) in [
            ("", "datastore_dir"),
            ("datastore_dir = '/d'\nnode_nam = 'x'", "node_nam"),
            ("datastore_dir = 7", "datastore_dir"),
            (
                "datastore_dir = '/d'\nroute_refresh_interval = -1",
                "route_refresh_interval",
            ),
            (
                "datastore_dir = '/d'\nroute_refresh_interval = nan",
                "route_refresh_interval",
            ),
            (
                "datastore_dir = '/d'\nroute_cleanup_grace_period = -0.1",
                "route_cleanup_grace_period",
            ),
            ("datastore_dir = '/d'\napply_burst = 0", "apply_burst"),
            (
                "datastore_dir = '/d'\napply_interval = -1",
                "apply_interval",
            ),
            (
                "datastore_dir = '/d'\nsecond_table_rule_priority = 90",
                "second_table_rule_priority",
            ),
            (
                "datastore_dir = '/d'\nworkload_table = '7'",
                "workload_table",
            ),
            ("datastore_dir = '/d'\nnode_name = ''", "node_name"),
            ("datastore_dir = '/d'\nface_users = ['root']", "face_users"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("calc.toml: "), "{error}");
            assert!(error.contains(key), "{error}");
        }
    }
}
