//! Calls on the process itself: copies for new processes, credentials, umask.

use super::client::Client;
use super::registry::{ProcessState, Purpose};
use super::request::Request;
use crate::shared::calls::{Call, FOR_CHILD, FOR_PROGRAM};
use folio::base::{Errno, Error, Result};
use folio::syscall::Credentials;

/// Makes a call on the process.
pub(super) fn serve(client: &Client, request: &Request<'_>) -> Result<i64> {
    match request.call {
        Call::Prepare => prepare(client, request),
        Call::Forget => {
            let creator = client.registration.number();
            let token = request.arguments[0];
            client.registration.registry().forget(creator, token);
            Ok(0)
        }
        Call::Exit => {
            client.change(|process| {
                let empty = process.kernel().process(process.credentials().clone());
                drop(std::mem::replace(process, empty));
            });
            client.share().set_executed(None);
            Ok(0)
        }
        Call::Execute => {
            let files = &client.registration.registry().executed;
            let executed = files.execute(&client.process(), request.fd(0)?)?;
            client.share().set_executed(Some(executed));
            Ok(0)
        }
        Call::SetCredentials => {
            let credentials = credentials(request)?;
            client.change(|process| process.set_credentials(credentials));
            Ok(0)
        }
        Call::Umask => {
            let mask = (request.arguments[0] & 0o777) as u16;
            Ok(i64::from(client.process().umask(mask)))
        }
        _ => Err(Errno::NOSYS.into()),
    }
}

fn prepare(client: &Client, request: &Request<'_>) -> Result<i64> {
    let files = &client.registration.registry().executed;
    let (process, purpose, executed) = match request.arguments[0] {
        FOR_CHILD => {
            let child = client.process().fork()?;
            let executed = client.share().executed();
            (ProcessState::new(child, executed), Purpose::Child, None)
        }
        FOR_PROGRAM => {
            let executed = match request.int(1) {
                -1 => None,
                _ => Some(files.execute(&client.process(), request.fd(1)?)?),
            };
            (client.share(), Purpose::Program, executed)
        }
        _ => return Err(Errno::INVAL.into()),
    };
    let creator = client.registration.number();
    let token = client
        .registration
        .registry()
        .prepare(creator, process, purpose, executed);
    let token = token.map_err(|error| Error::io("random bytes", error))?;
    Ok(token.ok_or(Errno::AGAIN)? as i64)
}

fn credentials(request: &Request<'_>) -> Result<Credentials> {
    let (groups, rest) = request.input.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Errno::INVAL.into());
    }
    Ok(Credentials {
        uid: request.word(0),
        gid: request.word(1),
        groups: groups
            .iter()
            .map(|group| u32::from_ne_bytes(*group))
            .collect(),
        is_capable: request.arguments[2] == 1,
    })
}
