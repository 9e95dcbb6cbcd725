//! Clients that violate the protocol: each is disconnected, and other clients are still served.

use crate::remote::wire::*;
use crate::remote::{ImageFolder, ShareServer, wait_until};
use crate::support::requires;
use std::io::{Read, Write};
use std::path::PathBuf;

/// Starts a share; returns its socket, and a client that follows the protocol.
fn share_with_client() -> (ImageFolder, ShareServer, PathBuf, RawClient) {
    let files = ImageFolder::new();
    let shared = files.share();
    let socket = files.folder.path().join("socket");
    let other = RawClient::begin(&socket);
    (files, shared, socket, other)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn invalid_handshake_closes_the_connection() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    let mut valid = preface();
    valid.resize(76, 0);
    for at in [0, 8, 12] {
        let mut invalid = valid.clone();
        invalid[at] ^= 0xff;
        let mut stream = connect(&socket);
        stream.write_all(&invalid).unwrap();
        let mut received = Vec::new();
        // A foreign client gets nothing; one of another version gets the server's version.
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() <= 53, "{at}: {received:?}");
    }
    let mut state = 7;
    for _ in 0..50 {
        let mut stream = connect(&socket);
        let bytes: Vec<u8> = (0..random(&mut state) % 300)
            .map(|_| random(&mut state) as u8)
            .collect();
        let is_prefaced = random(&mut state).is_multiple_of(2);
        let _ = stream.write_all(&if is_prefaced {
            [preface(), bytes].concat()
        } else {
            bytes
        });
        drop(stream);
    }
    other.still_works();
    shared.stop();
}

#[test]
fn silent_clients_block_no_other_client() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    // As many as may be in the handshake at a time; each has ten seconds.
    let silent: Vec<_> = (0..31).map(|_| connect(&socket)).collect();
    RawClient::begin(&socket).still_works();
    other.still_works();
    drop(silent);
    shared.stop();
}

#[test]
fn invalid_frames_end_the_session() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    let long = vec![0; (1 << 20) + (200 << 10)];
    let getattr = message(GETATTR, 1, &[0; 16]);
    let mut wrong_len = getattr.clone();
    wrong_len[0] += 8;
    let cases: [(u32, u64, &[u8], &str); 8] = [
        (9, 0, b"", "unknown kind"),
        (0, 0, b"", "unknown kind"),
        (MESSAGE, 0, &long, "longer than allowed"),
        (ACKNOWLEDGE, 0, b"more", "longer than allowed"),
        (ACKNOWLEDGE, 1 << 40, b"", "never sent"),
        (MESSAGE, 0, b"short", "malformed message"),
        (MESSAGE, 0, &wrong_len, "malformed message"),
        (DROP_NAMES, 0, b"", "malformed message"),
    ];
    for (kind, acknowledged, body, why) in cases {
        let mut client = RawClient::begin(&socket);
        let session = client.session;
        // The server may close the connection before all is sent.
        let _ = client.frame(kind, acknowledged, body);
        let reason = client.expect_close();
        assert!(
            reason.contains(why) || reason.is_empty(),
            "{kind} {acknowledged}: {reason}"
        );
        shared.running.stderr.line(why);
        assert!(
            !RawClient::resume(&socket, session, 0).unwrap().is_resumed,
            "the session still exists"
        );
        other.still_works();
    }
    shared.stop();
}

#[test]
fn random_frames_do_not_stop_the_server() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    let mut state = 0x1234_5678;
    for _ in 0..40 {
        let mut client = RawClient::begin(&socket);
        client.stream.set_nonblocking(true).unwrap();
        for _ in 0..50 {
            let opcode = random(&mut state) as u32 % 55;
            let body: Vec<u8> = (0..random(&mut state) % 120)
                .map(|_| (random(&mut state) % 4) as u8)
                .collect();
            let mut bytes = message(opcode, random(&mut state) % 3, &body);
            if random(&mut state).is_multiple_of(40) {
                let at = random(&mut state) as usize % bytes.len();
                bytes[at] ^= random(&mut state) as u8;
            }
            let kind = if random(&mut state).is_multiple_of(60) {
                random(&mut state) as u32 % 6
            } else {
                MESSAGE
            };
            if client.frame(kind, 0, &bytes).is_err() {
                break;
            }
        }
        drop(client);
    }
    other.still_works();
    shared.stop();
}

