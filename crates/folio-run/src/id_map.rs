//! The maps of user and group ids of a new user namespace: user_namespaces(7), subuid(5).

use crate::failure::{Failure, describe};
use rustix::io::Errno;
use rustix::process::Pid;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// Bits of the ids that a range for the superuser has: 16,777,216 ids.
const RANGE_BITS: u32 = 24;
/// The first and the last such range. Ids from 2^31 on belong to no account and to no container:
/// distributions give out lower ones, and the last ids mean "unchanged" and "unknown".
const RANGES: std::ops::RangeInclusive<u32> = 128..=254;

/// A run of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

/// The kind of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    User,
    Group,
}

impl Kind {
    /// Returns the map of a process, below /proc/PID.
    fn map_name(self) -> &'static str {
        match self {
            Self::User => "uid_map",
            Self::Group => "gid_map",
        }
    }

    /// Returns the list of subordinate ids, and the program that maps them.
    fn subordinate(self) -> (&'static str, &'static str) {
        match self {
            Self::User => ("/etc/subuid", "newuidmap"),
            Self::Group => ("/etc/subgid", "newgidmap"),
        }
    }
}

/// The ids that the processes of a namespace have outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdMap {
    /// Each id is itself.
    Own,
    /// The superuser is the user, the other ids are the user's subordinate ones.
    Subordinate,
    /// Id n is that number and n, as long as the namespace lasts.
    Unused(u32),
    /// Only the superuser's id exists, which is the user's, for this reason.
    Single(String),
}

/// Maps the ids of the namespace of the process `init`. The superuser's commands get ids that
/// nothing else has, unless `keeps_ids`.
///
/// # Errors
/// A kernel that permits no map at all.
pub(crate) fn write(init: Pid, keeps_ids: bool) -> Result<IdMap, Failure> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return write_of_superuser(init, keeps_ids);
    }
    let reason = match write_subordinate(init) {
        Ok(()) => return Ok(IdMap::Subordinate),
        Err(reason) => reason,
    };
    // Else a member of a group could lose a denial that the group's mode expresses.
    write_file(init, "setgroups", "deny")?;
    for (kind, id) in [
        (Kind::User, user.as_raw()),
        (Kind::Group, rustix::process::getegid().as_raw()),
    ] {
        let extent = Extent {
            inside: 0,
            outside: id,
            count: 1,
        };
        write_map(init, kind, &[extent])?;
    }
    Ok(IdMap::Single(reason))
}

fn write_of_superuser(init: Pid, keeps_ids: bool) -> Result<IdMap, Failure> {
    let own = |kind: Kind| {
        let own = std::fs::read_to_string(format!("/proc/self/{}", kind.map_name()));
        let own = own.map_err(|error| Failure::new(format!("/proc/self: {error}")))?;
        Ok::<_, Failure>((kind, identity(&own)))
    };
    let own = [own(Kind::User)?, own(Kind::Group)?];
    let range = unused_range().map_err(|errno| Failure::of("cannot choose ids", errno))?;
    // In a container the superuser may have few ids.
    let has_range = own.iter().all(|(_, own)| is_within(range, own));
    let range = (!keeps_ids && has_range).then_some(range);
    for (kind, own) in &own {
        write_map(
            init,
            *kind,
            range.as_ref().map_or(own, std::slice::from_ref),
        )?;
    }
    Ok(range.map_or(IdMap::Own, |range| IdMap::Unused(range.outside)))
}

/// Returns a map to ids that nothing on this machine has; commands at the same time most likely
/// have different ones.
fn unused_range() -> Result<Extent, Errno> {
    let mut random = [0];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let count = RANGES.end() - RANGES.start() + 1;
    Ok(Extent {
        inside: 0,
        outside: (RANGES.start() + u32::from(random[0]) % count) << RANGE_BITS,
        count: 1 << RANGE_BITS,
    })
}

/// Returns whether one of the extents of `own`, a map to itself, has all ids of `range`.
fn is_within(range: Extent, own: &[Extent]) -> bool {
    own.iter().any(|extent| {
        let end = extent.outside.saturating_add(extent.count);
        extent.outside <= range.outside && range.outside.saturating_add(range.count) <= end
    })
}

