//! Damage to what is derived from the log, and to the small files beside it: made again, or named when it is met.

use std::fs;
use std::path::{Path, PathBuf};

use super::case::{Case, Outcome, Patient, edit, operate, words};
use super::specimen::{End, Place, QUEUE_FILE_BYTES, Specimen, TOPIC};
use crate::support::exclusive;

const UNIT: u64 = 20;

fn queue_dir(store: &Path, queue: i32) -> PathBuf {
    store.join("consumequeue").join(TOPIC).join(queue.to_string())
}

/// Changes the unit of a queue offset.
fn edit_unit(store: &Path, queue: i32, offset: i64, change: impl FnOnce(&mut [u8])) {
    let at = offset as u64 * UNIT;
    let start = at - at % QUEUE_FILE_BYTES;
    let path = queue_dir(store, queue).join(format!("{start:020}"));
    let within = (at - start) as usize;
    edit(&path, |bytes| change(&mut bytes[within..within + UNIT as usize]));
}

/// Files of a directory, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

fn last_of_queue(specimen: &Specimen, queue: i32) -> &Place {
    let of_queue = |place: &&Place| place.topic == TOPIC && place.queue == queue;
    specimen.records.iter().rev().find(of_queue).expect("a record")
}

#[test]
fn damaged_queues_are_made_again_or_named_at_the_message() {
    let _alone = exclusive();
    operate(End::Clean, |specimen| {
        let mut cases = Vec::new();
        let end = last_of_queue(specimen, 1).offset;
        for (field, byte, bits) in [
            ("offset", 6, 0x02),
            ("offset's sign", 0, 0x80),
            ("size", 11, 0x10),
            ("size's sign", 8, 0x80),
        ] {
            cases.push(Case::new(
                format!("{field} of an old unit"),
                Outcome::RefusesOne(1, 21, "unit".to_owned()),
                move |_, store| edit_unit(store, 1, 21, |unit| unit[byte] ^= bits),
            ));
            cases.push(Case::new(
                format!("{field} of the last unit"),
                Outcome::Repairs(words(["repaired: consume queue"])),
                move |_, store| edit_unit(store, 1, end, |unit| unit[byte] ^= bits),
            ));
        }
        cases.push(Case::new(
            "tags code of an old unit",
            Outcome::OnlyVerifyTells("unit 21 has the tags code".to_owned()),
            |_, store| edit_unit(store, 1, 21, |unit| unit[19] ^= 1),
        ));
        cases.push(Case::new(
            "an old unit zeroed",
            Outcome::RefusesOne(1, 21, "records have no unit".to_owned()),
            |_, store| edit_unit(store, 1, 21, |unit| unit.fill(0)),
        ));
        cases.push(Case::new(
            "an old unit that leads to another message",
            Outcome::RefusesOne(1, 21, "unit 21 points to".to_owned()),
            |specimen, store| {
                let other = specimen
                    .records
                    .iter()
                    .find(|p| p.topic == TOPIC && p.queue == 2)
                    .expect("one");
                let (at, len) = (other.at, other.len as u32);
                edit_unit(store, 1, 21, |unit| {
                    unit[..8].copy_from_slice(&at.to_be_bytes());
                    unit[8..12].copy_from_slice(&len.to_be_bytes());
                });
            },
        ));
        cases.push(Case::new(
            "a unit behind the last",
            Outcome::Repairs(words([])),
            move |_, store| {
                edit_unit(store, 1, end + 1, |unit| unit.copy_from_slice(&[1; UNIT as usize]));
            },
        ));
        cases.extend(whole_files());
        cases
    });
}

