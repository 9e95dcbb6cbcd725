//! What fuzz targets call: the parsers of either side on any bytes, without sockets. No part of the
//! interface.

use crate::client::fuzz_known;
use crate::frame::{Input, Kind};
use crate::handshake::{self, Wish};
use crate::key::Key;
use crate::server::fuzz_effects;
use std::io::Read;

/// Longest message; the real one only makes inputs longer.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a server reads: a handshake, with and without a key, then frames of requests.
pub fn server(mut data: &[u8]) {
    let key = Key::new(b"0123456789abcdef").ok();
    let _ = handshake::receive(&mut (data, |_: &[u8]| Ok(())), key.as_ref());
    let _ = handshake::receive(&mut (&mut data, |_: &[u8]| Ok(())), None);
    frames(data, fuzz_effects);
}

/// What a client reads: a handshake, then frames of replies.
pub fn client(mut data: &[u8]) {
    let _ = handshake::greet(&mut (&mut data, |_: &[u8]| Ok(())), None, Wish::default());
    let mut last = Vec::new();
    frames(data, |body| {
        fuzz_known(&last, body);
        body.clone_into(&mut last);
    });
}

fn frames(data: impl Read, mut each: impl FnMut(&[u8])) {
    let mut input = Input::new(data, MESSAGE_BYTES_MAX);
    while let Ok(Some(frame)) = input.next() {
        if frame.kind == Kind::Message {
            each(&frame.body);
        }
    }
}
