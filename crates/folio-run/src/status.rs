//! Exit codes and signals of the command, as both sides of the namespace see them.

use crate::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// Signals that the command receives instead of the processes above it.
pub(crate) const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Returns the exit code for the end of a process.
pub(crate) fn exit_code(status: Option<i32>, signal: Option<i32>) -> u8 {
    let code = match (status, signal) {
        (Some(status), _) => status & 0xff,
        (None, Some(signal)) => 128 + signal,
        (None, None) => return Failure::NOT_STARTED,
    };
    u8::try_from(code).unwrap_or(Failure::NOT_STARTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_is_added_to_128() {
        assert_eq!(exit_code(Some(7), None), 7);
        assert_eq!(exit_code(None, Some(9)), 137);
        assert_eq!(exit_code(None, None), 125);
    }
}
