//! One master and one slave, their sessions alone: what they say to each other, to a stock peer, and to a peer that lies.

mod duo;
mod parting;
mod stock;
mod strangers;
