//! Changes of the image: all changes, none, or those of a command that succeeded.

use crate::support::tools::text;
use crate::{Caller, Fixture, for_each_caller};

for_each_caller! {
    changes_reach_the_image;
    owners_remain_in_the_image;
    throw_away_drops_changes;
    commit_on_success_needs_exit_code_zero;
    read_only_refuses_changes;
    partition_is_the_root;
    image_in_use_is_refused;
    run_without_changes_leaves_no_names;
    full_image_fails_the_write;
}

fn changes_reach_the_image(fixture: &Fixture) {
    fixture.sh(
        "dd if=/dev/zero of=/big bs=1M count=9 2>/dev/null; echo new >/f; rm -r /home; ln -s f /l",
    );
    assert_eq!(fixture.content("/f").as_deref(), Some("new\n"));
    assert_eq!(fixture.content("/l").as_deref(), Some("new\n"));
    assert_eq!(fixture.content("/big").map(|big| big.len()), Some(9 << 20));
    assert_eq!(fixture.content("/home"), None);
    fixture.check();
}

fn owners_remain_in_the_image(fixture: &Fixture) {
    let seen =
        fixture.sh("stat -c %u:%g /etc/shadow; echo more >>/etc/shadow; chmod 640 /etc/shadow");
    let is_mapped = fixture.caller != Caller::WithoutIds;
    assert_eq!(seen, if is_mapped { "0:42\n" } else { "0:0\n" });
    let stat = fixture.folio(&["stat", "--json", "disk.img:/etc/shadow"]);
    assert!(text(&stat).contains("\"gid\": 42"), "{}", text(&stat));
    assert_eq!(
        fixture.content("/etc/shadow").as_deref(),
        Some("secret\nmore\n")
    );
    let chowned = fixture.run(&["disk.img", "--", "chown", "7:8", "/etc/group"]);
    assert_eq!(chowned.status.success(), is_mapped, "{}", text(&chowned));
    let stat = text(&fixture.folio(&["stat", "--json", "disk.img:/etc/group"]));
    let is_changed = stat.contains("\"uid\": 7") && stat.contains("\"gid\": 8");
    assert_eq!(is_changed, is_mapped, "{stat}");
    fixture.check();
}

fn throw_away_drops_changes(fixture: &Fixture) {
    let before = std::fs::read(fixture.path("disk.img")).unwrap();
    let seen = fixture.sh_with(&["--throw-away"], "echo new >/f; sync; cat /f");
    assert_eq!(seen, "new\n");
    assert!(std::fs::read(fixture.path("disk.img")).unwrap() == before);
    assert_eq!(names(fixture), ["disk.img", "folio", "tree"]);
}

fn commit_on_success_needs_exit_code_zero(fixture: &Fixture) {
    let before = std::fs::read(fixture.path("disk.img")).unwrap();
    let words = ["--commit-on-success", "disk.img", "--", "sh", "-c"];
    let run = |script| fixture.run(&[&words[..], &[script]].concat()).status.code();
    assert_eq!(run("echo new >/f; exit 4"), Some(4));
    assert!(std::fs::read(fixture.path("disk.img")).unwrap() == before);
    assert_eq!(run("echo new >/f"), Some(0));
    assert_eq!(fixture.content("/f").as_deref(), Some("new\n"));
    assert_eq!(names(fixture), ["disk.img", "folio", "tree"]);
    fixture.check();
}

fn read_only_refuses_changes(fixture: &Fixture) {
    let before = std::fs::read(fixture.path("disk.img")).unwrap();
    let output = fixture.run(&["--read-only", "disk.img", "--", "touch", "/f"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("Read-only file system"),
        "{}",
        text(&output)
    );
    assert!(std::fs::read(fixture.path("disk.img")).unwrap() == before);
}

fn partition_is_the_root(fixture: &Fixture) {
    use std::io::{Seek, SeekFrom, Write};
    let image = std::fs::read(fixture.path("disk.img")).unwrap();
    let disk = fixture.path("whole.img");
    let mut file = std::fs::File::create(&disk).unwrap();
    file.set_len(image.len() as u64 + (1 << 20)).unwrap();
    file.seek(SeekFrom::Start(1 << 20)).unwrap();
    file.write_all(&image).unwrap();
    // A partition table of MBR with one entry, as sfdisk(8) would write it.
    let mut sector = [0; 512];
    sector[450] = 0x83;
    sector[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    sector[458..462].copy_from_slice(&((image.len() / 512) as u32).to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    file.rewind().unwrap();
    file.write_all(&sector).unwrap();
    drop(file);
    fixture.give(&disk);
    let output = fixture.run(&["whole.img@1", "--", "cat", "/etc/shadow"]);
    assert_eq!(text(&output), "secret\n");
}

fn image_in_use_is_refused(fixture: &Fixture) {
    let script = "echo ready; cat >/dev/null";
    let mut command = fixture.command(&["disk.img", "--", "sh", "-c", script]);
    let pipes = (std::process::Stdio::piped(), std::process::Stdio::piped());
    let mut child = command.stdin(pipes.0).stdout(pipes.1).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let second = fixture.run(&["disk.img", "true"]);
    assert_eq!(second.status.code(), Some(125));
    assert!(text(&second).contains("in use"), "{}", text(&second));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    fixture.check();
}

fn run_without_changes_leaves_no_names(fixture: &Fixture) {
    // The image has none of /proc, /dev, /sys and /tmp, nor the folder of --bind.
    // A --bind may hide what folio mounts.
    let options = ["--bind", "tree:/a/b/c", "--bind", "tree:/sys"];
    assert_eq!(
        fixture.sh_with(&options, "ls /a/b/c/etc | wc -l; ls / | wc -l"),
        "3\n10\n"
    );
    let list = text(&fixture.folio(&["ls", "disk.img:/"]));
    assert_eq!(list, "bin\netc\nhome\nlost+found\nroot\n");
}

fn full_image_fails_the_write(fixture: &Fixture) {
    let script = "cat /dev/zero >/big";
    let output = fixture.run(&["--commit-on-success", "disk.img", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("No space left on device"),
        "{}",
        text(&output)
    );
    assert_eq!(fixture.content("/big"), None);
    // The image with the failure is usable.
    assert_eq!(
        fixture
            .run(&["disk.img", "--", "sh", "-c", script])
            .status
            .code(),
        Some(1)
    );
    fixture.sh("rm /big; echo x >/f");
    fixture.check();
}

fn names(fixture: &Fixture) -> Vec<String> {
    let entries = std::fs::read_dir(fixture.folder.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
