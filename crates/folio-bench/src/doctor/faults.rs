//! Set-ups with one fault each.

use super::place::Place;
use super::setup::{Cure, Setup};

const FSYNC: &[&str] = &["fsync-waits"];
const SYNC: &[&str] = &["synchronous-writes"];
const TINY: &[&str] = &["tiny-buffers"];
const TRUNCATE: &[&str] = &["flush-on-truncate"];
const RENAME: &[&str] = &["flush-on-rename"];
const EVICTED: &[&str] = &["evicted"];
/// A server that is asked for names is asked for attributes, too: the cure is the same.
const ASKED: &[&str] = &["attributes-not-trusted", "names-not-cached"];

const EXT4: Place = Place::fast("ext4", "");
const KEPT: Place = Place::fast("ext4", "noauto_da_alloc");
/// The waits of a fast disk differ from minute to minute.
const NO_BARRIER: Place = Place::slow("ext4", "nobarrier");
const SLOW: Place = Place::slow("ext4", "");
const ASKING: Place = Place::Share("push=off,ttl=0");
const SYNC_MOUNT: Place = Place::slow("ext4", "sync");

/// Returns all.
pub(super) fn setups() -> Vec<Setup> {
    let mut setups = databases();
    setups.extend(fsyncs());
    setups.extend(syncing_programs());
    setups.extend(synchronous());
    setups.extend(tiny());
    setups.extend(asked());
    setups.extend(replaced());
    setups.extend(memory());
    setups.extend(paths());
    setups
}

/// SQLite with a transaction for each row.
fn databases() -> Vec<Setup> {
    const ROWS: &str = "{ echo 'pragma journal_mode=MODE; pragma synchronous=LEVEL; create table t(a);'; \
                        for n in $(seq 150); do echo \"insert into t values($n);\"; done; } > rows.sql; \
                        sed '2i begin;' rows.sql > one.sql; echo 'commit;' >> one.sql; ";
    let modes = [
        (SLOW, "sqlite delete", "delete", "full"),
        (SLOW, "sqlite delete extra", "delete", "extra"),
        (SLOW, "sqlite truncate", "truncate", "full"),
        (SLOW, "sqlite persist", "persist", "full"),
        (SLOW, "sqlite memory journal", "memory", "full"),
        (SLOW, "sqlite delete normal", "delete", "normal"),
        (SLOW, "sqlite wal", "wal", "full"),
        (NO_BARRIER, "sqlite wal", "wal", "full"),
        (
            Place::slow("ext4", "data=journal"),
            "sqlite delete",
            "delete",
            "full",
        ),
        (Place::slow("xfs", ""), "sqlite delete", "delete", "full"),
        (Place::slow("btrfs", ""), "sqlite wal", "wal", "full"),
    ];
    let setup = |(place, name, mode, level): (Place, &'static str, &str, &str)| {
        let prepare = ROWS.replace("MODE", mode).replace("LEVEL", level);
        Setup::new(
            place,
            name,
            prepare,
            "rm -f base*; sqlite3 base < rows.sql > said",
        )
        .with_causes(FSYNC)
        .cured(Cure::Command(
            "rm -f base*; sqlite3 base < one.sql > said".to_owned(),
        ))
        .needs(&["sqlite3"])
    };
    modes.map(setup).into()
}

