//! The thread that makes the server's calls on the mount: each raises an event of a change for the
//! programs that watch the mount. The server answers their requests by itself.

use super::notices::RemoteCall;
use super::relay::Relay;
use folio::Errno;
use folio_fuse::{EventCall, EventCallError, MountCaller};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Time without calls after which the mount is closed. A server that is lost during a burst does
/// not end it.
const IDLE: Duration = Duration::from_secs(1);

/// Makes calls on the mount at `target` until no more can come. The thread has no standard error.
pub(super) fn raise_until_end(relay: &Relay, target: &Path, calls: Receiver<RemoteCall>) {
    let mut mount = MountCaller::enter(target.to_owned());
    relay.begin_events();
    loop {
        let next = match &mut mount {
            Ok(mount) if mount.is_open() => match calls.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => {
                    mount.release();
                    continue;
                }
                next => next.ok(),
            },
            _ => calls.recv().ok(),
        };
        let Some(RemoteCall { link, bytes }) = next else {
            return;
        };
        let made = match (&mut mount, EventCall::decode(&bytes)) {
            (Ok(mount), _) if bytes.is_empty() => {
                mount.release();
                continue;
            }
            (_, None) => Err(EventCallError::Failed(Errno::INVAL)),
            (Err(error), _) => Err(EventCallError::Unreachable(error.errno())),
            (Ok(mount), Some(call)) => {
                let _turn = relay.notices().take_turn();
                mount.make(&call)
            }
        };
        relay.notices().add_result(link, made);
    }
}
