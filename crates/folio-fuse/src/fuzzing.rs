//! What a fuzz target calls: a server of a small file system, asked anything. No part of the
//! interface.

use crate::adapter::{Adapter, PermissionChecks};
use crate::wire::{
    ClientOptions, DataCache, Message, Outcome, REPLY_BODY_MAX, REPLY_HEADER_LEN, Server, op,
};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::sync::Arc;

/// Requests that one input makes at most.
const REQUESTS_MAX: usize = 64;
/// Opcodes that are asked; some of them mean nothing.
const OPCODES: u32 = 56;
/// Nodes that are asked about; the first ones that are made are among them.
const NODES: u64 = 8;

/// A kernel that asks what `data` says: opcodes, nodes and bodies of requests. Each must be
/// answered or refused.
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
    let judge = if first & 0x80 == 0 {
        PermissionChecks::ByClient
    } else {
        PermissionChecks::Off
    };
    let server = Server::new(Arc::new(Adapter::new(kernel, judge)), judge, options);
    let init = [7, 40, 1 << 17, u32::MAX, u32::MAX]
        .map(u32::to_ne_bytes)
        .concat();
    ask(&server, op::INIT, 0, &init);
    for _ in 0..REQUESTS_MAX {
        let [opcode, node, len, tail @ ..] = rest else {
            return;
        };
        let (body, left) = tail.split_at(usize::from(*len).min(tail.len()));
        ask(
            &server,
            u32::from(*opcode) % OPCODES,
            u64::from(*node) % NODES,
            body,
        );
        rest = left;
    }
}

/// Asks as the superuser.
fn ask(server: &Server, opcode: u32, node: u64, body: &[u8]) {
    let mut request = ((40 + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(opcode.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend(node.to_ne_bytes());
    request.resize(40, 0);
    request.extend(body);
    let mut reply = Message::default();
    match server.handle(&request, &mut reply) {
        Outcome::Replied | Outcome::Ended => {
            let said = reply.bytes();
            assert!(
                said.len() <= REPLY_HEADER_LEN + REPLY_BODY_MAX,
                "a reply is longer than it may be"
            );
            assert_eq!(
                said[..4],
                (said.len() as u32).to_ne_bytes(),
                "a reply has another length than it says"
            );
            assert!(
                (0..4096).contains(&reply.errno()),
                "no error: {}",
                reply.errno()
            );
        }
        Outcome::Silent => {}
        Outcome::Malformed => panic!("a request that is right is called malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is made, written, read, renamed and removed; then nonsense.
    #[test]
    fn an_input_is_a_program() {
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
