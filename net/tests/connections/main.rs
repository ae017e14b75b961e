//! Server and client connections over real sockets on the loopback interface.

mod client;
mod harness;
mod lifetime;
mod process;
mod traffic;