/// Returns the server's resident memory in bytes.
fn resident_bytes(shared: &ShareServer) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", shared.running.child.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn client_that_takes_no_replies_is_disconnected() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    let mut silent = RawClient::begin(&socket);
    // Create a file of 8 MiB.
    let create = [0x8042_u32, 0o100_644, 0, 0].map(u32::to_ne_bytes).concat();
    silent.request(35, 1, &[&create[..], b"large\0"].concat());
    let (error, created) = silent.reply();
    assert_eq!(error, 0);
    let number = |at: usize| u64::from_ne_bytes(created[at..at + 8].try_into().unwrap());
    let (node, file) = (number(0), number(128));
    for piece in 0..8_u64 {
        let head = [
            &file.to_ne_bytes()[..],
            &(piece << 20).to_ne_bytes(),
            &(1_u32 << 20).to_ne_bytes(),
            &[0; 20],
        ]
        .concat();
        silent.request(16, node, &[&head[..], &vec![7; 1 << 20]].concat());
        assert_eq!(silent.reply().0, 0);
    }
    // Endless reads of it, whose replies the client does not take.
    let read = [
        &file.to_ne_bytes()[..],
        &[0; 8],
        &(1_u32 << 20).to_ne_bytes(),
        &[0; 20],
    ]
    .concat();
    let message = message(READ, node, &read);
    let mut sent = 0;
    while silent.frame(MESSAGE, 0, &message).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "the client is never disconnected");
        if sent % 16 == 0 {
            other.still_works();
        }
    }
    shared.running.stderr.line("takes no replies");
    let most = resident_bytes(&shared);
    assert!(most < 400 << 20, "{most} bytes");
    wait_until("its memory is freed", || {
        resident_bytes(&shared) < 300 << 20
    });
    other.still_works();
    shared.stop();
}

#[test]
fn clients_over_the_limit_are_refused() {
    requires!(tool("mke2fs"));
    let files = ImageFolder::new();
    let shared = ShareServer::new(&files.image, &files.socket(), &["--max-clients", "2"]);
    let socket = files.folder.path().join("socket");
    let mut clients = [RawClient::begin(&socket), RawClient::begin(&socket)];
    assert!(
        RawClient::resume(&socket, [0; 16], 0).is_err_and(|why| why.contains("as many clients"))
    );
    clients.iter_mut().for_each(RawClient::still_works);
    // A goodbye ends a session at once.
    let [mut one, two] = clients;
    one.frame(GOODBYE, 0, b"").unwrap();
    one.expect_close();
    RawClient::begin(&socket).still_works();
    drop(two);
    shared.stop();
}

/// A client that knows a session resumes it and gets the lost replies. An impossible number of
/// received frames is refused.
#[test]
fn resumed_session_continues_where_it_stopped() {
    requires!(tool("mke2fs"));
    let (_files, shared, socket, mut other) = share_with_client();
    let mut client = RawClient::begin(&socket);
    client.still_works();
    client.request(LOOKUP, 1, b"lost+found\0");
    let (_, found) = client.reply();
    let node = u64::from_ne_bytes(found[..8].try_into().unwrap());
    let session = client.session;
    // Replies: INIT, GETATTR, LOOKUP. The last one is lost.
    drop(client);
    let mut client = RawClient::resume(&socket, session, 2).unwrap();
    assert!(client.is_resumed);
    assert_eq!(client.reply(), (0, found));
    client.request(GETATTR, node, &[0; 16]);
    assert_eq!(client.reply().0, 0, "the node is unknown");
    // A second connection takes the session over.
    let mut second = RawClient::resume(&socket, session, 4).unwrap();
    client.expect_close();
    second.still_works();
    drop(second);
    assert!(
        RawClient::resume(&socket, session, 99)
            .map(|mut client| client.expect_close())
            .is_ok_and(|why| why.is_empty())
    );
    assert!(!RawClient::resume(&socket, [1; 16], 0).unwrap().is_resumed);
    let mut kept = RawClient::resume(&socket, session, 5).unwrap();
    assert!(kept.is_resumed);
    kept.request(OPEN, 999, &[0; 8]);
    assert!(kept.reply().0 < 0);
    other.still_works();
    shared.stop();
}
