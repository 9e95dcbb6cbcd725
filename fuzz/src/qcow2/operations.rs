//! Disk operations on a sound image, compared with plain memory.

use super::base::BaseImage;
use arbitrary::{Arbitrary, Unstructured};
use folio::block::qcow2::Repair;
use folio::block::tools::check_on;
use folio::block::{Allocation, Device};

/// Maximum number of operations per input.
const OPERATIONS_MAX: usize = 60;

#[derive(Debug, Arbitrary)]
enum Operation {
    Write { offset: u16, len: u16, byte: u8 },
    Zero { offset: u16, len: u16 },
    Discard { offset: u16, len: u16 },
    Read { offset: u16, len: u16 },
    Flush,
    Reopen,
}

/// Runs the operations given by `data`; reads must return the written bytes.
pub fn operations(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let bases = BaseImage::all();
    let base = &bases[usize::from(u8::arbitrary(&mut input).unwrap_or(0)) % bases.len()];
    let device = base.device();
    let open = || base.open(device.clone()).expect("the image is sound");
    let mut disk = open();
    let mut model = vec![0; disk.len_bytes() as usize];
    disk.read_at(&mut model, 0).expect("the image is sound");
    let mut done = Vec::new();
    while done.len() < OPERATIONS_MAX && !input.is_empty() {
        let Ok(operation) = Operation::arbitrary(&mut input) else {
            break;
        };
        if matches!(operation, Operation::Reopen) {
            drop(disk);
            disk = open();
        } else {
            run(&disk, &mut model, &operation)
                .unwrap_or_else(|error| panic!("{error}: {operation:?}, {done:?}"));
        }
        done.push(operation);
    }
    compare(&disk, &model, &done);
    drop(disk);
    compare(&open(), &model, &done);
    let report =
        check_on(device.clone(), Repair::Nothing, &mut |_| {}).expect("the image is sound");
    assert!(
        report.corruptions + report.check_errors == 0,
        "{report:?}: {done:?}"
    );
}

/// Returns a byte range on the disk. Twice a 16-bit number exceeds the disk; a length is mostly a
/// few clusters.
fn range(model: &[u8], offset: u16, len: u16) -> std::ops::Range<usize> {
    let start = usize::from(offset) * 2 % model.len();
    let len = if len & 7 == 7 {
        usize::from(len)
    } else {
        usize::from(len) % 2500
    };
    start..(start + len).min(model.len())
}

fn run(disk: &dyn Device, model: &mut [u8], operation: &Operation) -> folio::Result<()> {
    match operation {
        Operation::Write { offset, len, byte } => {
            let range = range(model, *offset, *len);
            model[range.clone()].fill(*byte);
            disk.write_at(&model[range.clone()], range.start as u64)
        }
        Operation::Zero { offset, len } => {
            let range = range(model, *offset, *len);
            model[range.clone()].fill(0);
            disk.write_zeroes(range.start as u64, range.len() as u64)
        }
        Operation::Discard { offset, len } => {
            let range = range(model, *offset, *len);
            disk.discard(range.start as u64, range.len() as u64)?;
            // The disk may return any bytes for the range now, so store them in the model.
            disk.read_at(&mut model[range.clone()], range.start as u64)
        }
        Operation::Read { offset, len } => {
            let range = range(model, *offset, *len);
            let mut found = vec![0xaa; range.len()];
            disk.read_at(&mut found, range.start as u64)?;
            assert!(found == model[range.clone()], "{range:?} reads wrong");
            Ok(())
        }
        Operation::Flush => disk.flush(),
        Operation::Reopen => Ok(()),
    }
}

fn compare(disk: &dyn Device, model: &[u8], done: &[Operation]) {
    let mut found = vec![0xaa; model.len()];
    disk.read_at(&mut found, 0).expect("the image is sound");
    let wrong = found
        .iter()
        .zip(model)
        .position(|(found, wanted)| found != wanted);
    assert!(wrong.is_none(), "byte {wrong:?} reads wrong: {done:?}");
    let mut at = 0;
    while at < model.len() {
        let (kind, count) = disk
            .allocation(at as u64, (model.len() - at) as u64)
            .expect("the image is sound");
        let run = &model[at..at + count as usize];
        assert!(
            kind == Allocation::Data || run.iter().all(|byte| *byte == 0),
            "hole at {at}: {done:?}"
        );
        at += run.len();
    }
}