/// Programs that sync often.
fn fsyncs() -> Vec<Setup> {
    const LOOP: &str = "import os; f = open(\"log\", \"wb\", 0)\nfor n in range(150):";
    let python = |place, name, body: &str, cured: &str| {
        let [command, cured] = [body, cured].map(|body| format!("python3 -c '{LOOP} {body}'"));
        Setup::new(place, name, "", command)
            .with_causes(FSYNC)
            .cured(Cure::Command(cured))
            .needs(&["python3"])
    };
    let line = "f.write(b\"a line of a log\\n\" * 8)";
    let each = |call: &str| format!("{line}; {call}");
    let replace = "open(\"n\", \"w\").write(\"x\"); h = os.open(\"n\", 1); os.fsync(h); os.close(h); \
                   os.rename(\"n\", \"m\")";
    vec![
        python(SLOW, "log with fsync", &each("os.fsync(f)"), line),
        python(SLOW, "log with fdatasync", &each("os.fdatasync(f)"), line),
        python(NO_BARRIER, "log with fsync", &each("os.fsync(f)"), line),
        python(
            Place::slow("xfs", ""),
            "log with fdatasync",
            &each("os.fdatasync(f)"),
            line,
        ),
        python(
            Place::slow("btrfs", ""),
            "log with fsync",
            &each("os.fsync(f)"),
            line,
        ),
        python(
            SLOW,
            "saves with fsync",
            replace,
            &replace.replace("os.fsync(h); ", ""),
        ),
    ]
}

/// Programs that sync often, in ways of their own.
fn syncing_programs() -> Vec<Setup> {
    let setup = |place, name, prepare, command, needs| {
        Setup::new(place, name, prepare, command)
            .with_causes(FSYNC)
            .needs(needs)
    };
    vec![
        setup(
            SLOW,
            "directory fsync",
            "",
            "python3 -c 'import os; d = os.open(\".\", 0)\nfor n in range(150): \
             os.close(os.open(f\"f{n}\", 65)); os.fsync(d)'; rm -f f*",
            &["python3"],
        ),
        setup(
            SLOW,
            "msync",
            "truncate -s 4M map",
            "python3 -c 'import mmap; f = open(\"map\", \"r+b\"); m = mmap.mmap(f.fileno(), 4194304)\n\
             for n in range(150): m[n * 4096] = n % 251; m.flush(n * 4096, 4096)'",
            &["python3"],
        ),
        setup(
            SLOW,
            "dd conv=fsync",
            "",
            "for n in $(seq 150); do dd if=/dev/zero of=f$n bs=4k count=4 conv=fsync status=none; done",
            &["dd"],
        ),
        setup(
            SLOW,
            "perl sync",
            "",
            "perl -MIO::Handle -e 'open F, \">log\"; for (1..150) { F->printflush(\"line\\n\"); F->sync }'",
            &["perl"],
        ),
        setup(
            SLOW,
            "git commits",
            "git init -q . && git config user.email a@b && git config user.name a && git config core.fsync all",
            "for n in $(seq 20); do date +%N > f; git add f; git commit -qm $n; done",
            &["git"],
        ),
        setup(
            NO_BARRIER,
            "dpkg",
            "mkdir -p p/DEBIAN p/usr/share/p root/var/lib/dpkg/updates root/var/lib/dpkg/info; \
             touch root/var/lib/dpkg/status; for n in $(seq 400); do echo $n > p/usr/share/p/$n; done; \
             printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@b>\\nDescription: p\\n' \
             > p/DEBIAN/control; dpkg-deb -b p p.deb > said",
            "dpkg --root=root --log=log --force-not-root --force-bad-path -i p.deb > said 2>&1",
            &["dpkg", "dpkg-deb"],
        ),
    ]
}

