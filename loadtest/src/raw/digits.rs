//! Numbers of fixed width, written over the digits of an encoded frame.

/// Writes `value` in decimal over all of `out`, with leading zeros; digits that don't fit are lost.
pub fn put_decimal(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// Writes `value` in hexadecimal capitals over all of `out`, with leading zeros; digits that don't fit are lost.
pub fn put_hex(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(value & 15) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_digits_are_written() {
        let mut out = *b"xxxxxxxxxx";
        put_decimal(&mut out, 1_000_000_042);
        assert_eq!(&out, b"1000000042");
        put_decimal(&mut out, 7);
        assert_eq!(&out, b"0000000007");
        put_hex(&mut out[..6], 0xABC_1234);
        assert_eq!(&out, b"BC12340007");
    }
}
