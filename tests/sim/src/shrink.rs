//! Makes a script that breaks a rule as short as can be while it breaks the same one.

use super::{Found, bug::Bug, replay};

/// Leaves out whatever can be left out, in ever smaller parts.
pub(super) fn shrink(found: Found, bug: Option<Bug>) -> Found {
    let mut best = found;
    let mut part = best.script.steps.len();
    while part > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < best.script.steps.len() {
            let mut script = best.script.clone();
            script.steps.drain(at..(at + part).min(script.steps.len()));
            match replay(&script, bug) {
                Err(failure) if failure.is_like(&best.failure) => {
                    let seed = best.seed;
                    best = Found {
                        seed,
                        script,
                        failure,
                    };
                    shorter = true;
                }
                Ok(_) | Err(_) => at += part,
            }
        }
        if !shorter || part > 1 {
            part /= 2;
        }
    }
    best
}
