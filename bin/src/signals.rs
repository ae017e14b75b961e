//! SIGTERM and SIGINT: the first asks the reactors to stop, a second ends the process at once, and so does a stop that takes too
//! long.

use std::io;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::reactor::Stop;

/// Starts the threads that listen. `exit_after` bounds a stop, however it was asked for.
pub fn watch(stop: &Stop, exit_after: Duration) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let on_signal = stop.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if on_signal.requested() {
                end_now(&format!(
                    "signal {signal} while stopping: the store is recovered at the next start"
                ));
            }
            info!(signal, "asked to stop; a second signal ends the process at once");
            on_signal.request();
        }
    })?;
    let deadline = stop.clone();
    thread::Builder::new().name("stop-deadline".to_owned()).spawn(move || {
        deadline.wait();
        thread::sleep(exit_after);
        end_now(&format!(
            "not stopped after {} ms (drain.exit_ms): the store is recovered at the next start",
            exit_after.as_millis()
        ));
    })?;
    Ok(())
}

/// Past the log's queue, whose thread may be what is stuck.
fn end_now(why: &str) -> ! {
    eprintln!("ringmq: ending at once: {why}");
    std::process::exit(1)
}
