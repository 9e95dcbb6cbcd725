//! Damage that spans structures, made by debugfs: blocks with two owners, directories in a loop,
//! names without inodes.

use crate::check::images::{RECIPES, debugfs};
use crate::check::judge::{Verdict, compare};
use crate::support::requires;

/// Commands of debugfs, of which each scene is one image's damage. A name that a file system lacks
/// changes nothing.
const SCENES: [&str; 44] = [
    "clri /small",
    "clri /folder",
    "clri /many",
    "clri <2>",
    "clri <7>",
    "clri <8>",
    "freei /small",
    "freei <2>",
    "seti <900>",
    "freeb 2000 20",
    "setb 4000 7",
    "freeb 1",
    "unlink small",
    "unlink folder",
    "unlink /folder/inner",
    "unlink lost+found",
    "ln small second",
    "ln folder loop",
    "ln folder/inner folder/inner/most/round\nunlink /folder/inner",
    "ln <8> journal",
    "ln <900> nothing",
    "ln <7> seven",
    "link medium a-new-name\nunlink medium",
    "sif small links_count 7",
    "sif small links_count 0",
    "sif folder links_count 9",
    "sif small mode 0040755",
    "sif folder mode 0100644",
    "sif short mode 0100777",
    "sif medium mode 0120777",
    "sif medium blocks 1",
    "sif medium size 3",
    "sif medium size 99999999",
    "sif linear size 100",
    "sif linear flags 0x1000",
    "sif many flags 0",
    "sif deep flags 0x80000",
    "sif long flags 0",
    "sif medium bmap[0] 1",
    "sif medium bmap[1] 500",
    "sif medium block[2] 0\nsif medium block[5] 77",
    "sif pipe size 5\nsif disk flags 0x10",
    "sif small dtime 5000",
    "ssv last_orphan 15\nsif small links_count 0",
];

#[test]
fn damage_that_spans_structures_is_found() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let (mut missed, mut damaged, mut images) = (Vec::new(), 0, 0);
    for recipe in RECIPES.iter().step_by(2).chain(&RECIPES[5..6]) {
        images += 1;
        let image = recipe.filled();
        let sound = std::fs::read(&image.path).expect("the image");
        for scene in SCENES {
            debugfs(&image.path, image.path.parent().expect("a folder"), scene);
            let (verdict, said) = compare(&image.path);
            damaged += usize::from(verdict == Verdict::Damaged);
            if verdict == Verdict::Missed {
                missed.push(format!("{}: {scene}\n{said}", recipe.name));
            }
            std::fs::write(&image.path, &sound).expect("the image");
        }
    }
    println!(
        "{images} images, {} scenes: {damaged} damaged to both",
        images * SCENES.len()
    );
    assert!(
        damaged > images * SCENES.len() / 2,
        "the scenes do too little"
    );
    assert!(
        missed.is_empty(),
        "{} missed:\n{}",
        missed.len(),
        missed.join("\n")
    );
}
