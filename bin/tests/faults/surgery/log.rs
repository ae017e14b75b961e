//! Damage to the commit log.

use std::fs;

use super::case::{Case, Outcome, edit, edit_log, operate, segment, words};
use super::specimen::{End, Place, SEGMENT_BYTES, Specimen};
use crate::support::exclusive;

/// Fields of a record that a check of the record itself covers: name, byte in the record, what is flipped there.
fn covered(place: &Place) -> Vec<(&'static str, usize, u8)> {
    vec![
        ("size", 3, 0x08),
        ("magic", 5, 0x01),
        ("body CRC", 10, 0x40),
        ("physical offset", 35, 0x01),
        ("born host's kind", 39, 0x10),
        ("body length", 87, 0x02),
        ("first byte of the body", Place::BODY_AT, 0x01),
        ("last byte of the body", place.topic_at() - 1, 0x80),
        ("topic length", place.topic_at(), 0x01),
        ("length of the properties", place.properties_at() + 1, 0x01),
    ]
}

/// Fields by which a record says where it belongs: a pull compares them with where it was found.
fn placing(place: &Place) -> Vec<(&'static str, usize, u8)> {
    vec![
        ("queue id", 15, 0x01),
        ("queue offset, lower byte", 27, 0x01),
        ("queue offset, upper byte", 24, 0x01),
        ("topic", place.topic_at() + 1, 0x20),
    ]
}

fn flip(at: u64, byte: usize, bits: u8) -> impl Fn(&Specimen, &std::path::Path) + Sync {
    move |_, store| edit_log(store, at + byte as u64, |bytes| bytes[0] ^= bits)
}

fn segment_and_byte(place: &Place) -> Vec<String> {
    let start = place.at - place.at % SEGMENT_BYTES;
    vec![
        format!("{start:020}"),
        format!("byte {}", place.at - start),
        format!("physical offset {}", place.at),
        "restore the segment".to_owned(),
    ]
}

#[test]
fn a_damaged_record_below_the_durable_offset_is_refused_by_name_and_nothing_else_is() {
    let _alone = exclusive();
    operate(End::Clean, |specimen| {
        let mut cases = Vec::new();
        let old = specimen.old_record();
        // The start looks at the last record alone.
        let recent = specimen.record_below(specimen.last_record().at - 20_000);
        for (which, place) in [("an old", old), ("a recent", recent)] {
            let mut fields = covered(place);
            fields.extend(placing(place));
            for (field, byte, bits) in fields {
                if which == "a recent" && !matches!(field, "size" | "magic" | "queue id") {
                    continue;
                }
                // What a verify sees of a wrong place is a unit without its record.
                let told = match field {
                    "queue id" => "queue ".to_owned(),
                    "topic" => "the block of 65536 bytes".to_owned(),
                    "queue offset, lower byte" | "queue offset, upper byte" => "unit".to_owned(),
                    _ => format!("{}: ", place.at),
                };
                cases.push(Case::new(
                    format!("{field} of {which} record"),
                    Outcome::RefusesOne(place.queue, place.offset, told),
                    flip(place.at, byte, bits),
                ));
            }
        }
        for (field, byte, bits) in [
            ("compressed bit", 39, 0x01),
            ("born time", 44, 0x01),
            ("properties", old.properties_at() + 6, 0x01),
        ] {
            let at = old.at + byte as u64;
            let block = at - at % 65_536;
            cases.push(Case::new(
                format!("{field} of an old record"),
                Outcome::OnlyVerifyTells(format!("{block}: the block of 65536 bytes")),
                flip(old.at, byte, bits),
            ));
        }
        cases
    });
}

#[test]
fn a_damaged_last_record_of_a_clean_store_refuses_the_start() {
    let _alone = exclusive();
    operate(End::Clean, |specimen| {
        let last = specimen.last_record();
        let mut cases: Vec<Case> = covered(last)
            .into_iter()
            .map(|(field, byte, bits)| {
                let mut expected = segment_and_byte(last);
                expected.push("below".to_owned());
                Case::new(
                    format!("{field} of the last record"),
                    Outcome::Refuses(expected),
                    flip(last.at, byte, bits),
                )
            })
            .collect();
        let (at, len) = (last.at, last.len);
        cases.push(Case::new(
            "the last record zeroed",
            Outcome::Refuses(segment_and_byte(last)),
            move |_, store| edit_log(store, at, |bytes| bytes[..len].fill(0)),
        ));
        // Without our state only stock's checkpoint tells that there was more: by time, so that what is left must be older.
        cases.push(Case::new(
            "a recent record of a store without our state",
            Outcome::Refuses(words(["checkpoint", "restore the segment"])),
            move |specimen, store| {
                fs::remove_dir_all(store.join("ringmq")).expect("removed");
                let place = specimen.recent_record();
                edit_log(store, place.at, |bytes| bytes[Place::BODY_AT] ^= 1);
            },
        ));
        cases.push(Case::new(
            "no segment, and not our state",
            Outcome::Refuses(words(["no segment", "checkpoint"])),
            |_, store| {
                fs::remove_dir_all(store.join("ringmq")).expect("removed");
                fs::remove_dir_all(store.join("commitlog")).expect("removed");
            },
        ));
        cases
    });
}

