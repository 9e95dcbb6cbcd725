//! Container images in and out of disk images; umoci and skopeo are the judges.

use super::TestDir;
use crate::support::mounted::Mounted;
use crate::support::requires;
use crate::support::tools::{command, fsck, succeed};
use folio_tree::oci::Digest;
use folio_tree::{Compression, Encoder, Entry, EntryKind, tar};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A file of a layer: name, kind, and content of a regular file.
pub(super) type Member<'a> = (&'a str, EntryKind, &'a str);

pub(super) fn file<'a>(path: &'a str, content: &'a str) -> Member<'a> {
    let size_bytes = content.len() as u64;
    (path, EntryKind::File { size_bytes }, content)
}

fn directory(path: &str) -> Member<'_> {
    (path, EntryKind::Directory, "")
}

fn link<'a>(path: &'a str, target: &str) -> Member<'a> {
    (path, EntryKind::Symlink(target.into()), "")
}

pub(super) fn layer(members: &[Member<'_>]) -> Vec<u8> {
    let mut writer = tar::Writer::new(Vec::new());
    for (path, kind, content) in members {
        let entry = Entry {
            path: path.as_bytes().to_vec(),
            kind: kind.clone(),
            mode: 0o755,
            uid: 0,
            gid: 0,
            modified: folio::Timespec::new(1_000_000_000, 0),
            accessed: None,
            xattrs: Vec::new(),
            unreadable: Vec::new(),
        };
        writer.append(&entry, None).unwrap();
        writer.write_data(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap()
}

/// Layers that hide, replace and link files of those below, in orders that tools may choose.
fn odd_layers() -> Vec<Vec<u8>> {
    let hard = |path, target: &str| (path, EntryKind::HardLink(target.into()), "");
    vec![
        layer(&[
            directory("etc/"),
            file(
                "etc/passwd",
                "root:x:0:0::/:/bin/sh\njoe:x:1000:100::/:/bin/sh\n",
            ),
            file("etc/group", "root:x:0:\nusers:x:100:\n"),
            directory("usr/lib/"),
            link("lib", "usr/lib"),
            file("lib/a.so", "a"),
            file("opaque/low", "low"),
            file("opaque/sub/low", "low"),
            file("gone", "x"),
            file("tree/deep/er/file", "x"),
            file("was-file", "f"),
            file("was-directory/in", "d"),
            file("base", "linked"),
        ]),
        layer(&[
            file("opaque/own", "own"),
            file("opaque/sub/own", "own"),
            file("opaque/.wh..wh..opq", ""),
            file(".wh.gone", ""),
            file(".wh.tree", ""),
            file(".wh.never-there", ""),
            file("nowhere/.wh.x", ""),
            file("lib/b.so", "b"),
            file("was-directory", "now a file"),
            directory("was-file/"),
            file("was-file/in", "x"),
            hard("second", "base"),
        ]),
        layer(&[
            file("tree/new", "again"),
            file("usr/lib/.wh.a.so", ""),
            file("own", "o"),
            file(".wh.own", ""),
        ]),
    ]
}

/// Stores a blob in a layout; returns its descriptor.
fn put_blob(folder: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let blobs = folder.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let digest = Digest::of(bytes);
    std::fs::write(blobs.join(digest.hex()), bytes).unwrap();
    json!({ "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len() })
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Stores an image in a layout; returns the descriptor of its manifest. The configuration has the
/// keys of `platform`.
pub(super) fn put_image(
    folder: &Path,
    layers: &[Vec<u8>],
    formats: &[Compression],
    platform: &Value,
) -> Value {
    let layer = |(at, bytes): (usize, &Vec<u8>)| {
        let format = formats[at % formats.len()];
        let mut encoder = Encoder::new(Vec::new(), format).unwrap();
        encoder.write_all(bytes).unwrap();
        let suffix = match format {
            Compression::None => "",
            Compression::Gzip => "+gzip",
            _ => "+zstd",
        };
        let media_type = format!("application/vnd.oci.image.layer.v1.tar{suffix}");
        put_blob(folder, &media_type, &encoder.finish().unwrap())
    };
    let descriptors: Vec<_> = layers.iter().enumerate().map(layer).collect();
    let diff_ids: Vec<_> = layers
        .iter()
        .map(|bytes| Digest::of(bytes).to_string())
        .collect();
    let mut config = platform.clone();
    config["config"] = json!({ "Entrypoint": ["/app"] });
    config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = put_blob(
        folder,
        "application/vnd.oci.image.config.v1+json",
        config.to_string().as_bytes(),
    );
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": descriptors });
    put_blob(folder, MANIFEST, manifest.to_string().as_bytes())
}

/// Writes the list of images of a layout.
pub(super) fn put_index(folder: &Path, manifests: &[Value]) {
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    std::fs::write(folder.join("index.json"), index.to_string()).unwrap();
    std::fs::write(
        folder.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )
    .unwrap();
}

/// Writes an OCI layout with the tag `app`.
pub(super) fn layout(folder: &Path, layers: &[Vec<u8>], formats: &[Compression]) {
    let platform = json!({ "architecture": "amd64", "os": "linux" });
    let mut manifest = put_image(folder, layers, formats, &platform);
    manifest["platform"] = platform;
    let list = json!({ "schemaVersion": 2, "manifests": [
        { "mediaType": MANIFEST, "digest": Digest::of(b"").to_string(), "size": 0,
          "platform": { "architecture": "s390x", "os": "linux" } },
        manifest,
    ] });
    let mut list = put_blob(
        folder,
        "application/vnd.oci.image.index.v1+json",
        list.to_string().as_bytes(),
    );
    list["annotations"] = json!({ "org.opencontainers.image.ref.name": "app" });
    put_index(folder, &[list]);
}

const FORMATS: [Compression; 3] = [Compression::Gzip, Compression::Zstd, Compression::None];
pub(super) const PLATFORM: [&str; 2] = ["--platform", "linux/amd64"];

fn names(dir: &TestDir, image: &str) -> String {
    let found = dir.ok(&["find", image]);
    let image = image.split(':').next().unwrap();
    found
        .replace(&format!("{image}:/lost+found\n"), "")
        .replace(&format!("{image}:"), "")
}

#[test]
fn odd_layers_become_one_tree() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    layout(&dir.path("lay"), &odd_layers(), &FORMATS);
    let options = ["--create", "32M", "--config-out", "config.json"];
    dir.ok(&[
        &["cp", "-a", "oci:lay:app", "a.img:/"],
        &PLATFORM[..],
        &options,
    ]
    .concat());
    fsck(&dir.path("a.img"));
    assert_eq!(
        names(&dir, "a.img"),
        "/\n/base\n/etc\n/etc/group\n/etc/passwd\n/lib\n/opaque\n/opaque/own\n/opaque/sub\n\
         /opaque/sub/own\n/own\n/second\n/tree\n/tree/new\n/usr\n/usr/lib\n/usr/lib/b.so\n\
         /was-directory\n/was-file\n/was-file/in\n"
    );
    assert_eq!(dir.ok(&["cat", "a.img:/second"]), "linked");
    let config: Value =
        serde_json::from_slice(&std::fs::read(dir.path("config.json")).unwrap()).unwrap();
    assert_eq!(config["config"]["Entrypoint"][0], "/app");
    // Into a directory of an image that has files, as from any other source.
    dir.ok(&["mkdir", "disk.img:/root"]);
    dir.ok(&[&["cp", "-a", "oci:lay", "disk.img:/root"], &PLATFORM[..]].concat());
    assert!(names(&dir, "disk.img:/root/was-file").contains("/root/was-file/in\n"));
}

#[test]
fn skopeo_archives_have_the_same_tree() {
    requires!(tool("skopeo"), tool("gzip"));
    let dir = TestDir::new();
    layout(&dir.path("lay"), &odd_layers(), &FORMATS[..1]);
    let copy = |from: &str, to: &str| {
        let mut skopeo = command("skopeo");
        skopeo.args(["copy", "--override-arch", "amd64", from, to]);
        succeed(skopeo.current_dir(dir.path("")));
    };
    copy("oci:lay:app", "oci-archive:oci.tar:app");
    copy("oci:lay:app", "docker-archive:docker.tar:app:1");
    succeed(
        command("gzip")
            .args(["-k", "docker.tar"])
            .current_dir(dir.path("")),
    );
    let pack = |source: &str, input: Option<&str>| {
        let words = [
            &["cp", "-a", source, "x.img:/", "--create", "32M"],
            &PLATFORM[..],
        ]
        .concat();
        let mut unpack = dir.command(&words);
        unpack.env("SOURCE_DATE_EPOCH", "1500000000");
        if let Some(input) = input {
            unpack.stdin(std::fs::File::open(dir.path(input)).unwrap());
        }
        succeed(&mut unpack);
        let bytes = dir
            .command(&["tar", "-c", "x.img"])
            .output()
            .unwrap()
            .stdout;
        std::fs::remove_file(dir.path("x.img")).unwrap();
        bytes
    };
    let want = pack("oci:lay:app", None);
    for (source, input) in [
        ("oci-archive:oci.tar", None),
        ("docker-archive:docker.tar:app:1", None),
        ("docker-archive:docker.tar.gz", None),
        ("docker-archive:-", Some("docker.tar")),
    ] {
        assert!(pack(source, input) == want, "{source}");
    }
    dir.fails(
        &[
            "cp",
            "-a",
            "docker-archive:docker.tar:app:2",
            "y.img:/",
            "--create",
            "8M",
        ],
        1,
        "app:1",
    );
    let arm = ["--platform", "linux/arm64"];
    let words = [
        &["cp", "-a", "oci:lay:app", "y.img:/", "--create", "8M"],
        &arm[..],
    ]
    .concat();
    dir.fails(
        &words,
        1,
        "no image for linux/arm64; there are: linux/s390x, linux/amd64",
    );
    assert!(!dir.path("y.img").exists());
}

#[test]
fn stored_images_are_equal_for_umoci() {
    requires!(
        root,
        loop_devices,
        tool("umoci"),
        tool("tar"),
        tool("setfattr")
    );
    let dir = TestDir::new();
    super::plain_tree(&dir.path("tree"));
    let script = "setfattr -n user.x -v y folder/file; chown 5:6 big; mknod null c 1 3";
    succeed(
        command("sh")
            .args(["-ec", script])
            .current_dir(dir.path("tree")),
    );
    dir.ok(&["cp", "-aT", "tree", "disk.img:/"]);
    for out in ["one", "same"] {
        let store = ["cp", "-a", "disk.img:/", &format!("oci:{out}:base")];
        succeed(dir.command(&store).env("SOURCE_DATE_EPOCH", "2000000000"));
    }
    succeed(
        command("diff")
            .arg("-r")
            .arg(dir.path("one"))
            .arg(dir.path("same")),
    );
    // The difference to it, as a second layer.
    dir.write("disk.img:/folder/new", "new");
    dir.ok(&["rm", "disk.img:/link"]);
    dir.ok(&["rm", "-r", "disk.img:/folder/empty"]);
    dir.ok(&["chmod", "600", "disk.img:/sparse"]);
    dir.ok(&[
        "cp",
        "-a",
        "disk.img:/",
        "oci:one:next",
        "--base",
        "oci:one:base",
    ]);
    let index = std::fs::read(dir.path("one/index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let blob = |digest: &Value| {
        let name = digest
            .as_str()
            .unwrap()
            .replace("sha256:", "one/blobs/sha256/");
        dir.path(&name)
    };
    let manifest = std::fs::read(blob(&index["manifests"][1]["digest"])).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let top = blob(&manifest["layers"][1]["digest"]);
    let listed = dir.ok(&["tar", "-tf", top.to_str().unwrap()]);
    assert_eq!(
        listed,
        "./\nfolder/\nfolder/new\nsparse\nfolder/.wh.empty\n.wh.link\n"
    );
    unpack_and_compare(&dir, "one:next", "disk.img");
}

/// Asserts that umoci unpacks an image to the tree of a disk image.
pub(super) fn unpack_and_compare(dir: &TestDir, image: &str, disk: &str) {
    let mut umoci = command("umoci");
    umoci.args(["unpack", "--image", image, "bundle"]);
    succeed(umoci.current_dir(dir.path("")));
    let mounted = Mounted::new(&dir.path(disk), "ro");
    let mut pack = command("tar");
    pack.args([
        "--xattrs",
        "--xattrs-include=*",
        "--exclude=./lost+found",
        "-cf",
    ]);
    pack.arg(dir.path("want.tar"))
        .arg("-C")
        .arg(mounted.path())
        .arg(".");
    succeed(&mut pack);
    let mut compare = command("tar");
    compare.args(["--xattrs", "--xattrs-include=*", "--compare", "-f"]);
    compare
        .arg(dir.path("want.tar"))
        .arg("-C")
        .arg(dir.path("bundle/rootfs"));
    succeed(&mut compare);
}

#[test]
fn hostile_images_are_refused() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    let layers = [layer(&[
        file("d/.wh...", ""),
        file("d/.wh..", ""),
        file("../.wh.etc", ""),
        file("d/.wh..wh.aufs", ""),
        link("out", "/../.."),
        file("out/inside", "x"),
    ])];
    layout(&dir.path("lay"), &layers, &FORMATS);
    let words = [
        &["cp", "-a", "oci:lay", "a.img:/", "--create", "8M"],
        &PLATFORM[..],
    ]
    .concat();
    dir.fails(&words, 1, "a whiteout of a directory above it");
    assert_eq!(names(&dir, "a.img"), "/\n/inside\n/out\n");
    fsck(&dir.path("a.img"));
    // Other bytes in a blob.
    let blobs: Vec<PathBuf> = std::fs::read_dir(dir.path("lay/blobs/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    for blob in blobs {
        let bytes = std::fs::read(&blob).unwrap();
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&blob, damaged).unwrap();
        let output = dir
            .command(
                &[
                    &["cp", "-a", "oci:lay", "b.img:/", "--create", "8M"],
                    &PLATFORM[..],
                ]
                .concat(),
            )
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("digest mismatch") || printed.contains("gzip"),
            "{printed}"
        );
        assert!(!dir.path("b.img").exists());
        std::fs::write(&blob, bytes).unwrap();
    }
    dir.fails(
        &["cp", "-a", "oci:none", "b.img:/", "--create", "8M"],
        1,
        "No such file",
    );
    dir.fails(
        &["cp", "-a", "oci:lay:other", "b.img:/", "--create", "8M"],
        1,
        "there are: app",
    );
    dir.fails(&["cp", "oci:lay", "b.img:/", "--create", "8M"], 2, "use -a");
    dir.fails(&["cp", "-a", "oci:lay", "back"], 2, "expected IMAGE:/path");
    dir.fails(
        &["cp", "-a", "disk.img:/", "docker-archive:x.tar"],
        2,
        "skopeo",
    );
}

/// Serves a layout as a registry that wants a token, until the listener's process ends. With
/// `login`, a header, only a request with it gets the token.
fn serve(folder: PathBuf, login: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let realm = format!("http://{host}/token");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            let headers = lines
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty());
            let headers: Vec<_> = headers.map(|line| line.to_ascii_lowercase()).collect();
            let has = |wanted: &str| headers.iter().any(|line| line == wanted);
            let is_allowed = has("authorization: bearer secret");
            let has_login = login.is_none_or(has);
            let path = request.split(' ').nth(1).unwrap();
            let name = path.rsplit('/').next().unwrap();
            let (status, body) = if path.starts_with("/token") && has_login {
                ("200 OK", br#"{"token":"secret"}"#.to_vec())
            } else if !is_allowed {
                ("401 Unauthorized", Vec::new())
            } else if let Some(digits) = name.strip_prefix("sha256:") {
                let blob = std::fs::read(folder.join("blobs/sha256").join(digits));
                ("200 OK", blob.unwrap_or_default())
            } else if name == "app" {
                let index = std::fs::read(folder.join("index.json")).unwrap();
                let index: Value = serde_json::from_slice(&index).unwrap();
                let digest = index["manifests"][0]["digest"].as_str().unwrap();
                let blob = folder.join(digest.replace("sha256:", "blobs/sha256/"));
                ("200 OK", std::fs::read(blob).unwrap())
            } else {
                ("404 Not Found", Vec::new())
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\
                 WWW-Authenticate: Bearer realm=\"{realm}\",service=\"test\"\r\n\r\n",
                body.len()
            );
            // A client that has seen enough may close its end.
            let _ = client
                .write_all(head.as_bytes())
                .and_then(|()| client.write_all(&body));
        }
    });
    host
}

#[test]
fn registry_image_is_pulled_into_an_image() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    layout(&dir.path("lay"), &odd_layers(), &FORMATS);
    let host = serve(dir.path("lay"), None);
    let pull = |name: &str| {
        let source = format!("registry:{host}/team/{name}");
        let words = [
            &["cp", "-a", &source, "a.img:/", "--create", "32M"],
            &PLATFORM[..],
        ]
        .concat();
        dir.command(&words).stdout(Stdio::null()).output().unwrap()
    };
    let output = pull("image:app");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fsck(&dir.path("a.img"));
    assert_eq!(dir.ok(&["cat", "a.img:/tree/new"]), "again");
    std::fs::remove_file(dir.path("a.img")).unwrap();
    let output = pull("image:other");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("not in the registry"), "{printed}");
}

