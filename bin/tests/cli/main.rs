//! The program as a user at a terminal meets it: configuration, start-up checks, signals, and the commands of the README.

mod config;
mod documents;
mod log_tool;
mod preflight;
mod signals;
mod support;
