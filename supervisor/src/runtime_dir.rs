//! The directory of the sockets: held by one supervisor at a time, which alone makes and removes
//! what is in it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
        net::{UnixDatagram, UnixListener},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::stat::{Mode, umask},
    unistd::geteuid,
};

use crate::users::Account;

/// The file that is locked; it holds the pid of who locked it.
const LOCK: &str = "supervisor.lock";

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Another supervisor has it.
    #[error(
        "{} belongs to another supervisor that is running (pid {pid}): stop that one, or give this \
         one a runtime_dir of its own", dir.display()
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// The other's pid, as far as is known.
        pid: String,
    },
    /// Others could replace the sockets.
    #[error(
        "{}: owned by uid {uid} with mode {mode:o}: it must belong to the supervisor's user and be \
         writable by nobody else", dir.display()
    )]
    Unsafe {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Something in it cannot be made.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// See the [module](self). Dropping it lets others have the directory.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    path: PathBuf,
    bound: Vec<PathBuf>,
    /// Locked as long as this lives; the children do not inherit it.
    _lock: Flock<File>,
}

impl RuntimeDir {
    /// Makes the directory if need be and takes hold of it.
    pub(crate) fn claim(path: &Path) -> Result<Self, RuntimeDirError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(failed("create", path))?;
        let metadata = fs::metadata(path).map_err(failed("look at", path))?;
        let mode = metadata.mode() & 0o7777;
        if metadata.uid() != geteuid().as_raw() || mode & 0o022 != 0 {
            return Err(RuntimeDirError::Unsafe {
                dir: path.to_owned(),
                uid: metadata.uid(),
                mode,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            bound: Vec::new(),
            _lock: lock(path)?,
        })
    }

    /// Returns the path of something in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Listens on a socket that only `owner` and root may connect to.
    pub(crate) fn listen(
        &mut self,
        name: &str,
        owner: Option<Account>,
    ) -> Result<UnixListener, RuntimeDirError> {
        self.bind(name, owner, |path| UnixListener::bind(path))
    }

    /// Makes a datagram socket that only `owner` and root may send to.
    pub(crate) fn receive(
        &mut self,
        name: &str,
        owner: Account,
    ) -> Result<UnixDatagram, RuntimeDirError> {
        self.bind(name, Some(owner), |path| UnixDatagram::bind(path))
    }

    /// Removes the sockets.
    pub(crate) fn clear(self) {
        for path in &self.bound {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(%error, "cannot remove {}", path.display());
            }
        }
    }

    fn bind<T>(
        &mut self,
        name: &str,
        owner: Option<Account>,
        bind: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<T, RuntimeDirError> {
        let path = self.join(name);
        // What an earlier supervisor left: nobody else has the lock.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path)(error));
            }
            Ok(()) | Err(_) => {}
        }
        // Nobody may connect between bind(2) and chown(2).
        let mask = umask(Mode::from_bits_truncate(0o777));
        let socket = bind(&path);
        umask(mask);
        let socket = socket.map_err(failed("bind", &path))?;
        if let Some(Account { uid, gid }) = owner {
            chown(&path, Some(uid), Some(gid)).map_err(failed("change the owner of", &path))?;
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600))
            .map_err(failed("change the mode of", &path))?;
        self.bound.push(path);
        Ok(socket)
    }
}

fn lock(dir: &Path) -> Result<Flock<File>, RuntimeDirError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(&path)
        .map_err(failed("open", &path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut file) => {
            file.set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()))
                .map_err(failed("write", &path))?;
            Ok(file)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let pid = match file.read_to_string(&mut pid) {
                Ok(_) if !pid.trim().is_empty() => pid.trim().to_owned(),
                Ok(_) | Err(_) => "unknown".to_owned(),
            };
            Err(RuntimeDirError::Held {
                dir: dir.to_owned(),
                pid,
            })
        }
        Err((_, errno)) => Err(failed("lock", &path)(errno.into())),
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RuntimeDirError {
    move |source| RuntimeDirError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_whom_the_next_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = RuntimeDir::claim(&path).unwrap();
        let error = RuntimeDir::claim(&path).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(
            error.contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        RuntimeDir::claim(&path).unwrap();
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let error = RuntimeDir::claim(dir.path()).unwrap_err();
        assert!(
            matches!(error, RuntimeDirError::Unsafe { mode: 0o777, .. }),
            "{error}"
        );
    }

    #[test]
    fn sockets_replace_stale_ones_and_go_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        for _ in 0..2 {
            // Dropping a listener leaves its file, as kill -9 does.
            let mut held = RuntimeDir::claim(dir.path()).unwrap();
            held.listen("x.sock", None).unwrap();
            let mode = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600);
        }
        let mut held = RuntimeDir::claim(dir.path()).unwrap();
        held.listen("x.sock", None).unwrap();
        held.clear();
        assert!(!path.exists());
    }
}
