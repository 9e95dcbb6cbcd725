//! Power cuts at every write of changes that the header's extensions and fields make visible:
//! bitmaps, and options of the image.

use super::power_cuts::{after_cut, check_cut, content, copy_of, file, prepared, snapshot_count};
use crate::base::Result;
use crate::block::Device;
use crate::block::file::{DeviceFile, ImageFile};
use crate::block::image::Compat;
use crate::block::qcow2::layout::bitmaps::DirtyBitmap;
use crate::block::qcow2::{
    AmendOptions, BitmapBits, BitmapChange, amend, change_bitmap, check_amend, downgrade, inspect,
    list_bitmaps, read_bitmap,
};
use crate::block::wrappers::RecordDevice;
use std::sync::Arc;

type Step = fn(&dyn ImageFile) -> Result<()>;

const ADD: BitmapChange<'_> = BitmapChange::Add {
    granularity_bytes: Some(512),
    is_enabled: true,
    bits: None,
};

/// The options and bitmaps of an image.
type ImageState = (u32, Compat, bool, Vec<(DirtyBitmap, BitmapBits)>);

fn state(device: &Arc<dyn Device>) -> ImageState {
    let image = file(device);
    let info = inspect(&image).unwrap();
    let bits = |bitmap: DirtyBitmap| {
        let bits = read_bitmap(&image, &bitmap.name).unwrap();
        (bitmap, bits)
    };
    let bitmaps = list_bitmaps(&image)
        .unwrap()
        .into_iter()
        .map(bits)
        .collect();
    (
        info.refcount_bits,
        info.compat,
        info.lazy_refcounts,
        bitmaps,
    )
}

/// Cuts the power at every write of `steps`: the image is as between two of them.
fn cut_everywhere(base: &Arc<dyn Device>, steps: &[Step]) {
    let start = copy_of(&**base);
    let record = Arc::new(RecordDevice::new(copy_of(&**base)));
    let end: Arc<dyn Device> = record.clone();
    let mut allowed = vec![state(&start)];
    for step in steps {
        step(&DeviceFile::open(record.clone())).unwrap();
        allowed.push(state(&end));
    }
    allowed.dedup();
    assert!(allowed.len() > steps.len() / 2);
    let (want, count) = (content(&start), snapshot_count(&start));
    let writes = record.recorded();
    for cut in 0..=writes.len() {
        let device = after_cut(&start, &writes[..cut]);
        assert!(content(&device) == want, "cut at {cut}");
        assert!(allowed.contains(&state(&device)), "cut at {cut}");
        check_cut(&format!("cut at {cut}"), &device, &[count]);
    }
}

#[test]
fn bitmap_changes_survive_power_cuts() {
    fn full(file: &dyn ImageFile) -> Result<()> {
        let bits = read_bitmap(file, "fine")?;
        change_bitmap(file, "coarse", &BitmapChange::Merge(&bits))
    }
    let writes = [(1, 0..300_000), (2, 4096..100_000)];
    cut_everywhere(
        &prepared(&writes, 1),
        &[
            |file| change_bitmap(file, "fine", &ADD),
            |file| {
                let granularity_bytes = Some(1 << 16);
                let (is_enabled, bits) = (false, None);
                let add = BitmapChange::Add {
                    granularity_bytes,
                    is_enabled,
                    bits,
                };
                change_bitmap(file, "coarse", &add)
            },
            |file| change_bitmap(file, "coarse", &BitmapChange::Enable),
            full,
            |file| change_bitmap(file, "fine", &BitmapChange::Disable),
            |file| change_bitmap(file, "coarse", &BitmapChange::Clear),
            |file| change_bitmap(file, "coarse", &BitmapChange::Remove),
            |file| change_bitmap(file, "fine", &BitmapChange::Remove),
        ],
    );
}

#[test]
fn amended_options_survive_power_cuts() {
    fn change(file: &dyn ImageFile, options: &AmendOptions) -> Result<()> {
        check_amend(file, options)?;
        amend(file, options)
    }
    fn width(file: &dyn ImageFile, bits: u32) -> Result<()> {
        let options = AmendOptions {
            refcount_bits: Some(bits),
            ..AmendOptions::default()
        };
        change(file, &options)
    }
    fn compat(file: &dyn ImageFile, compat: Compat) -> Result<()> {
        let options = AmendOptions {
            compat: Some(compat),
            ..AmendOptions::default()
        };
        change(file, &options)?;
        match compat {
            Compat::V0_10 => downgrade(file),
            Compat::V1_1 => Ok(()),
        }
    }
    let writes = [(1, 0..300_000), (2, 4096..100_000)];
    let steps: [Step; 3] = [
        |file| width(file, 64),
        |file| width(file, 2),
        |file| {
            let options = AmendOptions {
                lazy_refcounts: Some(true),
                ..AmendOptions::default()
            };
            change(file, &options)
        },
    ];
    cut_everywhere(&prepared(&writes, 1), &steps);
    let steps: [Step; 3] = [
        |file| compat(file, Compat::V0_10),
        |file| compat(file, Compat::V1_1),
        |file| width(file, 1),
    ];
    cut_everywhere(&prepared(&writes, 0), &steps);
}
