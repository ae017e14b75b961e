//! Compressed bodies: zlib, LZ4 and zstd, told apart by the system flag as stock 4.9.8 does.

use std::io::{Read, Write};

use ringmq_net::record::sys_flag;

/// Most bytes that a body may have once it is decompressed. A small frame must not become all of memory.
pub const DECOMPRESSED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How a producer compresses bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// RFC 1950, which every client reads. Go and C++ clients read nothing else.
    #[default]
    Zlib,
    /// LZ4 frames. Fast, less small; for Java and Rust consumers.
    #[cfg(feature = "lz4")]
    Lz4,
    /// zstd frames; for Java and Rust consumers.
    #[cfg(feature = "zstd")]
    Zstd,
}

impl Compression {
    /// The bits that tell receivers of it.
    pub(crate) fn flag(self) -> i32 {
        let kind = match self {
            Compression::Zlib => 3,
            #[cfg(feature = "lz4")]
            Compression::Lz4 => 1,
            #[cfg(feature = "zstd")]
            Compression::Zstd => 2,
        };
        sys_flag::COMPRESSED | kind << 8
    }

    /// The compressed body, or `None` when that is not smaller: it then goes as it is.
    /// `level` is zlib's, 0 to 9; the others have one.
    pub(crate) fn compress(self, level: u32, body: &[u8]) -> Option<Vec<u8>> {
        let made = match self {
            Compression::Zlib => {
                let level = flate2::Compression::new(level.min(9));
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(body).ok()?;
                encoder.finish().ok()?
            }
            #[cfg(feature = "lz4")]
            Compression::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(body).ok()?;
                encoder.finish().ok()?
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                ruzstd::encoding::compress_to_vec(body, ruzstd::encoding::CompressionLevel::Fastest)
            }
        };
        (made.len() < body.len()).then_some(made)
    }
}

/// The body of a message with that flag; `None` if it is not compressed.
///
/// # Errors
/// What is wrong with it, for a sentence.
pub(crate) fn decompress(flags: i32, body: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if flags & sys_flag::COMPRESSED == 0 {
        return Ok(None);
    }
    let body = match (flags & sys_flag::COMPRESSION_MASK) >> 8 {
        // Clients before 4.9.3 say nothing and mean zlib.
        0 | 3 => read_all("zlib", flate2::read::ZlibDecoder::new(body)),
        #[cfg(feature = "lz4")]
        1 => read_all("LZ4", lz4_flex::frame::FrameDecoder::new(body)),
        #[cfg(feature = "zstd")]
        2 => match ruzstd::decoding::StreamingDecoder::new(body) {
            Ok(decoder) => read_all("zstd", decoder),
            Err(e) => Err(format!("zstd: {e}")),
        },
        kind => Err(format!("compression type {kind} is not built into this program")),
    };
    body.map(Some)
}

fn read_all(name: &str, source: impl Read) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut source = source.take(DECOMPRESSED_BYTES_MAX as u64 + 1);
    source.read_to_end(&mut out).map_err(|e| format!("{name}: {e}"))?;
    if out.len() > DECOMPRESSED_BYTES_MAX {
        return Err(format!("{name}: more than {DECOMPRESSED_BYTES_MAX} bytes"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> Vec<Compression> {
        vec![
            Compression::Zlib,
            #[cfg(feature = "lz4")]
            Compression::Lz4,
            #[cfg(feature = "zstd")]
            Compression::Zstd,
        ]
    }

    #[test]
    fn each_compression_gives_the_body_back() {
        for kind in kinds() {
            for len in [512, 4096, 70_000, 1 << 20] {
                let body: Vec<u8> = (0..len).map(|i| (i % 61 + i / 7000) as u8).collect();
                let small = kind.compress(5, &body).expect("it is compressible");
                assert!(small.len() < body.len());
                let back = decompress(kind.flag(), &small).unwrap();
                assert!(back.as_deref() == Some(&body[..]), "{kind:?} of {len}");
            }
        }
    }

    #[test]
    fn the_flags_are_those_of_stock() {
        assert_eq!(Compression::Zlib.flag(), 0x301);
        #[cfg(feature = "lz4")]
        assert_eq!(Compression::Lz4.flag(), 0x101);
        #[cfg(feature = "zstd")]
        assert_eq!(Compression::Zstd.flag(), 0x201);
    }

    #[test]
    fn type_zero_is_zlib_and_no_flag_is_no_compression() {
        let body = [7; 5000];
        let small = Compression::Zlib.compress(5, &body).unwrap();
        assert_eq!(decompress(sys_flag::COMPRESSED, &small).unwrap().unwrap(), body);
        assert_eq!(decompress(0, &small), Ok(None));
    }

    #[test]
    fn garbage_is_an_error_and_what_does_not_shrink_goes_as_it_is() {
        for kind in kinds() {
            assert!(decompress(kind.flag(), b"no such stream").is_err(), "{kind:?}");
            let mut state = 1u32;
            let noise: Vec<u8> = (0..8192)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            assert_eq!(kind.compress(5, &noise), None, "{kind:?}");
        }
        assert!(decompress(sys_flag::COMPRESSED | 0x700, b"x").is_err());
    }

    #[test]
    fn a_small_frame_does_not_become_all_of_memory() {
        let zeros = vec![0; DECOMPRESSED_BYTES_MAX + 1];
        let bomb = Compression::Zlib.compress(9, &zeros).unwrap();
        assert!(decompress(0x301, &bomb).unwrap_err().contains("more than"));
    }
}
