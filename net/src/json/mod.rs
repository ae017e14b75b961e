//! JSON as stock peers write and read it, which is fastjson's and not everybody's.
//!
//! Maps with number keys have them bare (`{0:"a"}`), maps keyed by a message queue have objects as keys
//! (`{{"brokerName":"b","queueId":0,"topic":"T"}:5}`), and foreign clients cut these texts with simple
//! means: no white space, exact order. A [`Writer`] writes that to the byte; [`Value`] reads it together
//! with everything stock peers would read.

pub(crate) mod lex;
mod value;
mod writer;

pub use value::{JsonError, Limits, Value};
pub use writer::Writer;

/// A finite double as Java's `Double.toString` writes it: `0.0`, `1.0E10`, `1.5E-4`.
#[must_use]
pub fn java_double(number: f64) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0.0".into() } else { "0.0".into() };
    }
    if (1e-3..1e7).contains(&number.abs()) {
        return format!("{number:?}");
    }
    // Rust writes the shortest digits as `d.ddde-x`; Java wants a fraction and a capital letter.
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => format!("{digits}E{exponent}"),
        Some((digits, exponent)) => format!("{digits}.0E{exponent}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> String {
        let mut w = Writer::new();
        Value::parse(text).unwrap().write(&mut w);
        String::from_utf8(w.finish()).unwrap()
    }

    #[test]
    fn forms_of_fastjson_are_read() {
        let same = [
            r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":1,"topic":"T"}:7}}"#,
            r#"{"a":[],"b":{},"c":[1,-2.5,true,null,"x"]}"#,
            r#"{0:"a",-1:"b",1:{2:3}}"#,
        ];
        for text in same {
            assert_eq!(rewritten(text), text);
        }
        assert_eq!(
            rewritten(" { 'a' : [ 1 , 2 , ] , b : \"\\u0041\" , } \n"),
            r#"{"a":[1,2],"b":"A"}"#
        );
        assert_eq!(rewritten("18446744073709551616"), "1.8446744073709552E19");
    }

    #[test]
    fn malformed_documents_are_refused() {
        for bad in [
            "", "{", "[", "[1", "[1 2]", "{\"a\"}", "{\"a\":}", "{1:2", "\"a", "tru", "1x", "[,]",
            "{}{}", "inf", "-", "+", "\"\\z\"", "{{}", "[}",
        ] {
            assert!(Value::parse(bad).is_err(), "{bad}");
        }
        let deep = "[".repeat(1 << 20);
        assert_eq!(Value::parse(&deep).unwrap_err().what, "nested too deeply");
        let deep_keys = "{".repeat(1 << 20);
        assert_eq!(Value::parse(&deep_keys).unwrap_err().what, "nested too deeply");
        let many = format!("[{}]", "0,".repeat(Limits::SMALL.values));
        assert_eq!(Value::parse(&many).unwrap_err().what, "too many values");
        assert!(Value::parse_within(&many, Limits::LARGE).is_ok());
    }

    #[test]
    fn scalars_convert_as_in_fastjson() {
        let doc = Value::parse(
            r#"{"n":"12","b":"TRUE","i":1,"f":3.0,"big":4294967296,"z":null,"n":13,"s":"x"}"#,
        )
        .unwrap();
        let get = |name| doc.get(name);
        assert_eq!(get("n").and_then(Value::as_i32), Some(13));
        assert_eq!(get("b").and_then(Value::as_bool), Some(true));
        assert_eq!(get("i").and_then(Value::as_bool), Some(true));
        assert_eq!(get("f").and_then(Value::as_i64), Some(3));
        assert_eq!(get("big").and_then(Value::as_i32), None);
        assert_eq!(get("big").and_then(Value::to_text).as_deref(), Some("4294967296"));
        assert_eq!((get("z"), get("absent")), (None, None));
        assert_eq!(get("s").and_then(Value::as_i64), None);
    }

    #[test]
    fn browser_style_is_strict_json() {
        let mut w = Writer::browser();
        w.begin_object();
        w.key_i64(0);
        w.str("標/😀\"\u{1}\u{7f}");
        w.field_i64("n", 1i64 << 53);
        w.field_i64("o", (1i64 << 53) + 1);
        w.field_i64("p", i64::MIN);
        w.end_object();
        let want = r#"{"0":"\u6A19\/\uD83D\uDE00\"\u0001\u007F","n":9007199254740992,"o":"9007199254740993","p":"-9223372036854775808"}"#;
        assert_eq!(String::from_utf8(w.finish()).unwrap(), want);
    }

    #[test]
    fn pretty_style_has_tabs_and_bare_number_keys_inline() {
        let mut w = Writer::pretty();
        Value::parse(r#"{"offsetTable":{"T@G":{0:12,1:7},"E":{}},"l":[1,[]]}"#)
            .unwrap()
            .write(&mut w);
        let want = "{\n\t\"offsetTable\":{\n\t\t\"T@G\":{0:12,1:7\n\t\t},\n\t\t\"E\":{}\n\t},\n\t\"l\":[\n\t\t1,\n\t\t[]\n\t]\n}";
        assert_eq!(String::from_utf8(w.finish()).unwrap(), want);
    }

    #[test]
    fn doubles_look_like_those_of_java() {
        for (number, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.42, "0.42"),
            (1.0501575236285443, "1.0501575236285443"),
            (0.001, "0.001"),
            (0.0001, "1.0E-4"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (-1.25e300, "-1.25E300"),
        ] {
            assert_eq!(java_double(number), want);
        }
        let mut w = Writer::new();
        w.begin_array();
        w.f64(f64::NAN);
        w.f64(f64::INFINITY);
        w.end_array();
        assert_eq!(w.finish(), b"[null,null]");
    }
}
