//! The storage engine of RingMQ.
