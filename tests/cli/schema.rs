//! `--json` matches docs/schema: every command with that option runs, and its schema validates the
//! output.

use crate::cli::TestDir;
use crate::cli::terminal::{commands, help};
use crate::support::requires;
use crate::support::tools::{command, succeed};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The command, the words after `--json`, and the exit code.
const RUNS: &[(&str, &str, i32)] = &[
    ("ls", "-R disk.img", 0),
    ("ls", "--stats disk.img:/tree", 0),
    ("tree", "-a disk.img", 0),
    ("find", "disk.img --type l", 0),
    ("find", "disk.img --name nothing", 0),
    (
        "stat",
        "disk.img:/tree/file disk.img:/tree/link disk.img:/tree/null",
        0,
    ),
    ("du", "-a disk.img", 0),
    ("tar", "-tf tree.tar", 0),
    ("du", "--stats disk.img", 0),
    ("df", "disk.img disk.qcow2", 0),
    ("check", "disk.img", 0),
    ("check", "damaged.img", 4),
    ("info", "disk.img", 0),
    ("info", "disk.qcow2", 0),
    ("debug", "disk.img stat /tree", 0),
    ("debug", "disk.img stat /tree/link", 0),
    ("debug", "disk.img blocks /tree/file", 0),
    ("debug", "disk.img bmap /tree/file 1", 0),
    ("debug", "disk.img icheck 1 20000", 0),
    ("debug", "disk.img ncheck 2 12", 0),
    ("debug", "disk.qcow2 ls -ld /tree", 0),
    ("debug", "disk.img testb 2 3", 0),
    ("debug", "disk.img testi <12>", 0),
    ("debug", "disk.img logdump", 0),
    ("resize", "disk.img", 0),
    ("resize", "disk.img 80M", 0),
    ("resize", "--minimum disk.img", 0),
    ("fork", "disk.qcow2 fork.qcow2", 0),
    ("trim", "disk.img", 0),
    ("trim", "disk.qcow2", 0),
    ("diff", "disk.img disk.qcow2", 0),
    ("diff", "disk.img:/tree packed.qcow2", 1),
    ("disk create", "verified.img verified.toml", 0),
    ("disk list", "verified.img", 0),
    ("disk list", "parts.img", 0),
    ("info", "verified.img", 0),
    ("info", "verified.img@2", 0),
    ("image verity", "--salt 00 zeros zeros.tree", 0),
    ("check", ZEROS, 0),
    ("disk grow", "parts.img", 0),
    ("image info", "disk.img", 0),
    ("image info", "disk.qcow2", 0),
    ("image info", "--backing-chain top.qcow2", 0),
    ("image info", "old.qcow2", 0),
    ("image map", "top.qcow2", 0),
    ("image map", "packed.qcow2", 0),
    ("image measure", "-O qcow2 disk.qcow2", 0),
    ("image measure", "--size 1G", 0),
    ("image check", "disk.qcow2", 0),
    ("image check", "leaky.qcow2", 3),
    ("image snapshot", "disk.qcow2", 0),
    ("image snapshot", "top.qcow2", 0),
    ("warm", "tree", 0),
    ("warm", "--dry-run tree nothing", 1),
    ("cache status", "tree", 0),
    ("cache drop", "--sync tree", 0),
    ("cache save", "saved.hot tree", 0),
    ("cache restore", "saved.hot", 0),
    ("cache top", "-n 3 tree", 0),
    ("cache meminfo", "", 0),
    ("cache fit", "--for 2s --estimate -- tail -f tree/file", 0),
    ("doctor", "disk.qcow2", ANY),
    ("doctor", "--write-probe tree/file nothing", ANY),
    ("doctor", "-- cat tree/file", ANY),
    ("bench read", "--quick tree", 0),
    ("bench compare", "bench.json bench.json", 0),
];

/// The check of a file of 16 KiB of zeros, with the root hash that veritysetup gives it.
const ZEROS: &str = "zeros --hash-file zeros.tree --root-hash 7c5586f11c1ef8dc5b0e9c413432e4e72c2cc227a639b0c3f7c1f29ab231d33d";

/// An exit code that depends on the machine.
const ANY: i32 = -1;

/// Commands that serve until a signal.
const SERVERS: &[(&str, &str)] = &[
    ("serve nbd", "--read-only --port 0 disk.qcow2"),
    (
        "serve vhost-user-blk",
        "--socket disk.sock --control disk.ctl disk.qcow2",
    ),
];

/// Orders to the last of them.
const ORDERS: &[&str] = &[
    "stats",
    "options",
    "flush",
    "snapshot one",
    "fork other.qcow2",
    "resize +1M",
    "compact",
];

