//! Both sides of the handshake, and bytes of other protocols.

use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

impl Transport for UnixStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact(bytes)
    }
}

fn key(text: &str) -> Option<Key> {
    Some(Key::new(text.as_bytes()).unwrap())
}

fn grant() -> SessionGrant {
    SessionGrant {
        is_resumed: true,
        sends_events: true,
        kernel_checks_permissions: true,
        session: [7; 16],
        received: 1 << 40,
        message_bytes_max: 1 << 20,
        under_way_bytes_max: 1 << 25,
        grace_s: 60,
        share: "src".to_owned(),
    }
}

/// Runs both sides; returns the client's answer and the request that the server received.
fn shake_hands(
    client_key: Option<Key>,
    server_key: Option<Key>,
) -> (Result<SessionAnswer>, Result<SessionRequest>) {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || {
        let handshake = receive(&mut server, server_key.as_ref())?;
        handshake.welcome(&mut server, server_key.as_ref(), &grant())?;
        Ok(handshake.request)
    });
    let request = SessionRequest {
        session: [3; 16],
        received: 77,
        wants_events: true,
    };
    let answer = greet(&mut client, client_key.as_ref(), request);
    drop(client);
    (answer, served.join().unwrap())
}

#[test]
fn same_key_or_no_key_on_both_sides_is_granted() {
    for keys in [
        (None, None),
        (key("0123456789abcdef"), key("0123456789abcdef")),
    ] {
        let (answer, request) = shake_hands(keys.0, keys.1);
        assert_eq!(
            request.unwrap(),
            SessionRequest {
                session: [3; 16],
                received: 77,
                wants_events: true,
            }
        );
        let SessionAnswer::Granted(granted) = answer.unwrap() else {
            panic!("refused")
        };
        assert_eq!(granted, grant());
    }
}

#[test]
fn different_or_missing_key_is_refused() {
    let (answer, request) = shake_hands(key("0123456789abcdef"), key("0123456789abcdeF"));
    assert!(matches!(answer.unwrap(), SessionAnswer::Refused(why) if why.contains("keys")));
    assert_eq!(request.unwrap_err().errno(), Errno::ACCESS);
    let (answer, request) = shake_hands(None, key("0123456789abcdef"));
    assert!(answer.unwrap_err().to_string().contains("--key-file") && request.is_err());
    let (answer, _) = shake_hands(key("0123456789abcdef"), None);
    assert_eq!(answer.unwrap_err().errno(), Errno::ACCESS);
}

#[test]
fn server_without_the_key_is_detected() {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    // The server demands a proof and accepts any.
    let served = std::thread::spawn(move || {
        let mut hello = [0; HELLO_BYTES];
        server.receive(&mut hello).unwrap();
        server
            .send(&[&preface()[..], &[1], &[5; NONCE_BYTES]].concat())
            .unwrap();
        server.receive(&mut [0; PROOF_BYTES]).unwrap();
        let transcript = [Vec::new(), Vec::new(), Vec::new()];
        let wrong = key("fedcba9876543210");
        Handshake {
            request: SessionRequest::default(),
            transcript,
        }
        .welcome(&mut server, wrong.as_ref(), &grant())
    });
    let answer = greet(
        &mut client,
        key("0123456789abcdef").as_ref(),
        SessionRequest::default(),
    );
    assert!(
        answer
            .unwrap_err()
            .to_string()
            .contains("does not know the key")
    );
    served.join().unwrap().unwrap();
}

#[test]
fn foreign_protocols_are_named_in_the_error() {
    let mut wrong_version = [&preface()[..], &[0; HELLO_BYTES]].concat();
    wrong_version[8] = 9;
    let mut wrong_layout = [&preface()[..], &[0; HELLO_BYTES]].concat();
    wrong_layout[12] ^= 0xff;
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: a browser or any other tool\r\n\r\n"[..], "speak"),
        (&wrong_version, "version"),
        (&wrong_layout, "byte order"),
    ] {
        let error = receive(&mut (bytes, |_: &[u8]| Ok(())), None).err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = greet(
        &mut (
            &b"SSH-2.0-OpenSSH_9.2 and so on, as many bytes as a challenge has"[..],
            |_: &[u8]| Ok(()),
        ),
        None,
        SessionRequest::default(),
    );
    assert!(error.unwrap_err().to_string().contains("not a folio share"));
}

proptest! {
    #[test]
    fn any_bytes_end_the_handshake(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        is_prefaced in any::<bool>(),
        has_key in any::<bool>(),
    ) {
        let key = if has_key { key("0123456789abcdef") } else { None };
        let stream = if is_prefaced { [preface(), bytes].concat() } else { bytes };
        let granted = greet(&mut (&stream[..], |_: &[u8]| Ok(())), key.as_ref(), SessionRequest::default());
        prop_assert!(!has_key || !matches!(granted, Ok(SessionAnswer::Granted(_))));
        let received = receive(&mut (&stream[..], |_: &[u8]| Ok(())), key.as_ref());
        prop_assert!(!has_key || received.is_err());
    }
}

#[test]
fn silent_client_is_timed_out() {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    client.send(&preface()[..5]).unwrap();
    assert!(receive(&mut server, None).is_err());
}
