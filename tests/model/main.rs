//! Random operations on a file system and on a plain model must give the same answers and the same tree.

mod model;
mod operation;
mod run;

use folio::syscall::Credentials;
use folio::{Kernel, KernelOptions};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ramfs(operations in operation::operations(150)) {
        let kernel = Kernel::new(KernelOptions { background_writeback: false, ..KernelOptions::default() });
        let process = kernel.process(Credentials::root());
        process.umask(0);
        process.mkdir("/tree", 0o755).unwrap();
        run::run(&process, "/tree", &operations);
    }
}