/// Orders to a mount, which keeps its size.
const MOUNT_ORDERS: &[&str] = &[
    "stats",
    "options",
    "flush",
    "snapshot one",
    "fork other.qcow2",
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the command that owns the schema: the command itself, or its parent with the same
/// output.
fn owner(words: &str) -> &str {
    let mut owner = words;
    while !schema_file(owner).is_file()
        && let Some((above, _)) = owner.rsplit_once(' ')
    {
        owner = above;
    }
    owner
}

/// Whether a command is one of the feature `object-store`, whose tests validate its output.
fn is_for_objects(words: &str) -> bool {
    let first = words.split(' ').next().unwrap_or_default();
    ["push", "store", "volume"].contains(&first)
}

fn schema_file(words: &str) -> PathBuf {
    docs()
        .join("schema")
        .join(format!("{}.json", words.replace(' ', "-")))
}

/// Loads the schema, and asserts that it is valid. Here it rejects all keys that it does not list.
fn schema(words: &str) -> jsonschema::Validator {
    let words = owner(words);
    let file = schema_file(words);
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut schema: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert_eq!(
        schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
        "{words}"
    );
    assert_eq!(schema["title"], format!("folio {words} --json"));
    if let Err(error) = jsonschema::draft202012::meta::validate(&schema) {
        panic!("{}: {error}", file.display());
    }
    reject_unlisted_keys(&mut schema);
    jsonschema::draft202012::new(&schema)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Rejects unlisted keys in objects that list their keys.
fn reject_unlisted_keys(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.contains_key("properties") && keys.get("type").is_some() {
                keys.entry("unevaluatedProperties")
                    .or_insert(Value::Bool(false));
            }
            keys.values_mut().for_each(reject_unlisted_keys);
        }
        Value::Array(values) => values.iter_mut().for_each(reject_unlisted_keys),
        _ => {}
    }
}

#[track_caller]
fn assert_matches_schema(words: &str, what: &str, text: &str) {
    let printed: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("folio {what}: {error}:\n{text}"));
    let wrong: Vec<_> = schema(words)
        .iter_errors(&printed)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        wrong.is_empty(),
        "folio {what}:\n{}\n{text}",
        wrong.join("\n")
    );
}

/// Creates images of many kinds.
fn images() -> TestDir {
    let dir = TestDir::new();
    let tree = dir.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), vec![7; 100_000]).unwrap();
    std::os::unix::fs::symlink("file", tree.join("link")).unwrap();
    std::os::unix::net::UnixListener::bind(tree.join("null")).unwrap();
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    dir.ok(&["tar", "-q", "-cf", "tree.tar", "disk.img:/tree"]);
    for line in [
        "convert disk.img disk.qcow2",
        "convert -c disk.img packed.qcow2",
        "create -f qcow2 -b disk.qcow2 top.qcow2",
        "create -f qcow2 -o compat=0.10 old.qcow2 1G",
        "snapshot -c before disk.qcow2",
        "convert disk.img leaky.qcow2",
    ] {
        dir.ok(&["image"]
            .into_iter()
            .chain(line.split(' '))
            .collect::<Vec<_>>());
    }
    let spec = "[[partition]]\ntype = 'linux'\nlabel = 'a'\nsize = '4M'\nformat = 'ext4'\n";
    std::fs::write(dir.path("spec.toml"), spec).unwrap();
    dir.ok(&["disk", "create", "parts.img", "spec.toml"]);
    let tree =
        "\n[[partition]]\ntype = 'linux-root-arm64-verity'\nformat = 'verity'\nverity-data = 1\n";
    std::fs::write(dir.path("verified.toml"), format!("{spec}{tree}")).unwrap();
    std::fs::write(dir.path("zeros"), [0; 16 << 10]).unwrap();
    std::fs::copy(dir.path("disk.img"), dir.path("damaged.img")).unwrap();
    let measured = dir
        .command(&["bench", "read", "--quick", "--json", "tree"])
        .output()
        .unwrap();
    std::fs::write(dir.path("bench.json"), measured.stdout).unwrap();
    damage(&dir.path("damaged.img"), 0x40C, &[9, 9]);
    leak(&dir.path("leaky.qcow2"));
    dir
}

