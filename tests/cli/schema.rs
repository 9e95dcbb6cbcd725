//! What `--json` prints is what docs/schema says: every command that has it is run, and judged by
//! its schema.

use crate::cli::Bench;
use crate::cli::manners::{commands, help};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A command's words, what follows `--json`, and how it ends.
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
    ("du", "--stats disk.img", 0),
    ("df", "disk.img disk.qcow2", 0),
    ("check", "disk.img", 0),
    ("check", "damaged.img", 4),
    ("resize", "disk.img", 0),
    ("resize", "disk.img 80M", 0),
    ("image info", "disk.img", 0),
    ("image info", "disk.qcow2", 0),
    ("image info", "--backing-chain top.qcow2", 0),
    ("image info", "old.qcow2", 0),
    ("image map", "top.qcow2", 0),
    ("image map", "packed.qcow2", 0),
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
    ("doctor", "disk.qcow2", ANY),
    ("doctor", "--write-probe tree/file nothing", ANY),
    ("bench read", "--quick tree", 0),
    ("bench compare", "bench.json bench.json", 0),
];

/// An exit code that hangs on the machine.
const ANY: i32 = -1;

/// Commands that serve until they are stopped.
const SERVERS: &[(&str, &str)] = &[("serve nbd", "--read-only --port 0 disk.qcow2")];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The command whose schema it is: the command itself, or the one above whose output it has.
fn owner(words: &str) -> &str {
    let mut owner = words;
    while !schema_file(owner).is_file()
        && let Some((above, _)) = owner.rsplit_once(' ')
    {
        owner = above;
    }
    owner
}

fn schema_file(words: &str) -> PathBuf {
    docs()
        .join("schema")
        .join(format!("{}.json", words.replace(' ', "-")))
}

/// The schema, which is valid itself. Here it allows no key that it does not tell of.
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
    close(&mut schema);
    jsonschema::draft202012::new(&schema)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Lets objects whose keys are told have no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.contains_key("properties") && keys.get("type").is_some() {
                keys.entry("unevaluatedProperties")
                    .or_insert(Value::Bool(false));
            }
            keys.values_mut().for_each(close);
        }
        Value::Array(values) => values.iter_mut().for_each(close),
        _ => {}
    }
}

#[track_caller]
fn judge(words: &str, what: &str, text: &str) {
    let told: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("folio {what}: {error}:\n{text}"));
    let wrong: Vec<_> = schema(words)
        .iter_errors(&told)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        wrong.is_empty(),
        "folio {what}:\n{}\n{text}",
        wrong.join("\n")
    );
}

/// Images of many kinds.
fn images() -> Bench {
    let bench = Bench::new();
    let tree = bench.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), vec![7; 100_000]).unwrap();
    std::os::unix::fs::symlink("file", tree.join("link")).unwrap();
    std::os::unix::net::UnixListener::bind(tree.join("null")).unwrap();
    bench.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    for line in [
        "convert disk.img disk.qcow2",
        "convert -c disk.img packed.qcow2",
        "create -f qcow2 -b disk.qcow2 top.qcow2",
        "create -f qcow2 -o compat=0.10 old.qcow2 1G",
        "snapshot -c before disk.qcow2",
        "convert disk.img leaky.qcow2",
    ] {
        bench.ok(&["image"]
            .into_iter()
            .chain(line.split(' '))
            .collect::<Vec<_>>());
    }
    std::fs::copy(bench.path("disk.img"), bench.path("damaged.img")).unwrap();
    let measured = bench
        .command(&["bench", "read", "--quick", "--json", "tree"])
        .output()
        .unwrap();
    std::fs::write(bench.path("bench.json"), measured.stdout).unwrap();
    damage(&bench.path("damaged.img"), 0x40C, &[9, 9]);
    leak(&bench.path("leaky.qcow2"));
    bench
}

fn damage(file: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Counts a cluster behind the end of the image as used.
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
fn every_output_is_as_its_schema_says() {
    let bench = images();
    for (words, rest, code) in RUNS {
        let line = format!("{words} --json {rest}");
        let output = bench
            .command(&line.split_whitespace().collect::<Vec<_>>())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            *code == ANY || output.status.code() == Some(*code),
            "folio {line}: {}: {told}",
            output.status
        );
        judge(words, &line, &String::from_utf8_lossy(&output.stdout));
    }
    for (words, rest) in SERVERS {
        let line = format!("{words} --json {rest}");
        let mut command = bench.command(&line.split(' ').collect::<Vec<_>>());
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut told = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut told)
            .unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        judge(words, &line, &told);
    }
}

#[test]
fn every_command_that_prints_json_has_a_schema_and_is_run() {
    let takes_json = |words: &Vec<String>| {
        let help = help(words, 100);
        help.lines()
            .any(|line| line.trim_start().starts_with("--json"))
    };
    let with_json: BTreeSet<String> = commands()
        .into_iter()
        .filter(takes_json)
        .map(|words| words.join(" "))
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
            run.contains_key(owner),
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
        let words = name.trim_end_matches(".json").replace('-', " ");
        assert!(
            with_json.contains(&words),
            "docs/schema/{name}: folio {words} has no --json"
        );
    }
}

#[test]
fn a_schema_sees_what_is_wrong() {
    let errors = |text: &str| {
        schema("du")
            .iter_errors(&serde_json::from_str(text).unwrap())
            .count()
    };
    assert_eq!(errors(r#"[{"path": "/", "allocated": 4096}]"#), 0);
    assert!(errors(r#"[{"path": "/"}]"#) > 0, "a key that is missing");
    assert!(
        errors(r#"[{"path": "/", "allocated": -1}]"#) > 0,
        "a number that cannot be"
    );
    assert!(
        errors(r#"[{"path": "/", "allocated": 1, "colour": "red"}]"#) > 0,
        "a key nobody told of"
    );
}
