//! The `ringmq` program.

fn main() -> std::process::ExitCode {
    ringmq::process::main()
}
