//! Byte surgery on stopped stores. Each case copies a store that was made once, damages it, starts a broker on it, and holds it to a stated
//! outcome: the tail is cut, or what is derived is made again, or the damage is stopped at and named. Never silence, never a panic, never
//! wrong bytes.

mod case;
mod config;
mod derived;
mod fuzz;
mod log;
mod specimen;
