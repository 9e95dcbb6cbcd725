//! Credentials for the token of a web identity, from a token service without TLS.

use crate::Bucket;
use crate::support::tools::{succeed, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

const ANSWER: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>\
    <Credentials><AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
    <SessionToken>none</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>\
    </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";

/// Answers one request; returns its first line and its body.
fn answer(stream: TcpStream) -> String {
    let mut lines = BufReader::new(stream);
    let (mut request, mut body_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(length) = line.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().unwrap();
        }
        if request.is_empty() {
            request = line;
        }
    }
    let mut body = vec![0; body_bytes];
    lines.read_exact(&mut body).unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        ANSWER.len()
    );
    let mut stream = lines.into_inner();
    stream.write_all((head + ANSWER).as_bytes()).unwrap();
    format!("{request} {}", String::from_utf8_lossy(&body))
}

#[test]
fn web_identity_of_a_profile_is_used() {
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "64M");
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", service.local_addr().unwrap());
    let token = bucket.path("token");
    std::fs::write(&token, "text-of-the-token").unwrap();
    let config = format!(
        "[profile lab]\nweb_identity_token_file = {}\nrole_arn = arn:aws:iam::1:role/reader\n\
         role_session_name = tests\n",
        token.display()
    );
    std::fs::write(bucket.path("config"), config).unwrap();
    let asked = thread::spawn(move || answer(service.accept().unwrap().0));
    let mut cat = bucket.command("--profile lab cat s3://bucket/disk.qcow2:/etc/hostname");
    cat.env("AWS_CONFIG_FILE", bucket.path("config"))
        .env("AWS_ENDPOINT_URL_STS", url)
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY");
    assert_eq!(text(&succeed(&mut cat)), "host\n");
    let asked = asked.join().unwrap().to_ascii_lowercase();
    for part in ["text-of-the-token", "role%2freader", "tests"] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
}
