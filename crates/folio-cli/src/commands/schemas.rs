//! The schemas of docs/schema that are derived from the types of this crate.

use super::cache::drop::DropReport;
use super::cache::fit::FitOutput;
use super::cache::meminfo::MeminfoReport;
use super::cache::save::SaveReport;
use super::cache::status::StatusReport;
use super::cache::top::TopReport;
use super::df::FileSystemUsage;
use super::doctor::report::DoctorReport;
use super::du::DirectoryUsage;
use super::powercut::report::PowercutReport;
use super::tar::list::EntryRecord;
use crate::output::FileRecord;
use crate::warm_engine::WarmReport;
use schemars::JsonSchema;

#[path = "../../../../tests/support/schema.rs"]
mod schema;

use schema::assert_schema_of;

/// A list; with `--stats` an object of the list and the counters.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Listing<T> {
    Alone(Vec<T>),
    /// With --stats.
    WithStats {
        list: Vec<T>,
        stats: Stats,
    },
}

/// The counters of the page caches of all images of the command.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Stats {
    /// Pages cached at the end.
    nr_file_pages: u64,
    /// Pages dirty at the end.
    nr_dirty: u64,
    /// Pages under writeback at the end.
    nr_writeback: u64,
    /// Pages that became dirty.
    nr_dirtied: u64,
    /// Pages written.
    nr_written: u64,
    /// Pages scanned by reclaim.
    pgscan: u64,
    /// Pages reclaimed by reclaim.
    pgsteal: u64,
    /// Pages read again soon after they were reclaimed.
    workingset_refault_file: u64,
    /// Pages read ahead.
    readahead: u64,
    /// Of these, used by a reader.
    readahead_used: u64,
    /// Of these, evicted before any use.
    readahead_unused: u64,
    /// Lookups served from memory.
    hits: u64,
    /// Lookups served from the image.
    misses: u64,
    /// Cached, in KiB.
    kbcached: u64,
    /// Dirty, in KiB.
    kbdirty: u64,
    /// Hits in percent of both; null if there were no lookups.
    #[schemars(range(max = 100))]
    hit_percent: Option<f64>,
    /// Requests to object stores, retries included; only if there were any.
    #[schemars(skip_serializing_if = "Option::is_none")]
    object_store: Option<Requests>,
}

/// Requests to object stores.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Requests {
    /// GET requests: reads and lists.
    get: u64,
    /// HEAD requests.
    head: u64,
    /// PUT requests.
    put: u64,
    /// POST requests.
    post: u64,
    /// DELETE requests.
    delete: u64,
    /// Requests without an answer, or answered with an error.
    failed: u64,
    /// Bytes of bodies received.
    received_bytes: u64,
    /// Bytes of bodies sent.
    sent_bytes: u64,
}

#[test]
fn schemas_of_files_are_derived() {
    for words in ["ls", "tree", "find", "stat"] {
        assert_schema_of::<Listing<FileRecord>>(words);
    }
    assert_schema_of::<Listing<EntryRecord>>("tar");
    assert_schema_of::<Listing<DirectoryUsage>>("du");
    assert_schema_of::<Listing<FileSystemUsage>>("df");
}

#[test]
fn schemas_of_reports_are_derived() {
    assert_schema_of::<DropReport>("cache drop");
    assert_schema_of::<FitOutput>("cache fit");
    assert_schema_of::<MeminfoReport<'static>>("cache meminfo");
    assert_schema_of::<SaveReport>("cache save");
    assert_schema_of::<StatusReport<'static>>("cache status");
    assert_schema_of::<TopReport>("cache top");
    assert_schema_of::<WarmReport>("cache restore");
    assert_schema_of::<WarmReport>("warm");
    assert_schema_of::<DoctorReport>("doctor");
    assert_schema_of::<PowercutReport>("powercut");
}
