//! The supervisor's configuration file. Every key has a default, and an unknown one is an error.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use serde::Deserialize;

/// Where the file is if nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/cairn/supervisor.toml";

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Someone other than root could have written it.
    #[error("{0} must be owned by root and writable by root alone: chown root {0}; chmod go-w {0}", path.display())]
    Writable {
        /// The file.
        path: PathBuf,
    },
    /// It is not what it should be.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
}

/// All of it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the sockets are; made if it does not exist.
    pub runtime_dir: PathBuf,
    /// The process that computes.
    pub calc: Calc,
    /// The privileged process.
    pub privhelper: PrivHelper,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runtime_dir: "/run/cairn".into(),
            calc: Calc::default(),
            privhelper: PrivHelper::default(),
        }
    }
}

/// How to start `calc`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calc {
    /// The program.
    pub path: PathBuf,
    /// Its configuration file, given to it as `--config`.
    pub config: PathBuf,
    /// Whom it runs as.
    pub user: User,
}

impl Default for Calc {
    fn default() -> Self {
        Self {
            path: "/usr/libexec/cairn/cairn-calc".into(),
            config: "/etc/cairn/calc.toml".into(),
            user: User::Name("cairn-calc".to_owned()),
        }
    }
}

/// How to start the helper. Whom it runs as is said in its own file, since it gives up root itself.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrivHelper {
    /// The program.
    pub path: PathBuf,
    /// Its configuration file, given to it as `--config`.
    pub config: PathBuf,
}

impl Default for PrivHelper {
    fn default() -> Self {
        Self {
            path: "/usr/libexec/cairn/cairn-privhelper".into(),
            config: "/etc/cairn/privhelper.toml".into(),
        }
    }
}

impl PrivHelper {
    /// Reads the one key of the helper's own file that matters here, `user`.
    ///
    /// # Errors
    ///
    /// If the file is not TOML; a missing one is for the helper to complain about.
    pub fn user(&self) -> Result<User, ConfigError> {
        /// The rest is the helper's.
        #[derive(Deserialize)]
        struct Excerpt {
            user: Option<User>,
        }
        let excerpt: Option<Excerpt> = read(&self.config)?;
        Ok(excerpt
            .and_then(|excerpt| excerpt.user)
            .unwrap_or_else(|| User::Name("cairn-priv".to_owned())))
    }
}

/// A user, by name or number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum User {
    /// A user id.
    Id(u32),
    /// A name of the user database.
    Name(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Config {
    /// Reads the file at `path`; without one, that at [`DEFAULT_PATH`] if it exists.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        match path {
            None => Ok(read(Path::new(DEFAULT_PATH))?.unwrap_or_default()),
            Some(path) => read(path)?.ok_or_else(|| ConfigError::Read {
                path: path.to_owned(),
                source: io::ErrorKind::NotFound.into(),
            }),
        }
    }
}

/// Returns what is in the file, or `None` if it does not exist.
/// Refuses a file that somebody else could have written when we are root: it names programs that
/// start as root.
fn check_writers(path: &Path) -> Result<(), ConfigError> {
    /// Group's and others' permission to write.
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let file = fs::metadata(path).map_err(failed)?;
    let others = file.uid() != 0 || file.mode() & WRITABLE_BY_OTHERS != 0;
    if geteuid().is_root() && others {
        return Err(ConfigError::Writable {
            path: path.to_owned(),
        });
    }
    Ok(())
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, ConfigError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => {
            check_writers(path)?;
            text
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ConfigError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    toml::from_str(&text)
        .map(Some)
        .map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_default() {
        let config: Config = toml::from_str("[calc]\nuser = 998\n").unwrap();
        let mut wanted = Config::default();
        wanted.calc.user = User::Id(998);
        assert_eq!(config, wanted);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("supervisor.toml");
        for text in [
            "run_dir = 1",
            "[calc]\nrun_dir = 1",
            "[privhelper]\nrun_dir = 1",
        ] {
            fs::write(&path, text).unwrap();
            let error = Config::load(Some(&path)).unwrap_err().to_string();
            assert!(error.contains("unknown field `run_dir`"), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_asked_for_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        let error = Config::load(Some(&dir.path().join("none"))).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
    }

    #[test]
    fn the_helpers_user_is_read_from_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let helper = PrivHelper {
            config: dir.path().join("privhelper.toml"),
            ..PrivHelper::default()
        };
        let default = User::Name("cairn-priv".to_owned());
        assert_eq!(helper.user().unwrap(), default);
        for (text, user) in [
            ("other = 1\n", default.clone()),
            (
                "user = \"cp\"\n[tables]\nmain = 254\n",
                User::Name("cp".to_owned()),
            ),
            ("user = 7\n", User::Id(7)),
        ] {
            fs::write(&helper.config, text).unwrap();
            assert_eq!(helper.user().unwrap(), user);
        }
    }
}
