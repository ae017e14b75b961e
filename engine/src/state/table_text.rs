//! Reading the tables of `config/` from their JSON text.
//!
//! What a field may look like is the business of the bodies in `ringmq_net::body`, which the same tables
//! have on the wire. A file is read more strictly than a request: an impossible value, or a document
//! without its table, makes the whole text unusable, since a guess would be saved over it.

use ringmq_net::body::{Body, BodyError};
use ringmq_net::json::{JsonError, Limits, Value, Writer};
use thiserror::Error;

/// Why a text can't be taken for a table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableTextError {
    /// Not text at all.
    #[error("it is not UTF-8")]
    Utf8,
    /// Not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The table itself is missing.
    #[error("it has no object {0}")]
    NoTable(&'static str),
    /// A field that can't be.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Reads a document whose table is the object `table`.
pub(super) fn read<B: Body>(bytes: &[u8], table: &'static str) -> Result<B, TableTextError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TableTextError::Utf8)?;
    let document = Value::parse_within(text, Limits::TRUSTED)?;
    if !matches!(document.get(table), Some(Value::Object(_))) {
        return Err(TableTextError::NoTable(table));
    }
    Ok(B::read(&document)?)
}

/// A document as stock writes it to disk.
pub(super) fn to_file(body: &impl Body) -> Vec<u8> {
    let mut writer = Writer::pretty();
    body.write(&mut writer);
    writer.finish()
}
