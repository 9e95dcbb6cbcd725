//! The fuzz target's entry: requests to the server of a small file system. Not public API.

use crate::client_options::{ClientOptions, DataCache, PermissionChecks};
use crate::server::{Outcome, Server};
use crate::wire::{Message, REPLY_BODY_MAX, REPLY_HEADER_LEN, op};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};

/// Most requests of one input.
const REQUESTS_MAX: usize = 64;
/// Number of opcodes in use; some of them are undefined.
const OPCODES: u32 = 56;
/// Number of node ids in use; the first nodes of the file system are among them.
const NODES: u64 = 8;

/// Sends the requests in `data`: opcodes, nodes and bodies. Each must get a valid reply.
pub fn requests(data: &[u8]) {
    let (Some((&first, mut rest)), Ok(inside)) =
        (data.split_first(), MountOptions::parse("size=1m"))
    else {
        return;
    };
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 4 << 20,
        ..KernelOptions::default()
    });
    if kernel.mount_tmpfs("/", &inside).is_err() {
        return;
    }
    let options = match first % 3 {
        0 => ClientOptions::exclusive(),
        1 => ClientOptions {
            data: DataCache::None,
            ..ClientOptions::exclusive()
        },
        _ => ClientOptions {
            has_external_writers: true,
            ..ClientOptions::exclusive()
        },
    };
    let permissions = if first & 0x80 == 0 {
        PermissionChecks::ByClient
    } else {
        PermissionChecks::Off
    };
    let server = Server::new(kernel, permissions, options);
    let init = [7, 40, 1 << 17, u32::MAX, u32::MAX]
        .map(u32::to_ne_bytes)
        .concat();
    send(&server, op::INIT, 0, &init);
    for _ in 0..REQUESTS_MAX {
        let [opcode, node, len, tail @ ..] = rest else {
            return;
        };
        let (body, left) = tail.split_at(usize::from(*len).min(tail.len()));
        send(
            &server,
            u32::from(*opcode) % OPCODES,
            u64::from(*node) % NODES,
            body,
        );
        rest = left;
    }
}

/// Sends one request as the superuser.
fn send(server: &Server, opcode: u32, node: u64, body: &[u8]) {
    let mut request = ((40 + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(opcode.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend(node.to_ne_bytes());
    request.resize(40, 0);
    request.extend(body);
    let mut reply = Message::default();
    match server.handle(&request, &mut reply) {
        Outcome::Replied | Outcome::Ended => {
            let bytes = reply.bytes();
            assert!(
                bytes.len() <= REPLY_HEADER_LEN + REPLY_BODY_MAX,
                "the reply is too long"
            );
            assert_eq!(
                bytes[..4],
                (bytes.len() as u32).to_ne_bytes(),
                "the reply's header states another length"
            );
            assert!(
                (0..4096).contains(&reply.errno()),
                "invalid error: {}",
                reply.errno()
            );
        }
        Outcome::Silent => {}
        Outcome::Malformed => panic!("a valid request is reported as malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates, writes, reads, renames and unlinks a file; then the same input, corrupted.
    #[test]
    fn fuzz_input_gets_valid_replies() {
        let mut data = vec![0];
        let mut add = |opcode: u32, node: u8, body: &[u8]| {
            data.extend([opcode as u8, node, body.len() as u8]);
            data.extend(body);
        };
        let create = [0_u32, 0o100_644, 0, 0].map(u32::to_ne_bytes).concat();
        add(op::CREATE, 1, &[&create[..], b"f\0"].concat());
        let write = [
            [0_u64, 0].map(u64::to_ne_bytes).concat(),
            4_u64.to_ne_bytes().to_vec(),
            vec![0; 16],
        ];
        add(op::WRITE, 2, &[&write.concat()[..], b"text"].concat());
        add(
            op::READ,
            2,
            &[0_u64, 0, 4096, 0, 0].map(u64::to_ne_bytes).concat(),
        );
        add(
            op::RENAME,
            1,
            &[&1_u64.to_ne_bytes()[..], b"f\0g\0"].concat(),
        );
        add(op::UNLINK, 1, b"g\0");
        requests(&data);
        data.iter_mut()
            .skip(1)
            .step_by(7)
            .for_each(|byte| *byte = byte.wrapping_mul(37));
        requests(&data);
        requests(&[]);
    }
}
