//! The key that both sides of a share know, and proofs of that knowledge.

use folio::{Errno, Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{FileType, Mode, OFlags};
use sha2::Sha256;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = 32;
/// A shorter key could be guessed.
const KEY_BYTES_MIN: usize = 16;
const KEY_BYTES_MAX: usize = 4096;

/// A secret of 16 to 4096 bytes. It is never printed, sent or logged.
#[derive(Clone)]
pub struct Key(Box<[u8]>);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

impl Key {
    /// Reads a key from a file that only its owner may access. Ignores white space at its end.
    ///
    /// # Errors
    /// EACCES if other users may read or change the file, or own it; EINVAL for another kind of
    /// file, or a key that is too short or too long; else the host's error.
    pub fn read(path: &Path) -> Result<Self> {
        let at_path = |error: Error| error.at(path.display().to_string());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        let fd = fd.map_err(|errno| at_path(Error::io("key file", errno.into())))?;
        // fstat of the open file: the path may name another file by now.
        let status = rustix::fs::fstat(&fd).map_err(|errno| at_path(errno.into()))?;
        let owner = status.st_uid;
        let is_ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(at_path(Error::new(
                Errno::INVAL,
                "the key file is not a regular file",
            )));
        }
        if status.st_mode & 0o077 != 0 || !is_ours {
            let why = "other users may read or change the key file: chmod 600 it, and own it";
            return Err(at_path(Error::new(Errno::ACCESS, why)));
        }
        let mut bytes = Vec::new();
        let read = File::from(fd)
            .take(KEY_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes);
        read.map_err(|error| at_path(Error::io("key file", error)))?;
        Self::new(&bytes).map_err(at_path)
    }

    /// Creates a key from bytes. Ignores white space at their end.
    ///
    /// # Errors
    /// EINVAL for less than 16 or more than 4096 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.trim_ascii_end();
        match bytes.len() {
            KEY_BYTES_MIN..=KEY_BYTES_MAX => Ok(Self(bytes.into())),
            0..KEY_BYTES_MIN => Err(Error::new(
                Errno::INVAL,
                "the key has less than 16 bytes: create one with head -c 32 /dev/urandom | base64",
            )),
            _ => Err(Error::new(Errno::INVAL, "the key has more than 4096 bytes")),
        }
    }

    /// Proves that the side `role` knows the key and has seen the messages `transcript`.
    /// HMAC-SHA-256 (RFC 2104).
    pub(crate) fn prove(&self, role: &[u8], transcript: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Checks a proof, in a time that does not depend on its bytes.
    pub(crate) fn check(&self, role: &[u8], transcript: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(role, transcript).verify_slice(proof).is_ok()
    }

    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn mac(&self, role: &[u8], transcript: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in [&[role], transcript].concat() {
            // With the length: bytes cannot move from one part to the next.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn proof_is_bound_to_key_role_and_messages() {
        let key = Key::new(b"0123456789abcdef\n").unwrap();
        let proof = key.prove(b"client", &[b"ab", b"c"]);
        assert!(
            Key::new(b"0123456789abcdef")
                .unwrap()
                .check(b"client", &[b"ab", b"c"], &proof)
        );
        assert!(
            !key.check(b"server", &[b"ab", b"c"], &proof)
                && !key.check(b"client", &[b"a", b"bc"], &proof)
        );
        assert!(
            !Key::new(b"0123456789abcdeg")
                .unwrap()
                .check(b"client", &[b"ab", b"c"], &proof)
        );
        assert!(!key.check(b"client", &[b"ab", b"c"], &proof[..31]));
        assert!(!format!("{key:?}").contains("0123"));
    }

    #[test]
    fn key_file_must_be_private() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Key::read(&path)
        };
        assert!(with_mode(0o600).is_ok() && with_mode(0o400).is_ok());
        for mode in [0o640, 0o604, 0o620] {
            assert_eq!(with_mode(mode).unwrap_err().errno(), Errno::ACCESS);
        }
        assert!(
            Key::read(folder.path()).is_err() && Key::read(&folder.path().join("none")).is_err()
        );
        assert!(Key::new(b"short").is_err() && Key::new(&[b'k'; 5000]).is_err());
    }
}