fn whole_files() -> Vec<Case> {
    let repaired = || Outcome::Repairs(words(["consume queue"]));
    let shorten = |nth: usize| {
        move |_: &Specimen, store: &Path| {
            edit(&files(&queue_dir(store, 1))[nth], |bytes| bytes.truncate(1990));
        }
    };
    let remove = |nth: usize| {
        move |_: &Specimen, store: &Path| {
            fs::remove_file(&files(&queue_dir(store, 1))[nth]).expect("removed");
        }
    };
    vec![
        Case::new("the first file of a queue cut", repaired(), shorten(0)),
        Case::new("a file of a queue cut", repaired(), shorten(1)),
        Case::new("the first file of a queue missing", repaired(), remove(0)),
        Case::new("a file of a queue missing", repaired(), remove(1)),
        Case::new("the last file of a queue missing", repaired(), |_, store| {
            fs::remove_file(files(&queue_dir(store, 1)).pop().expect("a file")).expect("removed");
        }),
        Case::new("a queue missing", repaired(), |_, store| {
            fs::remove_dir_all(queue_dir(store, 1)).expect("removed");
        }),
        Case::new("a topic's queues missing", repaired(), |_, store| {
            fs::remove_dir_all(store.join("consumequeue").join(TOPIC)).expect("removed");
        }),
        Case::new("all queues missing", repaired(), |_, store| {
            fs::remove_dir_all(store.join("consumequeue")).expect("removed");
        }),
        Case::new("a foreign file in a queue", repaired(), |_, store| {
            fs::write(queue_dir(store, 1).join("notes.txt"), "mine").expect("written");
        }),
        Case::new("a foreign file among the topics", Outcome::Repairs(words([])), |_, store| {
            fs::write(store.join("consumequeue/notes.txt"), "mine").expect("written");
        }),
        Case::new(
            "a queue file of zeros behind the last",
            Outcome::Repairs(words([])),
            |_, store| {
                let dir = queue_dir(store, 1);
                let start = files(&dir).len() as u64 * QUEUE_FILE_BYTES;
                fs::write(dir.join(format!("{start:020}")), [0; QUEUE_FILE_BYTES as usize])
                    .expect("written");
            },
        ),
    ]
}

#[test]
fn a_damaged_index_is_made_again_or_named_by_a_verify() {
    let _alone = exclusive();
    operate(End::Clean, |_| {
        let index = |store: &Path| files(&store.join("index"));
        let repaired = || Outcome::Repairs(words(["repaired: index file"]));
        let byte = |nth: usize, at: usize, bits: u8| {
            move |_: &Specimen, store: &Path| edit(&index(store)[nth], |bytes| bytes[at] ^= bits)
        };
        let entries = 40 + 4 * 250;
        vec![
            Case::new("header of an old file: entries", repaired(), byte(0, 38, 1)),
            Case::new("header of an old file: last offset", repaired(), byte(0, 29, 1)),
            Case::new("header of the newest file: entries", repaired(), |_, store| {
                let newest = files(&store.join("index")).pop().expect("a file");
                edit(&newest, |bytes| bytes[36..40].copy_from_slice(&2u32.to_be_bytes()));
            }),
            Case::new("header of the newest file zeroed", repaired(), |_, store| {
                let newest = files(&store.join("index")).pop().expect("a file");
                edit(&newest, |bytes| bytes[..40].fill(0));
            }),
            Case::new(
                "slots of the newest file zeroed",
                Outcome::Repairs(words([])),
                |_, store| {
                    let newest = files(&store.join("index")).pop().expect("a file");
                    edit(&newest, |bytes| bytes[40..1040].fill(0));
                },
            ),
            Case::new(
                "a slot of an old file",
                Outcome::OnlyVerifyTells("is not the newest of its entries".to_owned()),
                byte(0, 43, 1),
            ),
            Case::new(
                "an entry's offset in an old file",
                Outcome::OnlyVerifyTells("does not follow those before it".to_owned()),
                byte(0, entries + 50 * 20 + 5, 0x40),
            ),
            Case::new("an old file cut", repaired(), move |_, store| {
                edit(&index(store)[0], |bytes| bytes.truncate(1000));
            }),
            Case::new("an old file missing", repaired(), move |_, store| {
                fs::remove_file(&index(store)[0]).expect("removed");
            }),
            Case::new("the newest file missing", repaired(), move |_, store| {
                fs::remove_file(index(store).pop().expect("a file")).expect("removed");
            }),
            Case::new("no index", repaired(), |_, store| {
                fs::remove_dir_all(store.join("index")).expect("removed");
            }),
            Case::new("a foreign file in the index", Outcome::Repairs(words([])), |_, store| {
                fs::write(store.join("index/notes.txt"), "mine").expect("written");
            }),
            Case::new(
                "all index files of another length",
                Outcome::Refuses(words(["index files", "remove the index directory"])),
                move |_, store| {
                    for path in index(store) {
                        edit(&path, |bytes| bytes.push(0));
                    }
                },
            ),
        ]
    });
}

/// Removing what a verify or a refusal names is the cure it says.
#[test]
fn what_a_verify_says_to_remove_is_made_again() {
    let _alone = exclusive();
    operate(End::Clean, |_| {
        vec![
            Case::new("a queue with a damaged unit", Outcome::Repairs(words([])), |_, store| {
                edit_unit(store, 1, 21, |unit| unit[6] ^= 2);
                fs::remove_dir_all(queue_dir(store, 1)).expect("removed");
            }),
            Case::new("an index with a damaged slot", Outcome::Repairs(words([])), |_, store| {
                let all = files(&store.join("index"));
                edit(&all[0], |bytes| bytes[43] ^= 1);
                all.iter().for_each(|path| fs::remove_file(path).expect("removed"));
            }),
        ]
    });
}

