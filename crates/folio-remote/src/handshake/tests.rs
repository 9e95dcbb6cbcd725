//! Both sides of the handshake, and what strangers send.

use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

impl Talk for UnixStream {
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

fn grant() -> Grant {
    Grant {
        is_resumed: true,
        kernel_judges: true,
        session: [7; 16],
        received: 1 << 40,
        message_bytes_max: 1 << 20,
        under_way_bytes_max: 1 << 25,
        grace_s: 60,
        share: "src".to_owned(),
    }
}

/// What client and server make of each other.
fn talk(client_key: Option<Key>, server_key: Option<Key>) -> (Result<Answer>, Result<Wish>) {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || {
        let greeted = receive(&mut server, server_key.as_ref())?;
        greeted.welcome(&mut server, server_key.as_ref(), &grant())?;
        Ok(greeted.wish)
    });
    let wish = Wish {
        session: [3; 16],
        received: 77,
    };
    let answer = greet(&mut client, client_key.as_ref(), wish);
    drop(client);
    (answer, served.join().unwrap())
}

#[test]
fn both_agree_with_the_same_key_or_none() {
    for keys in [
        (None, None),
        (key("0123456789abcdef"), key("0123456789abcdef")),
    ] {
        let (answer, wish) = talk(keys.0, keys.1);
        assert_eq!(
            wish.unwrap(),
            Wish {
                session: [3; 16],
                received: 77
            }
        );
        let Answer::Granted(granted) = answer.unwrap() else {
            panic!("refused")
        };
        assert_eq!(granted, grant());
    }
}

#[test]
fn other_keys_and_missing_ones_are_told() {
    let (answer, wish) = talk(key("0123456789abcdef"), key("0123456789abcdeF"));
    assert!(matches!(answer.unwrap(), Answer::Refused(why) if why.contains("keys")));
    assert_eq!(wish.unwrap_err().errno(), Errno::ACCESS);
    let (answer, wish) = talk(None, key("0123456789abcdef"));
    assert!(answer.unwrap_err().to_string().contains("--key-file") && wish.is_err());
    let (answer, _) = talk(key("0123456789abcdef"), None);
    assert_eq!(answer.unwrap_err().errno(), Errno::ACCESS);
}

#[test]
fn a_server_that_does_not_know_the_key_is_found_out() {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    // It asks for a proof and takes any.
    let served = std::thread::spawn(move || {
        let mut hello = [0; HELLO_BYTES];
        server.receive(&mut hello).unwrap();
        server
            .send(&[&preface()[..], &[1], &[5; NONCE_BYTES]].concat())
            .unwrap();
        server.receive(&mut [0; PROOF_BYTES]).unwrap();
        let said = [Vec::new(), Vec::new(), Vec::new()];
        let wrong = key("fedcba9876543210");
        Greeted {
            wish: Wish::default(),
            said,
        }
        .welcome(&mut server, wrong.as_ref(), &grant())
    });
    let answer = greet(
        &mut client,
        key("0123456789abcdef").as_ref(),
        Wish::default(),
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
fn strangers_are_told_apart() {
    let mut wrong_version = [&preface()[..], &[0; HELLO_BYTES]].concat();
    wrong_version[8] = 9;
    let mut wrong_layout = [&preface()[..], &[0; HELLO_BYTES]].concat();
    wrong_layout[12] ^= 0xff;
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: somebody else entirely\r\n\r\n"[..], "speak"),
        (&wrong_version, "version"),
        (&wrong_layout, "order of bytes"),
    ] {
        let told = receive(&mut (bytes, |_: &[u8]| Ok(())), None).err().unwrap().to_string();
        assert!(told.contains(why), "{told}");
    }
    let told = greet(
        &mut (
            &b"SSH-2.0-OpenSSH_9.2 and so on, as many bytes as a challenge has"[..],
            |_: &[u8]| Ok(()),
        ),
        None,
        Wish::default(),
    );
    assert!(told.unwrap_err().to_string().contains("no folio share"));
}

proptest! {
    #[test]
    fn any_bytes_end_the_talk(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        is_prefaced in any::<bool>(),
        has_key in any::<bool>(),
    ) {
        let key = if has_key { key("0123456789abcdef") } else { None };
        let stream = if is_prefaced { [preface(), bytes].concat() } else { bytes };
        let granted = greet(&mut (&stream[..], |_: &[u8]| Ok(())), key.as_ref(), Wish::default());
        prop_assert!(!has_key || !matches!(granted, Ok(Answer::Granted(_))));
        let received = receive(&mut (&stream[..], |_: &[u8]| Ok(())), key.as_ref());
        prop_assert!(!has_key || received.is_err());
    }
}

#[test]
fn silence_does_not_last() {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    client.send(&preface()[..5]).unwrap();
    assert!(receive(&mut server, None).is_err());
}
