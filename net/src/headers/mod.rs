//! The ext fields of each request as a typed header, borrowed from the decoded command.
//!
//! Every type has `decode`, which walks the ext fields once, and `ext`, which gives them back for sending.
//! Stock is lenient in an odd way: it logs a missing field, leaves it null and then fails with code 1 where
//! the null is used. Here a missing or malformed field is a [`FieldError`] to answer with code 1; fields
//! that no stock code would miss have a default instead.

use smallvec::SmallVec;
use thiserror::Error;

use crate::header::{ExtValue, HeaderView};

mod admin;
mod consume;
mod namesrv;
mod push;
mod send;

pub use admin::{
    CloneOffsetHeader, ConsumeQueueHeader, ConsumeStatsHeader, ConsumerGroupHeader,
    CorrectionOffsetHeader, CreateTopicHeader, DeleteGroupHeader, GroupOnTopicHeader,
    ProducerGroupHeader, StatsDataHeader, TopicHeader,
};
pub use consume::{
    PullHeader, PullReplyHeader, QueryConsumerOffsetHeader, QueryMessageHeader, QueueHeader,
    SearchOffsetHeader, SendBackHeader, UnregisterClientHeader, UpdateConsumerOffsetHeader,
    ViewMessageHeader, pull_flag,
};
pub use namesrv::{
    BrokerNameHeader, ClusterHeader, DeleteRouteHeader, KvHeader, NamespaceHeader,
    QueryDataVersionHeader, RegisterBrokerHeader, RegisterBrokerReplyHeader, RouteHeader,
    UnregisterBrokerHeader,
};
pub use push::{
    CheckTransactionHeader, ConsumeDirectlyHeader, ConsumerStatusHeader, PushReplyHeader,
    ResetOffsetHeader, RunningInfoHeader,
};
pub use send::{EndTransactionHeader, SendHeader, SendReplyHeader, transaction_action};

/// Most characters of an offending value that an error repeats.
const ERROR_TEXT_CHARS: usize = 64;

/// Why a request's ext fields cannot be used: answer code 1 with this text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FieldError {
    /// A field that the request cannot do without.
    #[error("ext field {name} is missing or empty")]
    Missing {
        /// The field.
        name: &'static str,
    },
    /// A field that is no number of its type.
    #[error("ext field {name} is \"{text}\", which is not a {bits}-bit number")]
    Number {
        /// The field.
        name: &'static str,
        /// Its value, cut to 64 characters.
        text: String,
        /// Bits of the number's type.
        bits: u32,
    },
}

/// The ext fields of a command that is sent.
pub type ExtFields<'a> = SmallVec<[(&'static str, ExtValue<'a>); 16]>;

/// A type that an ext field can have.
pub(crate) trait Field<'a>: Sized {
    /// From the wire's text, which is empty when the field is absent, null or empty.
    fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError>;
    /// For the wire; `None` leaves the field out.
    fn put(&self) -> Option<ExtValue<'a>>;
}

impl<'a> Field<'a> for &'a str {
    fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError> {
        if text.is_empty() { Err(FieldError::Missing { name }) } else { Ok(text) }
    }
    fn put(&self) -> Option<ExtValue<'a>> {
        Some(ExtValue::Str(self))
    }
}

impl<'a> Field<'a> for Option<&'a str> {
    fn read(_: &'static str, text: &'a str) -> Result<Self, FieldError> {
        Ok((!text.is_empty()).then_some(text))
    }
    fn put(&self) -> Option<ExtValue<'a>> {
        self.map(ExtValue::Str)
    }
}

/// `true` in any case is true, everything else false, as Java parses it.
impl<'a> Field<'a> for bool {
    fn read(_: &'static str, text: &'a str) -> Result<Self, FieldError> {
        Ok(text.eq_ignore_ascii_case("true"))
    }
    fn put(&self) -> Option<ExtValue<'a>> {
        Some(ExtValue::Bool(*self))
    }
}

macro_rules! number_field {
    ($($ty:ty),*) => {$(
        impl<'a> Field<'a> for $ty {
            #[inline]
            fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError> {
                match text.parse() {
                    Ok(number) => Ok(number),
                    Err(_) => Err(not_a_number(name, text, <$ty>::BITS)),
                }
            }
            fn put(&self) -> Option<ExtValue<'a>> {
                Some(ExtValue::I64(i64::from(*self)))
            }
        }
        impl<'a> Field<'a> for Option<$ty> {
            fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError> {
                if text.is_empty() { Ok(None) } else { Field::read(name, text).map(Some) }
            }
            fn put(&self) -> Option<ExtValue<'a>> {
                self.map(|number| ExtValue::I64(i64::from(number)))
            }
        }
    )*};
}
number_field!(i32, i64);

#[cold]
fn not_a_number(name: &'static str, text: &str, bits: u32) -> FieldError {
    if text.is_empty() {
        return FieldError::Missing { name };
    }
    FieldError::Number { name, text: text.chars().take(ERROR_TEXT_CHARS).collect(), bits }
}

/// A required 32-bit ext field, for requests with a field or two.
///
/// # Errors
/// Missing, or not a number.
pub fn required_i32(view: &HeaderView<'_>, name: &'static str) -> Result<i32, FieldError> {
    i32::read(name, view.ext(name).unwrap_or_default())
}

/// A required 64-bit ext field.
///
/// # Errors
/// Missing, or not a number.
pub fn required_i64(view: &HeaderView<'_>, name: &'static str) -> Result<i64, FieldError> {
    i64::read(name, view.ext(name).unwrap_or_default())
}

/// A required text.
///
/// # Errors
/// Missing or empty.
pub fn required_str<'a>(view: &HeaderView<'a>, name: &'static str) -> Result<&'a str, FieldError> {
    <&str>::read(name, view.ext(name).unwrap_or_default())
}

/// A boolean ext field; absent is false.
#[must_use]
pub fn ext_bool(view: &HeaderView<'_>, name: &'static str) -> bool {
    view.ext(name).is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// Defines typed headers: `field: type = "wire name"`, with `or default` for an absent value.
macro_rules! headers {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$fdoc:meta])* $field:ident : $ty:ty = $wire:literal $(or $default:expr)? ),* $(,)?
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a> {
            $( $(#[$fdoc])* pub $field: $ty, )*
        }

        impl<'a> $name<'a> {
            /// Reads the ext fields.
            ///
            /// # Errors
            /// A field is missing or is not a number.
            pub fn decode(
                view: &crate::header::HeaderView<'a>,
            ) -> Result<Self, $crate::headers::FieldError> {
                $( let mut $field: &'a str = ""; )*
                for (name, value) in view.ext_iter() {
                    match name {
                        $( $wire => $field = value, )*
                        _ => {}
                    }
                }
                Ok(Self { $( $field: {
                    $( if $field.is_empty() { $default } else )? {
                        <$ty as $crate::headers::Field<'a>>::read($wire, $field)?
                    }
                }, )* })
            }

            /// The ext fields for sending.
            #[must_use]
            pub fn ext(&self) -> $crate::headers::ExtFields<'a> {
                let mut out = $crate::headers::ExtFields::new();
                $(
                    if let Some(value) = $crate::headers::Field::put(&self.$field) {
                        out.push(($wire, value));
                    }
                )*
                out
            }
        }
    )*};
}
use headers;

#[cfg(test)]
mod tests;
