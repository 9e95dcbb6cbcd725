//! The check of a store: stores that would lose data are refused, each for its reason.

use crate::model::{LooseStore, Looseness, place};
use folio_volume::{StoreTests, StoreVerdict, check_store, refusal};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

#[test]
fn memory_store_passes_all_tests() {
    let store: Arc<InMemory> = Arc::new(InMemory::new());
    let tests = check_store(&place(store.clone(), "here"), StoreTests::All).unwrap();
    assert_eq!(tests.len(), 7);
    for test in &tests {
        assert_eq!(test.verdict, StoreVerdict::Passed, "{}", test.name);
    }
    assert_eq!(refusal(&tests), None);
    // Nothing is left.
    let rest = futures_util::StreamExt::count(store.list(None));
    assert_eq!(futures_util::FutureExt::now_or_never(rest), Some(0));
}

#[test]
fn store_that_ignores_conditions_is_refused() {
    let store = Arc::new(LooseStore::new(Looseness::Ignores));
    let tests = check_store(&place(store, "here"), StoreTests::Required).unwrap();
    let reason = refusal(&tests).unwrap();
    assert!(reason.contains("16 of 16 clients"), "{reason}");
}

#[test]
fn store_that_checks_without_lock_is_refused() {
    let store = Arc::new(LooseStore::new(Looseness::ChecksFirst));
    let path = object_store::path::Path::from("a");
    let tests = check_store(&place(store.clone(), "here"), StoreTests::Required).unwrap();
    let reason = refusal(&tests).unwrap();
    assert!(reason.contains("If-None-Match"), "{reason}");
    // One by one, it looks right: only a race shows the fault.
    let create = || {
        let options = object_store::PutOptions::from(object_store::PutMode::Create);
        let (store, path) = (store.clone(), path.clone());
        crate::model::wait(async move { store.put_opts(&path, "x".into(), options).await })
    };
    assert!(create().is_ok() && create().is_err());
    crate::model::wait(async move { store.head(&path).await }).unwrap();
}
