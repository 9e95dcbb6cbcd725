//! Commands that fix the behavior of a mount, by the type of file system.

use crate::bounded;
use crate::probe::Facts;
use crate::probe::layers::{FileSystem, Layer, LoopRange};
use crate::text::quote;
use std::path::{Path, PathBuf};

/// How to have attributes trusted.
pub(super) fn attributes(facts: &Facts) -> Vec<String> {
    match facts.file_system() {
        Some(found) => attributes_on(found),
        None => vec![format!("findmnt --target {}", quote(&facts.path))],
    }
}

/// How to have attributes trusted on a mount.
pub(super) fn attributes_on(found: &FileSystem) -> Vec<String> {
    served(
        found,
        &Words {
            fuse: "attr_timeout=1,entry_timeout=1",
            share: "folio share -o ttl=1s (its default, 1 ms, asks the host again and again)  \
                    # host changes are then seen within a second",
            nine_p: "cache=loose",
            nfs: "actimeo=3",
            // A second `actimeo` is ignored: remount gives the kernel the current one first (Linux:
            // fs/smb/client/fs_context.c, `Opt_actimeo`).
            cifs: "acregmax=1,acdirmax=1",
            vboxsf: Some("ttl=1000"),
        },
    )
}

/// How to have names trusted on a mount. NFS asks its server at each open, whatever its options:
/// none, if the server is not asked for more.
pub(super) fn names_on(found: &FileSystem) -> Vec<String> {
    let is_nfs = matches!(found.fs_type.as_str(), "nfs" | "nfs4");
    let is_untrusted = |option: &String| {
        let time_s = option.strip_prefix("acregmax=").map(str::parse::<u32>);
        let is_short = matches!(time_s, Some(Ok(time_s)) if time_s < NFS_TIME_S);
        is_short || option == "noac" || option == NFS_NO_NAMES
    };
    if is_nfs && !found.options.iter().any(is_untrusted) {
        return Vec::new();
    }
    attributes_on(found)
}

/// How to have pages kept.
pub(super) fn page_cache(facts: &Facts) -> Vec<String> {
    let Some(found) = facts.file_system() else {
        return vec![format!("findmnt --target {}", quote(&facts.path))];
    };
    served(
        found,
        &Words {
            fuse: "kernel_cache",
            share: "folio share (without -o cache=none)",
            nine_p: "cache=loose",
            nfs: "fsc",
            cifs: "cache=strict",
            // Linux: fs/vboxsf/super.c, `vboxsf_param_specs`.
            vboxsf: None,
        },
    )
}

/// Returns why a file system loses or keeps pages wrongly, for the evidence of a check.
pub(super) fn page_cache_remark(facts: &Facts) -> Option<&'static str> {
    // Linux: fs/vboxsf/utils.c, `vboxsf_inode_revalidate`.
    let is_vboxsf = facts.file_system()?.fs_type == "vboxsf";
    is_vboxsf.then_some(
        "vboxsf drops cached pages at its own writes, and keeps those of a file that an older one \
         replaces",
    )
}

/// Options of `-o` that fix one fault.
struct Words {
    fuse: &'static str,
    /// The command on the host of a virtiofs guest.
    share: &'static str,
    nine_p: &'static str,
    nfs: &'static str,
    cifs: &'static str,
    /// `None` if the kernel's vboxsf has no such option.
    vboxsf: Option<&'static str>,
}

/// The option of nfs(5) with which no name is kept.
const NFS_NO_NAMES: &str = "lookupcache=none";
/// Seconds of the remedy.
const NFS_TIME_S: u32 = 3;
/// The times that `actimeo` of nfs(5) sets, and the option with which no name is kept; then
/// `noac`, with which the times have no effect, and what that sets.
const NFS_UNTRUSTED: [&str; 7] = [
    "acregmin",
    "acregmax",
    "acdirmin",
    "acdirmax",
    NFS_NO_NAMES,
    "noac",
    "sync",
];
const NFS_TIMES: usize = 5;
/// What a 9p mount without a cache sets. Linux: fs/9p/vfs_super.c, `v9fs_fill_super`.
const NINE_P_UNCACHED: [&str; 2] = ["sync", "dirsync"];

