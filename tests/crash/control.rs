//! The control: where something is lost, the harness says so.

use crate::crash::cut::{Cut, Loss, Replay};
use crate::crash::images;
use crate::crash::judge::Judge;
use crate::crash::mix::{self, Mix};
use crate::crash::trial::Trial;
use crate::crash::world::Run;
use folio::block::Recorded;
use folio::vfs::MountOptions;
use std::sync::Arc;

fn recorded_mix(name: &str) -> Run {
    Trial::new(name).record(images::folio(16, 1024), |world, random| {
        mix::run(
            world,
            random,
            Mix {
                operations: 300,
                fsync_permille: 150,
                ..Mix::default()
            },
        );
    })
}

/// A disk that promises to have written what it still holds in memory: flushes that order nothing.
#[test]
fn a_disk_that_lies_about_flushes_loses_what_was_synced() {
    let mut run = recorded_mix("liar");
    let trial = Trial::new("liar");
    for entry in &mut run.record {
        if *entry == Recorded::Flush {
            *entry = Recorded::Write {
                offset: 0,
                bytes: Arc::default(),
            };
        }
    }
    let outcome = trial.cut(&run);
    assert!(
        outcome.failures.len() > outcome.cuts / 10,
        "{} of {}",
        outcome.failures.len(),
        outcome.cuts
    );
}

/// The last write before each return of fsync(2) or sync(2) is lost: recovery without the journal's
/// last block.
#[test]
fn the_last_write_before_a_sync_returned_is_missed() {
    let run = recorded_mix("last-write");
    let mut judge = Judge::new(MountOptions::default());
    let (mut seen, mut tried) = (0, 0);
    let mut before = 0;
    for recorded in run.programs[0].returns() {
        let mut writes = (before..recorded).filter(|at| run.record[*at] != Recorded::Flush);
        let Some(last) = writes.next_back() else {
            continue;
        };
        before = recorded;
        let mut record = run.record[..recorded].to_vec();
        record[last] = Recorded::Flush;
        let cut = Cut {
            recorded,
            loss: Loss::Nothing,
            seed: 0,
        };
        let device = Replay::new(&run.before, &record).device(cut);
        tried += 1;
        seen += usize::from(judge.judge(&device, &run.programs, recorded).is_err());
    }
    assert!(tried > 20 && seen * 4 > tried, "{seen} of {tried}");
}