fn small_files(says: bool) -> Vec<Case> {
    let whole = || Outcome::Repairs(words([]));
    let noted = if says { words(["impossible times"]) } else { words([]) };
    let remove = |name: &'static str| {
        move |_: &Specimen, store: &Path| {
            let path = store.join(name);
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.expect("removed");
        }
    };
    let garbage = |name: &'static str| {
        move |_: &Specimen, store: &Path| {
            edit(&store.join(name), |bytes| bytes.iter_mut().for_each(|byte| *byte = 0x5A));
        }
    };
    vec![
        Case::new("checkpoint missing", whole(), remove("checkpoint")),
        Case::new("checkpoint zeroed", whole(), |_, store| {
            edit(&store.join("checkpoint"), |bytes| bytes.fill(0));
        }),
        Case::new("checkpoint cut", whole(), |_, store| {
            edit(&store.join("checkpoint"), |bytes| bytes.truncate(11));
        }),
        Case::new("checkpoint garbage", Outcome::Repairs(noted), garbage("checkpoint")),
        Case::new("mark missing", whole(), remove("ringmq/derived")),
        Case::new("mark garbage", whole(), garbage("ringmq/derived")),
        Case::new("mark that claims more", whole(), |_, store| {
            let path = store.join("ringmq/derived");
            let text = fs::read_to_string(&path).expect("the mark");
            fs::write(path, text.replacen("dispatched 1", "dispatched 9", 1)).expect("the mark");
        }),
        Case::new("state missing", whole(), remove("ringmq/state")),
        Case::new(
            "state garbage",
            Outcome::Refuses(words(["ringmq/state is damaged", "remove it"])),
            garbage("ringmq/state"),
        ),
        Case::new(
            "state cut",
            Outcome::Refuses(words(["ringmq/state is damaged", "remove it"])),
            |_, store| edit(&store.join("ringmq/state"), |bytes| bytes.truncate(40)),
        ),
        Case::new("all of ours missing", whole(), remove("ringmq")),
        Case::new("checksums missing", whole(), remove("ringmq/crc")),
        Case::new("checksums garbage", whole(), |_, store| {
            for path in files(&store.join("ringmq/crc")) {
                edit(&path, |bytes| bytes[16..].fill(0x5A));
            }
        }),
        Case::new("checksums cut", whole(), |_, store| {
            for path in files(&store.join("ringmq/crc")) {
                edit(&path, |bytes| bytes.truncate(21));
            }
        }),
        Case::new("a left-over in preparation", whole(), |_, store| {
            fs::write(store.join("ringmq/prepare/00000000000099614720"), [7; 5000])
                .expect("written");
        }),
        Case::new("lock missing", whole(), remove("lock")),
        Case::new("lock garbage", whole(), garbage("lock")),
    ]
}

#[test]
fn damaged_small_files_of_a_clean_store_cost_no_message() {
    let _alone = exclusive();
    operate(End::Clean, |_| {
        let mut cases = small_files(true);
        cases.push(Case::new("abort there", Outcome::Repairs(words([])), |_, store| {
            fs::write(store.join("abort"), "").expect("written");
        }));
        cases
    });
}

#[test]
fn damaged_small_files_of_a_killed_store_cost_no_message() {
    let _alone = exclusive();
    operate(End::Killed, |_| {
        let mut cases = small_files(true);
        cases.retain(|case| !case.name.starts_with("checksums"));
        cases.push(Case::new("abort missing", Outcome::Repairs(words([])), |_, store| {
            fs::remove_file(store.join("abort")).expect("removed");
        }));
        cases.push(Case::new(
            "queues and index missing",
            Outcome::Repairs(words([])),
            |_, store| {
                fs::remove_dir_all(store.join("consumequeue")).expect("removed");
                fs::remove_dir_all(store.join("index")).expect("removed");
            },
        ));
        cases
    });
}

/// A verify finds nothing where nothing is.
#[test]
fn a_sound_store_verifies() {
    let _alone = exclusive();
    for end in [End::Clean, End::Killed] {
        let specimen = Specimen::of(end);
        let (status, text) = Patient::new(&specimen).verify();
        assert_eq!(status, Some(0), "{end:?}: {text}");
    }
}
