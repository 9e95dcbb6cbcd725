//! Digests of blobs, and readers that verify them.

use folio::{Errno, Error, Result};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A sha256 digest, the one that registries use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses `sha256:` with 64 digits.
    ///
    /// # Errors
    ///
    /// EINVAL; EOPNOTSUPP for another algorithm.
    pub fn parse(text: &str) -> Result<Self> {
        let Some(digits) = text.strip_prefix("sha256:") else {
            return Err(Error::unsupported(format!(
                "digest {text:?}: only sha256 is supported"
            )));
        };
        Self::parse_hex(digits)
            .ok_or_else(|| Error::new(Errno::INVAL, format!("invalid digest {text:?}")))
    }

    /// Parses 64 digits.
    pub(super) fn parse_hex(digits: &str) -> Option<Self> {
        let is_lower = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.as_bytes().iter().all(is_lower) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Returns the 64 digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A reader that fails at the end of its input if the digest differs.
pub(super) struct Verify<R> {
    input: R,
    hash: Sha256,
    want: Digest,
    is_verified: Arc<AtomicBool>,
}

impl<R: Read> Verify<R> {
    /// Creates the reader, which sets `is_verified` at a verified end.
    pub(super) fn new(input: R, want: Digest, is_verified: Arc<AtomicBool>) -> Self {
        Self {
            input,
            hash: Sha256::new(),
            want,
            is_verified,
        }
    }
}

impl<R: Read> Read for Verify<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        self.hash.update(&buf[..count]);
        if count == 0 && !buf.is_empty() && !self.is_verified.load(Ordering::Relaxed) {
            let found = Digest(self.hash.clone().finalize().into());
            if found != self.want {
                let text = format!("digest mismatch: expected {}, found {found}", self.want);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            self.is_verified.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }
}

/// A writer that hashes and counts its bytes.
pub(super) struct Hashing<W> {
    output: W,
    hash: Sha256,
    len_bytes: u64,
}

impl<W: Write> Hashing<W> {
    pub(super) fn new(output: W) -> Self {
        Self {
            output,
            hash: Sha256::new(),
            len_bytes: 0,
        }
    }

    /// Returns the output, the digest and the number of bytes.
    pub(super) fn finish(self) -> (W, Digest, u64) {
        (
            self.output,
            Digest(self.hash.finalize().into()),
            self.len_bytes,
        )
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.len_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Bytes of a block that counts as a hole if they are zeros.
const HOLE_BYTES: usize = 4096;

/// The digest of a file's content, in which holes and zeros are the same.
pub(super) struct ContentHash {
    hash: Sha256,
    block: Box<[u8; HOLE_BYTES]>,
    number: u64,
}

impl ContentHash {
    pub(super) fn new() -> Self {
        Self {
            hash: Sha256::new(),
            block: Box::new([0; HOLE_BYTES]),
            number: 0,
        }
    }

    /// Adds bytes at an offset, which ascends.
    pub(super) fn update(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (number, at) = (
                offset / HOLE_BYTES as u64,
                (offset % HOLE_BYTES as u64) as usize,
            );
            if number != self.number {
                self.flush();
                self.number = number;
            }
            let len = bytes.len().min(HOLE_BYTES - at);
            self.block[at..at + len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            offset += len as u64;
        }
    }

    fn flush(&mut self) {
        if self.block.iter().any(|byte| *byte != 0) {
            self.hash.update(self.number.to_le_bytes());
            self.hash.update(&self.block[..]);
            self.block.fill(0);
        }
    }

    pub(super) fn finish(mut self) -> Digest {
        self.flush();
        Digest(self.hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_read_back() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::parse(empty).unwrap().to_string(), empty);
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert!(Digest::parse("sha256:12").is_err() && Digest::parse("md5:12").is_err());
        assert!(Digest::parse(&empty.to_uppercase().replace("SHA", "sha")).is_err());
    }

    #[test]
    fn other_bytes_fail_at_the_end() {
        let flag = Arc::new(AtomicBool::new(false));
        let mut verify = Verify::new(&b"abc"[..], Digest::of(b"abd"), flag.clone());
        let error = verify.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("digest mismatch") && !flag.load(Ordering::Relaxed));
        let mut verify = Verify::new(&b"abc"[..], Digest::of(b"abc"), flag.clone());
        verify.read_to_end(&mut Vec::new()).unwrap();
        assert!(flag.load(Ordering::Relaxed));
    }

    #[test]
    fn content_hash_ignores_holes_only() {
        let hash = |parts: &[(u64, &[u8])]| {
            let mut hash = ContentHash::new();
            parts
                .iter()
                .for_each(|(offset, bytes)| hash.update(*offset, bytes));
            hash.finish()
        };
        let zeros = [0; 10_000];
        let whole = [&zeros[..], b"x", &zeros[..]].concat();
        assert_eq!(hash(&[(0, &whole)]), hash(&[(10_000, b"x")]));
        assert_eq!(
            hash(&[(0, &whole)]),
            hash(&[(9_990, &zeros[..10]), (10_000, b"x")])
        );
        assert_ne!(hash(&[(0, &whole)]), hash(&[(10_001, b"x")]));
    }
}
