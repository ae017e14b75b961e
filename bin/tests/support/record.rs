//! The commit log record as pulls carry it (stock 4.9, magic 0xDAA320A7), decoded by this module's own hand.

/// What the tests look at.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    pub len: usize,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    /// When it was stored, milliseconds.
    pub stored: i64,
    pub reconsume_times: i32,
    pub body_crc: u32,
    pub body: &'a [u8],
    pub topic: &'a str,
    pub properties: &'a str,
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, String> {
        let mut at = Reader { bytes, at: 0 };
        let len = at.int()? as usize;
        let magic = at.int()? as u32;
        if magic != 0xDAA3_20A7 {
            return Err(format!("magic {magic:#x}"));
        }
        let body_crc = at.int()? as u32;
        let queue_id = at.int()?;
        at.int()?; // flag
        let queue_offset = at.long()?;
        let physical_offset = at.long()?;
        let sys_flag = at.int()?;
        at.long()?; // born
        at.take(if sys_flag & 0x10 != 0 { 20 } else { 8 })?;
        let stored = at.long()?;
        at.take(if sys_flag & 0x20 != 0 { 20 } else { 8 })?;
        let reconsume_times = at.int()?;
        at.long()?; // prepared transaction offset
        let body_len = at.int()? as usize;
        let body = at.take(body_len)?;
        let topic_len = at.take(1)?[0] as usize;
        let topic = at.text(topic_len)?;
        let properties_len = at.take(2)?;
        let properties_len = usize::from(properties_len[0]) << 8 | usize::from(properties_len[1]);
        let properties = at.text(properties_len)?;
        if at.at != len {
            return Err(format!("the size field says {len}, the fields add up to {}", at.at));
        }
        Ok(Record {
            len,
            queue_id,
            queue_offset,
            physical_offset,
            stored,
            reconsume_times,
            body_crc,
            body,
            topic,
            properties,
        })
    }

    /// All records of a pull's body.
    pub fn all(mut bytes: &'a [u8]) -> Result<Vec<Record<'a>>, String> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let record = Record::decode(bytes)?;
            bytes = &bytes[record.len..];
            records.push(record);
        }
        Ok(records)
    }

    /// The last value of a property.
    pub fn property(&self, name: &str) -> Option<&'a str> {
        self.properties
            .split('\u{2}')
            .filter_map(|p| p.split_once('\u{1}'))
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| v)
            .next_back()
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n).filter(|e| *e <= self.bytes.len());
        let end =
            end.ok_or_else(|| format!("{n} bytes wanted at {} of {}", self.at, self.bytes.len()))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32, String> {
        let b = self.take(4)?;
        Ok(i32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn long(&mut self) -> Result<i64, String> {
        Ok((i64::from(self.int()?) << 32) | i64::from(self.int()? as u32))
    }

    fn text(&mut self, n: usize) -> Result<&'a str, String> {
        std::str::from_utf8(self.take(n)?).map_err(|e| e.to_string())
    }
}
