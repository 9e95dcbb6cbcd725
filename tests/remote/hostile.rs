//! Clients that break the rules: each is cut off, and the others are served on.

use crate::remote::wire::*;
use crate::remote::{Bench, Shared, wait_until};
use crate::support::requires;
use std::io::{Read, Write};
use std::path::PathBuf;

/// A share, where it listens, and a client that keeps the rules.
fn bench() -> (Bench, Shared, PathBuf, Wire) {
    let bench = Bench::new();
    let shared = bench.share();
    let socket = bench.folder.path().join("socket");
    let other = Wire::begin(&socket);
    (bench, shared, socket, other)
}

fn chance(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn bytes_that_are_no_handshake_close_the_connection() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    let mut right = preface();
    right.resize(76, 0);
    for at in [0, 8, 12] {
        let mut wrong = right.clone();
        wrong[at] ^= 0xff;
        let mut stream = connect(&socket);
        stream.write_all(&wrong).unwrap();
        let mut said = Vec::new();
        // To a stranger nothing is said, to a client of another kind what kind the server is.
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() <= 53, "{at}: {said:?}");
    }
    let mut state = 7;
    for _ in 0..50 {
        let mut stream = connect(&socket);
        let bytes: Vec<u8> = (0..chance(&mut state) % 300)
            .map(|_| chance(&mut state) as u8)
            .collect();
        let is_prefaced = chance(&mut state).is_multiple_of(2);
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
fn clients_that_say_nothing_keep_nobody_out() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    // As many as are greeted at a time; each has ten seconds.
    let silent: Vec<_> = (0..31).map(|_| connect(&socket)).collect();
    Wire::begin(&socket).still_works();
    other.still_works();
    drop(silent);
    shared.stop();
}

#[test]
fn frames_outside_the_rules_end_the_session() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    let long = vec![0; (1 << 20) + (200 << 10)];
    let getattr = message(GETATTR, 1, &[0; 16]);
    let mut lying = getattr.clone();
    lying[0] += 8;
    let cases: [(u32, u64, &[u8], &str); 8] = [
        (9, 0, b"", "no known kind"),
        (0, 0, b"", "no known kind"),
        (MESSAGE, 0, &long, "longer than agreed"),
        (ACKNOWLEDGE, 0, b"more", "longer than agreed"),
        (ACKNOWLEDGE, 1 << 40, b"", "never sent"),
        (MESSAGE, 0, b"short", "breaks the rules"),
        (MESSAGE, 0, &lying, "breaks the rules"),
        (DROP_NAMES, 0, b"", "breaks the rules"),
    ];
    for (kind, acknowledged, body, why) in cases {
        let mut wire = Wire::begin(&socket);
        let session = wire.session;
        // The server may have enough before all is sent.
        let _ = wire.frame(kind, acknowledged, body);
        let said = wire.ends();
        assert!(
            said.contains(why) || said.is_empty(),
            "{kind} {acknowledged}: {said}"
        );
        shared.running.told.line(why);
        assert!(
            !Wire::resume(&socket, session, 0).unwrap().is_resumed,
            "it is over"
        );
        other.still_works();
    }
    shared.stop();
}

#[test]
fn any_frames_are_survived() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    let mut state = 0x1234_5678;
    for _ in 0..40 {
        let mut wire = Wire::begin(&socket);
        wire.stream.set_nonblocking(true).unwrap();
        for _ in 0..50 {
            let opcode = chance(&mut state) as u32 % 55;
            let body: Vec<u8> = (0..chance(&mut state) % 120)
                .map(|_| (chance(&mut state) % 4) as u8)
                .collect();
            let mut bytes = message(opcode, chance(&mut state) % 3, &body);
            if chance(&mut state).is_multiple_of(40) {
                let at = chance(&mut state) as usize % bytes.len();
                bytes[at] ^= chance(&mut state) as u8;
            }
            let kind = if chance(&mut state).is_multiple_of(60) {
                chance(&mut state) as u32 % 6
            } else {
                MESSAGE
            };
            if wire.frame(kind, 0, &bytes).is_err() {
                break;
            }
        }
        drop(wire);
    }
    other.still_works();
    shared.stop();
}

