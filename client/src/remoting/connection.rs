//! One connection: a task that reads, a task that writes, and the table of requests that wait for answers.
//!
//! ```text
//!  call ──window permit──► table of waiting requests ──► queue of frames (bounded by bytes) ──► writer ──► socket
//!   ▲                             │                                                                          │
//!   └──────── answer ◄────────────┴───────────────────────────────────────────── reader ◄────────────────────┘
//!                                                                                  │ requests of the peer
//!                                                                                  └──► handler, a task each, bounded
//! ```
//!
//! A call that is dropped leaves the table at once, so every future here may be cancelled at any point. The answer to it is then
//! dropped when it comes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringmq_net::code::response;
use ringmq_net::command::{Command, RequestHead, encode_request};
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
use ringmq_net::header::{ExtValue, FLAG_ONEWAY, FLAG_RESPONSE, HeaderDecoder};
use ringmq_net::language::{Language, VERSION};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::Handler;
use crate::error::{Error, Result};
use crate::signing::Credentials;

/// Frames that wait for the writer, at most; their bytes have a bound of their own.
const OUT_FRAMES_MAX: usize = 1024;
/// Bytes that wait for the writer, in units of [`OUT_UNIT_BYTES`].
const OUT_UNITS_MAX: u32 = 32 * 1024;
const OUT_UNIT_BYTES: usize = 1024;
/// Requests of the peer that are served at once; more are refused.
const SERVING_MAX: usize = 64;
/// Frames up to this size are gathered into one write.
const GATHER_BYTES_MAX: usize = 8 * 1024;
/// A peer that has said nothing at all while a call waited this long is taken for gone.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Room that a read asks for at least.
const READ_BYTES_MIN: usize = 16 * 1024;

type Read = Box<dyn AsyncRead + Send + Unpin>;
type Write = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of what was opened to a peer.
pub(crate) struct Stream {
    pub(crate) read: Read,
    pub(crate) write: Write,
}

