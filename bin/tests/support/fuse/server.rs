//! The file system of one file: answers the kernel on `/dev/fuse`, keeps the disk's bytes in a file, records each step.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::faults::{Faults, Verdict};
use super::record::Record;
use super::wire::{self, Reply, Request};

/// `linux/prctl.h`; libc does not have it.
const PR_SET_IO_FLUSHER: i32 = 57;

/// A mounted file system with one file, `disk`. Unmounted when dropped, which must be after whatever uses the file is gone.
///
/// The threads that serve it have a table of open files of their own, in which `/dev/fuse` is: when the process is killed they end, with
/// them the connection, and a thread of the process that waits for this very disk gets an error instead of waiting for ever.
pub(super) struct Server {
    mount: PathBuf,
    faults: Arc<Faults>,
    thread: Option<JoinHandle<()>>,
}

/// Lives on the serving threads alone: its files are in no other thread's table.
struct Shared {
    device: File,
    image: File,
    size: u64,
    record: Option<(Arc<Record>, File)>,
    faults: Arc<Faults>,
}

impl Server {
    /// Serves the bytes of `image` as `mount/disk`.
    pub(super) fn start(
        mount: &Path,
        image: &Path,
        record: Option<Arc<Record>>,
        faults: Arc<Faults>,
    ) -> io::Result<Server> {
        let (mounted, result) = std::sync::mpsc::channel();
        let (at, image, shared_faults) = (mount.to_owned(), image.to_owned(), faults.clone());
        let thread = std::thread::spawn(move || {
            let shared = match Shared::open(&at, &image, record, shared_faults) {
                Ok(shared) => Arc::new(shared),
                Err(error) => return drop(mounted.send(Err(error))),
            };
            let for_held = shared.clone();
            let held = std::thread::spawn(move || for_held.serve_held());
            let _ = mounted.send(Ok(()));
            shared.serve();
            let _ = held.join();
        });
        // Made before the result is known: it takes down whatever was mounted.
        let server = Server { mount: mount.to_owned(), faults, thread: Some(thread) };
        result.recv().unwrap_or_else(|_| Err(io::Error::other("the server's thread ended")))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.faults.clear();
        if let Ok(path) = CString::new(self.mount.as_os_str().as_bytes()) {
            // MNT_FORCE ends the connection even if somebody still has the file open: requests fail then, nobody hangs.
            // SAFETY: umount2 reads a path that ends in zero and takes plain flags.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn mount_fuse(mount: &Path, device: &File) -> io::Result<()> {
    let path = CString::new(mount.as_os_str().as_bytes())?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = CString::new(data)?;
    let (source, kind) = (c"recorded-disk", c"fuse");
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
    // SAFETY: mount reads four strings that end in zero and outlive the call.
    let done = unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Shared {
    fn open(
        mount: &Path,
        image: &Path,
        record: Option<Arc<Record>>,
        faults: Arc<Faults>,
    ) -> io::Result<Shared> {
        // SAFETY: close_range takes plain numbers. It gives this thread a table of its own without the files from 3 on; those stay
        // open in the process's table, and this thread owns none of them.
        let done =
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let image = OpenOptions::new().read(true).write(true).open(image)?;
        let size = image.metadata()?.len();
        let record = match record {
            Some(record) => {
                let bytes = OpenOptions::new().write(true).open(record.path())?;
                Some((record, bytes))
            }
            None => None,
        };
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        mount_fuse(mount, &device)?;
        Ok(Shared { device, image, size, record, faults })
    }

    /// Takes requests until the file system is unmounted.
    fn serve(&self) {
        self.become_part_of_the_disk();
        let mut buffer = vec![0; wire::REQUEST_MAX];
        loop {
            match (&self.device).read(&mut buffer) {
                Ok(len) => {
                    let Some(request) = Request::new(&buffer[..len]) else { break };
                    match self.faults.judge(request) {
                        Verdict::Go(request) => self.handle(&request),
                        Verdict::Fail(request, errno) => {
                            self.answer(&Reply::error(request.unique(), errno));
                        }
                        Verdict::Held => {}
                    }
                }
                // Interrupted, or the request was withdrawn before it was read.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => {}
                Err(_) => break,
            }
        }
        self.faults.end();
    }

    /// Does what was held back, when its time has come.
    fn serve_held(&self) {
        self.become_part_of_the_disk();
        while let Some(request) = self.faults.next_due() {
            self.handle(&request);
        }
    }

    /// The kernel must not make this thread wait for dirty pages, which may be those of the disk it serves.
    fn become_part_of_the_disk(&self) {
        // SAFETY: prctl with plain numbers. Failing changes nothing but speed.
        unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    }

    fn handle(&self, request: &Request) {
        let unique = request.unique();
        let mut reply = Reply::to(unique);
        let result = match request.opcode() {
            wire::FORGET | wire::BATCH_FORGET => return,
            wire::INIT => {
                reply.init(request.offer());
                Ok(())
            }
            wire::LOOKUP if request.body() == wire::DISK_NAME => {
                reply.entry(wire::DISK, self.size);
                Ok(())
            }
            wire::LOOKUP => Err(libc::ENOENT),
            wire::GETATTR | wire::SETATTR => {
                reply.attributes_for_an_hour(request.node(), self.size_of(request.node()));
                Ok(())
            }
            wire::OPEN => {
                reply.open(request.node());
                Ok(())
            }
            wire::STATFS => {
                reply.statfs();
                Ok(())
            }
            wire::READ => self.read(request, &mut reply),
            wire::WRITE => self.write(request, &mut reply),
            wire::FSYNC => {
                if let Some((record, _)) = &self.record {
                    record.add_flush();
                }
                Ok(())
            }
            wire::RELEASE | wire::FLUSH | wire::DESTROY => Ok(()),
            // Among them FALLOCATE: the block layer writes zeros instead.
            _ => Err(libc::ENOSYS),
        };
        match result {
            Ok(()) => self.answer(&reply.done()),
            Err(errno) => self.answer(&Reply::error(unique, errno)),
        }
    }

    fn size_of(&self, node: u64) -> u64 {
        if node == wire::DISK { self.size } else { 4096 }
    }

    fn read(&self, request: &Request, reply: &mut Reply) -> Result<(), i32> {
        let (offset, len) = request.range();
        let len = len.min(self.size.saturating_sub(offset)) as usize;
        self.image.read_exact_at(reply.space(len), offset).map_err(errno)
    }

    fn write(&self, request: &Request, reply: &mut Reply) -> Result<(), i32> {
        let ((offset, len), data) = (request.range(), request.data());
        if len != data.len() as u64 || offset + len > self.size {
            return Err(libc::EINVAL);
        }
        self.image.write_all_at(data, offset).map_err(errno)?;
        if let Some((record, bytes)) = &self.record {
            record.add_write(bytes, offset, data).map_err(errno)?;
        }
        reply.u32(len as u32).u32(0);
        Ok(())
    }

    fn answer(&self, reply: &[u8]) {
        // An error here means that the request is gone: unmounted, or withdrawn.
        let _ = (&self.device).write(reply);
    }
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
