//! Damage across structures, made by debugfs: blocks with two owners, directory cycles, names
//! without inodes.

use crate::check::images::{RECIPES, debugfs};
use crate::check::judge::{Verdict, compare};
use crate::support::requires;

/// Commands of debugfs; each entry damages one image. A command on a missing name changes nothing.
pub(crate) const SCENES: [&str; 44] = [
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
fn damage_across_structures_is_reported() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let (mut missed, mut damaged, mut images) = (Vec::new(), 0, 0);
    for recipe in RECIPES.iter().step_by(2).chain(&RECIPES[5..6]) {
        images += 1;
        let image = recipe.filled();
        let sound = std::fs::read(&image.path).expect("the image");
        for scene in SCENES {
            debugfs(&image.path, image.path.parent().expect("a folder"), scene);
            let (verdict, output) = compare(&image.path);
            damaged += usize::from(verdict == Verdict::Damaged);
            if verdict == Verdict::Missed {
                missed.push(format!("{}: {scene}\n{output}", recipe.name));
            }
            std::fs::write(&image.path, &sound).expect("the image");
        }
    }
    println!(
        "{images} images, {} scenes: both find damage in {damaged}",
        images * SCENES.len()
    );
    assert!(
        damaged > images * SCENES.len() / 2,
        "too few scenes cause damage"
    );
    assert!(
        missed.is_empty(),
        "{} missed:\n{}",
        missed.len(),
        missed.join("\n")
    );
}