fn served(found: &FileSystem, words: &Words) -> Vec<String> {
    let target = quote(&found.mount_point);
    let (fs_type, subtype) = found
        .fs_type
        .split_once('.')
        .unwrap_or((&found.fs_type, ""));
    let again = |options: &str| {
        let name = options.split('=').next().unwrap_or_default();
        let replaced: &[&str] = match name {
            "actimeo" if found.has("noac") => &NFS_UNTRUSTED,
            "actimeo" => NFS_UNTRUSTED.split_at(NFS_TIMES).0,
            "cache" => &NINE_P_UNCACHED,
            _ => &[],
        };
        let dropped = [&[name], replaced].concat();
        let options = kept(found, &dropped, &["rw", "relatime"], options);
        let source = quote(Path::new(&found.source));
        format!("umount {target} && mount -t {fs_type} -o {options} {source} {target}")
    };
    let by_socket = |place: &str, listen: &str, connect: &str| {
        format!(
            "on {place}: folio share FOLDER --listen {listen}; here: folio mount {connect} {target}  \
             # host changes are seen within milliseconds"
        )
    };
    let by_vsock = || by_socket("the host", "vsock:5000", "vsock:2:5000");
    match fs_type {
        "fuse" | "fuseblk" => fuse(found, subtype, words.fuse),
        // Its guests do not see which server it is.
        "virtiofs" => vec![
            format!("on the host: {}", words.share),
            "on the host: virtiofsd --cache auto (instead of --cache never); Apple's framework, libkrun \
             and Docker serve the folder themselves, without such an option"
                .to_owned(),
            by_vsock(),
        ],
        "9p" => vec![
            by_vsock(),
            format!(
                "{}  # host changes are then never seen, until the next mount",
                again(words.nine_p)
            ),
        ],
        "nfs" | "nfs4" => vec![again(words.nfs)],
        // The password is not among the options of a mount.
        "cifs" | "smb3" => vec![format!("mount -o remount,{} {target}", words.cifs)],
        "vboxsf" => {
            let options = words.vboxsf.map(again);
            // The address of the host in VirtualBox's NAT.
            let (key, address) = ("tcp:5000 --key-file KEY", "--key-file KEY tcp:10.0.2.2:5000");
            let share = by_socket("a Linux host", key, address);
            options.into_iter().chain([share]).collect()
        }
        _ => vec![format!("findmnt --target {target}")],
    }
}

/// Options of a FUSE mount that its server has to be given again.
const FUSE_KEPT: [&str; 3] = ["ro", "allow_other", "default_permissions"];
/// The same of `folio mount`, which checks permissions by itself.
const FOLIO_KEPT: [&str; 3] = ["ro", "allow_other", "noexec"];

