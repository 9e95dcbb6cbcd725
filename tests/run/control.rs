//! Orders to a run by folio ctl.

use crate::support::tools::{fsck, order, qemu_check, to_qcow2, to_raw};
use crate::{Fixture, for_each_caller};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

for_each_caller! {
    image_of_a_run_is_forked;
}

fn image_of_a_run_is_forked(fixture: &Fixture) {
    let [image, socket, fork, raw] =
        ["disk.qcow2", "control", "fork.qcow2", "fork.raw"].map(|name| fixture.path(name));
    to_qcow2(&fixture.path("disk.img"), &image);
    fixture.give(&image);
    let script = "echo one >/f; echo ready; read line; cat /f; echo two >/f";
    let words = ["--control", "control", "disk.qcow2", "--", "sh", "-c"];
    let mut program = fixture.command(&[&words[..], &[script]].concat());
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "ready");
    let folio = fixture.folio.to_str().unwrap();
    let forked = order(folio, &socket, &["fork", fork.to_str().unwrap()]);
    let stats = order(folio, &socket, &["stats"]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "one");
    assert!(child.wait().unwrap().success());
    assert_eq!(forked.unwrap()["generations"], 1);
    assert!(stats.unwrap()["requests"]["write"].as_u64() > Some(0));
    assert!(!socket.exists());
    for (image, content) in [(&fork, "one\n"), (&image, "two\n")] {
        qemu_check(image);
        to_raw(image, &raw);
        fsck(&raw);
        let cat = fixture.folio(&["cat", &format!("{}:/f", image.display())]);
        assert_eq!(cat.stdout, content.as_bytes());
    }
}
