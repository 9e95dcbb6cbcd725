//! The URI of an export (NBD project, doc/uri.md).

use folio_net::Address;
use std::os::unix::ffi::OsStrExt;

/// Returns the URI of `export` on a server that listens at `address`.
pub(crate) fn uri(address: &Address, export: &str) -> String {
    let export = escape(export.as_bytes());
    match address {
        Address::Unix(path) => {
            let path = escape(path.as_os_str().as_bytes());
            format!("nbd+unix:///{export}?socket={path}")
        }
        Address::Tcp { .. } | Address::Vsock { .. } => {
            let address = address.to_string();
            let (kind, place) = address.split_once(':').unwrap_or(("tcp", &address));
            let scheme = if kind == "vsock" { "nbd+vsock" } else { "nbd" };
            format!("{scheme}://{place}/{export}")
        }
    }
}

/// Percent-encodes all bytes that may have a meaning in a URI.
fn escape(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio_net::Listener;

    #[test]
    fn export_has_a_uri_per_kind_of_socket() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("a b.sock");
        let listener = Listener::unix(&path).unwrap();
        let address = listener.address();
        assert!(uri(address, "x/y").starts_with("nbd+unix:///x/y?socket=/"));
        assert!(uri(address, "").ends_with("/a%20b.sock"));
        assert_eq!(
            Listener::unix(&path).err().unwrap().errno(),
            folio::Errno::ADDRINUSE
        );
        let tcp = |text: &str| uri(&text.parse().unwrap(), "a");
        assert_eq!(tcp("tcp:127.0.0.1:10809"), "nbd://127.0.0.1:10809/a");
        assert_eq!(tcp("tcp:[::1]:10809"), "nbd://[::1]:10809/a");
    }
}