/// How to start a FUSE server again with other options. The command unmounts only if it names a
/// program and a source that exist.
fn fuse(found: &FileSystem, subtype: &str, words: &str) -> Vec<String> {
    let target = quote(&found.mount_point);
    let resolved = found.served_source.as_deref();
    let source = resolved.unwrap_or(Path::new(&found.source));
    // A relative path means another file in another directory; a remote name has a colon.
    let is_found = source.is_absolute() || found.source.contains(':');
    // The subtype may be the served type, not the server: `fuse.ext4`.
    let server = match (subtype, found.server.as_deref()) {
        ("folio", _) | (_, Some("folio")) => "folio",
        (_, Some(server)) => server,
        _ => {
            return vec![format!(
                "start the server of {target} with -o {words} (its process is not visible)"
            )];
        }
    };
    let source = quote(source);
    let unmount = unmount(found);
    if !is_found {
        return vec![format!(
            "start {server} of {target} with -o {words} ({source} is relative to its directory)"
        )];
    }
    let folio = || {
        // Those that the mount table shows; the rest is in the command line of its server.
        let kept = FOLIO_KEPT.iter().filter(|option| found.has(option));
        let options: String = kept.map(|option| format!("{option},")).collect();
        // Pages and attributes are trusted together: what is not cached is asked for.
        let options = format!("{options}cache=writethrough,ttl=1s");
        format!("{unmount} && folio mount --background -o {options} {source} {target}")
    };
    if server == "folio" {
        return vec![folio()];
    }
    let kept = FUSE_KEPT.iter().filter(|option| found.has(option));
    let mut options: Vec<_> = kept.copied().collect();
    // It sets the times of attributes and names to 0 itself, after the user's options
    // (misc/fuse2fs.c).
    if server == "fuse2fs" && words.starts_with("attr_timeout") {
        options.retain(|option| *option != "default_permissions");
        let options = options.iter().map(|option| format!("-o {option} "));
        let options = options.collect::<String>();
        let mount = format!("folio mount --background {options}{source} {target}");
        return vec![format!("{unmount} && {mount}")];
    }
    // Servers built with libfuse accept its options; other servers have their own, or none.
    options.push(words);
    let mut all = vec![format!(
        "{unmount} && {server} -o {} {source} {target}",
        options.join(",")
    )];
    if bounded::metadata(Path::new(&found.source)).is_some_and(|found| found.is_dir()) {
        all.push(folio());
    }
    all
}

/// A command that unmounts and waits for the server's end: umount(8) returns before the server has
/// written everything to the image, which the next one opens. The process is without an executable
/// from its end on, even if its parent does not wait for it.
fn unmount(found: &FileSystem) -> String {
    let target = quote(&found.mount_point);
    match &found.server_process {
        None => format!("umount {target}"),
        Some(process) => format!(
            "umount {target} && while [ -e {}/exe ]; do sleep 0.1; done",
            process.display()
        ),
    }
}

/// Returns the options of a mount without those that `dropped` and `defaults` name, and with
/// `more`, as a word of a shell command. A dropped option is a name, or has its value.
fn kept(found: &FileSystem, dropped: &[&str], defaults: &[&str], more: &str) -> String {
    let stays = |option: &&String| {
        let name = option.split('=').next().unwrap_or_default();
        let is_dropped = dropped.contains(&name) || dropped.contains(&option.as_str());
        !is_dropped && !defaults.contains(&option.as_str())
    };
    let all = found.options.iter().filter(stays).map(String::as_str);
    let all: Vec<_> = all.chain([more]).filter(|word| !word.is_empty()).collect();
    quote(Path::new(&all.join(",")))
}

/// How to mount a local file system again with another type and option, which a remount cannot
/// change. The other options are kept.
pub(super) fn mount_again(
    facts: &Facts,
    found: &FileSystem,
    fs_type: &str,
    option: &str,
) -> String {
    let target = quote(&found.mount_point);
    if found.mount_point == Path::new("/") {
        return "remove nodelalloc from /etc/fstab and from rootflags=, and restart".to_owned();
    }
    let source = Path::new(&found.source);
    // All mounts of a file system have the same options, until the last one ends.
    if found.root != Path::new("/") || !found.other_mounts.is_empty() {
        return format!(
            "findmnt --source {} (unmount all of them, then mount with -o {option})",
            quote(source)
        );
    }
    let (source, more) = match released_loop(facts, found) {
        None => (source.to_owned(), option.to_owned()),
        // The kernel releases the loop device at the unmount.
        Some(Some((file, range))) => (file, format!("loop{},{option}", part(range))),
        Some(None) => return format!("findmnt --target {target}"),
    };
    let defaults = ["rw", "relatime"];
    let options = kept(found, &["nodelalloc", "delalloc"], &defaults, &more);
    let source = quote(&source);
    format!("umount {target} && mount -t {fs_type} -o {options} {source} {target}")
}

fn part(range: LoopRange) -> String {
    let word = |name: &str, number: u64| match number {
        0 => String::new(),
        number => format!(",{name}={number}"),
    };
    word("offset", range.offset) + &word("sizelimit", range.limit_bytes)
}

