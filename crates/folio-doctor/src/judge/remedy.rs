//! Commands that fix the behavior of a mount, by the type of file system.

use crate::probe::Facts;
use crate::text::quote;
use std::path::Path;

/// How to have attributes trusted.
pub(super) fn attributes(facts: &Facts) -> Vec<String> {
    served(
        facts,
        &Words {
            fuse: "attr_timeout=1,entry_timeout=1",
            virtiofs: "--cache auto",
            nine_p: "cache=loose",
            nfs: "actimeo=3",
            cifs: "actimeo=1",
            vboxsf: "ttl=1000",
        },
    )
}

/// How to have pages kept.
pub(super) fn page_cache(facts: &Facts) -> Vec<String> {
    served(
        facts,
        &Words {
            fuse: "kernel_cache",
            virtiofs: "--cache auto",
            nine_p: "cache=loose",
            nfs: "fsc",
            cifs: "cache=strict",
            vboxsf: "cache=strict",
        },
    )
}

/// Options of `-o` (for virtiofs: of its daemon) that fix one fault.
struct Words {
    fuse: &'static str,
    virtiofs: &'static str,
    nine_p: &'static str,
    nfs: &'static str,
    cifs: &'static str,
    vboxsf: &'static str,
}

fn served(facts: &Facts, words: &Words) -> Vec<String> {
    let Some(found) = facts.file_system() else {
        return vec![format!("findmnt --target {}", quote(&facts.path))];
    };
    let (source, target) = (quote(Path::new(&found.source)), quote(&found.mount_point));
    let (fs_type, subtype) = found
        .fs_type
        .split_once('.')
        .unwrap_or((&found.fs_type, ""));
    // The subtype is often the served type, not the server: `fuse.ext4`.
    let named = if subtype.is_empty() {
        "SERVER"
    } else {
        subtype
    };
    let server = if subtype == "folio" {
        subtype
    } else {
        found.server.as_deref().unwrap_or(named)
    };
    let again = |options: &str| {
        vec![format!(
            "umount {target} && mount -t {fs_type} -o {options} {source} {target}"
        )]
    };
    match fs_type {
        "fuse" if server == "folio" => vec![folio(&source, &target)],
        "fuse" | "fuseblk" => {
            // Servers built with libfuse accept its options; other servers have their own, or none.
            let mut all = vec![format!(
                "umount {target} && {server} -o {} {source} {target}",
                words.fuse
            )];
            if Path::new(&found.source).is_dir() {
                all.push(folio(&source, &target));
            }
            all
        }
        "virtiofs" => vec![format!(
            "on the host: virtiofsd {} (instead of --cache never)",
            words.virtiofs
        )],
        "9p" => again(&format!("trans=virtio,{}", words.nine_p)),
        "nfs" | "nfs4" => again(words.nfs),
        "cifs" | "smb3" => again(words.cifs),
        "vboxsf" => again(words.vboxsf),
        _ => vec![format!("findmnt --target {target}")],
    }
}

/// Pages and attributes are trusted together: what is not cached is asked for.
fn folio(source: &str, target: &str) -> String {
    format!(
        "umount {target} && folio mount --background -o cache=writethrough,ttl=1s {source} {target}"
    )
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
                "bindfs -o attr_timeout=1,entry_timeout=1 /srv/source /mnt",
            ),
            ("virtiofs", "--cache auto"),
            ("9p", "cache=loose"),
            ("nfs4", "mount -t nfs4 -o actimeo=3 /srv/source /mnt"),
            ("cifs", "actimeo=1"),
            ("vboxsf", "ttl=1000"),
            ("ext4", "findmnt"),
        ] {
            let options = attributes(&healthy(fs_type));
            assert!(options[0].contains(word), "{fs_type}: {options:?}");
        }
        let mut facts = healthy("fuse.ext4");
        let Layer::FileSystem(found) = &mut facts.chain[0].layer else {
            panic!()
        };
        found.server = Some("fuse2fs".into());
        assert!(
            attributes(&facts)[0].contains("&& fuse2fs -o "),
            "{:?}",
            attributes(&facts)
        );
        assert!(page_cache(&healthy("fuse.folio"))[0].contains("cache=writethrough"));
    }
}
