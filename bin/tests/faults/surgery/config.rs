//! Damage to the files of `config/`.

use std::fs;
use std::path::{Path, PathBuf};

use super::case::{Case, Outcome, Patient, edit, operate, words};
use super::specimen::{End, QUEUES, Specimen, TOPIC};
use crate::support::exclusive;
use crate::support::wire::{Conn, code};

const FILES: [&str; 4] =
    ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"];

fn path(store: &Path, name: &str) -> PathBuf {
    store.join("config").join(name)
}

fn backup(store: &Path, name: &str) -> PathBuf {
    path(store, &format!("{name}.bak"))
}

/// What is done to a file's bytes.
type Damage = fn(&mut Vec<u8>);

#[test]
fn a_damaged_configuration_file_is_replaced_by_its_backup_or_refuses_the_start() {
    let _alone = exclusive();
    operate(End::Clean, |_| {
        let mut cases = Vec::new();
        for name in FILES {
            let from_backup =
                || Outcome::Repairs(words([name, "configuration read from its .bak"]));
            let refused =
                || Outcome::Refuses(words([name, "cannot be used", "repair one of them"]));
            let damages: [(&str, Damage); 3] = [
                ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
                ("empty", |bytes| bytes.clear()),
                ("garbage", |bytes| bytes.fill(0x5A)),
            ];
            for (how, damage) in damages {
                cases.push(Case::new(format!("{name} {how}"), from_backup(), move |_, store| {
                    edit(&path(store, name), damage);
                }));
                if how == "empty" {
                    continue;
                }
                cases.push(Case::new(
                    format!("{name} {how} and its backup too"),
                    refused(),
                    move |_, store| {
                        edit(&path(store, name), damage);
                        edit(&backup(store, name), damage);
                    },
                ));
            }
            cases.push(Case::new(format!("{name} missing"), from_backup(), move |_, store| {
                fs::remove_file(path(store, name)).expect("removed");
            }));
            cases.push(Case::new(
                format!("{name} cut and no backup"),
                refused(),
                move |_, store| {
                    edit(&path(store, name), damages[0].1);
                    fs::remove_file(backup(store, name)).expect("removed");
                },
            ));
            cases.push(Case::new(
                format!("{name}.tmp left over"),
                Outcome::Repairs(words([])),
                move |_, store| {
                    fs::write(path(store, &format!("{name}.tmp")), "{").expect("written");
                },
            ));
            if name != "topics.json" {
                let noted = Outcome::Repairs(words([name, "this file and its .bak are missing"]));
                cases.push(Case::new(
                    format!("{name} and its backup missing"),
                    noted,
                    move |_, store| {
                        fs::remove_file(path(store, name)).expect("removed");
                        fs::remove_file(backup(store, name)).expect("removed");
                    },
                ));
            }
        }
        cases
    });
}

/// The log has the messages, and the topics' names: they are told, and a topic that is made again has all of them.
#[test]
fn topics_of_a_lost_file_are_named_and_come_back_when_they_are_made_again() {
    let _alone = exclusive();
    let specimen = Specimen::of(End::Clean);
    let mut patient = Patient::new(&specimen);
    fs::remove_file(path(&patient.store, "topics.json")).expect("removed");
    fs::remove_file(backup(&patient.store, "topics.json")).expect("removed");
    patient.start().expect("it serves");
    let log = patient.log();
    assert!(log.contains("topics.json"), "{log}");
    let named =
        log.lines().any(|line| line.contains("make the topic again") && line.contains(TOPIC));
    assert!(named, "{log}");
    patient.broker.create_topic(TOPIC, QUEUES);
    let verdict = patient.judge(&specimen);
    assert!(verdict.refused.is_empty(), "{:?}", verdict.refused);
    let all = specimen.records.iter().filter(|place| place.topic == TOPIC).count();
    assert_eq!(verdict.served.len(), all);
}

/// What is kept is what was: a group's offset survives the damage of every other file.
#[test]
fn offsets_are_what_they_were() {
    let _alone = exclusive();
    let specimen = Specimen::of(End::Clean);
    let mut patient = Patient::new(&specimen);
    edit(&path(&patient.store, "topics.json"), |bytes| bytes.truncate(10));
    edit(&path(&patient.store, "subscriptionGroup.json"), |bytes| bytes.clear());
    patient.start().expect("it serves");
    let mut conn = Conn::open(patient.broker.address(0)).expect("a connection");
    let ext = [("consumerGroup", "group"), ("topic", TOPIC), ("queueId", "1")];
    let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &ext, &[]).expect("a reply");
    assert_eq!(reply.number("offset"), 7);
}
