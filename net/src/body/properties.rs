//! Java properties text: bodies of 25, 26, 318 and 319, and configuration files.
//!
//! One `key=value` a line. `#` and `!` start comments, `=`, `:` or white space end a key, a backslash escapes,
//! and at a line's end continues it. Java keeps blanks at the end of values; nobody wants them, so they
//! are trimmed here.

/// Reads all pairs in order; of a repeated key the last should count.
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut lines = text.split(['\n', '\r']);
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while ends_in_open_backslash(&logical) {
            logical.pop();
            match lines.next() {
                Some(next) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let (key, value) = split(&logical);
        pairs.push((unescape(key), unescape(value.trim_end())));
    }
    pairs
}

/// Does an odd number of backslashes stand at the end?
fn ends_in_open_backslash(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

/// Cuts a line at the first unescaped separator.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (c == '=' || c == ':' || is_blank(c));
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some(end) = end else { return (line, "") };
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_blank))
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

fn unescape(raw: &str) -> String {
    let mut units = Vec::with_capacity(raw.len());
    let mut rest = raw.chars();
    while let Some(c) = rest.next() {
        let plain = match c {
            '\\' => match rest.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    // Surrogates come as two escapes, so text is gathered as UTF-16 units.
                    let digits = rest.as_str().get(..4);
                    let unit = digits.and_then(|d| u16::from_str_radix(d, 16).ok());
                    if let Some(unit) = unit {
                        units.push(unit);
                        rest = rest.as_str()[4..].chars();
                        continue;
                    }
                    'u'
                }
                Some(other) => other,
                None => break,
            },
            _ => c,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16_lossy(&units)
}

/// Prints one pair a line. Ordinary values leave as stock prints them, raw; what would not come back
/// from a Java reader (backslashes, line ends, more than ASCII) is escaped.
#[must_use]
pub fn print<K: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        for (at, c) in key.as_ref().char_indices() {
            if matches!(c, '=' | ':' | ' ') || (at == 0 && matches!(c, '#' | '!')) {
                out.push('\\');
                out.push(c);
            } else {
                escape(&mut out, c);
            }
        }
        out.push('=');
        for (at, c) in value.as_ref().char_indices() {
            if at == 0 && c == ' ' {
                out.push('\\');
            }
            escape(&mut out, c);
        }
        out.push('\n');
    }
    out
}

fn escape(out: &mut String, c: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{c}' => out.push_str("\\f"),
        ' '..='~' => out.push(c),
        _ => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04X}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text)
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn forms_of_java_are_read() {
        let text = "# comment\n ! too\n\nbrokerName = broker-a  \nlistenPort:10911\r\nnamesrvAddr  a:1;b:2\n\
                    path=/x\\\n    /y\\\\\nempty=\nalone\n a\\=b\\ c = d=e\nu=\\u6807\\uD83D\\uDE00\\q\\t|\nlast=1\\";
        let want = [
            pair("brokerName", "broker-a"),
            pair("listenPort", "10911"),
            pair("namesrvAddr", "a:1;b:2"),
            pair("path", "/x/y\\"),
            pair("empty", ""),
            pair("alone", ""),
            pair("a=b c", "d=e"),
            pair("u", "标😀q\t|"),
            pair("last", "1"),
        ];
        assert_eq!(parsed(text), want);
        assert_eq!(parsed(""), []);
        assert_eq!(parsed("a=\\u12"), [pair("a", "u12")]);
    }

    #[test]
    fn ordinary_values_are_printed_raw() {
        let text = print([("namesrvAddr", "a:1;b:2"), ("messageDelayLevel", "1s 5s")]);
        assert_eq!(text, "namesrvAddr=a:1;b:2\nmessageDelayLevel=1s 5s\n");
    }

    proptest! {
        #[test]
        fn what_is_printed_comes_back(
            pairs in proptest::collection::vec(("[a-zA-Z#!=: .\\\\标]{1,8}", "[^\u{0}-\u{8}]{0,12}"), 0..5)
        ) {
            let want: Vec<_> =
                pairs.iter().filter(|(_, v)| v.trim_end() == v).map(|(k, v)| pair(k, v)).collect();
            let text = print(want.iter().map(|(k, v)| (k, v)));
            prop_assert_eq!(parsed(&text), want);
        }
    }
}
