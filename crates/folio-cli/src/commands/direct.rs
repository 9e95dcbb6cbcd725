//! `folio run --direct`: a command whose system calls are answered by this process.

use crate::exit::{Exit, Failure, Outcome};
use crate::image::Image;
use folio_direct::{Options, Session};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::thread;

/// Signals that the command must receive too. Those of the terminal reach it by themselves.
const FORWARDED: [i32; 4] = [SIGHUP, SIGTERM, SIGUSR1, SIGUSR2];

/// Runs a command on a mounted image; returns its exit code.
pub(crate) fn serve(image: &Image, options: &Options) -> Outcome<u8> {
    let cannot = |error| Failure::new(format!("cannot handle signals: {error}"));
    let mut signals = Signals::new(FORWARDED.iter().chain(&[SIGINT, SIGQUIT])).map_err(cannot)?;
    let session = Session::start(image.kernel(), options).map_err(failure)?;
    let pid = i32::try_from(session.pid()).ok().and_then(Pid::from_raw);
    // Names the command after its end too, when another process may have its number.
    let command = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let handle = signals.handle();
    thread::scope(|scope| {
        scope.spawn(move || {
            for signal in signals.forever() {
                let is_forwarded = FORWARDED.contains(&signal);
                let named = Signal::from_named_raw(signal).filter(|_| is_forwarded);
                if let (Some(command), Some(signal)) = (&command, named) {
                    // It may have ended.
                    let _ = pidfd_send_signal(command, signal);
                }
            }
        });
        let ended = session.wait();
        handle.close();
        ended.map_err(|error| Failure::new(format!("cannot wait for the command: {error}")))
    })
}

fn failure(failure: folio_direct::Failure) -> Failure {
    Failure::exiting(Exit::Command(failure.exit), failure.message)
}
