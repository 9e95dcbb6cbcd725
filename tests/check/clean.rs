//! Where nothing is wrong, nothing is found.

use crate::images::RECIPES;
use crate::judge::{fsck, own};
use crate::support::requires;
use std::path::Path;

#[track_caller]
fn assert_clean(name: &str, image: &Path) {
    let fsck = fsck(image);
    assert!(!fsck.complains(), "{name}: e2fsck: {}", fsck.said);
    let own = own(image);
    assert!(!own.speaks(), "{name}: {}", own.text());
}

#[test]
fn nothing_is_found_in_images_of_mke2fs() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    for recipe in &RECIPES {
        assert_clean(recipe.name, &recipe.empty().path);
        assert_clean(recipe.name, &recipe.filled().path);
    }
}
