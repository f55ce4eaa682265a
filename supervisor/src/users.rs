//! Whom the children run as.

use nix::{errno::Errno, unistd};

use crate::config::User;

/// A user's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A child cannot run as the user it should.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// There is no such user.
    #[error(
        "{key}: there is no user {name:?}: install the package's sysusers file (systemd-sysusers), \
         or give a numeric user id"
    )]
    Unknown {
        /// Where it is configured.
        key: &'static str,
        /// Its name.
        name: String,
    },
    /// The user database does not answer.
    #[error("{key}: cannot look up user {name:?}: {errno}: give a numeric user id")]
    Lookup {
        /// Where it is configured.
        key: &'static str,
        /// Its name.
        name: String,
        /// What the system said.
        errno: Errno,
    },
    /// It would be root.
    #[error("{key} is root: give it a user of its own, without any rights")]
    Root {
        /// Where it is configured.
        key: &'static str,
    },
    /// The two children could signal and trace each other.
    #[error(
        "{calc} and {helper} are the same user (uid {uid}): each needs one of its own, or the \
         separation is none"
    )]
    Same {
        /// Where calc's is configured.
        calc: &'static str,
        /// Where the helper's is configured.
        helper: &'static str,
        /// Their number.
        uid: u32,
    },
}

/// Where `calc`'s user is configured.
const CALC: &str = "calc.user";
/// Where the helper's user is configured.
const HELPER: &str = "user in the privhelper's configuration";

/// Returns the accounts of `calc` and of the helper.
pub(crate) fn accounts(calc: &User, helper: &User) -> Result<(Account, Account), UserError> {
    let (calc, helper) = (account(CALC, calc)?, account(HELPER, helper)?);
    if calc.uid == helper.uid {
        return Err(UserError::Same {
            calc: CALC,
            helper: HELPER,
            uid: calc.uid,
        });
    }
    Ok((calc, helper))
}

fn account(key: &'static str, user: &User) -> Result<Account, UserError> {
    let lookup = |errno| UserError::Lookup {
        key,
        name: user.to_string(),
        errno,
    };
    let entry = match user {
        User::Id(uid) => unistd::User::from_uid((*uid).into()).map_err(lookup)?,
        User::Name(name) => unistd::User::from_name(name).map_err(lookup)?,
    };
    let account = match (entry, user) {
        (Some(entry), _) => Account {
            uid: entry.uid.as_raw(),
            gid: entry.gid.as_raw(),
        },
        // A number needs no entry.
        (None, User::Id(id)) => Account { uid: *id, gid: *id },
        (None, User::Name(name)) => {
            let name = name.clone();
            return Err(UserError::Unknown { key, name });
        }
    };
    if account.uid == 0 {
        return Err(UserError::Root { key });
    }
    Ok(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_needs_no_entry_and_a_name_does() {
        let name = |name: &str| User::Name(name.to_owned());
        let (calc, helper) = accounts(&User::Id(64_901), &User::Id(64_902)).unwrap();
        assert_eq!((calc.uid, calc.gid), (64_901, 64_901));
        assert_eq!((helper.uid, helper.gid), (64_902, 64_902));
        let error = accounts(&name("no-such-user"), &User::Id(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "calc.user: there is no user \"no-such-user\": install the package's sysusers file \
             (systemd-sysusers), or give a numeric user id"
        );
        assert_eq!(
            accounts(&User::Id(1), &name("root")),
            Err(UserError::Root { key: HELPER })
        );
        assert_eq!(
            accounts(&User::Id(0), &User::Id(1)),
            Err(UserError::Root { key: CALC })
        );
    }

    #[test]
    fn the_two_must_differ() {
        let same = accounts(&User::Id(64_901), &User::Id(64_901));
        assert!(matches!(same, Err(UserError::Same { uid: 64_901, .. })));
    }
}
