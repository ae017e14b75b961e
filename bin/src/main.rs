//! The `ringmq` program.

mod ring_setup;

fn main() -> std::process::ExitCode {
    ringmq::process::main()
}
