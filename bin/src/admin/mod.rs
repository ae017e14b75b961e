//! `ringmq admin`: questions to running brokers, for a person or a script.

mod ha_status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::quick::QuickError;

pub use ha_status::HaStatusArgs;

/// Flags of `ringmq admin`.
#[derive(Debug, Clone, Args)]
pub struct AdminArgs {
    /// What to ask.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// The subcommands of `ringmq admin`.
#[derive(Debug, Clone, Subcommand)]
pub enum AdminCommand {
    /// Masters and slaves: who follows whom, how far. Exit status 1 if a broker does not answer or a slave does not follow.
    HaStatus(HaStatusArgs),
}

/// Runs one subcommand.
///
/// # Errors
/// [`QuickError`] when nobody can be asked.
pub fn run(args: &AdminArgs) -> Result<ExitCode, QuickError> {
    match &args.command {
        AdminCommand::HaStatus(args) => ha_status::run(args),
    }
}
