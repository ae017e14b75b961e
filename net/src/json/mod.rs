//! JSON as stock peers write and read it.

pub(crate) mod lex;
