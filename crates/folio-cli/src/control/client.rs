//! The side of `folio ctl`.

use super::protocol::{Answer, Order, Request};
use crate::exit::{Failure, Outcome};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest answer in bytes: a chain has 64 paths at most.
const ANSWER_LEN_MAX: u64 = 4 << 20;

/// Sends an order to the server at `socket`, and waits for its answer.
pub(crate) fn ask(socket: &Path, image: Option<&str>, order: &Order) -> Outcome<Answer> {
    let failed = |error| Failure::new(format!("{}: {error}", socket.display()));
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let request = Request {
        image: image.map(str::to_owned),
        order: order.clone(),
    };
    let mut line = serde_json::to_vec(&request).map_err(std::io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    let mut limited = BufReader::new(stream.take(ANSWER_LEN_MAX));
    limited.read_line(&mut answer).map_err(failed)?;
    serde_json::from_str(&answer)
        .map_err(|_| Failure::new(format!("{}: the server gave no answer", socket.display())))
}
