//! Makes a script that breaks a rule as short as can be while it breaks the same one.

use super::{Failure, Script, bug::Bug, replay};

/// Returns the shortest script found and how it fails.
pub(super) fn shrink(script: &Script, failure: Failure, bug: Option<Bug>) -> (Script, Failure) {
    let (mut best, mut failure) = (script.clone(), failure);
    let mut chunk = best.steps.len();
    while chunk > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < best.steps.len() {
            let mut tried = best.clone();
            tried.steps.drain(at..(at + chunk).min(best.steps.len()));
            match replay(&tried, bug) {
                Err(same) if same.is_like(&failure) => {
                    (best, failure) = (tried, same);
                    shorter = true;
                }
                Ok(_) | Err(_) => at += chunk,
            }
        }
        if !shorter || chunk > 1 {
            chunk /= 2;
        }
    }
    (best, failure)
}