/// Writes that wait for the disk.
fn synchronous() -> Vec<Setup> {
    let setup = |place, name, command| Setup::new(place, name, "", command).with_causes(SYNC);
    let dd = |place, name, command, cured: &str| {
        setup(place, name, command).cured(Cure::Command(cured.to_owned()))
    };
    let mounted = |name, command| setup(SYNC_MOUNT, name, command);
    vec![
        dd(
            SLOW,
            "dd oflag=dsync",
            "dd if=/dev/zero of=f bs=4k count=200 oflag=dsync status=none",
            "dd if=/dev/zero of=f bs=4k count=200 conv=fdatasync status=none",
        ),
        dd(
            SLOW,
            "dd oflag=sync",
            "dd if=/dev/zero of=f bs=4k count=200 oflag=sync status=none",
            "dd if=/dev/zero of=f bs=4k count=200 conv=fsync status=none",
        ),
        dd(
            SLOW,
            "dd oflag=sync bs=16k",
            "dd if=/dev/zero of=f bs=16k count=400 oflag=sync status=none",
            "dd if=/dev/zero of=f bs=16k count=400 conv=fsync status=none",
        ),
        dd(
            NO_BARRIER,
            "dd oflag=dsync",
            "dd if=/dev/zero of=f bs=4k count=200 oflag=dsync status=none",
            "dd if=/dev/zero of=f bs=4k count=200 conv=fdatasync status=none",
        ),
        setup(
            Place::slow("xfs", ""),
            "log with O_DSYNC",
            "python3 -c 'import os; f = os.open(\"log\", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)\n\
             for n in range(600): os.write(f, b\"line\" * 20)'",
        ),
        setup(
            Place::slow("btrfs", ""),
            "log with O_SYNC",
            "python3 -c 'import os; f = os.open(\"log\", os.O_CREAT | os.O_WRONLY | os.O_SYNC)\n\
             for n in range(150): os.write(f, b\"line\" * 20)'",
        ),
        setup(
            SLOW,
            "perl O_SYNC",
            "perl -MFcntl -e 'sysopen F, \"log\", O_WRONLY|O_CREAT|O_SYNC; syswrite F, \"line\\n\" for 1..600'",
        ),
        mounted("dd", "dd if=/dev/zero of=f bs=4k count=300 status=none"),
        mounted("cp", "rm -rf d; mkdir d; cp /usr/include/*.h d"),
        mounted(
            "tar",
            "rm -rf asm-generic; tar -C /usr/include -cf - asm-generic | tar -xf -",
        ),
        mounted(
            "shell log",
            "rm -f log; for n in $(seq 300); do echo \"line $n\" >> log; done",
        ),
    ]
}

/// Calls that move few bytes.
fn tiny() -> Vec<Setup> {
    let setup = |place, name, command, cured: &str| {
        Setup::new(place, name, "", command)
            .with_causes(TINY)
            .cured(Cure::Command(cured.to_owned()))
    };
    let from_file = |name, prepare, command| {
        Setup::new(Place::Memory, name, prepare, command).with_causes(TINY)
    };
    vec![
        setup(
            Place::Disk,
            "dd bs=1",
            "dd if=/dev/zero of=f bs=1 count=1500000 status=none",
            "dd if=/dev/zero of=f bs=64k count=1500000 iflag=count_bytes status=none",
        ),
        setup(
            Place::Memory,
            "dd bs=1",
            "dd if=/dev/zero of=f bs=1 count=1500000 status=none",
            "dd if=/dev/zero of=f bs=64k count=1500000 iflag=count_bytes status=none",
        ),
        setup(
            Place::Disk,
            "dd bs=16",
            "dd if=/dev/zero of=f bs=16 count=1500000 status=none",
            "dd if=/dev/zero of=f bs=64k count=24000000 iflag=count_bytes status=none",
        ),
        setup(
            EXT4,
            "dd bs=512",
            "rm -f f; dd if=/dev/zero of=f bs=512 count=800000 status=none",
            "rm -f f; dd if=/dev/zero of=f bs=64k count=409600000 iflag=count_bytes status=none",
        ),
        setup(
            Place::Memory,
            "perl syswrite",
            "perl -e 'open F, \">f\"; syswrite F, \"x\" for 1..1500000'",
            "perl -e 'open F, \">f\"; print F \"x\" for 1..1500000'",
        ),
        setup(
            Place::Disk,
            "python unbuffered",
            "python3 -c 'import os; f = os.open(\"f\", 65)\nfor n in range(1500000): os.write(f, b\"x\")'",
            "python3 -c 'f = open(\"f\", \"wb\")\nfor n in range(1500000): f.write(b\"x\")'",
        ),
        from_file(
            "shell read",
            "seq 200000 > lines",
            "while read -r line; do :; done < lines",
        ),
        from_file(
            "perl sysread",
            "head -c 1500000 /dev/zero > f",
            "perl -e 'open F, \"<f\"; while (sysread F, $x, 1) { $n++ }'",
        ),
        from_file(
            "python read of 8 bytes",
            "head -c 8000000 /dev/zero > f",
            "python3 -c 'import os; f = os.open(\"f\", 0)\nwhile os.read(f, 8): pass'",
        ),
        from_file(
            "C program",
            "echo '#include <unistd.h>\nint main(void) { char c; while (read(0, &c, 1) == 1) write(1, &c, 1); }' \
             > copy.c; gcc -O2 -o copy copy.c; head -c 800000 /dev/zero > f",
            "./copy < f > g",
        )
        .needs(&["gcc"]),
    ]
}

