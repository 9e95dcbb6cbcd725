//! The users and groups of the image: passwd(5), group(5).

use crate::failure::Failure;
use std::path::Path;

/// Bytes read of each file.
const LEN_MAX: u64 = 4 << 20;

/// The user that a command runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Supplementary groups.
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
    pub(super) shell: String,
}

/// Finds the user of `wanted`, `USER` or `USER:GROUP` by names or numbers, in the files of the
/// current root.
pub(super) fn find(wanted: &str) -> Result<User, Failure> {
    let read = |path: &str| read_file(Path::new(path)).unwrap_or_default();
    resolve(wanted, &read("/etc/passwd"), &read("/etc/group"))
}

/// Reads a regular file, without waiting for the writer of a pipe.
fn read_file(path: &Path) -> Option<String> {
    use std::io::Read;
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(LEN_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn resolve(wanted: &str, passwd: &str, group: &str) -> Result<User, Failure> {
    let found = find_user(wanted, passwd, group)?;
    // -1 asks setresuid(2) for no change.
    if wanted.is_empty() || found.uid == u32::MAX || found.gid == u32::MAX {
        return Err(Failure::new(format!("invalid user {wanted:?}")));
    }
    Ok(found)
}

fn find_user(wanted: &str, passwd: &str, group: &str) -> Result<User, Failure> {
    let (user, group_name) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    let number: Option<u32> = user.parse().ok();
    let lines = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let mut lines = lines.filter(|fields| fields.len() >= 7);
    let found = lines
        .find(|fields| fields[0] == user || fields[2].parse().ok() == number && number.is_some());
    let mut found = match (found, number) {
        (Some(fields), _) => User {
            name: fields[0].to_owned(),
            uid: parse(fields[2])?,
            gid: parse(fields[3])?,
            groups: Vec::new(),
            home: or_default(fields[5], "/"),
            shell: or_default(fields[6], "/bin/sh"),
        },
        (None, Some(uid)) if uid != 0 => User {
            name: uid.to_string(),
            uid,
            gid: 0,
            groups: Vec::new(),
            home: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
        },
        // An image without users still has the superuser.
        (None, number) if number == Some(0) || user == "root" => User {
            name: "root".to_owned(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: "/root".to_owned(),
            shell: "/bin/sh".to_owned(),
        },
        (None, _) => {
            return Err(Failure::new(format!(
                "no user {user} in /etc/passwd of the image"
            )));
        }
    };
    match group_name {
        Some(name) => found.gid = find_group(name, group)?,
        None => found.groups = groups_of(&found.name, group),
    }
    Ok(found)
}

fn or_default(field: &str, default: &str) -> String {
    if field.is_empty() { default } else { field }.to_owned()
}

fn parse(field: &str) -> Result<u32, Failure> {
    let number = field.parse();
    number.map_err(|_| Failure::new(format!("invalid id {field:?} in /etc/passwd of the image")))
}

fn find_group(name: &str, group: &str) -> Result<u32, Failure> {
    let lines = group
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let named = lines
        .filter(|fields| fields.len() >= 3 && fields[0] == name)
        .find_map(|fields| fields[2].parse().ok());
    named
        .or_else(|| name.parse().ok())
        .ok_or_else(|| Failure::new(format!("no group {name} in /etc/group of the image")))
}

/// Returns the groups that list the user as a member.
fn groups_of(user: &str, group: &str) -> Vec<u32> {
    let lines = group
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    lines
        .filter(|fields| fields.len() >= 4 && fields[3].split(',').any(|member| member == user))
        .filter_map(|fields| fields[2].parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/var/www:\nbad:x\n";
    const GROUP: &str = "root:x:0:\nwww:x:33:\nssl:x:44:root,www\naudio:x:29:www\n";

    #[test]
    fn user_is_found_by_name_and_number() {
        let www = resolve("www", PASSWD, GROUP).unwrap();
        assert_eq!(
            (www.uid, www.gid, www.groups.as_slice()),
            (33, 33, &[44, 29][..])
        );
        assert_eq!(
            (www.home.as_str(), www.shell.as_str()),
            ("/var/www", "/bin/sh")
        );
        assert_eq!(resolve("33", PASSWD, GROUP).unwrap(), www);
        let other = resolve("33:ssl", PASSWD, GROUP).unwrap();
        assert_eq!((other.gid, other.groups.len()), (44, 0));
        let unknown = resolve("1000:1000", PASSWD, GROUP).unwrap();
        assert_eq!((unknown.uid, unknown.gid), (1000, 1000));
    }

    #[test]
    fn unknown_user_is_refused() {
        assert!(resolve("nginx", PASSWD, GROUP).is_err());
        assert!(resolve("www:nginx", PASSWD, GROUP).is_err());
        assert!(resolve("bad", PASSWD, GROUP).is_err());
        for user in ["", "4294967295", "0:4294967295"] {
            assert!(resolve(user, PASSWD, GROUP).is_err(), "{user}");
        }
        assert_eq!(resolve("root", "", "").unwrap().uid, 0);
    }
}
