//! Partition types by name, UUID and number.

use crate::base::{Errno, Error, Result};
use std::str::FromStr;
use uuid::Uuid;

/// The type of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionType {
    /// One of [`PartitionType::names`].
    Named(usize),
    /// A UUID of a GPT, as text prints it.
    Guid([u8; 16]),
    /// A number of an MBR.
    Code(u8),
}

/// A type with a name: its UUID in a GPT, its number in an MBR if it has one, a description.
struct NamedType {
    name: &'static str,
    guid: &'static str,
    code: Option<u8>,
    description: &'static str,
}

const fn named(
    name: &'static str,
    guid: &'static str,
    code: Option<u8>,
    description: &'static str,
) -> NamedType {
    NamedType {
        name,
        guid,
        code,
        description,
    }
}

/// Sources: UEFI specification; Discoverable Partitions Specification; fdisk(8).
const TYPES: [NamedType; 29] = [
    named(
        "esp",
        "c12a7328-f81f-11d2-ba4b-00a0c93ec93b",
        Some(0xef),
        "EFI system",
    ),
    named(
        "bios-boot",
        "21686148-6449-6e6f-744e-656564454649",
        None,
        "BIOS boot",
    ),
    named(
        "linux",
        "0fc63daf-8483-4772-8e79-3d69d8477de4",
        Some(0x83),
        "Linux filesystem",
    ),
    named(
        "swap",
        "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f",
        Some(0x82),
        "Linux swap",
    ),
    named(
        "linux-lvm",
        "e6d6d379-f507-44c2-a23c-238f2a3df928",
        Some(0x8e),
        "Linux LVM",
    ),
    named(
        "linux-raid",
        "a19d880f-05fc-4d3b-a006-743f0f84911e",
        Some(0xfd),
        "Linux RAID",
    ),
    named(
        "linux-home",
        "933ac7e1-2eb4-4f13-b844-0e14e2aef915",
        None,
        "Linux home",
    ),
    named(
        "linux-srv",
        "3b8f8425-20e0-4f3b-907f-1a25a76f98e8",
        None,
        "Linux server data",
    ),
    named(
        "linux-var",
        "4d21b016-b534-45c2-a9fb-5c16e091fd2d",
        None,
        "Linux variable data",
    ),
    named(
        "xbootldr",
        "bc13c2ff-59e6-4262-a352-b275fd6f7172",
        Some(0xea),
        "Linux extended boot",
    ),
    named(
        "linux-root-x86",
        "44479540-f297-41b2-9af7-d131d5f0458a",
        None,
        "Linux root (x86)",
    ),
    named(
        "linux-root-x86-64",
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        None,
        "Linux root (x86-64)",
    ),
    named(
        "linux-root-arm",
        "69dad710-2ce4-4e3c-b16c-21a1d49abed3",
        None,
        "Linux root (ARM)",
    ),
    named(
        "linux-root-arm64",
        "b921b045-1df0-41c3-af44-4c6f280d3fae",
        None,
        "Linux root (ARM-64)",
    ),
    named(
        "linux-root-riscv64",
        "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
        None,
        "Linux root (RISC-V-64)",
    ),
    named(
        "linux-usr-x86-64",
        "8484680c-9521-48c6-9c11-b0720656f69e",
        None,
        "Linux /usr (x86-64)",
    ),
    named(
        "linux-usr-arm64",
        "b0e01050-ee5f-4390-949a-9101b17104e9",
        None,
        "Linux /usr (ARM-64)",
    ),
    named(
        "linux-root-x86-64-verity",
        "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5",
        None,
        "Linux root verity (x86-64)",
    ),
    named(
        "linux-verity-x86-64",
        "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5",
        None,
        "Linux root verity (x86-64)",
    ),
    named(
        "linux-root-x86-64-verity-sig",
        "41092b05-9fc8-4523-994f-2def0408b176",
        None,
        "Linux root verity signature (x86-64)",
    ),
    named(
        "linux-root-arm64-verity",
        "df3300ce-d69f-4c92-978c-9bfb0f38d820",
        None,
        "Linux root verity (ARM-64)",
    ),
    named(
        "linux-root-arm64-verity-sig",
        "6db69de6-29f4-4758-a7a5-962190f00ce3",
        None,
        "Linux root verity signature (ARM-64)",
    ),
    named(
        "linux-usr-x86-64-verity",
        "77ff5f63-e7b6-4633-acf4-1565b864c0e6",
        None,
        "Linux /usr verity (x86-64)",
    ),
    named(
        "linux-usr-x86-64-verity-sig",
        "e7bb33fb-06cf-4e81-8273-e543b413e2e2",
        None,
        "Linux /usr verity signature (x86-64)",
    ),
    named(
        "linux-usr-arm64-verity",
        "6e11a4e7-fbca-4ded-b9e9-e1a512bb664e",
        None,
        "Linux /usr verity (ARM-64)",
    ),
    named(
        "linux-usr-arm64-verity-sig",
        "c23ce4ff-44bd-4b00-b2d4-b41b3419e02a",
        None,
        "Linux /usr verity signature (ARM-64)",
    ),
    named(
        "microsoft-basic-data",
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7",
        Some(0x07),
        "Microsoft basic data",
    ),
    named(
        "microsoft-reserved",
        "e3c9e316-0b5c-4db8-817d-f92df00215ae",
        None,
        "Microsoft reserved",
    ),
    named(
        "fat32",
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7",
        Some(0x0c),
        "Microsoft basic data",
    ),
];