fn damage(file: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Marks a cluster beyond the end of the image as used.
fn leak(image: &Path) {
    let bytes = std::fs::read(image).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let table = usize::try_from(number(48)).unwrap();
    let block = number(table);
    let clusters = bytes.len().div_ceil(65536) as u64;
    damage(image, block + clusters * 2, &[0, 1]);
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.set_len((clusters + 1) * 65536).unwrap();
}

#[test]
fn json_output_matches_its_schema() {
    let dir = images();
    for (words, rest, code) in RUNS {
        let line = format!("{words} --json {rest}");
        let output = dir
            .command(&line.split_whitespace().collect::<Vec<_>>())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            *code == ANY || output.status.code() == Some(*code),
            "folio {line}: {}: {printed}",
            output.status
        );
        assert_matches_schema(words, &line, &String::from_utf8_lossy(&output.stdout));
    }
    for (words, rest) in SERVERS {
        let line = format!("{words} --json {rest}");
        let mut command = dir.command(&line.split(' ').collect::<Vec<_>>());
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut printed)
            .unwrap();
        assert_matches_schema(words, &line, &printed);
        if *words == "serve vhost-user-blk" {
            give_orders(&dir, ORDERS);
        }
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn orders_to_a_mount_match_the_schema() {
    requires!(root, fuse);
    let dir = images();
    let target = dir.path("mounted");
    std::fs::create_dir(&target).unwrap();
    let words = "mount --background --control disk.ctl disk.qcow2 mounted";
    succeed(&mut dir.command(&words.split(' ').collect::<Vec<_>>()));
    let _target = DetachedAtEnd(target);
    give_orders(&dir, MOUNT_ORDERS);
}

#[test]
fn power_cuts_match_the_schema() {
    requires!(fuse);
    let dir = TestDir::new();
    let mut folio = dir.command(&["powercut", "--json", "--size", "16M", "--cuts", "20"]);
    let program = "echo x > $MNT/x; sleep 0.1; sync $MNT/x";
    folio.args(["--run", program, "--check", "[ -s $MNT/x ]"]);
    let output = folio.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_matches_schema("powercut", "powercut", &printed);
    assert!(
        printed.contains("\"saved\":") && printed.contains("open("),
        "{printed}"
    );
}

/// A mount that is detached at the end, also when the test fails.
struct DetachedAtEnd(PathBuf);

impl Drop for DetachedAtEnd {
    fn drop(&mut self) {
        let _ = command("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn give_orders(dir: &TestDir, orders: &[&str]) {
    for order in orders {
        let line = format!("ctl disk.ctl --json {order}");
        let output = dir
            .command(&line.split(' ').collect::<Vec<_>>())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "folio {line}: {printed}");
        assert_matches_schema("ctl", &line, &String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn failure_before_a_result_is_json() {
    let dir = images();
    for (words, rest, code) in [
        ("bench compare", "absent.json absent.json", 1),
        ("cache restore", "absent.hot", 1),
        ("check", "absent.img", 8),
        ("debug", "disk.img stat /none", 1),
        ("disk list", "disk.img", 1),
        ("image info", "absent.qcow2", 3),
        ("info", "absent.img", 3),
        ("ls", "--stats absent.img", 3),
        ("resize", "disk.img 1K", 3),
    ] {
        let line = format!("{words} --json {rest}");
        let mut command = dir.command(&line.split(' ').collect::<Vec<_>>());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_matches_schema("error", &line, &text);
        let printed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(printed["exit_code"], code, "folio {line}: {printed}");
        assert_eq!(output.status.code(), Some(code), "folio {line}");
        let error = String::from_utf8_lossy(&output.stderr);
        let message = printed["error"].as_str().unwrap();
        assert!(error.contains(message), "folio {line}: {printed}: {error}");
        // Without --json, standard output is empty.
        let mut command = dir.command(&words.split(' ').chain(rest.split(' ')).collect::<Vec<_>>());
        assert_eq!(
            command.output().unwrap().stdout,
            b"",
            "folio {words} {rest}"
        );
    }
}

#[test]
fn every_json_command_has_schema_and_test() {
    let takes_json = |words: &Vec<String>| {
        let help = help(words, 100);
        help.lines()
            .any(|line| line.trim_start().starts_with("--json"))
    };
    let with_json: BTreeSet<String> = commands()
        .into_iter()
        .filter(takes_json)
        .map(|words| words.join(" "))
        // The program folio-bench has it in its own help.
        .chain(["bench compare".to_owned()])
        .collect();
    assert!(
        with_json.contains("image info") && with_json.len() > 10,
        "{with_json:?}"
    );
    let mut run: BTreeMap<&str, usize> = BTreeMap::new();
    for words in RUNS
        .iter()
        .map(|run| run.0)
        .chain(SERVERS.iter().map(|run| run.0))
        .chain(["ctl", "powercut"])
    {
        *run.entry(owner(words)).or_default() += 1;
    }
    let overview = std::fs::read_to_string(docs().join("json.md")).unwrap();
    for words in &with_json {
        let owner = owner(words);
        assert!(
            schema_file(owner).is_file(),
            "docs/schema has no file for folio {words} --json"
        );
        assert!(
            run.contains_key(owner) || is_for_objects(owner),
            "folio {words} --json is not run by this test"
        );
        let link = format!("schema/{}.json", owner.replace(' ', "-"));
        assert!(
            overview.contains(&link),
            "docs/json.md does not link to {link}"
        );
    }
    for file in std::fs::read_dir(docs().join("schema")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let stem = name.trim_end_matches(".json");
        let is_own = |words: &String| words.replace(' ', "-") == stem;
        let words = stem.replace('-', " ");
        assert!(
            with_json.iter().any(is_own) || is_for_objects(&words) || stem == "error",
            "docs/schema/{name}: folio {words} has no --json"
        );
    }
}

#[test]
fn schema_rejects_invalid_output() {
    let errors = |text: &str| {
        schema("du")
            .iter_errors(&serde_json::from_str(text).unwrap())
            .count()
    };
    assert_eq!(errors(r#"[{"path": "/", "allocated": 4096}]"#), 0);
    assert!(errors(r#"[{"path": "/"}]"#) > 0, "a missing key");
    assert!(
        errors(r#"[{"path": "/", "allocated": -1}]"#) > 0,
        "an invalid number"
    );
    assert!(
        errors(r#"[{"path": "/", "allocated": 1, "color": "red"}]"#) > 0,
        "a key nobody printed of"
    );
}
