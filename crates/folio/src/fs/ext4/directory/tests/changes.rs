//! Changes of directories, linear and indexed, up to full ones.

use super::*;

#[test]
fn small_blocks_grow_index_of_two_levels() {
    assert_eq!(random_operations(context(1024, Some(7)), 1, 12_000, 60), 2);
    assert_eq!(random_operations(context(1024, None), 2, 12_000, 60), 2);
}

#[test]
fn large_blocks_grow_index() {
    assert_eq!(random_operations(context(4096, Some(7)), 3, 20_000, 30), 1);
    assert_eq!(random_operations(context(4096, Some(7)), 4, 20_000, 255), 2);
    assert_eq!(random_operations(context(2048, Some(7)), 5, 12_000, 255), 2);
}

#[test]
fn every_hash_version_orders_index() {
    for default_hash_version in 0..3 {
        for unsigned_hash in [false, true] {
            let context = DirectoryContext {
                default_hash_version,
                unsigned_hash,
                ..context(1024, Some(7))
            };
            assert_eq!(random_operations(context, 6, 2_000, 20), 1);
        }
    }
}

#[test]
fn large_dir_grows_index_of_three_levels() {
    let context = DirectoryContext {
        large_dir: true,
        ..context(1024, None)
    };
    assert_eq!(random_operations(context, 7, 70_000, 255), 3);
}

#[test]
fn directory_without_dir_index_stays_linear() {
    let context = DirectoryContext {
        dir_index: false,
        has_file_type: false,
        ..context(1024, Some(7))
    };
    let blocks = Blocks::new(context);
    let mut is_indexed = false;
    for number in 0..200 {
        let name = format!("name-{number}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(number + 20),
            FileType::Socket,
        )
        .unwrap();
    }
    assert!(!is_indexed);
    let found = find(&blocks, false, b"name-150").unwrap().unwrap();
    assert_eq!(
        found,
        FoundName {
            number: InodeNumber(170),
            file_type: None
        }
    );
    assert_eq!(blocks.names().unwrap().len(), 202);
}

#[test]
fn large_linear_directory_finds_names_by_index() {
    let context = DirectoryContext {
        dir_index: false,
        ..context(1024, Some(7))
    };
    assert_eq!(random_operations(context, 8, 3000, 40), 0);
}

#[test]
fn damaged_linear_directory_finds_names_before() {
    let context = DirectoryContext {
        dir_index: false,
        ..context(1024, Some(7))
    };
    let blocks = Blocks::new(context);
    for number in 0..400_u64 {
        let name = format!("name-{number:03}");
        let number = InodeNumber(number + 20);
        insert(
            &blocks,
            &mut false,
            name.as_bytes(),
            number,
            FileType::Regular,
        )
        .unwrap();
    }
    let last = blocks.block_count() - 1;
    blocks.forge(last, |bytes| bytes[100] ^= 1);
    assert!(find(&blocks, false, b"name-000").unwrap().is_some());
    let error = find(&blocks, false, b"name-399").unwrap_err().to_string();
    assert_eq!(
        error,
        format!("directory inode 12, block {last}: bad checksum")
    );
    assert!(blocks.name_index().is_none());
}

#[test]
fn full_index_fails_with_enospc_and_keeps_names() {
    let blocks = Blocks::new(context(1024, None));
    let (mut is_indexed, mut random, mut model) = (false, Random(8), Model::new());
    let error = loop {
        let mut name = random.name(1);
        name.resize_with(255, || b'a' + random.below(26) as u8);
        match insert(
            &blocks,
            &mut is_indexed,
            &name,
            InodeNumber(99),
            FileType::Regular,
        ) {
            Ok(()) => model.insert(name, (99, FileType::Regular)),
            Err(error) => break error,
        };
    };
    assert_eq!(error.errno(), Errno::NOSPC);
    assert!(
        error.to_string().contains("directory index full"),
        "{error}"
    );
    assert_eq!(check_all(&blocks, is_indexed, &model), 2);
}

#[test]
fn full_device_leaves_directory_valid() {
    for count_max in 1..140 {
        let mut blocks = Blocks::new(context(1024, Some(3)));
        blocks.count_max = count_max;
        let (mut is_indexed, mut random, mut model) = (false, Random(9), Model::new());
        loop {
            let name = random.name(255);
            if model.contains_key(&name) {
                continue;
            }
            match insert(
                &blocks,
                &mut is_indexed,
                &name,
                InodeNumber(99),
                FileType::Regular,
            ) {
                Ok(()) => model.insert(name, (99, FileType::Regular)),
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            };
        }
        check_all(&blocks, is_indexed, &model);
    }
}

