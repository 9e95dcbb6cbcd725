//! Entry points of the fuzz targets: the parsers of either side on any bytes, without sockets. Not
//! part of the public interface.

use crate::client::KernelCache;
use crate::frame::{FrameKind, FrameReader};
use crate::handshake::{self, SessionRequest};
use crate::key::Key;
use crate::server::for_each_effect;
use std::io::Read;

/// Longest message, in bytes. The real limit would only make inputs longer.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Parses `data` as a server does: a handshake, with and without a key, then frames of requests.
pub fn server(mut data: &[u8]) {
    let key = Key::new(b"0123456789abcdef").ok();
    let _ = handshake::receive(&mut (data, |_: &[u8]| Ok(())), key.as_ref());
    let _ = handshake::receive(&mut (&mut data, |_: &[u8]| Ok(())), None);
    for_each_message(data, |request| for_each_effect(request, &[0; 16], |_| {}));
}

/// Parses `data` as a client does: a handshake, then frames of replies.
pub fn client(mut data: &[u8]) {
    let _ = handshake::greet(
        &mut (&mut data, |_: &[u8]| Ok(())),
        None,
        SessionRequest::default(),
    );
    let mut last = Vec::new();
    for_each_message(data, |body| {
        let mut cache = KernelCache::default();
        cache.record_reply(&last, body);
        cache.record_request(&last);
        cache.entries();
        body.clone_into(&mut last);
        let _ = folio_fuse::EventCall::decode(body);
    });
}

fn for_each_message(data: impl Read, mut run: impl FnMut(&[u8])) {
    let mut reader = FrameReader::new(data, MESSAGE_BYTES_MAX);
    while let Ok(Some(frame)) = reader.next() {
        if frame.kind == FrameKind::Message {
            run(&frame.body);
        }
    }
}
