//! The protocol, request by request: checks in stock 4.9.8's order with its codes and remarks, replies field by field, and what a request does
//! to what other requests see. Frames are made and read by this program's own codec, in both header forms.
//!
//! One broker serves nearly all tests; each works on topics and groups of its own. Tests of what changes a whole broker start their own.
//! Test names are listed per request code in `docs/compatibility.md`.

#![allow(unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod ext;
mod fixture;
mod peer;

mod batch;
mod clients;
mod config;
mod consumers;
mod delay;
mod drain;
mod filters;
mod frames;
mod groups;
mod inspect;
mod locks;
mod longpoll;
mod metrics;
mod offsets;
mod permissions;
mod properties;
mod pull;
mod pull_limits;
mod query;
mod registration;
mod restart;
mod retention;
mod retry;
mod send;
mod send_back;
mod shards;
mod stats;
mod topics;
mod vip;