impl PartitionType {
    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TYPES.iter().map(|known| known.name)
    }

    /// Returns the UUID in a GPT.
    ///
    /// # Errors
    ///
    /// EINVAL for a number of an MBR.
    pub fn guid(self) -> Result<[u8; 16]> {
        match self {
            Self::Named(index) => Ok(guid_of(&TYPES[index])),
            Self::Guid(guid) => Ok(guid),
            Self::Code(code) => {
                let what = format!("partition type {code:#04x}: a GPT needs a name or a UUID");
                Err(Error::new(Errno::INVAL, what))
            }
        }
    }

    /// Returns the number in an MBR.
    ///
    /// # Errors
    ///
    /// EINVAL for a type that has none.
    pub fn mbr_code(self) -> Result<u8> {
        let what = match self {
            Self::Code(code) => return Ok(code),
            Self::Named(index) => match TYPES[index].code {
                Some(code) => return Ok(code),
                None => TYPES[index].name.to_owned(),
            },
            Self::Guid(guid) => Uuid::from_bytes(guid).to_string(),
        };
        let what = format!("partition type {what}: an MBR needs a number, such as 0x83");
        Err(Error::new(Errno::INVAL, what))
    }
}

fn guid_of(known: &NamedType) -> [u8; 16] {
    Uuid::parse_str(known.guid).map_or([0; 16], Uuid::into_bytes)
}

/// Returns the description of a type's UUID.
pub(super) fn description(guid: Uuid) -> Option<&'static str> {
    let found = TYPES
        .iter()
        .find(|known| guid_of(known) == guid.into_bytes());
    found.map(|known| known.description)
}

impl FromStr for PartitionType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(index) = TYPES.iter().position(|known| known.name == text) {
            return Ok(Self::Named(index));
        }
        if let Ok(guid) = Uuid::parse_str(text) {
            return Ok(Self::Guid(guid.into_bytes()));
        }
        let code = text
            .strip_prefix("0x")
            .map(|digits| u8::from_str_radix(digits, 16));
        if let Some(Ok(code)) = code {
            return Ok(Self::Code(code));
        }
        let names: Vec<_> = Self::names().collect();
        let what = format!(
            "unknown partition type {text:?}: expected a UUID, a number such as 0x83, or one of {}",
            names.join(", ")
        );
        Err(Error::new(Errno::INVAL, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_and_valid_uuids() {
        for (index, known) in TYPES.iter().enumerate() {
            assert_eq!(
                known.name.parse::<PartitionType>().unwrap(),
                PartitionType::Named(index)
            );
            assert!(Uuid::parse_str(known.guid).is_ok(), "{}", known.name);
        }
        assert_eq!(
            "0x83".parse::<PartitionType>().unwrap().mbr_code().unwrap(),
            0x83
        );
        assert!("0x83".parse::<PartitionType>().unwrap().guid().is_err());
        assert!(
            "bios-boot"
                .parse::<PartitionType>()
                .unwrap()
                .mbr_code()
                .is_err()
        );
        let unknown = "linus".parse::<PartitionType>().unwrap_err();
        assert!(unknown.to_string().contains("linux-root-x86-64"));
    }
}
