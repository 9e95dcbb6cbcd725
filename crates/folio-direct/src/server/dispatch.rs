//! From the number of a request to its reply.

use super::arena::Header;
use super::client::Client;
use super::names::elsewhere;
use super::request::Request;
use super::{attributes, files, locks, names, nodes, processes, xattrs};
use crate::shared::calls::{Call, ELSEWHERE};
use folio::base::{Errno, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Serves a request of a client; returns its result, and fills `output`.
pub(super) fn serve(
    client: &Client,
    header: &Header,
    input: &[u8],
    is_withdrawn: &dyn Fn() -> bool,
    output: &mut Vec<u8>,
) -> i64 {
    output.clear();
    let Some(call) = Call::from_number(header.call) else {
        return errno(Errno::NOSYS);
    };
    let request = Request {
        call,
        arguments: header.arguments,
        input,
        is_withdrawn,
    };
    // A fault of the library must not leave the client without a reply.
    let served = catch_unwind(AssertUnwindSafe(|| route(client, &request, output)));
    match served {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            output.clear();
            match elsewhere(&error) {
                Some(path) => {
                    output.extend_from_slice(path);
                    output.push(0);
                    -ELSEWHERE
                }
                None => errno(error.errno()),
            }
        }
        Err(_) => {
            output.clear();
            errno(Errno::IO)
        }
    }
}

fn errno(errno: Errno) -> i64 {
    -i64::from(errno.raw_os_error())
}

fn route(client: &Client, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    use Call::{
        Access, Advise, Allocate, ChangeDirectory, ChangeDirectoryTo, ChangeMode, ChangeOwner,
        Close, Control, CopyRange, Duplicate, Execute, Exit, Flock, Forget, FstatFileSystem,
        Ftruncate, GetAttribute, GetFlags, Link, ListAttributes, ListDirectory, Lock,
        MakeDirectory, MakeLink, MakeNode, Open, PathOf, Prepare, Read, ReadAt, ReadLink,
        RemoveAttribute, Rename, Reopen, Seek, SetAttribute, SetCredentials, SetFlags, SetTimes,
        SocketPath, Stat, StatFileSystem, Sync, SyncAll, SyncData, SyncFileSystem, Truncate, Umask,
        Unlink, WorkingDirectory, Write, WriteAt,
    };
    let registry = client.registration.registry();
    let nodes = &registry.nodes;
    registry.executed.check(&client.process(), request)?;
    match request.call {
        Prepare | Forget | Exit | Execute | SetCredentials | Umask => {
            processes::serve(client, request)
        }
        Open | Reopen => nodes::open(&client.process(), nodes, request, output),
        MakeNode => nodes::make(&client.process(), nodes, request, output),
        SocketPath => nodes::socket(&client.process(), nodes, request, output),
        Flock | Lock => locks::serve(client, request, output),
        Close | Duplicate | GetFlags | SetFlags | Read | ReadAt | Write | WriteAt | Seek
        | CopyRange | ListDirectory | Ftruncate | Truncate | Allocate | Sync | SyncData
        | SyncFileSystem | SyncAll | Advise | Control => {
            files::serve(&client.process(), request, output)
        }
        MakeDirectory | MakeLink | Link | Rename | Unlink | ReadLink | ChangeDirectory
        | ChangeDirectoryTo | WorkingDirectory | PathOf => {
            names::serve(&client.process(), request, output)
        }
        Stat | StatFileSystem | FstatFileSystem | Access | ChangeMode | ChangeOwner | SetTimes => {
            attributes::serve(&client.process(), request, output)
        }
        GetAttribute | SetAttribute | ListAttributes | RemoveAttribute => {
            xattrs::serve(&client.process(), request, output)
        }
    }
}
