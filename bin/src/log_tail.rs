//! `ringmq log tail`: a shard's log as it grows, over the frames between RingMQ nodes. An observer: it holds nothing back, is waited for by
//! nobody, and counts as no replica.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ringmq_net::ha_term_frame::{
    Capabilities, DATA_HEADER_BYTES, HELLO, MasterFrame, Peeked, TermFrameError, encode_report,
    encode_slave_handshake, peek_master,
};
use ringmq_net::record::{CheckResult, CheckRule, RecordView, check};
use thiserror::Error;

use crate::cli::LogTailArgs;
use crate::log_tool::dump_record;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A report at least this often: a master gives up a peer that is silent for `ha.housekeeping_ms`.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A master is gone when nothing came for this long; it has something to say every `ha.heartbeat_ms`.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Most bytes of a frame's body that are believed in.
const BODY_BYTES_MAX: usize = 4 << 20;
/// No member of a group.
const OBSERVER_ID: i64 = -1;

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFrom {
    /// The first byte that the broker still has.
    Oldest,
    /// What is stored from now on.
    Now,
    /// The record at this physical offset.
    At(u64),
}

impl FromStr for TailFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<TailFrom, String> {
        match text {
            "oldest" => Ok(TailFrom::Oldest),
            "now" => Ok(TailFrom::Now),
            number => number
                .parse()
                .map(TailFrom::At)
                .map_err(|_| "give `oldest`, `now` or a physical offset".to_owned()),
        }
    }
}

/// Why following a log ended.
#[derive(Debug, Error)]
pub enum LogTailError {
    /// No connection.
    #[error(
        "cannot connect to {addr}: {source}: give the HA port of a RingMQ broker, which is its port + 1"
    )]
    Connect {
        /// The address.
        addr: String,
        /// Why not.
        source: io::Error,
    },
    /// The connection broke.
    #[error(
        "the connection to {addr} ended at physical offset {at}: {source}; go on with --from {at}"
    )]
    Link {
        /// The address.
        addr: String,
        /// Everything before it was printed.
        at: u64,
        /// Why.
        source: io::Error,
    },
    /// Not a RingMQ broker, or another version.
    #[error("{addr} does not speak RingMQ's HA protocol: {source}")]
    Frame {
        /// The address.
        addr: String,
        /// What came.
        source: TermFrameError,
    },
    /// The broker will not begin there.
    #[error("{addr} has nothing to send from {from}: its log is [{min}, {end})")]
    Refused {
        /// The address.
        addr: String,
        /// Where it was asked to begin.
        from: u64,
        /// Its first byte.
        min: u64,
        /// Its end.
        end: u64,
    },
    /// What came is not what was sent, or no log.
    #[error(
        "{addr} sent what is no log at physical offset {at}: {why}; if --from was given, is a record there?"
    )]
    Damaged {
        /// The address.
        addr: String,
        /// Where.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// Standard output.
    #[error("standard output: {0}")]
    Output(io::Error),
}