#[test]
fn names_of_one_hash_in_two_leaves_are_found() {
    let context = context(1024, Some(7));
    let hash_of = |name: &[u8]| hash(name, HashVersion::HalfMd4, false, &context.hash_seed);
    let mut random = Random(10);
    let mut name = || {
        let mut name = random.name(1);
        name.resize_with(244, || b'a' + random.below(26) as u8);
        name
    };
    let mut by_hash: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let (first, second) = loop {
        let name = name();
        if let Some(other) = by_hash.insert(hash_of(&name), name.clone()) {
            break (other, name);
        }
    };
    let shared = hash_of(&first);
    let below: Vec<_> = by_hash
        .range(..shared)
        .map(|(_, name)| name.clone())
        .take(40)
        .collect();
    let above: Vec<_> = by_hash
        .range(shared + 1..)
        .map(|(_, name)| name.clone())
        .take(40)
        .collect();

    let blocks = Blocks::new(context.clone());
    let (mut is_indexed, mut model) = (false, Model::new());
    let mut add = |name: &[u8]| {
        insert(
            &blocks,
            &mut is_indexed,
            name,
            InodeNumber(77),
            FileType::Regular,
        )
        .unwrap();
        model.insert(name.to_vec(), (77, FileType::Regular));
        check_all(&blocks, is_indexed, &model);
    };
    // Four names fill a leaf; the fifth makes it split after the third, which is the first of the
    // two.
    [&below[0], &below[1], &first, &above[0], &second]
        .into_iter()
        .for_each(|name| add(name));
    let root = blocks.block(LogicalBlock(0)).unwrap().read()[40..44].to_vec();
    assert_eq!(
        root,
        (shared | 1).to_le_bytes(),
        "the second leaf continues the first"
    );
    below[2..].iter().zip(&above[1..]).for_each(|(low, high)| {
        add(low);
        add(high);
    });
    remove(&blocks, true, &first).unwrap();
    assert!(find(&blocks, true, &second).unwrap().is_some());
    assert!(find(&blocks, true, &first).unwrap().is_none());
}

#[test]
fn name_is_listed_once_during_other_changes() {
    for (count, dir_index) in [
        (3, true),
        (20, true),
        (500, true),
        (3_000, true),
        (100, false),
    ] {
        let blocks = Blocks::new(DirectoryContext {
            dir_index,
            ..context(1024, Some(7))
        });
        let mut is_indexed = false;
        let add = |is_indexed: &mut bool, name: String| {
            insert(
                &blocks,
                is_indexed,
                name.as_bytes(),
                InodeNumber(50),
                FileType::Regular,
            )
            .unwrap();
        };
        (0..count).for_each(|number| add(&mut is_indexed, format!("stays-{number:04}")));
        (0..count).for_each(|number| add(&mut is_indexed, format!("goes-{number:04}")));
        let (mut new, mut removed) = (0, 0);
        let listed = blocks.listed(&mut is_indexed, 7, &mut |is_indexed| {
            for _ in 0..9 {
                add(is_indexed, format!("new-{new:080}"));
                new += 1;
                if new >= 4 * count {
                    break;
                }
            }
            if removed < count {
                remove(
                    &blocks,
                    *is_indexed,
                    format!("goes-{removed:04}").as_bytes(),
                )
                .unwrap();
                removed += 1;
            }
        });
        let mut stays: Vec<_> = listed
            .iter()
            .filter(|name| name.starts_with(b"stays-"))
            .collect();
        stays.sort();
        let expected: Vec<_> = (0..count)
            .map(|number| format!("stays-{number:04}").into_bytes())
            .collect();
        assert!(stays.into_iter().eq(&expected), "{count} names");
        assert_eq!(listed[..2], [b".".to_vec(), b"..".to_vec()]);
    }
}

#[test]
fn directory_emptied_while_listed_is_empty() {
    for count in [5, 500] {
        let blocks = Blocks::new(context(1024, Some(7)));
        let mut is_indexed = false;
        let mut model = BTreeSet::new();
        for number in 0..count {
            let name = format!("entry-{number:04}").into_bytes();
            insert(
                &blocks,
                &mut is_indexed,
                &name,
                InodeNumber(50),
                FileType::Regular,
            )
            .unwrap();
            model.insert(name);
        }
        let (mut cookie, mut seen) = (0, BTreeSet::new());
        loop {
            let mut batch = Vec::new();
            iterate(&blocks, is_indexed, cookie, &mut |entry| {
                cookie = entry.next_cookie;
                batch.push(entry.name.to_vec());
                if batch.len() == 7 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for name in batch.into_iter().filter(|name| !is_dot_or_dot_dot(name)) {
                remove(&blocks, is_indexed, &name).unwrap();
                assert!(seen.insert(name));
            }
        }
        assert_eq!(seen, model);
        assert!(is_empty(&blocks).unwrap());
        assert_eq!(
            remove(&blocks, is_indexed, b"entry-0001")
                .unwrap_err()
                .errno(),
            Errno::NOENT
        );
    }
}

#[test]
fn parent_of_indexed_directory_can_be_replaced() {
    let blocks = Blocks::new(context(1024, Some(7)));
    let mut is_indexed = false;
    for number in 0..100 {
        let name = format!("{number:0100}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(50),
            FileType::Regular,
        )
        .unwrap();
    }
    assert!(is_indexed);
    replace(&blocks, true, b"..", InodeNumber(77), FileType::Directory).unwrap();
    assert_eq!(parent(&blocks).unwrap(), InodeNumber(77));
    assert_eq!(
        find(&blocks, true, b".").unwrap().unwrap().number,
        InodeNumber(12)
    );
    assert_eq!(blocks.names().unwrap().len(), 102);
    let error = insert(
        &blocks,
        &mut is_indexed,
        format!("{:0100}", 5).as_bytes(),
        InodeNumber(1),
        FileType::Fifo,
    );
    assert_eq!(error.unwrap_err().errno(), Errno::EXIST);
}
