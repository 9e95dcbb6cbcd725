//! Names of users and groups, from a file system's own /etc/passwd and /etc/group.

use crate::entry::read_file;
use folio::Process;
use std::collections::HashMap;
use std::path::Path;

/// Bytes read of a passwd or group file.
const LEN_MAX: usize = 4 << 20;

/// The tables of users and groups; empty if the file system has none.
#[derive(Debug, Default)]
pub struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// Reads the tables of the file system that a process sees. Without a file, or if it cannot be
    /// read, its table is empty.
    pub fn of(process: &Process) -> Self {
        let read = |path| read_file(process, Path::new(path), LEN_MAX).unwrap_or_default();
        Self::parse(&read("/etc/passwd"), &read("/etc/group"))
    }

    /// Parses the contents of a passwd file and a group file.
    pub fn parse(passwd: &[u8], group: &[u8]) -> Self {
        Self {
            users: table(passwd),
            groups: table(group),
        }
    }

    /// Returns the user's name, or the number if it has none.
    pub fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    /// Returns the group's name, or the number if it has none.
    pub fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }

    /// Returns the uid of a user given by name or number.
    pub fn find_user(&self, text: &str) -> Option<u32> {
        find(&self.users, text)
    }

    /// Returns the gid of a group given by name or number.
    pub fn find_group(&self, text: &str) -> Option<u32> {
        find(&self.groups, text)
    }
}

fn find(table: &HashMap<u32, String>, text: &str) -> Option<u32> {
    let named = table
        .iter()
        .find(|(_, name)| *name == text)
        .map(|(id, _)| *id);
    named.or_else(|| text.parse().ok())
}

fn table(text: &[u8]) -> HashMap<u32, String> {
    let text = String::from_utf8_lossy(text);
    let mut table = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(Ok(id))) =
            (fields.next(), fields.next(), fields.next().map(str::parse))
        {
            table.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    table
}
