//! The reactor's side of the disk: segment files opened for direct I/O through glommio.

use super::{
    error::LogError,
    faults::{FaultSeam, FileOp},
    files::UNIT_BYTES,
    segments::Layout,
};
use glommio::GlommioError;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions, ReadResult};
use std::{
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Opens, reads, writes and flushes segments. Lives on one reactor.
pub(crate) struct Device {
    seam: FaultSeam,
    /// Open as long as the log: see [`Device::open`].
    _probe: DmaFile,
}

/// An open segment.
pub(crate) struct OpenSegment {
    file: DmaFile,
    path: PathBuf,
}

impl Device {
    /// Opens the probe before any other file. On the first direct file of a device glommio reads one block to see whether
    /// completions can be polled for; on a file without written data that read falsely succeeds, after which every
    /// write spins and every read of real data fails. The probe's block was written and flushed before.
    pub(crate) async fn open(layout: &Layout, seam: FaultSeam) -> Result<Self, LogError> {
        let probe = open_file(&layout.probe, &seam).await?;
        Ok(Device { seam, _probe: probe })
    }

    pub(crate) async fn open_segment(&self, path: PathBuf) -> Result<OpenSegment, LogError> {
        let file = open_file(&path, &self.seam).await?;
        Ok(OpenSegment { file, path })
    }

    /// Writes a whole sealed block at `position`, a multiple of the unit.
    pub(crate) async fn write(
        &self,
        segment: &OpenSegment,
        position: u64,
        buf: Rc<DmaBuffer>,
    ) -> io::Result<()> {
        let len = buf.len();
        let go = self.seam.before(FileOp::LogWrite, &segment.path, position, len).await;
        if go.map_err(into_io)?.is_none() {
            return Ok(());
        }
        let written = segment.file.write_rc_at(buf, position).await.map_err(plain)?;
        if written == len {
            return Ok(());
        }
        // Into preallocated blocks a device writes all or fails; less means something is wrong with the file.
        Err(io::Error::new(io::ErrorKind::WriteZero, format!("{written} of {len} bytes written")))
    }

    /// Flushes the device's cache for what was written to this segment.
    pub(crate) async fn flush(&self, segment: &OpenSegment) -> io::Result<()> {
        let go = self.seam.before(FileOp::LogFlush, &segment.path, 0, 0).await;
        match go.map_err(into_io)? {
            Some(_) => segment.file.fdatasync().await.map_err(plain),
            None => Ok(()),
        }
    }

    /// Reads `[position, position + len)`, both multiples of the unit. Without a copy unless the device returns less than
    /// asked for.
    pub(crate) async fn read(
        &self,
        segment: &OpenSegment,
        position: u64,
        len: usize,
    ) -> Result<ReadBuf, LogError> {
        let first = self.read_once(segment, position, len).await?;
        if first.len() >= len {
            return Ok(ReadBuf::whole(first, len));
        }
        let mut bytes = whole_units(&first).to_vec();
        while bytes.len() < len {
            let at = position + bytes.len() as u64;
            let more = self.read_once(segment, at, len - bytes.len()).await?;
            let more = whole_units(&more);
            if more.is_empty() {
                return Err(LogError::ShortRead {
                    path: segment.path.clone(),
                    offset: position,
                    len,
                    end: at,
                });
            }
            bytes.extend_from_slice(more);
        }
        Ok(ReadBuf::copied(bytes, len))
    }

    async fn read_once(
        &self,
        segment: &OpenSegment,
        position: u64,
        len: usize,
    ) -> Result<ReadResult, LogError> {
        let most = self.seam.before(FileOp::LogRead, &segment.path, position, len).await?;
        let read =
            segment.file.read_at_aligned(position, len).await.map_err(|e| {
                LogError::io(FileOp::LogRead.verb(), &segment.path, position, plain(e))
            })?;
        if let Some(most) = most.filter(|n| *n < read.len()) {
            return Ok(ReadResult::slice(&read, 0, most).unwrap_or_default());
        }
        Ok(read)
    }
}

async fn open_file(path: &Path, seam: &FaultSeam) -> Result<DmaFile, LogError> {
    seam.before(FileOp::Open, path, 0, 0).await?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .dma_open(path)
        .await
        .map_err(|e| LogError::io(FileOp::Open.verb(), path, 0, plain(e)))
}

/// The system's own error: what glommio adds (path and operation) our errors say themselves.
fn plain(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::EnhancedIoError { source, .. } => source,
        other => other.into(),
    }
}

pub(crate) fn into_io(error: LogError) -> io::Error {
    match error {
        LogError::Io { source, .. } => match source.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(source.kind(), source.to_string()),
        },
        other => io::Error::other(other.to_string()),
    }
}

fn whole_units(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - bytes.len() % UNIT_BYTES as usize]
}

/// What a read brought.
pub(crate) struct ReadBuf {
    bytes: Bytes,
    len: usize,
}

enum Bytes {
    Device(ReadResult),
    Copied(Vec<u8>),
}

impl ReadBuf {
    fn whole(result: ReadResult, len: usize) -> Self {
        ReadBuf { len: len.min(result.len()), bytes: Bytes::Device(result) }
    }

    fn copied(bytes: Vec<u8>, len: usize) -> Self {
        ReadBuf { len: len.min(bytes.len()), bytes: Bytes::Copied(bytes) }
    }

    /// Keeps only the first `len` bytes visible.
    pub(crate) fn limit(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl AsRef<[u8]> for ReadBuf {
    fn as_ref(&self) -> &[u8] {
        let all: &[u8] = match &self.bytes {
            Bytes::Device(result) => result,
            Bytes::Copied(bytes) => bytes,
        };
        all.get(..self.len).unwrap_or(all)
    }
}
