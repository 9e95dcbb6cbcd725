//! Remote shares in a real guest: over its network from the host, and over vsock.
//!
//! The test machine has no /dev/vhost-vsock, so the guest uses `vsock_loopback`: the same sockets
//! over another transport.

use crate::guest_watcher::{GuestWatcher, RunningGuest, stripped, task, with_test_program};
use crate::remote::{ImageFolder, RunningCommand, ShareServer};
use crate::support::guest::{Guest, HOST_ADDRESS, START_NETWORK};
use crate::support::rounds::is_long;
use crate::support::tools::{command, succeed};
use crate::support::watched_tree::{WatchedTree, seeds_and_count};
use crate::support::{report_skip, requires, two_sides};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Creates a guest with the `folio` command; an error says why there is none.
fn with_folio(extend: impl FnOnce(Guest) -> Result<Guest, String>) -> Result<Guest, String> {
    let folio = Path::new(env!("CARGO_BIN_EXE_folio"));
    extend(Guest::new()?.size(768, 1).program(folio)?)
}

/// Unmounts, and checks that the command ends.
const UNMOUNT: &str = r#"
cd /; exec 3<&-; umount /mnt || fail umount
for try in $(seq 100000); do pidof folio > /dev/null || break; done
if pidof folio > /dev/null; then fail 'folio mount goes on'; fi
"#;

#[test]
fn guest_mounts_a_share_of_its_host() {
    requires!(tool("setfattr"), tool("getfattr"), tool("mke2fs"), root);
    let (parent, files) = (TempDir::new().unwrap(), ImageFolder::new());
    let folder = two_sides::directory(&parent);
    let key = files.key("key", "a key of more than sixteen bytes");
    // With an infinite time to live, only pushed changes are visible.
    let shared = ShareServer::new(&folder, "tcp:0", &["--key-file", &key, "-o", "ttl=inf"]);
    let guest = match with_folio(Guest::network) {
        Ok(guest) => {
            two_sides::with_attributes(guest).file("/key", 0o600, &std::fs::read(key).unwrap())
        }
        Err(reason) => return report_skip(&reason),
    };
    let port = shared.address.rsplit(':').next().unwrap();
    let script = format!(
        "{START_NETWORK}
        folio mount tcp:{HOST_ADDRESS}:{port} /mnt 2> /dev/null && fail 'a mount without the key'
        folio mount --background --key-file /key tcp:{HOST_ADDRESS}:{port} /mnt || fail mount
        cd /mnt
        {}{UNMOUNT}",
        two_sides::SCRIPT
    );
    two_sides::run(guest, &script, &folder);
    shared.stop();
}

/// Returns the lines of `docs/share.md` that a prompt precedes, from the section on NAT.
fn nat_recipe(prompt: &str) -> Vec<String> {
    let document = include_str!("../../docs/share.md");
    let section = document.split("\n## VirtualBox").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines();
    lines
        .filter_map(|line| line.strip_prefix(prompt).map(str::to_owned))
        .collect()
}

#[test]
fn nat_recipe_runs_in_a_guest() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("file"), "of the host\n").unwrap();
    let (of_host, of_guest) = (nat_recipe("host$ "), nat_recipe("guest$ "));
    let ([key, share], [mount]) = (&of_host[..], &of_guest[..]) else {
        panic!("a key, a share and a mount: {of_host:?} {of_guest:?}");
    };
    let keys = TempDir::new().unwrap();
    let mut shell = command("sh");
    succeed(shell.args(["-c", key]).current_dir(keys.path()));
    let key = keys.path().join("key");
    let guest = match with_folio(Guest::network) {
        Ok(guest) => guest.file("/key", 0o600, &std::fs::read(&key).unwrap()),
        Err(reason) => return report_skip(&reason),
    };
    // Another test may have the port.
    let words = share.replace("/srv/data", path).replace("5000", "0");
    let words = words.replace("--key-file key", &format!("--key-file {}", key.display()));
    let words: Vec<_> = words.split(' ').skip(1).collect();
    let shared = ShareServer::from_running(RunningCommand::start(&words));
    let port = shared.address.rsplit(':').next().unwrap();
    // The only user of this guest is root, without sudo.
    let mount = mount.strip_prefix("sudo ").unwrap().replace("5000", port);
    assert!(mount.contains(HOST_ADDRESS), "{mount}");
    let script = format!(
        "{START_NETWORK}
        {mount} || fail mount
        same 'a file of the host' \"$(cat /mnt/file)\" 'of the host'
        echo 'of the guest' > /mnt/new || fail write
        {UNMOUNT}"
    );
    two_sides::run(guest, &script, folder.path());
    let new = std::fs::read_to_string(folder.path().join("new")).unwrap();
    assert_eq!(new, "of the guest\n");
    shared.stop();
}