/// Returns the backing file of a loop device that ends with the mount; `Some(None)` if that file
/// is not visible.
fn released_loop(facts: &Facts, found: &FileSystem) -> Option<Option<(PathBuf, LoopRange)>> {
    let own = facts
        .chain
        .iter()
        .position(|step| matches!(&step.layer, Layer::FileSystem(layer) if layer == found))?;
    let below = &facts.chain[own + 1..];
    let Layer::Disk(disk) = &below.first()?.layer else {
        return None;
    };
    let range = disk.loop_range.filter(|range| range.is_released)?;
    Some(match below.get(1).map(|step| &step.layer) {
        Some(Layer::Path { path, .. }) => Some((path.clone(), range)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;
    use crate::judge::scene::healthy;

    #[test]
    fn each_kind_of_share_has_its_own_words() {
        for (fs_type, word) in [
            (
                "fuse.folio",
                "folio mount --background -o cache=writethrough,ttl=1s /srv/source /mnt",
            ),
            (
                "fuse.bindfs",
                "start the server of /mnt with -o attr_timeout=1,entry_timeout=1",
            ),
            ("virtiofs", "on the host: folio share -o ttl=1s"),
            ("9p", "here: folio mount vsock:2:5000 /mnt"),
            ("nfs4", "mount -t nfs4 -o actimeo=3 /srv/source /mnt"),
            ("smb3", "mount -o remount,acregmax=1,acdirmax=1 /mnt"),
            ("cifs", "acregmax=1"),
            ("vboxsf", "ttl=1000"),
            ("ext4", "findmnt"),
        ] {
            let options = attributes(&healthy(fs_type));
            assert!(options[0].contains(word), "{fs_type}: {options:?}");
        }
        assert!(page_cache(&healthy("fuse.folio"))[0].contains("cache=writethrough"));
        let shared = page_cache(&healthy("virtiofs"));
        assert_eq!(
            shared[0],
            "on the host: folio share (without -o cache=none)"
        );
        assert!(shared[1].contains("virtiofsd --cache auto"));
        assert!(shared[2].contains("--listen vsock:5000; here: folio mount vsock:2:5000 /mnt"));
    }

    /// `noac` would win over the time.
    #[test]
    fn nfs_is_mounted_without_options_that_ask() {
        let mut facts = healthy("nfs4");
        let found = file_system(&mut facts);
        found.options = ["sync", "acregmin=0", "hard", "noac"]
            .map(String::from)
            .into();
        let command = "umount /mnt && mount -t nfs4 -o hard,actimeo=3 /srv/source /mnt";
        assert_eq!(attributes(&facts), [command]);
        file_system(&mut facts).options.pop();
        assert!(attributes(&facts)[0].contains("-o sync,hard,actimeo=3 "));
    }

    #[test]
    fn names_of_nfs_need_an_untrusted_mount() {
        let names = |options: &[&str]| {
            let mut facts = healthy("nfs4");
            let found = file_system(&mut facts);
            found.options = options.iter().map(|option| (*option).to_owned()).collect();
            names_on(found).concat()
        };
        for options in [
            &["hard"][..],
            &["acregmax=3"],
            &["acregmin=0", "lookupcache=pos"],
        ] {
            assert_eq!(names(options), "", "{options:?}");
        }
        for option in ["noac", "lookupcache=none", "acregmax=2"] {
            let command = "umount /mnt && mount -t nfs4 -o hard,actimeo=3 /srv/source /mnt";
            assert_eq!(names(&["hard", option]), command);
        }
        assert!(
            names(&["lookupcache=pos", "acregmax=0"]).contains("-o lookupcache=pos,actimeo=3 ")
        );
    }

    #[test]
    fn stale_and_missing_options_are_said() {
        let mut shared = healthy("9p");
        file_system(&mut shared).options =
            ["sync", "dirsync", "trans=virtio"].map(String::from).into();
        let loose = &page_cache(&shared)[1];
        assert!(
            loose.contains("-o trans=virtio,cache=loose ") && loose.contains("never seen"),
            "{loose}"
        );
        // The kernel's vboxsf fails with options that it does not know.
        for remedies in [page_cache, attributes] {
            let remedies = remedies(&healthy("vboxsf"));
            assert!(
                remedies.iter().all(|one| !one.contains("cache=")),
                "{remedies:?}"
            );
            let last = remedies.last().unwrap();
            let command = "folio mount --key-file KEY tcp:10.0.2.2:5000 /mnt";
            assert!(
                last.contains(command)
                    && last.ends_with("  # host changes are seen within milliseconds"),
                "{last}"
            );
        }
        let delayed = &attributes(&healthy("virtiofs"))[0];
        assert!(
            delayed.ends_with("  # host changes are then seen within a second"),
            "{delayed}"
        );
    }

    fn file_system(facts: &mut Facts) -> &mut FileSystem {
        let Layer::FileSystem(found) = &mut facts.chain[0].layer else {
            panic!()
        };
        found
    }

    #[test]
    fn fuse_server_is_started_with_a_source_it_can_find() {
        let mut facts = healthy("fuse.ext4");
        let found = file_system(&mut facts);
        found.server = Some("fuse2fs".into());
        found.options.push("allow_other".into());
        let command = "umount /mnt && fuse2fs -o allow_other,kernel_cache /srv/source /mnt";
        assert_eq!(page_cache(&facts)[0], command);
        let command_of_folio =
            "umount /mnt && folio mount --background -o allow_other /srv/source /mnt";
        assert_eq!(attributes(&facts), [command_of_folio]);
        file_system(&mut facts).source = "source".into();
        let text = page_cache(&facts).remove(0);
        assert!(!text.contains("umount"), "{text}");
        file_system(&mut facts).served_source = Some("/srv/source".into());
        assert_eq!(page_cache(&facts)[0], command);
        file_system(&mut facts).server_process = Some("/proc/7".into());
        assert_eq!(
            page_cache(&facts)[0],
            "umount /mnt && while [ -e /proc/7/exe ]; do sleep 0.1; done \
             && fuse2fs -o allow_other,kernel_cache /srv/source /mnt"
        );
        let found = file_system(&mut facts);
        (found.server, found.fs_type) = (None, "fuse".into());
        let text = page_cache(&facts).remove(0);
        assert!(text.contains("not visible"), "{text}");
    }

    /// An unmount releases the loop device, so the command names the backing file.
    #[test]
    fn loop_mount_is_repeated_from_the_backing_file() {
        let mut facts = healthy("ext4");
        let found = file_system(&mut facts);
        found.options = ["rw", "nosuid", "noatime", "nodelalloc", "commit=30"]
            .map(String::from)
            .into();
        let range = LoopRange {
            offset: 1 << 20,
            limit_bytes: 0,
            is_released: true,
        };
        let disk = crate::Disk {
            loop_range: Some(range),
            ..Default::default()
        };
        let file = Layer::Path {
            path: "/srv/disk.img".into(),
            by_name: false,
            is_image: true,
        };
        for (layer, depth) in [(Layer::Disk(disk), 1), (file, 2)] {
            facts.chain.push(crate::Step { depth, layer });
        }
        let again =
            |facts: &Facts| mount_again(facts, facts.file_system().unwrap(), "ext4", "delalloc");
        assert_eq!(
            again(&facts),
            "umount /mnt && mount -t ext4 -o \
             nosuid,noatime,commit=30,loop,offset=1048576,delalloc /srv/disk.img /mnt"
        );
        let Layer::Disk(disk) = &mut facts.chain[1].layer else {
            panic!()
        };
        disk.loop_range = Some(LoopRange {
            is_released: false,
            ..range
        });
        assert!(again(&facts).ends_with("commit=30,delalloc /srv/source /mnt"));
        file_system(&mut facts).other_mounts.push("/other".into());
        assert!(again(&facts).starts_with("findmnt --source /srv/source "));
        file_system(&mut facts).mount_point = "/".into();
        assert!(!again(&facts).contains("umount"));
    }
}