/// Prints records, or writes the log's bytes, until `--count` is reached or somebody ends it.
///
/// # Errors
/// [`LogTailError`]; a closed pipe is none.
pub(crate) fn run(args: &LogTailArgs, out: &mut impl Write) -> Result<(), LogTailError> {
    match Tail::connect(args)?.follow(out) {
        Err(LogTailError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

struct Tail<'a> {
    args: &'a LogTailArgs,
    stream: TcpStream,
    received: Vec<u8>,
    /// Bytes of the log that belong to no whole record yet, and where they begin.
    pending: Vec<u8>,
    at: u64,
    /// Bytes to come that lie behind the last record of a segment.
    skip: u64,
    /// The CRC-32C that the next frame must have.
    frame_crc: Option<u32>,
    min: u64,
    end: u64,
    reports: Option<Reports>,
    left: u64,
}

/// Says at least every [`REPORT_EVERY`] what was received, also while nobody takes what is printed. Ends when dropped.
struct Reports {
    end: Arc<AtomicU64>,
    _ending: Sender<()>,
}

impl Reports {
    fn start(mut stream: TcpStream, first: u64) -> io::Result<Reports> {
        let end = Arc::new(AtomicU64::new(first));
        let (ending, ended) = channel::<()>();
        let of_thread = Arc::clone(&end);
        std::thread::Builder::new().name("reports".to_owned()).spawn(move || {
            // A connection that takes no report has ended, which its reader finds too.
            while stream.write_all(&encode_report(of_thread.load(Ordering::Relaxed))).is_ok()
                && ended.recv_timeout(REPORT_EVERY) == Err(RecvTimeoutError::Timeout)
            {}
        })?;
        Ok(Reports { end, _ending: ending })
    }
}

impl<'a> Tail<'a> {
    fn connect(args: &'a LogTailArgs) -> Result<Tail<'a>, LogTailError> {
        let error = |source| LogTailError::Connect { addr: args.addr.clone(), source };
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for candidate in args.addr.to_socket_addrs().map_err(error)? {
            match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
                Ok(mut stream) => {
                    let wanted = Capabilities::OBSERVER
                        .with(Capabilities::FRAME_CRC)
                        .with(Capabilities::LARGE_FRAMES);
                    let mut hello = HELLO.to_be_bytes().to_vec();
                    hello.extend_from_slice(&encode_slave_handshake(wanted, OBSERVER_ID));
                    stream.write_all(&hello).map_err(error)?;
                    stream.set_read_timeout(Some(REPORT_EVERY)).map_err(error)?;
                    return Ok(Tail::new(args, stream));
                }
                Err(source) => last = source,
            }
        }
        Err(error(last))
    }

    fn new(args: &'a LogTailArgs, stream: TcpStream) -> Tail<'a> {
        Tail {
            args,
            stream,
            received: Vec::new(),
            pending: Vec::new(),
            at: 0,
            skip: 0,
            frame_crc: None,
            min: 0,
            end: 0,
            reports: None,
            left: args.count.unwrap_or(u64::MAX),
        }
    }

    fn link(&self, source: io::Error) -> LogTailError {
        LogTailError::Link { addr: self.args.addr.clone(), at: self.at, source }
    }

    fn damaged(&self, at: u64, why: impl ToString) -> LogTailError {
        LogTailError::Damaged { addr: self.args.addr.clone(), at, why: why.to_string() }
    }

    fn follow(&mut self, out: &mut impl Write) -> Result<(), LogTailError> {
        let mut chunk = vec![0; 256 << 10];
        let mut heard = Instant::now();
        while self.left > 0 {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(self.link(io::Error::new(ErrorKind::UnexpectedEof, "it closed it")));
                }
                Ok(len) => {
                    heard = Instant::now();
                    self.received.extend_from_slice(chunk.get(..len).unwrap_or_default());
                    self.frames(out)?;
                    out.flush().map_err(LogTailError::Output)?;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() > SILENT_MAX {
                        return Err(self.link(io::Error::new(ErrorKind::TimedOut, "it is silent")));
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(self.link(source)),
            }
        }
        Ok(())
    }

    /// Every whole frame that is here.
    fn frames(&mut self, out: &mut impl Write) -> Result<(), LogTailError> {
        let received = std::mem::take(&mut self.received);
        let mut used = 0;
        while self.left > 0 {
            let rest = received.get(used..).unwrap_or_default();
            let peeked = peek_master(rest, BODY_BYTES_MAX)
                .map_err(|source| LogTailError::Frame { addr: self.args.addr.clone(), source })?;
            let Peeked::Frame(frame, len) = peeked else { break };
            match frame {
                MasterFrame::Welcome(welcome) => self.min = welcome.log_start,
                MasterFrame::Handshake(handshake) => {
                    self.end = handshake.log_end;
                    self.begin()?;
                }
                MasterFrame::FrameCrc(crc) => self.frame_crc = Some(crc),
                MasterFrame::Refusal { .. } => return Err(self.refused()),
                MasterFrame::Data(header) => {
                    let body_len = header.body_len as usize;
                    let Some(body) = rest.get(DATA_HEADER_BYTES..DATA_HEADER_BYTES + body_len)
                    else {
                        break;
                    };
                    let head = rest.get(..DATA_HEADER_BYTES).unwrap_or_default();
                    self.data(header.offset, head, body, out)?;
                    used += body_len;
                }
                MasterFrame::TermIds(_)
                | MasterFrame::Crc(_)
                | MasterFrame::Metadata(_)
                | MasterFrame::Unknown(_) => {}
            }
            used += len;
        }
        self.received = received.get(used..).unwrap_or_default().to_vec();
        Ok(())
    }

    fn refused(&self) -> LogTailError {
        let (min, end) = (self.min, self.end);
        LogTailError::Refused { addr: self.args.addr.clone(), from: self.at, min, end }
    }

    /// The master has told what it has: the first report says where it is to begin.
    fn begin(&mut self) -> Result<(), LogTailError> {
        self.at = match self.args.from {
            TailFrom::Oldest => self.min,
            TailFrom::Now => self.end,
            TailFrom::At(offset) => offset,
        };
        if !(self.min..=self.end).contains(&self.at) {
            return Err(self.refused());
        }
        let reports = self.stream.try_clone().and_then(|stream| Reports::start(stream, self.at));
        self.reports = Some(reports.map_err(|source| self.link(source))?);
        Ok(())
    }

    fn data(
        &mut self,
        offset: i64,
        head: &[u8],
        body: &[u8],
        out: &mut impl Write,
    ) -> Result<(), LogTailError> {
        let expected = self.frame_crc.take();
        if body.is_empty() {
            return Ok(());
        }
        let next = self.at + self.pending.len() as u64;
        if u64::try_from(offset) != Ok(next) {
            return Err(self.damaged(next, format!("the next frame is for {offset}")));
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(head), body);
        if expected.is_some_and(|expected| expected != crc) {
            return Err(self.damaged(next, "the frame's CRC is another one"));
        }
        if let Some(reports) = &self.reports {
            reports.end.store(next + body.len() as u64, Ordering::Relaxed);
        }
        if self.args.raw {
            self.at += body.len() as u64;
            return out.write_all(body).map_err(LogTailError::Output);
        }
        self.pending.extend_from_slice(body);
        self.records(out)
    }

    /// Prints the whole records among the pending bytes.
    fn records(&mut self, out: &mut impl Write) -> Result<(), LogTailError> {
        let pending = std::mem::take(&mut self.pending);
        let mut used = 0;
        while self.left > 0 {
            let rest = pending.get(used..).unwrap_or_default();
            if self.skip > 0 {
                let len = self.skip.min(rest.len() as u64);
                self.skip -= len;
                used += len as usize;
                if self.skip > 0 {
                    break;
                }
                continue;
            }
            let at = self.at + used as u64;
            match check(rest, at, CheckRule::Stock) {
                CheckResult::Good(record) => {
                    self.print(&record, out).map_err(LogTailError::Output)?;
                    used += record.total_size();
                }
                CheckResult::Blank { size } => self.skip = u64::from(size),
                CheckResult::Need { .. } => break,
                CheckResult::End if rest.len() < 8 => break,
                CheckResult::End => return Err(self.damaged(at, "zeros where a record must be")),
                CheckResult::Bad { why, .. } => return Err(self.damaged(at, why)),
            }
        }
        self.at += used as u64;
        self.pending = pending.get(used..).unwrap_or_default().to_vec();
        Ok(())
    }

    fn print(&mut self, record: &RecordView<'_>, out: &mut impl Write) -> io::Result<()> {
        if self.args.topic.as_deref().is_some_and(|topic| topic != record.topic()) {
            return Ok(());
        }
        self.left -= 1;
        dump_record(record, self.args.body, out)
    }
}
