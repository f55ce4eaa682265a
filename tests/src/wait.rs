//! The one way to wait for the outside world.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take before it counts as never happening, on a machine of any speed.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Asks `probe` until it has an answer, and returns that with the time it took.
///
/// # Panics
///
/// If there is none within [`PATIENCE`]; with what was awaited and the last reason why not.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(answer) => return (answer, start.elapsed()),
            Err(why) if start.elapsed() > PATIENCE => {
                panic!("{what}: not within {PATIENCE:?}: {why}")
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
