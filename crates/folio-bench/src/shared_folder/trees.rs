//! Work on trees of files (`--trees`): what an installer of packages, git, tar and rm do in a
//! shared folder.

use super::jobs::{Figure, Job, Sizes, TreeJob};
use crate::command::{run as run_command, tool};
use crate::outcome::{Context, Outcome};
use crate::sample_tree::{SampleTree, git, walk};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Title of the table.
pub(super) const TITLE: &str = "trees";

/// What the figures do not mean.
pub(super) const LIMITS: [&str; 2] = [
    "written files may be in a memory, of the kernel or of the server, when the clock stops",
    "tar and git are programs, and their own time is in the figure; all other jobs run in the bench's process",
];

/// The tree that is installed and removed, that of the archive, and the repository.
const INSTALLED: &str = "installed";
const EXTRACTED: &str = "extracted";
const REPOSITORY: &str = "tree";
const ARCHIVE: &str = "tree.tar";

const FILES_PER_FOLDER: usize = 50;
const FILE_BYTES: usize = 1000;

/// Makes what the jobs need in the folder that all contenders share: an archive and a repository.
pub(super) fn make_source(source: &Path, sizes: Sizes) -> Outcome {
    SampleTree::new(source, sizes.archive_entries)?
        .repository()
        .map(drop)
}

/// Runs the jobs, and removes what they have made.
pub(super) fn run(root: &Path, sizes: Sizes) -> Outcome<Vec<Figure>> {
    // A contender that has failed may have left its own.
    for left in [INSTALLED, EXTRACTED].map(|name| root.join(name)) {
        if left.exists() {
            fs::remove_dir_all(&left).at(&left)?;
        }
    }
    let mut figures = Vec::new();
    for job in TreeJob::ALL {
        prepare(job, root)?;
        let start = Instant::now();
        work(job, root, sizes).at(job.title())?;
        figures.push(Figure {
            job: Job::Tree(job),
            value: start.elapsed().as_secs_f64(),
        });
    }
    fs::remove_dir_all(root.join(EXTRACTED)).at(EXTRACTED)?;
    Ok(figures)
}

/// Does before a job what is not in its time.
fn prepare(job: TreeJob, root: &Path) -> Outcome {
    match job {
        // Its first walk may read the listings.
        TreeJob::FindAgain => walk(&root.join(INSTALLED), &mut |_| Ok(())).map(drop),
        TreeJob::Extract => {
            fs::create_dir(root.join(EXTRACTED)).at(EXTRACTED)?;
            fs::read(root.join(ARCHIVE)).at(ARCHIVE).map(drop)
        }
        // It updates the index, which may have another server's attributes.
        TreeJob::GitStatus => status(root),
        TreeJob::Install | TreeJob::ReadAll | TreeJob::Remove => Ok(()),
    }
}

fn work(job: TreeJob, root: &Path, sizes: Sizes) -> Outcome {
    let installed = root.join(INSTALLED);
    match job {
        TreeJob::Install => install(&installed, sizes.installed_files),
        TreeJob::FindAgain => visit(&installed, sizes, &mut |_| Ok(())),
        TreeJob::ReadAll => visit(&installed, sizes, &mut read_file),
        TreeJob::Extract => {
            let mut tar = tool("tar")?;
            tar.arg("-xf").arg(root.join(ARCHIVE));
            run_command(tar.arg("-C").arg(root.join(EXTRACTED))).map(drop)
        }
        TreeJob::GitStatus => status(root),
        TreeJob::Remove => fs::remove_dir_all(&installed).at(&installed),
    }
}

/// Stats all entries, and visits each file.
fn visit(installed: &Path, sizes: Sizes, on_file: &mut dyn FnMut(&Path) -> Outcome) -> Outcome {
    let mut found = 0;
    walk(installed, &mut |path| {
        found += 1;
        on_file(path)
    })?;
    if found == sizes.installed_files {
        Ok(())
    } else {
        Err(format!("{found} of {} files", sizes.installed_files).into())
    }
}

fn read_file(path: &Path) -> Outcome {
    match fs::read(path).at(path)?.len() {
        FILE_BYTES => Ok(()),
        count => Err(format!("{}: {count} bytes", path.display()).into()),
    }
}

/// Makes small files, in folders, as an installer of packages does.
fn install(installed: &Path, files: usize) -> Outcome {
    let content = [b'x'; FILE_BYTES];
    let mut folder = installed.to_owned();
    for number in 0..files {
        if number % FILES_PER_FOLDER == 0 {
            folder = installed.join(format!("package-{:04}", number / FILES_PER_FOLDER));
            fs::create_dir_all(&folder).at(&folder)?;
        }
        let path = folder.join(format!("file-{number:06}.js"));
        fs::write(&path, content).at(&path)?;
    }
    Ok(())
}

fn status(root: &Path) -> Outcome {
    let changed = git(&root.join(REPOSITORY), &["status", "--porcelain"])?;
    if changed.is_empty() {
        Ok(())
    } else {
        Err(format!("git status of an unchanged tree: {changed}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_leave_the_source_as_it_was() {
        let names = |folder: &Path| {
            let mut names: Vec<_> = fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort();
            names
        };
        if crate::command::lacking(&["git", "tar"]).is_some() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        make_source(folder.path(), Sizes::QUICK).unwrap();
        let before = names(folder.path());
        fs::create_dir(folder.path().join(EXTRACTED)).unwrap();
        let figures = run(folder.path(), Sizes::QUICK).unwrap();
        assert_eq!(figures.len(), TreeJob::ALL.len());
        assert_eq!(names(folder.path()), before);
    }
}