/// Servers that are asked again and again.
fn asked() -> Vec<Setup> {
    const TREE: &str = "for n in $(seq 200); do echo $n > f$n; done";
    const REPOSITORY: &str = "git init -q . && cp -r /usr/include/linux . && git add -A";
    let setup =
        |name, prepare, command| Setup::new(ASKING, name, prepare, command).with_causes(ASKED);
    let python = |name, command| setup(name, TREE, command).needs(&["python3"]);
    vec![
        python(
            "stat of a file",
            "python3 -c 'import os\nfor n in range(20000): os.stat(\"f1\")'",
        ),
        python(
            "stat of files",
            "python3 -c 'import os\nfor n in range(20000): os.stat(f\"f{n % 200 + 1}\")'",
        ),
        python(
            "names that do not exist",
            "python3 -c 'import os\nfor n in range(20000): os.path.exists(f\"g{n % 200}\")'",
        ),
        python(
            "access",
            "python3 -c 'import os\nfor n in range(20000): os.access(f\"f{n % 200 + 1}\", os.R_OK)'",
        ),
        python(
            "open",
            "python3 -c 'import os\nfor n in range(10000): os.close(os.open(f\"f{n % 200 + 1}\", 0))'",
        ),
        python(
            "listdir",
            "python3 -c 'import os\nfor n in range(2000): os.listdir(\".\")'",
        ),
        setup(
            "git status",
            REPOSITORY,
            "for n in $(seq 30); do git status --short > said; done",
        ),
        setup(
            "du",
            REPOSITORY,
            "for n in $(seq 30); do du -s . > said; done",
        ),
        setup(
            "find",
            REPOSITORY,
            "for n in $(seq 30); do find . -newer linux > said; done",
        ),
        setup("ls", TREE, "for n in $(seq 100); do ls -l > said; done"),
        setup(
            "grep",
            REPOSITORY,
            "for n in $(seq 20); do grep -rl ioctl linux > said; done",
        ),
        setup(
            "make",
            "for n in $(seq 300); do echo > s$n; echo \"o$n: s$n; touch o$n\"; done > rules; \
             { echo all: $(seq 300 | sed 's/^/o/'); cat rules; } > Makefile; make -s",
            "for n in $(seq 30); do make -s; done",
        ),
    ]
}