/// Watchers of a guest over TCP and of the host's own folder get the same events of random changes.
#[test]
fn random_changes_are_same_events_over_tcp() {
    requires!(root, tool("mke2fs"));
    let (seeds, count) = seeds_and_count();
    // tests/virtiofs/events.rs makes more; this one adds the network.
    let count = if is_long() { count } else { count / 5 };
    for seed in seeds {
        let (parent, files) = (TempDir::new().unwrap(), ImageFolder::new());
        let key = files.key("key", "a key of more than sixteen bytes");
        let folder = parent.path().join("shared");
        std::fs::create_dir(&folder).unwrap();
        let shared = ShareServer::new(&folder, "tcp:0", &["--key-file", &key]);
        let port = shared.address.rsplit(':').next().unwrap();
        let script = format!(
            "{START_NETWORK}
            folio mount --background -o events=on --key-file /key tcp:{HOST_ADDRESS}:{port} /mnt \\
                || fail mount
            {}{UNMOUNT}",
            task("watch", "/mnt")
        );
        let guest = || {
            let folio = Path::new(env!("CARGO_BIN_EXE_folio"));
            let guest = Guest::new()?.size(1024, 1).network()?;
            let guest = guest.program(&stripped(folio, parent.path()))?;
            let guest = guest.file("/key", 0o600, &std::fs::read(&key).unwrap());
            with_test_program(guest, parent.path())
        };
        let guest = match guest() {
            Ok(guest) => RunningGuest::start(guest, &script),
            Err(reason) => return report_skip(&reason),
        };
        let watcher = GuestWatcher::new(guest, &folder);
        let mount = PathBuf::from("/mnt");
        let mut tree = WatchedTree::with_watcher((), folder, mount, seed, watcher);
        tree.compare_random_changes(count);
        tree.on_mount.guest.finish();
        shared.stop();
    }
}

/// Server and client in one guest.
const VSOCK: &str = r#"
mkdir /tmp/shared; echo one > /tmp/shared/file
folio share /tmp/shared --listen vsock:5000 --allow-cid 7 2> /dev/null & refusing=$!
folio share /tmp/shared --listen vsock:5001 --allow-cid 1 2> /tmp/said & serving=$!
for try in $(seq 100000); do grep -q 'until Ctrl-C' /tmp/said && break; done
folio mount --background vsock:1:5001 /mnt || fail mount
same 'contents' "$(cat /mnt/file)" one
echo two > /tmp/shared/file
for try in $(seq 100000); do [ "$(cat /mnt/file)" = two ] && break; done
same 'what the host has changed' "$(cat /mnt/file)" two
dd if=/dev/urandom of=/mnt/bytes bs=65536 count=32 2> /dev/null; mkdir /mnt/dir; mv /mnt/bytes /mnt/dir/bytes
same 'what was written' "$(sha256sum < /mnt/dir/bytes)" "$(sha256sum < /tmp/shared/dir/bytes)"
umount /mnt || fail umount
folio mount vsock:1:5000 /mnt 2> /dev/null && fail 'a guest that may not connect'
kill $refusing $serving; wait $serving || fail "folio share: $?"
"#;

#[test]
fn share_works_over_vsock() {
    let guest = with_folio(|guest| guest.module("vsock_loopback"));
    match guest {
        Ok(guest) => drop(two_sides::run(guest, VSOCK, Path::new(""))),
        Err(reason) => report_skip(&reason),
    }
}
