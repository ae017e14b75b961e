//! A request as these tests build it: every part can be wrong.

/// A request before it becomes bytes. Texts are bytes: they need not be UTF-8.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) code: i64,
    pub(crate) flag: i64,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(code: i64, fields: &[(&str, &str)], body: &[u8]) -> Request {
        let bytes = |text: &str| text.as_bytes().to_vec();
        Request {
            code,
            flag: 0,
            fields: fields.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
            body: body.to_vec(),
        }
    }

    /// The header in JSON.
    pub(crate) fn json(&self, opaque: i32) -> Vec<u8> {
        let mut out = format!(
            "{{\"code\":{},\"language\":\"JAVA\",\"version\":409,\"opaque\":{opaque},\"flag\":{},\"extFields\":{{",
            self.code, self.flag
        )
        .into_bytes();
        for (n, (name, value)) in self.fields.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            put_text(&mut out, name);
            out.push(b':');
            put_text(&mut out, value);
        }
        out.extend_from_slice(b"}}");
        out
    }

    /// The header in RocketMQ's binary form.
    pub(crate) fn binary(&self, opaque: i32) -> Vec<u8> {
        let mut fields = Vec::new();
        for (name, value) in &self.fields {
            fields.extend_from_slice(&(name.len() as u16).to_be_bytes());
            fields.extend_from_slice(name);
            fields.extend_from_slice(&(value.len() as u32).to_be_bytes());
            fields.extend_from_slice(value);
        }
        let mut out = (self.code as u16).to_be_bytes().to_vec();
        out.push(0); // Java
        out.extend_from_slice(&409u16.to_be_bytes());
        out.extend_from_slice(&opaque.to_be_bytes());
        out.extend_from_slice(&(self.flag as i32).to_be_bytes());
        out.extend_from_slice(&0u32.to_be_bytes()); // no remark
        out.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        out.extend_from_slice(&fields);
        out
    }

    /// The whole frame.
    pub(crate) fn frame(&self, opaque: i32, binary: bool) -> Vec<u8> {
        let header = if binary { self.binary(opaque) } else { self.json(opaque) };
        frame_of(&header, u8::from(binary), &self.body)
    }
}

/// A frame around a header that need not be one.
pub(crate) fn frame_of(header: &[u8], serialize: u8, body: &[u8]) -> Vec<u8> {
    let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(u32::from(serialize) << 24 | header.len() as u32).to_be_bytes());
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            // Control characters go as they are as often as escaped: which, depends on the text alone.
            0..0x20 if text.len().is_multiple_of(2) => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}