/// Files that are replaced.
fn replaced() -> Vec<Setup> {
    const FILES: &str = "import os; data = b\"x\" * 65536\nfor n in range(1000):";
    const TRUNCATING: &str = "f = open(f\"f{n % 300}\", \"wb\"); f.write(data); f.close()";
    const RENAMING: &str =
        "f = open(\"new\", \"wb\"); f.write(data); f.close(); os.rename(\"new\", f\"f{n % 300}\")";
    let python = |place, name, body, causes| {
        Setup::new(place, name, "", format!("python3 -c '{FILES} {body}'"))
            .with_causes(causes)
            .needs(&["python3"])
    };
    let shell = |place, name, prepare, command, causes| {
        Setup::new(place, name, prepare, command).with_causes(causes)
    };
    const SOURCES: &str = "for n in $(seq 60); do seq 60000 > f$n; done; mkdir d";
    vec![
        python(SLOW, "truncation", TRUNCATING, TRUNCATE),
        python(SLOW, "rename", RENAMING, RENAME),
        python(Place::slow("xfs", ""), "truncation", TRUNCATING, TRUNCATE),
        shell(
            SLOW,
            "dd",
            "",
            "for n in 1 2 3 4 5 6 7 8; do for m in 1 2 3 4 5; do \
             dd if=/dev/zero of=f$m bs=64k count=256 status=none; done; done",
            TRUNCATE,
        ),
        shell(
            SLOW,
            "cp",
            SOURCES,
            "for n in 1 2 3 4 5 6 7 8; do cp f* d; done",
            TRUNCATE,
        ),
        shell(
            SLOW,
            "tee",
            SOURCES,
            "for n in 1 2 3; do for m in $(seq 60); do tee d/f$m < f$m > /dev/null; done; done",
            TRUNCATE,
        ),
        shell(
            SLOW,
            "mv",
            SOURCES,
            "for n in 1 2 3 4; do for m in $(seq 60); do cp f$m d/new; mv d/new d/f$m; done; done",
            RENAME,
        ),
    ]
}

/// Files that memory is too small for.
fn memory() -> Vec<Setup> {
    const FILE: &str = "head -c 200000000 /dev/urandom > f";
    let setup = |name, prepare, command| {
        Setup::new(Place::Group, name, prepare, command).with_causes(EVICTED)
    };
    vec![
        setup("cat", FILE, "for n in 1 2 3 4; do cat f > /dev/null; done"),
        setup("cksum", FILE, "for n in 1 2 3; do cksum f > said; done"),
        setup(
            "random reads",
            FILE,
            "python3 -c 'import os, random; f = os.open(\"f\", 0)\nfor n in range(20000): \
             os.pread(f, 4096, random.randrange(48000) * 4096)'",
        ),
        setup(
            "sqlite scans",
            "{ echo 'create table t(a); begin;'; seq 40000 | sed 's/.*/insert into t values(randomblob(4000));/'; \
             echo 'commit;'; } > rows.sql; sqlite3 base < rows.sql",
            "for n in 1 2 3; do sqlite3 base 'select count(*) from t where a > 1'; done > said",
        )
        .needs(&["sqlite3"]),
    ]
}

/// Files that are slow whatever reads or writes them.
fn paths() -> Vec<Setup> {
    let setup = |place, name, prepare, path, causes| {
        Setup::new(place, name, prepare, path)
            .with_causes(causes)
            .of_path()
    };
    const FILE: &str = "head -c 4000000 /dev/urandom > f";
    vec![
        setup(
            EXT4,
            "path",
            FILE,
            "f",
            &["flush-on-truncate", "flush-on-rename"],
        ),
        setup(
            Place::fast("ext4", "nodelalloc"),
            "path",
            FILE,
            "f",
            &["no-delayed-allocation"],
        ),
        setup(ASKING, "path", FILE, "f", &["attributes-not-trusted"]),
        setup(
            Place::Share("push=off,ttl=10ms"),
            "path",
            FILE,
            "f",
            &["attributes-trusted-briefly"],
        ),
        setup(
            KEPT,
            "fresh qcow2",
            "$FOLIO -q image create -f qcow2 disk.qcow2 256M",
            "disk.qcow2",
            &["clusters-not-allocated"],
        ),
        setup(
            KEPT,
            "sparse image",
            "$FOLIO -q mkfs --size 256M disk.img",
            "disk.img",
            &["sparse"],
        ),
        setup(
            KEPT,
            "preallocated image",
            "fallocate -l 256M disk.img",
            "disk.img",
            &["unwritten"],
        ),
    ]
}