/// Behind the durable offset a crash may have left anything.
#[test]
fn a_damaged_tail_of_a_killed_store_is_cut_with_a_line_that_says_so() {
    let _alone = exclusive();
    operate(End::Killed, |specimen| {
        let last = specimen.last_record();
        assert!(last.at > specimen.durable, "the store has a tail");
        let tail = specimen.durable + (last.at - specimen.durable) / 2;
        let late = |place: &&Place| place.at >= tail && place.at < last.at;
        let middle = specimen.records.iter().find(late).expect("a record before the last");
        let mut cases = Vec::new();
        for (which, place) in [("the last", last), ("a late", middle)] {
            for (field, byte, bits) in covered(place) {
                if which == "a late" && !matches!(field, "size" | "magic" | "last byte of the body")
                {
                    continue;
                }
                cases.push(Case::new(
                    format!("{field} of {which} record"),
                    Outcome::CutsAt(place.at),
                    flip(place.at, byte, bits),
                ));
            }
        }
        let at = middle.at;
        cases.push(Case::new(
            "magic of a late record zeroed",
            Outcome::CutsAt(at),
            move |_, store| {
                edit_log(store, at, |bytes| bytes[4..8].fill(0));
            },
        ));
        let len = middle.len;
        cases.push(Case::new("a late record zeroed", Outcome::CutsAt(at), move |_, store| {
            edit_log(store, at, |bytes| bytes[..len].fill(0));
        }));
        cases
    });
}

#[test]
fn segments_that_are_cut_gone_or_not_ours_are_named() {
    let _alone = exclusive();
    operate(End::Clean, |specimen| {
        let last = specimen.last_record().at / SEGMENT_BYTES * SEGMENT_BYTES;
        assert!(last >= 3 * SEGMENT_BYTES, "several segments");
        let name = |start: u64| format!("{start:020}");
        let shorten = |start: u64, len: u64| {
            move |_: &Specimen, store: &std::path::Path| {
                let file = fs::OpenOptions::new().write(true).open(segment(store, start));
                file.and_then(|file| file.set_len(len)).expect("shortened");
            }
        };
        let remove = |start: u64| {
            move |_: &Specimen, store: &std::path::Path| {
                for at in (start..=start + 64 * SEGMENT_BYTES).step_by(SEGMENT_BYTES as usize) {
                    let gone = fs::remove_file(segment(store, at));
                    // Of the last ones, those made ahead too.
                    if gone.is_err() || start < 3 * SEGMENT_BYTES {
                        break;
                    }
                }
            }
        };
        let middle = SEGMENT_BYTES;
        vec![
            Case::new(
                "a segment cut to half",
                Outcome::Refuses(vec![name(middle), "524288 bytes".to_owned()]),
                shorten(middle, SEGMENT_BYTES / 2),
            ),
            Case::new(
                "a segment cut to nothing",
                Outcome::Refuses(vec![name(middle), "0 bytes".to_owned()]),
                shorten(middle, 0),
            ),
            Case::new(
                "the last segment cut",
                Outcome::Refuses(vec![name(last), "4096 bytes".to_owned()]),
                shorten(last, 4096),
            ),
            Case::new(
                "a segment missing",
                Outcome::Refuses(words(["missing", "1048576", "restore"])),
                remove(middle),
            ),
            Case::new(
                "the last segment missing",
                Outcome::Refuses(words(["durable", "restore the missing segments"])),
                remove(last),
            ),
            Case::new(
                "all segments missing",
                Outcome::Refuses(words(["durable", "restore the missing segments"])),
                |_, store| {
                    fs::remove_dir_all(store.join("commitlog")).expect("removed");
                },
            ),
            Case::new("the first segment missing", Outcome::BeginsAt(middle), remove(0)),
            Case::new(
                "a file that is no segment",
                Outcome::Refuses(words(["notes.txt", "move it out"])),
                |_, store| {
                    fs::write(store.join("commitlog/notes.txt"), "mine").expect("written");
                },
            ),
            Case::new(
                "a directory",
                Outcome::Refuses(words(["commitlog/old", "move it out"])),
                |_, store| fs::create_dir(store.join("commitlog/old")).expect("made"),
            ),
            Case::new(
                "a segment that starts between two others",
                Outcome::Refuses(words(["00000000000000004096", "segment size"])),
                |_, store| {
                    fs::copy(segment(store, 0), segment(store, 4096)).expect("copied");
                },
            ),
            Case::new(
                "the mark at the end of a segment",
                Outcome::OnlyVerifyTells("983040: the block of 65536 bytes".to_owned()),
                |specimen, store| {
                    let end = specimen.record_below(SEGMENT_BYTES);
                    edit(&segment(store, 0), |bytes| bytes[end.at as usize + end.len + 2] ^= 1);
                },
            ),
        ]
    });
}