#[test]
fn files_that_a_layer_hides_count_for_the_size() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    let names: Vec<String> = (0..3000).map(|at| format!("many/{at}")).collect();
    let large = "x".repeat(8 << 20);
    let mut low: Vec<Member<'_>> = names.iter().map(|name| file(name, "")).collect();
    low.push(file("large", &large));
    let layers = [
        layer(&low),
        layer(&[
            file(".wh.many", ""),
            file(".wh.large", ""),
            file("kept", "k"),
        ]),
    ];
    layout(&dir.path("lay"), &layers, &FORMATS);
    let words = ["cp", "-a", "oci:lay:app", "new.img:/", "--create", "auto"];
    dir.ok(&[&words, &PLATFORM[..]].concat());
    fsck(&dir.path("new.img"));
    assert_eq!(dir.ok(&["ls", "new.img"]), "kept\nlost+found\n");
}

#[test]
fn layer_without_its_last_padding_is_read() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    let mut bytes = layer(&[file("a", "first"), file("b", "last")]);
    // The headers and contents of two files, without what fills the last block.
    bytes.truncate(3 * 512 + "last".len());
    layout(&dir.path("lay"), &[bytes], &[Compression::Gzip]);
    let words = ["cp", "-a", "oci:lay:app", "disk.img:/"];
    dir.ok(&[&words, &PLATFORM[..]].concat());
    assert_eq!(dir.ok(&["cat", "disk.img:/a", "disk.img:/b"]), "firstlast");
}

