//! The few messages of the kernel's FUSE protocol (7.31 and later; `linux/fuse.h`) that a file system of one file needs.

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;

/// The directory that is mounted, and the one file in it.
pub const ROOT: u64 = 1;
pub const DISK: u64 = 2;
pub const DISK_NAME: &[u8] = b"disk\0";

/// Most bytes of one write.
pub const WRITE_MAX: u32 = 1 << 20;
/// What the kernel wants to find room for in each read of the device.
pub const REQUEST_MAX: usize = WRITE_MAX as usize + 4096;

const HEADER: usize = 40;
const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
const DIRECT_IO: u32 = 1;
const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// One request, whole.
pub struct Request(Vec<u8>);

impl Request {
    pub fn new(bytes: &[u8]) -> Option<Request> {
        (bytes.len() >= HEADER).then(|| Request(bytes.to_vec()))
    }

    pub fn opcode(&self) -> u32 {
        self.u32_at(4)
    }

    pub fn unique(&self) -> u64 {
        self.u64_at(8)
    }

    pub fn node(&self) -> u64 {
        self.u64_at(16)
    }

    /// What follows the header.
    pub fn body(&self) -> &[u8] {
        &self.0[HEADER..]
    }

    /// Offset and length of a READ or WRITE.
    pub fn range(&self) -> (u64, u64) {
        (self.u64_at(HEADER + 8), u64::from(self.u32_at(HEADER + 16)))
    }

    /// The bytes of a WRITE.
    pub fn data(&self) -> &[u8] {
        &self.0[HEADER + 40..]
    }

    /// The minor version and the flags that the kernel offers in INIT.
    pub fn offer(&self) -> (u32, u32) {
        (self.u32_at(HEADER + 4), self.u32_at(HEADER + 12))
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("4 bytes")))
    }

    fn u64_at(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8 bytes")))
    }
}

/// A reply under construction.
pub struct Reply(Vec<u8>);

impl Reply {
    pub fn to(unique: u64) -> Reply {
        let mut reply = Reply(Vec::with_capacity(160));
        reply.u32(0).u32(0).u64(unique);
        reply
    }

    pub fn error(unique: u64, errno: i32) -> Vec<u8> {
        let mut reply = Reply::to(unique);
        reply.0[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        reply.done()
    }

    pub fn done(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }

    pub fn u32(&mut self, value: u32) -> &mut Reply {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Reply {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Room for `len` bytes of data.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let at = self.0.len();
        self.0.resize(at + len, 0);
        &mut self.0[at..]
    }

    /// The answer to INIT: no page cache of the kernel's is switched on, so each block write of the loop device arrives here as it is.
    pub fn init(&mut self, offer: (u32, u32)) {
        let flags = (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES) & offer.1;
        self.u32(7).u32(offer.0.min(38)).u32(WRITE_MAX).u32(flags);
        // Requests of the kernel's in flight, and from how many on it holds back; then max_write and the granularity of times.
        self.u32(64 | 48 << 16).u32(WRITE_MAX).u32(1);
        // Pages of a request, no alignment, no more flags, nothing.
        self.u32(WRITE_MAX / 4096).u32(0);
        self.space(28);
    }

    /// An inode that may be cached for an hour: nothing else changes it.
    pub fn attributes(&mut self, node: u64, size: u64) {
        let (mode, links) = if node == ROOT { (0o040755, 2) } else { (0o100600, 1) };
        self.u64(node).u64(size).u64(size / 512).u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
        self.u32(mode).u32(links).u32(0).u32(0).u32(0).u32(4096).u32(0);
    }

    pub fn attributes_for_an_hour(&mut self, node: u64, size: u64) {
        self.u64(3600).u32(0).u32(0).attributes(node, size);
    }

    pub fn entry(&mut self, node: u64, size: u64) {
        self.u64(node).u64(0).u64(3600).u64(3600).u32(0).u32(0).attributes(node, size);
    }

    pub fn open(&mut self, node: u64) {
        let flags = if node == DISK { DIRECT_IO | PARALLEL_DIRECT_WRITES } else { 0 };
        self.u64(0).u32(flags).u32(0);
    }

    pub fn statfs(&mut self) {
        self.u64(1 << 30).u64(1 << 29).u64(1 << 29).u64(2).u64(0).u32(4096).u32(255).u32(4096);
        self.space(28);
    }
}
