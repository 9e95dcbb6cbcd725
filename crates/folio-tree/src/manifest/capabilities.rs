//! Capabilities of files: the text form of cap_from_text(3) as the value of an extended attribute.
//!
//! Source: Linux, include/uapi/linux/capability.h, `struct vfs_cap_data`, revision 2.

/// The name of the attribute.
pub(super) const XATTR: &[u8] = b"security.capability";

const REVISION_2: u32 = 0x0200_0000;
const FLAG_EFFECTIVE: u32 = 1;

/// The names without `cap_`; the place of a name is its number.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// Whether a text lists capabilities, and is not NAME=VALUE.
pub(super) fn is_text(text: &str) -> bool {
    ["cap_", "all", "="]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Returns the value of the attribute for clauses such as `cap_net_raw,cap_net_admin+ep`.
///
/// # Errors
///
/// What is wrong with the text.
pub(super) fn parse(text: &str) -> Result<Vec<u8>, String> {
    let invalid = || format!("invalid capabilities {text:?}: expected e.g. cap_net_raw+ep");
    // Effective, inheritable and permitted, one bit per capability.
    let mut sets = [0_u64; 3];
    for clause in text.split_whitespace() {
        let at = clause.find(['+', '-', '=']).ok_or_else(invalid)?;
        let (names, mut rest) = clause.split_at(at);
        let mask = mask(names).ok_or_else(invalid)?;
        while let Some(operator) = rest.chars().next() {
            rest = &rest[1..];
            let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
            if operator == '=' {
                sets = sets.map(|set| set & !mask);
            }
            for letter in rest[..end].chars() {
                let at = "eip".find(letter).ok_or_else(invalid)?;
                match operator {
                    '-' => sets[at] &= !mask,
                    _ => sets[at] |= mask,
                }
            }
            rest = &rest[end..];
        }
    }
    let [effective, inheritable, permitted] = sets;
    // A file has one bit for all effective ones.
    if effective != 0 && effective != permitted | inheritable {
        return Err(format!(
            "invalid capabilities {text:?}: of a file all or none are effective"
        ));
    }
    let flag = if effective == 0 { 0 } else { FLAG_EFFECTIVE };
    let (low, high) = (|set: u64| set as u32, |set: u64| (set >> 32) as u32);
    let words = [
        REVISION_2 | flag,
        low(permitted),
        low(inheritable),
        high(permitted),
        high(inheritable),
    ];
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// Returns the bits of names separated by commas; all of them for `all` and no name.
fn mask(names: &str) -> Option<u64> {
    if matches!(names, "" | "all") {
        return Some((1 << NAMES.len()) - 1);
    }
    names.split(',').try_fold(0, |mask, name| {
        let name = name.strip_prefix("cap_")?;
        let number = NAMES.iter().position(|known| *known == name)?;
        Some(mask | 1 << number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_the_bytes_of_setcap() {
        let value = parse("cap_net_raw+ep").unwrap();
        assert_eq!(value[..8], [1, 0, 0, 2, 0, 0x20, 0, 0]);
        assert_eq!(value[8..], [0; 12]);
        let value = parse("cap_chown,cap_bpf=p cap_bpf-p+i").unwrap();
        assert_eq!(value[..8], [0, 0, 0, 2, 1, 0, 0, 0]);
        assert_eq!(value[16..], [0x80, 0, 0, 0]);
        assert_eq!(parse("=ep").unwrap()[4..8], [0xff; 4]);
        for invalid in [
            "cap_net_raw",
            "cap_none+p",
            "cap_chown+x",
            "cap_chown=p cap_kill+ep",
        ] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
        assert!(is_text("cap_kill=p") && !is_text("user.cap_x=1"));
    }
}