#[test]
fn new_image_file_has_the_mode_of_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tree")).unwrap();
    let script = "umask 027; exec \"$0\" cp -a tree/. new.img:/ --create auto";
    let mut shell = command("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_folio")]);
    succeed(shell.current_dir(dir.path("")));
    let mode = std::fs::metadata(dir.path("new.img"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
}

/// A proxy with TLS in front of a registry; prints its port.
const TLS_PROXY: &str = "
import http.client, http.server, ssl, sys
class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        below = http.client.HTTPConnection(sys.argv[1])
        below.request('GET', self.path, headers=dict(self.headers))
        answer = below.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() != 'connection':
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Proxy)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

#[test]
fn registry_wants_tls_and_a_login() {
    requires!(tool("openssl"), tool("python3"));
    let dir = TestDir::new();
    layout(&dir.path("lay"), &odd_layers(), &FORMATS);
    // "user:password"
    let login = "authorization: basic dxnlcjpwyxnzd29yza==";
    let host = serve(dir.path("lay"), Some(login));
    let certificate = "req -x509 -newkey rsa:2048 -nodes -days 30";
    let authority = format!("{certificate} -subj /CN=authority -keyout ca.key -out ca.pem");
    let server = format!(
        "{certificate} -subj /CN=localhost -addext subjectAltName=DNS:localhost \
         -addext basicConstraints=critical,CA:FALSE -CA ca.pem -CAkey ca.key -keyout key.pem \
         -out cert.pem"
    );
    for words in [authority, server] {
        let mut openssl = command("openssl");
        openssl.args(words.split_whitespace());
        succeed(openssl.current_dir(dir.path("")));
    }
    let mut python = command("python3");
    python
        .args(["-c", TLS_PROXY, &host])
        .current_dir(dir.path(""));
    let mut python = python.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    let mut lines = BufReader::new(python.stdout.take().unwrap());
    lines.read_line(&mut port).unwrap();
    let host = format!("localhost:{}", port.trim());
    let source = format!("registry:https://{host}/team/image:app");
    let pull = |certificate: bool| {
        let words = ["cp", "-a", &source, "a.img:/", "--create", "32M"];
        let mut folio = dir.command(&[&words, &PLATFORM[..]].concat());
        folio.env("REGISTRY_AUTH_FILE", dir.path("auth.json"));
        folio.env("DOCKER_CONFIG", dir.path("none"));
        if certificate {
            folio.env("SSL_CERT_FILE", dir.path("ca.pem"));
        }
        let output = folio.stdout(Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), printed)
    };
    let (_, printed) = pull(false);
    assert!(printed.contains("certificate"), "{printed}");
    let (_, printed) = pull(true);
    assert!(printed.contains("log in with podman"), "{printed}");
    let auth = format!(r#"{{"auths":{{"{host}":{{"auth":"dXNlcjpwYXNzd29yZA=="}}}}}}"#);
    std::fs::write(dir.path("auth.json"), auth).unwrap();
    let (is_pulled, printed) = pull(true);
    assert!(is_pulled, "{printed}");
    assert_eq!(dir.ok(&["cat", "a.img:/tree/new"]), "again");
    python.kill().unwrap();
    python.wait().unwrap();
}
