//! The table of an image's snapshots, as qemu-img prints it.

use super::qemu_size::human;
use crate::output::printable;
use folio::block::qcow2::Snapshot as Found;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Returns the titles of the columns.
pub(crate) fn heading_row() -> String {
    columns("ID", "TAG", "VM SIZE", "DATE", ["VM CLOCK", "ICOUNT"])
}

/// Returns the row of a snapshot.
pub(crate) fn row(found: &Found) -> String {
    let (id, tag) = (printable(&found.id), printable(&found.name));
    let icount = found.instructions.map(|count| count.to_string());
    columns(
        &id,
        &tag,
        &human(found.vm_state_bytes),
        &date(found),
        [&vm_clock(found), &icount.unwrap_or_default()],
    )
}

fn columns(id: &str, tag: &str, size: &str, date: &str, [clock, icount]: [&str; 2]) -> String {
    format!("{id:<9} {tag:<16} {size:>8}{date:>20}{clock:>13}{icount:>11}")
}

fn date(found: &Found) -> String {
    let zone = TimeZone::system();
    match Timestamp::from_second(found.date_secs.into()) {
        Ok(instant) => instant
            .to_zoned(zone)
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string(),
        Err(_) => "-".to_owned(),
    }
}

fn vm_clock(found: &Found) -> String {
    let millis = found.vm_clock_nanos / 1_000_000;
    let secs = millis / 1000;
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        secs / 3600,
        secs / 60 % 60,
        secs % 60,
        millis % 1000
    )
}