/// Maps id 0 to the user, and the ids from 1 on to the user's subordinate ids.
fn write_subordinate(init: Pid) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    let names = user_names(user);
    let mut maps = Vec::new();
    for (kind, id) in [
        (Kind::User, user),
        (Kind::Group, rustix::process::getegid().as_raw()),
    ] {
        let (list, program) = kind.subordinate();
        let text = std::fs::read_to_string(list).unwrap_or_default();
        let extents = subordinate(&text, &names, id);
        if extents.len() < 2 {
            let name = names.first().map_or("this user", String::as_str);
            return Err(format!("{list} has no line for {name}"));
        }
        maps.push((program, extents));
    }
    for (program, extents) in maps {
        map_by_program(init, program, &extents)?;
    }
    Ok(())
}

fn map_by_program(init: Pid, program: &str, extents: &[Extent]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg(init.as_raw_nonzero().to_string());
    for extent in extents {
        command.args([extent.inside, extent.outside, extent.count].map(|id| id.to_string()));
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            format!("the program {program} is missing (package uidmap or shadow-utils)")
        } else {
            format!("{program}: {error}")
        }
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Returns the names and the number by which lists may name a user.
fn user_names(user: u32) -> Vec<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut names: Vec<_> = passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
        })
        .collect();
    // Users of a directory service. The program checks the range again.
    names.extend(std::env::var("USER").ok());
    names.push(user.to_string());
    names.dedup();
    names
}

/// Returns the map of a user: the superuser inside is the user, the other ids are the ranges that
/// `list` (subuid(5)) gives to one of `names`.
fn subordinate(list: &str, names: &[String], user: u32) -> Vec<Extent> {
    let mut extents = vec![Extent {
        inside: 0,
        outside: user,
        count: 1,
    }];
    let mut inside = 1_u32;
    for line in list.lines() {
        let mut fields = line.trim().split(':');
        let (Some(name), Some(Ok(outside)), Some(Ok(count))) = (
            fields.next(),
            fields.next().map(str::parse::<u32>),
            fields.next().map(str::parse::<u32>),
        ) else {
            continue;
        };
        if !names.iter().any(|known| known == name) || count == 0 {
            continue;
        }
        let Some(next) = inside.checked_add(count) else {
            break;
        };
        extents.push(Extent {
            inside,
            outside,
            count,
        });
        inside = next;
    }
    extents
}

/// Returns the map in which each id that is mapped in `own`, the map of a process, is itself.
fn identity(own: &str) -> Vec<Extent> {
    let extents = own.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let inside = numbers.next()?.ok()?;
        let count = numbers.nth(1)?.ok()?;
        Some(Extent {
            inside,
            outside: inside,
            count,
        })
    });
    extents.collect()
}

fn write_map(init: Pid, kind: Kind, extents: &[Extent]) -> Result<(), Failure> {
    let mut text = String::new();
    for extent in extents {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} {} {}",
            extent.inside, extent.outside, extent.count
        );
    }
    write_file(init, kind.map_name(), &text)
}

fn write_file(init: Pid, name: &str, text: &str) -> Result<(), Failure> {
    let path = format!("/proc/{}/{name}", init.as_raw_nonzero());
    std::fs::write(path, text).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Failure::new(format!(
            "cannot map ids of a user namespace ({name}): {}",
            describe(errno)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ranges_follow_the_superuser() {
        let list = "other:1:5\nfolio:100000:65536\nbad\n1000:300000:10\nfolio:x:1\nfolio:7:0\n";
        let names = ["folio".to_owned(), "1000".to_owned()];
        let extents = subordinate(list, &names, 1000);
        let numbers: Vec<_> = extents
            .iter()
            .map(|extent| (extent.inside, extent.outside, extent.count))
            .collect();
        assert_eq!(
            numbers,
            [(0, 1000, 1), (1, 100_000, 65_536), (65_537, 300_000, 10)]
        );
        assert_eq!(subordinate("", &names, 1000).len(), 1);
    }

    #[test]
    fn identity_keeps_the_ids_of_the_own_map() {
        let extents =
            identity("         0       1000          1\n         1     100000      65536\n");
        let numbers: Vec<_> = extents
            .iter()
            .map(|extent| (extent.inside, extent.outside, extent.count))
            .collect();
        assert_eq!(numbers, [(0, 0, 1), (1, 1, 65_536)]);
    }

    #[test]
    fn unused_range_is_within_the_map_of_the_machine() {
        let machine = identity("         0          0 4294967295\n");
        let range = unused_range().unwrap();
        assert!(range.outside >= 1 << 31);
        assert!(is_within(range, &machine));
        assert!(!is_within(range, &identity("0 1000 1\n1 100000 65536\n")));
    }
}