/// A whole frame on its way out.
struct Frame {
    head: Bytes,
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Requests that wait for answers.
#[derive(Default)]
struct Waiting {
    answers: HashMap<i32, oneshot::Sender<Command>>,
    /// Why the connection ended, once it has.
    ended: Option<Arc<str>>,
}

/// A connection that both tasks and all callers share.
pub(crate) struct Connection {
    pub(crate) addr: Arc<str>,
    waiting: Mutex<Waiting>,
    out: mpsc::Sender<Frame>,
    room: Arc<Semaphore>,
    window: Semaphore,
    serving: Arc<Semaphore>,
    next_opaque: AtomicI32,
    began: Instant,
    /// Reads that gave bytes.
    reads: AtomicU64,
    /// Milliseconds after `began`.
    last_write_ms: AtomicU64,
    frames_read: AtomicU64,
    stop: watch::Sender<bool>,
    handler: Weak<dyn Handler>,
    credentials: Option<Arc<Credentials>>,
    idle: Duration,
}

impl Connection {
    /// Takes over a stream that was just opened.
    pub(crate) fn start(
        addr: Arc<str>,
        stream: Stream,
        (window, idle): (usize, Duration),
        handler: Weak<dyn Handler>,
        credentials: Option<Arc<Credentials>>,
    ) -> Arc<Connection> {
        let (out, frames) = mpsc::channel(OUT_FRAMES_MAX);
        let (stop, stopped) = watch::channel(false);
        let connection = Arc::new(Connection {
            addr,
            waiting: Mutex::default(),
            out,
            room: Arc::new(Semaphore::new(OUT_UNITS_MAX as usize)),
            window: Semaphore::new(window),
            serving: Arc::new(Semaphore::new(SERVING_MAX)),
            next_opaque: AtomicI32::new(1),
            began: Instant::now(),
            reads: AtomicU64::new(0),
            last_write_ms: AtomicU64::new(0),
            frames_read: AtomicU64::new(0),
            stop,
            handler,
            credentials,
            idle,
        });
        tokio::spawn(read_loop(connection.clone(), stream.read, stopped.clone()));
        tokio::spawn(write_loop(connection.clone(), stream.write, frames, stopped));
        connection
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it not ended?
    pub(crate) fn is_open(&self) -> bool {
        self.waiting().ended.is_none()
    }

    /// Has the peer ever said anything?
    pub(crate) fn has_served(&self) -> bool {
        self.frames_read.load(Ordering::Relaxed) > 0
    }

    /// Ends it; all calls that wait fail with this reason.
    pub(crate) fn end(&self, why: &str) {
        let answers = {
            let mut waiting = self.waiting();
            if waiting.ended.is_some() {
                return;
            }
            waiting.ended = Some(why.into());
            std::mem::take(&mut waiting.answers)
        };
        tracing::debug!(addr = %self.addr, why, waiting = answers.len(), "connection ended");
        drop(answers);
        let _ = self.stop.send(true);
    }

    fn lost(&self) -> Error {
        let why = self.waiting().ended.clone();
        Error::Lost { addr: self.addr.clone(), why: why.unwrap_or_else(|| "closed".into()) }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Sends a request and waits for its answer. `Ok(None)`: the connection had ended before anything of it was written.
    pub(crate) async fn call(
        &self,
        command: &Command,
        deadline: Instant,
    ) -> Result<Option<Command>> {
        let began = Instant::now();
        let Ok(permit) = timeout_at(deadline, self.window.acquire()).await else {
            return Err(Error::Busy {
                what: format!(
                    "the window of requests to {} stayed full for {:?}",
                    self.addr,
                    began.elapsed()
                ),
            });
        };
        // The window is closed with the connection.
        let Ok(_permit) = permit else { return Ok(None) };
        let opaque = self.next_opaque.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let Some(_entry) = Entry::register(self, opaque, answer) else { return Ok(None) };
        let reads_before = self.reads.load(Ordering::Relaxed);
        if !self.put_by(deadline, command, opaque, 0).await? {
            return Ok(None);
        }
        match timeout_at(deadline, answered).await {
            Ok(Ok(reply)) => Ok(Some(reply)),
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => {
                let waited = began.elapsed();
                let silent = self.reads.load(Ordering::Relaxed) == reads_before;
                if waited >= SILENCE_MIN && silent {
                    self.end(&format!("the peer said nothing for {waited:?}"));
                }
                Err(Error::Timeout { addr: self.addr.clone(), waited })
            }
        }
    }

    /// Sends a request that is not answered; done when it is in the writer's queue. False: the connection had ended before.
    pub(crate) async fn oneway(&self, command: &Command, deadline: Instant) -> Result<bool> {
        let opaque = self.next_opaque.fetch_add(1, Ordering::Relaxed);
        self.put_by(deadline, command, opaque, FLAG_ONEWAY).await
    }

    async fn put_by(
        &self,
        deadline: Instant,
        command: &Command,
        opaque: i32,
        flag: i32,
    ) -> Result<bool> {
        let put = timeout_at(deadline, self.put(command, opaque, flag)).await;
        let what = || format!("the queue of frames to {} stayed full", self.addr);
        put.unwrap_or_else(|_| Err(Error::Busy { what: what() }))
    }

    /// Queues a request for the writer; false when the connection has ended, and nothing was written.
    async fn put(&self, command: &Command, opaque: i32, flag: i32) -> Result<bool> {
        let own = command.ext.iter().map(|(name, value)| (name.as_ref(), value.as_str()));
        let signed = match &self.credentials {
            Some(credentials) => credentials.sign(own.clone(), &command.body),
            None => Vec::new(),
        };
        let ext: Vec<(&str, ExtValue<'_>)> = match signed.is_empty() {
            true => own.map(|(name, value)| (name, ExtValue::Str(value))).collect(),
            false => signed.iter().map(|(name, value)| (*name, ExtValue::Str(value))).collect(),
        };
        let head = RequestHead {
            serialize: SerializeType::Json,
            code: command.code,
            language: Language::RUST,
            version: VERSION,
            opaque,
            flag,
            ext: &ext,
        };
        let mut bytes = BytesMut::new();
        if !encode_request(&mut bytes, &head, command.body.len()) {
            return Err(Error::invalid(format!(
                "request {} is too long for a frame",
                command.code
            )));
        }
        Ok(self.enqueue(bytes.freeze(), command.body.clone()).await)
    }

    async fn enqueue(&self, head: Bytes, body: Bytes) -> bool {
        let units = units(head.len() + body.len());
        let Ok(room) = self.room.clone().acquire_many_owned(units).await else { return false };
        self.out.send(Frame { head, body, _room: room }).await.is_ok()
    }

    /// What the peer sent: an answer goes to who waits for it, a request to the handler.
    fn arrived(self: &Arc<Self>, command: Command) {
        self.frames_read.fetch_add(1, Ordering::Relaxed);
        if command.is_response() {
            let waiter = self.waiting().answers.remove(&command.opaque);
            // Nobody waits any more: the call ran out of time or was dropped.
            if let Some(waiter) = waiter {
                let _ = waiter.send(command);
            }
            return;
        }
        let Some(handler) = self.handler.upgrade() else { return };
        let (opaque, oneway, code) = (command.opaque, command.is_oneway(), command.code);
        let Ok(permit) = self.serving.clone().try_acquire_owned() else {
            tracing::warn!(addr = %self.addr, code, "too many requests of a broker at once, one is refused");
            if !oneway {
                self.refuse(opaque);
            }
            return;
        };
        let connection = self.clone();
        tokio::spawn(async move {
            let reply = handler.handle(connection.addr.clone(), command).await;
            let encoded = reply.filter(|_| !oneway).and_then(|reply| encode_answer(reply, opaque));
            if let Some(bytes) = encoded {
                // If it cannot be said any more, the peer's request failed with its connection.
                connection.enqueue(bytes, Bytes::new()).await;
            }
            drop(permit);
        });
    }

    /// Refuses a request of the peer, if that can be said without waiting: nothing may gather here.
    fn refuse(&self, opaque: i32) {
        let mut busy = Command::request(response::SYSTEM_BUSY);
        busy.remark = Some("too many requests at once".into());
        let Some(head) = encode_answer(busy, opaque) else { return };
        if let Ok(room) = self.room.clone().try_acquire_many_owned(units(head.len())) {
            let _ = self.out.try_send(Frame { head, body: Bytes::new(), _room: room });
        }
    }
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(OUT_UNIT_BYTES).min(OUT_UNITS_MAX as usize) as u32
}

fn encode_answer(mut reply: Command, opaque: i32) -> Option<Bytes> {
    reply.opaque = opaque;
    reply.flag = FLAG_RESPONSE;
    reply.language = Language::RUST;
    let mut bytes = BytesMut::new();
    reply.try_encode(&mut bytes).then(|| bytes.freeze())
}

/// A place in the table of waiting requests, given up when the call ends in whatever way.
struct Entry<'a> {
    connection: &'a Connection,
    opaque: i32,
}

impl<'a> Entry<'a> {
    /// `None` when the connection has ended.
    fn register(
        connection: &'a Connection,
        opaque: i32,
        answer: oneshot::Sender<Command>,
    ) -> Option<Entry<'a>> {
        let mut waiting = connection.waiting();
        if waiting.ended.is_some() {
            return None;
        }
        waiting.answers.insert(opaque, answer);
        Some(Entry { connection, opaque })
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.connection.waiting().answers.remove(&self.opaque);
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the connection.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn read_loop(connection: Arc<Connection>, mut half: Read, mut stop: watch::Receiver<bool>) {
    let mut buf = BytesMut::with_capacity(READ_BYTES_MIN);
    let mut decoder = HeaderDecoder::new();
    let why = loop {
        let need = match take_frames(&mut buf, &mut decoder, &connection) {
            Ok(need) => need,
            Err(why) => break why,
        };
        buf.reserve(need.saturating_sub(buf.len()).max(READ_BYTES_MIN));
        let read = tokio::select! {
            () = stopped(&mut stop) => return,
            read = timeout(connection.idle, half.read_buf(&mut buf)) => read,
        };
        match read {
            Ok(Ok(0)) => break "closed by the peer".to_owned(),
            Ok(Ok(_)) => drop(connection.reads.fetch_add(1, Ordering::Relaxed)),
            Ok(Err(e)) => break e.to_string(),
            Err(_) => {
                let written = connection.last_write_ms.load(Ordering::Relaxed);
                let unused = connection.now_ms().saturating_sub(written);
                // A pull that the broker holds is use.
                let waits = !connection.waiting().answers.is_empty();
                if !waits && u128::from(unused) >= connection.idle.as_millis() {
                    break "idle".to_owned();
                }
            }
        }
    };
    connection.end(&why);
}

/// Hands over every whole frame, and gives how many bytes the next one needs.
fn take_frames(
    buf: &mut BytesMut,
    decoder: &mut HeaderDecoder,
    connection: &Arc<Connection>,
) -> std::result::Result<usize, String> {
    loop {
        let (mut command, len, body_len) = match peek(buf, FRAME_BYTES_MAX) {
            Err(e) => return Err(e.to_string()),
            Ok(Peek::Need(need)) => return Ok(need),
            Ok(Peek::Frame(frame)) => {
                let view =
                    decoder.decode(frame.serialize, frame.header).map_err(|e| e.to_string())?;
                (Command::from_view(&view, Bytes::new()), frame.len, frame.body.len())
            }
        };
        let mut frame = buf.split_to(len);
        if body_len > 0 {
            command.body = frame.split_off(len - body_len).freeze();
        }
        connection.arrived(command);
    }
}

async fn write_loop(
    connection: Arc<Connection>,
    mut half: Write,
    mut frames: mpsc::Receiver<Frame>,
    mut stop: watch::Receiver<bool>,
) {
    let mut batch = Vec::with_capacity(64);
    let mut gathered = BytesMut::new();
    loop {
        let turn = async {
            if frames.recv_many(&mut batch, 64).await == 0 {
                return Err("closed".to_owned());
            }
            write_batch(&mut half, &mut batch, &mut gathered).await.map_err(|e| e.to_string())
        };
        let done = tokio::select! {
            () = stopped(&mut stop) => break,
            done = turn => done,
        };
        if let Err(why) = done {
            connection.end(&why);
            break;
        }
        connection.last_write_ms.store(connection.now_ms(), Ordering::Relaxed);
    }
    // Who waits for room or for the queue must not wait for ever.
    frames.close();
    connection.room.close();
    connection.window.close();
}

async fn write_batch(
    half: &mut Write,
    batch: &mut Vec<Frame>,
    gathered: &mut BytesMut,
) -> std::io::Result<()> {
    for frame in batch.drain(..) {
        gathered.extend_from_slice(&frame.head);
        if frame.body.len() <= GATHER_BYTES_MAX {
            gathered.extend_from_slice(&frame.body);
        } else {
            half.write_all_buf(gathered).await?;
            half.write_all(&frame.body).await?;
        }
    }
    half.write_all_buf(gathered).await?;
    gathered.clear();
    // TLS may hold back the end of what was written.
    half.flush().await?;
    Ok(())
}
