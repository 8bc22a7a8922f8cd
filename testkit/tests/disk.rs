//! Data that a simulated disk keeps and loses in a power cut.
#![allow(clippy::unwrap_used, reason = "tests panic if their setup fails")]

use testkit::disk::{Disk, Seen, State, Survives, changes};

/// Applies changes: a line `kind path …` each, as the interposer writes them, followed by the bytes of a write.
fn apply(disk: &mut Disk, lines: &[&str]) {
    for change in changes(lines.concat().as_bytes()) {
        disk.apply(&change);
    }
}

/// Returns an empty disk after changes.
fn after(lines: &[&str]) -> Disk {
    let mut disk = Disk::from_folder(tempfile::tempdir().unwrap().path());
    apply(&mut disk, lines);
    disk
}

fn kept(disk: &Disk, survives: Survives) -> Vec<(String, String)> {
    let text = |(path, bytes): (String, _)| (path, String::from_utf8_lossy(bytes).into_owned());
    let state: State = disk.after_power_cut(survives);
    state.iter().map(|(path, bytes)| text((path.clone(), bytes))).collect()
}

fn file(name: &str, text: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), text.to_owned())]
}

const WRITTEN: [&str; 2] = ["create a\n", "write a 0 3\nnew"];

#[test]
fn unsynced_data_is_lost() {
    let disk = after(&WRITTEN);
    assert_eq!(kept(&disk, Survives::OnlySynced), []);
    assert_eq!(kept(&disk, Survives::AllNames), file("a", ""), "only the name survives");
    assert_eq!(kept(&disk, Survives::AllBytes), [], "only the bytes survive");
    assert_eq!(disk.now().len(), 1);
}

#[test]
fn bytes_need_an_fsync_of_the_file_and_names_one_of_the_folder() {
    let bytes = after(&[WRITTEN[0], WRITTEN[1], "fsync a\n"]);
    assert_eq!(kept(&bytes, Survives::OnlySynced), []);
    assert_eq!(kept(&bytes, Survives::AllNames), file("a", "new"));
    let name = after(&[WRITTEN[0], WRITTEN[1], "fsync .\n"]);
    assert_eq!(kept(&name, Survives::OnlySynced), file("a", ""));
    let both = after(&[WRITTEN[0], WRITTEN[1], "fsync a\n", "fsync .\n"]);
    assert_eq!(kept(&both, Survives::OnlySynced), file("a", "new"));
}

#[test]
fn a_rename_without_an_fsync_of_the_folder_may_be_undone() {
    let before = ["create f\n", "write f 0 3\nold", "fsync f\n", "fsync .\n"];
    let replaced = ["create t\n", "write t 0 3\nnew", "fsync t\n", "rename t f\n"];
    let mut disk = after(&[&before[..], &replaced].concat());
    assert_eq!(kept(&disk, Survives::OnlySynced), file("f", "old"));
    assert_eq!(kept(&disk, Survives::AllNames), file("f", "new"));
    apply(&mut disk, &["fsync .\n"]);
    assert_eq!(kept(&disk, Survives::OnlySynced), file("f", "new"));
    // The classic mistake: a rename before the bytes are synced.
    let torn = ["create t\n", "write t 0 3\nnew", "rename t f\n", "fsync .\n"];
    let disk = after(&[&before[..], &torn].concat());
    assert_eq!(kept(&disk, Survives::OnlySynced), file("f", ""));
}

#[test]
fn a_file_moved_between_folders_is_never_lost() {
    let lines = [
        "mkdir x\n",
        "mkdir y\n",
        "create x/a\n",
        "write x/a 0 1\nz",
        "fsync x/a\n",
        "fsync x\n",
        "fsync y\n",
        "fsync .\n",
        "rename x/a y/a\n",
    ];
    let disk = after(&lines);
    let mut places = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let found = kept(&disk, Survives::Apart { seed });
        assert!(!found.is_empty(), "seed {seed}");
        places.insert(found);
    }
    assert!(places.len() >= 2, "before and after the move: {places:?}");
}

#[test]
fn any_part_of_unsynced_bytes_may_survive() {
    let disk = after(&["create a\n", "fsync .\n", "write a 0 6\nabcdef"]);
    let found: std::collections::BTreeSet<String> =
        (0..200).map(|seed| kept(&disk, Survives::Some { seed }).remove(0).1).collect();
    assert!(
        found.contains("abcdef") && found.contains("abc") && found.contains("ab\0\0\0\0"),
        "{found:?}"
    );
    assert!(
        found.iter().all(|text| "abcdef".starts_with(text.trim_end_matches('\0'))),
        "{found:?}"
    );
}

#[test]
fn writes_and_truncation_apply_at_their_offset() {
    let disk = after(&[
        "create a\n",
        "write a 0 4\nabcd",
        "write a 6 1\nx",
        "write a 1 2\nBC",
        "truncate a 7\n",
    ]);
    assert_eq!(**disk.now()["a"], *b"aBCd\0\0x");
    let disk =
        after(&["create a\n", "write a 0 4\nabcd", "truncate a 2\n", "link a b\n", "unlink a\n"]);
    assert_eq!(disk.now().into_keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(**disk.now()["b"], *b"ab");
}

#[test]
fn a_state_is_new_once() {
    let mut seen = Seen::default();
    let state = after(&WRITTEN).now();
    assert!(seen.is_new(&state));
    assert!(!seen.is_new(&after(&WRITTEN).now()), "the same bytes elsewhere");
    assert!(seen.is_new(&after(&[WRITTEN[0], "write a 0 3\nold"]).now()));
}
