//! The body of a batch send: a run of inner messages.
//!
//! ```text
//!  total magic crc flag bodyLen body propertiesLen properties
//!    4     4    4    4     4      n        2            p
//! ```
//!
//! `total`, `magic` and `crc` are not looked at (clients send 0 for the latter two, stock 4.9.8 recomputes the
//! rest): the two inner lengths alone carry the walk.

/// Bytes of an inner message around its body and properties.
const INNER_FIXED_BYTES: usize = 22;

/// A batch body whose every length was checked: walking it cannot fail.
#[derive(Debug, Clone, Copy)]
pub struct BatchBody<'a> {
    body: &'a [u8],
    count: usize,
}

/// One message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMessage<'a> {
    /// The application's flag.
    pub flag: i32,
    /// The message body, as sent.
    pub body: &'a [u8],
    /// The properties text of this message alone.
    pub properties: &'a [u8],
}

/// Why a batch body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No message at all.
    #[error("batch body is empty: send at least one message")]
    Empty,
    /// A message ends after the body does.
    #[error("batch message {index} needs {need} bytes and the body has {have} left")]
    Short {
        /// Which message, from 0.
        index: usize,
        /// Bytes it needs by its lengths.
        need: usize,
        /// Bytes left from its start.
        have: usize,
    },
    /// A negative length.
    #[error("batch message {index} has a negative length: {length}")]
    NegativeLength {
        /// Which message, from 0.
        index: usize,
        /// The length found.
        length: i32,
    },
}

impl<'a> BatchBody<'a> {
    /// Checks all lengths of `body`.
    ///
    /// # Errors
    /// [`BatchError`] names the first message that does not fit.
    pub fn parse(body: &'a [u8]) -> Result<Self, BatchError> {
        let mut rest = body;
        let mut count = 0;
        while !rest.is_empty() {
            let (_, tail) = split_message(rest, count)?;
            rest = tail;
            count += 1;
        }
        if count == 0 { Err(BatchError::Empty) } else { Ok(Self { body, count }) }
    }

    /// Number of messages, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The messages in order.
    pub fn messages(&self) -> BatchMessages<'a> {
        BatchMessages { rest: self.body, index: 0 }
    }
}

/// Iterator over the messages of a [`BatchBody`].
#[derive(Debug, Clone)]
pub struct BatchMessages<'a> {
    rest: &'a [u8],
    index: usize,
}

impl<'a> Iterator for BatchMessages<'a> {
    type Item = BatchMessage<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (message, rest) = split_message(self.rest, self.index).ok()?;
        self.rest = rest;
        self.index += 1;
        Some(message)
    }
}

fn split_message(rest: &[u8], index: usize) -> Result<(BatchMessage<'_>, &[u8]), BatchError> {
    let have = rest.len();
    let short = |need: usize| BatchError::Short { index, need, have };
    let negative = |length: i32| BatchError::NegativeLength { index, length };
    let (fixed, after) = rest.split_first_chunk::<20>().ok_or(short(INNER_FIXED_BYTES))?;
    let flag = i32::from_be_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
    let body_len = i32::from_be_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]);
    let body_len = usize::try_from(body_len).map_err(|_| negative(body_len))?;
    if after.len() < body_len {
        return Err(short(INNER_FIXED_BYTES + body_len));
    }
    let (body, after) = after.split_at(body_len);
    let (length, after) =
        after.split_first_chunk::<2>().ok_or(short(INNER_FIXED_BYTES + body_len))?;
    let properties_len = i16::from_be_bytes(*length);
    let properties_len =
        usize::try_from(properties_len).map_err(|_| negative(i32::from(properties_len)))?;
    if after.len() < properties_len {
        return Err(short(INNER_FIXED_BYTES + body_len + properties_len));
    }
    let (properties, after) = after.split_at(properties_len);
    Ok((BatchMessage { flag, body, properties }, after))
}
