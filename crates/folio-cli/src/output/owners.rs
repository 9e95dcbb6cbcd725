//! Names of users and groups, as the image's own /etc/passwd and /etc/group have them.

use crate::image::Image;
use std::collections::HashMap;
use std::path::Path;

/// Longest passwd or group that is read.
const FILE_LEN_MAX: usize = 4 << 20;

/// Both tables; empty where the image has none.
pub(crate) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// Reads the image's tables.
    pub(crate) fn of(image: &Image) -> Self {
        Self {
            users: table(image, "/etc/passwd"),
            groups: table(image, "/etc/group"),
        }
    }

    /// The user's name, or the number.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    /// The group's name, or the number.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }

    /// The number of a user given by name or number.
    pub(crate) fn find_user(&self, text: &str) -> Option<u32> {
        find(&self.users, text)
    }

    /// The number of a group given by name or number.
    pub(crate) fn find_group(&self, text: &str) -> Option<u32> {
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

fn table(image: &Image, path: &str) -> HashMap<u32, String> {
    // Without the file, or with one that cannot be read, numbers are shown.
    let text = image
        .read_file(Path::new(path), FILE_LEN_MAX)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
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