/// Memory that the server has, in bytes.
fn resident(shared: &Shared) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", shared.running.child.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_client_that_takes_no_replies_is_cut_off() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    let mut deaf = Wire::begin(&socket);
    // A file of 8 MiB, made with the rules kept.
    let create = [0x8042_u32, 0o100_644, 0, 0].map(u32::to_ne_bytes).concat();
    deaf.request(35, 1, &[&create[..], b"large\0"].concat());
    let (error, made) = deaf.reply();
    assert_eq!(error, 0);
    let number = |at: usize| u64::from_ne_bytes(made[at..at + 8].try_into().unwrap());
    let (node, file) = (number(0), number(128));
    for piece in 0..8_u64 {
        let head = [
            &file.to_ne_bytes()[..],
            &(piece << 20).to_ne_bytes(),
            &(1_u32 << 20).to_ne_bytes(),
            &[0; 20],
        ]
        .concat();
        deaf.request(16, node, &[&head[..], &vec![7; 1 << 20]].concat());
        assert_eq!(deaf.reply().0, 0);
    }
    // Reads of it without end, and nobody takes what was read.
    let read = [
        &file.to_ne_bytes()[..],
        &[0; 8],
        &(1_u32 << 20).to_ne_bytes(),
        &[0; 20],
    ]
    .concat();
    let message = message(READ, node, &read);
    let mut sent = 0;
    while deaf.frame(MESSAGE, 0, &message).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "it is never cut off");
        if sent % 16 == 0 {
            other.still_works();
        }
    }
    shared.running.told.line("replies are not taken");
    let most = resident(&shared);
    assert!(most < 400 << 20, "{most} bytes");
    wait_until("its memory is given back", || resident(&shared) < 300 << 20);
    other.still_works();
    shared.stop();
}

#[test]
fn more_clients_than_there_may_be_are_told() {
    requires!(tool("mke2fs"));
    let bench = Bench::new();
    let shared = Shared::new(&bench.image, &bench.socket(), &["--max-clients", "2"]);
    let socket = bench.folder.path().join("socket");
    let mut wires = [Wire::begin(&socket), Wire::begin(&socket)];
    assert!(Wire::resume(&socket, [0; 16], 0).is_err_and(|why| why.contains("as many clients")));
    wires.iter_mut().for_each(Wire::still_works);
    // One that says goodbye makes room at once.
    let [mut one, two] = wires;
    one.frame(GOODBYE, 0, b"").unwrap();
    one.ends();
    Wire::begin(&socket).still_works();
    drop(two);
    shared.stop();
}

/// A session is resumed by who knows it, with replies that were not taken, and not with numbers
/// that make no sense.
#[test]
fn a_session_goes_on_where_it_stopped() {
    requires!(tool("mke2fs"));
    let (_bench, shared, socket, mut other) = bench();
    let mut wire = Wire::begin(&socket);
    wire.still_works();
    wire.request(LOOKUP, 1, b"lost+found\0");
    let (_, found) = wire.reply();
    let node = u64::from_ne_bytes(found[..8].try_into().unwrap());
    let session = wire.session;
    // Replies: INIT, GETATTR, LOOKUP. The last one is lost.
    drop(wire);
    let mut wire = Wire::resume(&socket, session, 2).unwrap();
    assert!(wire.is_resumed);
    assert_eq!(wire.reply(), (0, found));
    wire.request(GETATTR, node, &[0; 16]);
    assert_eq!(wire.reply().0, 0, "the node is known");
    // A second connection takes the session over.
    let mut second = Wire::resume(&socket, session, 4).unwrap();
    wire.ends();
    second.still_works();
    drop(second);
    assert!(
        Wire::resume(&socket, session, 99)
            .map(|mut wire| wire.ends())
            .is_ok_and(|why| why.is_empty())
    );
    assert!(!Wire::resume(&socket, [1; 16], 0).unwrap().is_resumed);
    let mut kept = Wire::resume(&socket, session, 5).unwrap();
    assert!(kept.is_resumed);
    kept.request(OPEN, 999, &[0; 8]);
    assert!(kept.reply().0 < 0);
    other.still_works();
    shared.stop();
}
