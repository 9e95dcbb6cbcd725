//! Tests of partition tables, correct and hostile.

use super::*;
use crate::base::Errno;
use crate::block::{Device, FileSystemKind, MemoryDevice};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn disk_of(bytes: &[u8]) -> Arc<MemoryDevice> {
    let disk = Arc::new(MemoryDevice::new(bytes.len() as u64));
    disk.write_at(bytes, 0).unwrap();
    disk
}

fn new_partition(start_bytes: u64, len_bytes: u64) -> NewPartition {
    NewPartition {
        start_bytes,
        len_bytes,
        partition_type: "linux".parse().unwrap(),
        uuid: [start_bytes as u8; 16],
        label: "data".to_owned(),
        attributes: 0,
        is_bootable: false,
    }
}

fn gpt_disk() -> Vec<u8> {
    let disk = MemoryDevice::new(16 * MIB);
    let table = NewPartitionTable {
        scheme: TableScheme::Gpt,
        sector_bytes: 512,
        id: [7; 16],
        partitions: [1, 2].map(|at| new_partition(at * MIB, MIB)).into(),
    };
    table.write(&disk).unwrap();
    let mut bytes = vec![0; 16 * MIB as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn only_ext4_partition_is_selected() {
    let mut bytes = gpt_disk();
    let refused = select(disk_of(&bytes), None).err().unwrap();
    assert!(
        refused
            .to_string()
            .contains("no ext4 file system; partitions: 1 (1.0 MiB, Linux filesystem, label ")
    );
    bytes[(2 * MIB) as usize + 1080..][..2].copy_from_slice(&[0x53, 0xef]);
    let device = select(disk_of(&bytes), None).unwrap();
    assert_eq!(device.len_bytes(), MIB);
    assert_eq!(
        FileSystemKind::of(&*device).unwrap(),
        Some(FileSystemKind::Ext4)
    );
    bytes[MIB as usize + 1080..][..2].copy_from_slice(&[0x53, 0xef]);
    let refused = select(disk_of(&bytes), None).err().unwrap();
    assert_eq!(refused.errno(), Errno::INVAL);
    let advice = "select one by number or label; partitions: 1 (1.0 MiB, ";
    assert!(refused.to_string().contains(advice), "{refused}");
    assert!(select(disk_of(&bytes), Some(2)).is_ok());
    assert_eq!(
        select(disk_of(&bytes), Some(3)).err().unwrap().errno(),
        Errno::NXIO
    );
    let found = partitions(&*disk_of(&bytes)).unwrap();
    assert_eq!((found[0].number, found[0].label.as_str()), (1, "data"));
}

#[test]
fn backup_gpt_replaces_damaged_primary() {
    let mut bytes = gpt_disk();
    bytes[512..1024].fill(0);
    assert_eq!(partitions(&*disk_of(&bytes)).unwrap().len(), 2);
}

#[test]
fn logical_partitions_are_numbered_from_five() {
    let mut bytes = vec![0; 16 * MIB as usize];
    let entry = |sys: u8, start: u32, sectors: u32| {
        let mut entry = [0; 16];
        entry[4] = sys;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        entry
    };
    let mut record = |at: usize, first: [u8; 16], second: [u8; 16]| {
        bytes[at * 512 + 446..][..16].copy_from_slice(&first);
        bytes[at * 512 + 462..][..16].copy_from_slice(&second);
        bytes[at * 512 + 510..][..2].copy_from_slice(&[0x55, 0xaa]);
    };
    record(0, entry(0x83, 2048, 2048), entry(5, 4096, 8192));
    record(4096, entry(0x83, 64, 1000), entry(5, 2048, 2048));
    record(4096 + 2048, entry(0x82, 64, 1000), [0; 16]);
    let found = partitions(&*disk_of(&bytes)).unwrap();
    let got: Vec<_> = found
        .iter()
        .map(|p| (p.number, p.start_bytes / 512, &p.type_name[..]))
        .collect();
    assert_eq!(
        got,
        [
            (1, 2048, "Linux"),
            (5, 4160, "Linux"),
            (6, 6208, "Linux swap")
        ]
    );
    // A chain that returns to an earlier record.
    bytes[(4096 + 2048) * 512 + 462..][..16].copy_from_slice(&entry(5, 2048, 2048));
    assert_eq!(
        partitions(&*disk_of(&bytes)).unwrap_err().kind(),
        crate::base::ErrorKind::Corrupt
    );
}

#[test]
fn hostile_tables_do_not_panic() {
    let good = gpt_disk();
    let disk = disk_of(&good);
    for at in (0..2 * 512).chain((good.len() - 512)..good.len()) {
        disk.write_at(&[good[at] ^ 0xff], at as u64).unwrap();
        let _ = partitions(&*disk);
        // Corrects the header's checksum, so that each field is used.
        if (512..512 + 92).contains(&at) {
            let mut header = good[512..1024].to_vec();
            header[at - 512] ^= 0xff;
            header[16..20].fill(0);
            let sum = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&header[..92]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            disk.write_at(&header, 512).unwrap();
            let _ = partitions(&*disk);
            disk.write_at(&good[512..1024], 512).unwrap();
        }
        disk.write_at(&good[at..=at], at as u64).unwrap();
    }
    assert_eq!(partitions(&*disk).unwrap().len(), 2);
}

#[test]
fn number_after_at_is_a_partition() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk@2");
    let split = |name: &str| split_partition(name.as_ref());
    assert_eq!(
        split(file.to_str().unwrap()).1,
        Some(PartitionName::Number(2))
    );
    std::fs::write(&file, "").unwrap();
    assert_eq!(split(file.to_str().unwrap()), (file, None));
    assert_eq!(
        split("a@b@12"),
        ("a@b".into(), Some(PartitionName::Number(12)))
    );
    for name in ["disk", "disk@", "disk@x", "disk@-1", "disk@99999999999"] {
        assert_eq!(split(name), (name.into(), None));
    }
}
