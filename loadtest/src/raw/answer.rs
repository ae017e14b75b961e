//! Reading what matters of an answer's header, fast: its correlation id and its code.
//!
//! A harness that parsed every header would measure itself. Brokers write `code` first and `opaque` near the end; the scanner
//! looks there and remembers how far from the end it was. Whatever is not found this way is read by the full decoder.

use ringmq_net::frame::{FrameRef, SerializeType};
use ringmq_net::header::HeaderDecoder;

/// A response's code and the request it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Correlation id of the request.
    pub opaque: i32,
    /// Response code.
    pub code: i32,
}

/// Reads answers; keeps what it learnt about the broker's way of writing.
#[derive(Debug, Default)]
pub struct AnswerReader {
    /// Distance of `"opaque":` from the header's end in the last answer.
    opaque_from_end: usize,
    /// Distance of `"flag":1,` from there.
    flag_from_opaque: usize,
    decoder: HeaderDecoder,
}

impl AnswerReader {
    /// The answer in a frame; `None` if the frame is a request of the broker's or can't be read.
    pub fn read(&mut self, frame: &FrameRef<'_>) -> Option<Answer> {
        let fast = match frame.serialize {
            SerializeType::Json => self.scan_json(frame.header),
            SerializeType::Binary => scan_binary(frame.header),
        };
        fast.or_else(|| {
            let view = self.decoder.decode(frame.serialize, frame.header).ok()?;
            let answer = Answer { opaque: view.opaque(), code: view.code() };
            view.is_response().then_some(answer)
        })
    }

    /// Text in a header can't be taken for `"opaque":`, since quotes in text are escaped.
    fn scan_json(&mut self, header: &[u8]) -> Option<Answer> {
        const CODE: &[u8] = b"{\"code\":";
        const OPAQUE: &[u8] = b"\"opaque\":";
        // Requests of the broker have the flags 0 or 2.
        const RESPONSE: &[u8] = b"\"flag\":1,";
        let code = number(header.strip_prefix(CODE)?)?;
        let opaque_at = rfind(header, OPAQUE, &mut self.opaque_from_end)?;
        rfind(&header[..opaque_at], RESPONSE, &mut self.flag_from_opaque)?;
        let opaque = number(&header[opaque_at + OPAQUE.len()..])?;
        Some(Answer { opaque, code })
    }
}

/// The last place of `needle`, looked for first as far from the end as it was the last time.
fn rfind(text: &[u8], needle: &[u8], from_end: &mut usize) -> Option<usize> {
    let at = match text.len().checked_sub(*from_end) {
        Some(at) if text[at..].starts_with(needle) => at,
        _ => text.windows(needle.len()).rposition(|part| part == needle)?,
    };
    *from_end = text.len() - at;
    Some(at)
}

fn scan_binary(header: &[u8]) -> Option<Answer> {
    let (fixed, _) = header.split_first_chunk::<13>()?;
    let [c0, c1, _, _, _, o0, o1, o2, o3, .., flag] = *fixed;
    let code = i16::from_be_bytes([c0, c1]).into();
    let opaque = i32::from_be_bytes([o0, o1, o2, o3]);
    (flag & 1 == 1).then_some(Answer { opaque, code })
}

/// The number that `text` begins with: up to ten digits, maybe a sign, something else behind it.
fn number(text: &[u8]) -> Option<i32> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let len = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    if len == 0 || len > 10 {
        return None;
    }
    let value = digits[..len].iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    i32::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use ringmq_net::command::Command;
    use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
    use ringmq_net::header::ExtValue;
    use ringmq_net::reply::{ReplyHead, encode_reply};

    use super::*;

    fn read(reader: &mut AnswerReader, bytes: &[u8]) -> Option<Answer> {
        let Ok(Peek::Frame(frame)) = peek(bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
        reader.read(&frame)
    }

    #[test]
    fn answers_of_every_shape_are_read_as_the_decoder_reads_them() {
        let mut reader = AnswerReader::default();
        let hostile = r#"","opaque":5,"flag":1,{"code":9"#;
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            for opaque in [0, 7, -1, i32::MIN, i32::MAX, 1_000_000_042] {
                for code in [0, 1, 21, 215] {
                    for remark in [None, Some("FOUND"), Some(hostile)] {
                        for ext in [None, Some(&[("msgId", ExtValue::Str(hostile))][..])] {
                            let reply = ReplyHead { serialize, opaque, code, remark, ext };
                            let mut out = BytesMut::new();
                            encode_reply(&mut out, &reply, 0);
                            assert_eq!(read(&mut reader, &out), Some(Answer { opaque, code }));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn other_orders_and_spaces_are_read_too() {
        let mut reader = AnswerReader::default();
        for header in [
            r#"{"opaque":12,"flag":1,"code":2}"#,
            r#"{"code": 2, "flag": 1, "opaque": 12}"#,
            r#"{"code":2,"language":"JAVA","opaque":12,"version":1,"flag":1}"#,
        ] {
            let mut bytes = ((4 + header.len()) as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
            bytes.extend_from_slice(header.as_bytes());
            assert_eq!(read(&mut reader, &bytes), Some(Answer { opaque: 12, code: 2 }), "{header}");
        }
    }

    #[test]
    fn a_request_of_the_broker_is_no_answer() {
        let mut reader = AnswerReader::default();
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let mut out = BytesMut::new();
            Command { serialize, ..Command::oneway(40) }.encode(&mut out);
            assert_eq!(read(&mut reader, &out), None);
        }
    }
}
