//! A queue that a consumer has: what its loops share.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringmq_net::body::MessageQueue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::gauge::Gauge;
use super::process_queue::{Batch, ProcessQueue};
use super::queue_lock::QueueLock;
use crate::id::now_ms;
use crate::message::ReceivedMessage;

/// Whether a queue is to be given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leave {
    #[default]
    Stay,
    /// It is another member's, or nobody wants it.
    Given,
    /// The consumer ends: what runs may finish.
    Shutdown,
}

/// Messages in memory, of all queues of a consumer.
#[derive(Debug, Default)]
pub(crate) struct Total {
    messages: AtomicUsize,
    changes: watch::Sender<()>,
}

impl Total {
    /// Done when fewer than `max` are in memory.
    pub(crate) async fn below(&self, max: usize) {
        let mut changes = self.changes.subscribe();
        while self.messages.load(Ordering::SeqCst) >= max && changes.changed().await.is_ok() {}
    }

    fn changed(&self, before: usize, after: usize) {
        // Wraps around for a decrease, which is what adding a difference means.
        self.messages.fetch_add(after.wrapping_sub(before), Ordering::SeqCst);
        if after < before {
            self.changes.send_replace(());
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: MessageQueue,
    state: Mutex<ProcessQueue>,
    /// Told of every change of the state and of the lock.
    changes: watch::Sender<()>,
    leave: watch::Sender<Leave>,
    paused: watch::Sender<bool>,
    lock: Mutex<QueueLock>,
    /// The broker of the group to pull from, as it said last.
    pub(crate) suggested: AtomicI64,
    /// What the store has, as far as we know. Held while it is written, so that writes do not overtake each other.
    pub(crate) stored: tokio::sync::Mutex<Option<i64>>,
    /// What was last sent to be stored; whether it was is not known when its answer was lost. -1 for nothing.
    sent: AtomicI64,
    /// Listener calls.
    pub(crate) running: Gauge,
    total: Arc<Total>,
    last_pull_ms: AtomicI64,
    last_consume_ms: AtomicI64,
    last_lock_ms: AtomicI64,
    /// The queue's end, as a broker said last.
    pub(crate) end: AtomicI64,
}

impl Queue {
    /// A queue that begins at `start`; `stored` is what the store has.
    pub(crate) fn new(
        id: MessageQueue,
        start: i64,
        stored: Option<i64>,
        lock: QueueLock,
        total: Arc<Total>,
    ) -> Arc<Queue> {
        Arc::new(Queue {
            id,
            state: Mutex::new(ProcessQueue::new(start)),
            changes: watch::Sender::default(),
            leave: watch::Sender::default(),
            paused: watch::Sender::default(),
            lock: Mutex::new(lock),
            suggested: AtomicI64::new(0),
            stored: tokio::sync::Mutex::new(stored),
            sent: AtomicI64::new(-1),
            running: Gauge::default(),
            total,
            last_pull_ms: AtomicI64::new(now_ms()),
            last_consume_ms: AtomicI64::new(now_ms()),
            last_lock_ms: AtomicI64::new(now_ms()),
            end: AtomicI64::new(start),
        })
    }

    fn state(&self) -> MutexGuard<'_, ProcessQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the state.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&ProcessQueue) -> T) -> T {
        look(&self.state())
    }

    fn update<T>(&self, update: impl FnOnce(&mut ProcessQueue) -> T) -> T {
        let (out, before, after) = {
            let mut state = self.state();
            let before = state.len();
            let out = update(&mut state);
            (out, before, state.len())
        };
        self.total.changed(before, after);
        self.changes.send_replace(());
        out
    }

    /// Done when the state is so.
    pub(crate) async fn until(&self, is: impl Fn(&ProcessQueue) -> bool) {
        let mut changes = self.changes.subscribe();
        while !self.look(&is) && changes.changed().await.is_ok() {}
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.look(ProcessQueue::epoch)
    }

    pub(crate) fn committed(&self) -> i64 {
        self.look(ProcessQueue::committed)
    }

    pub(crate) fn put(&self, epoch: u64, messages: Vec<ReceivedMessage>, next: i64) -> bool {
        self.update(|state| state.put(epoch, messages, next))
    }

    pub(crate) fn take(&self, max: usize) -> Option<Batch> {
        let batch = self.state().take(max);
        if batch.is_some() {
            self.last_consume_ms.store(now_ms(), Ordering::Relaxed);
        }
        batch
    }

    pub(crate) fn finish(&self, epoch: u64, offset: i64) {
        self.update(|state| state.finish(epoch, offset));
    }

    pub(crate) fn put_back(&self, epoch: u64, message: Arc<ReceivedMessage>) {
        self.update(|state| state.put_back(epoch, message));
    }

    /// See [`ProcessQueue::moved`].
    pub(crate) fn moved(&self, epoch: u64, offset: i64) {
        self.update(|state| state.moved(epoch, offset));
    }

    /// Forgets everything and goes on there; what runs or is on its way changes nothing any more.
    pub(crate) fn reset(&self, offset: i64) {
        self.update(|state| state.reset(offset));
    }

    // The end.

    pub(crate) fn leave(&self, why: Leave) {
        self.leave.send_if_modified(|leave| {
            // Who finishes in order may still be told to be quick, not the other way round.
            let changed = *leave == Leave::Stay;
            if changed {
                *leave = why;
            }
            changed
        });
    }

    pub(crate) fn is_leaving(&self) -> bool {
        *self.leave.borrow() != Leave::Stay
    }

    /// Done when the queue is to be given up.
    pub(crate) async fn left(&self) -> Leave {
        let mut leave = self.leave.subscribe();
        let left = leave.wait_for(|leave| *leave != Leave::Stay).await;
        left.map_or(Leave::Given, |leave| *leave)
    }

    // Progress.

    /// This is about to be sent to be stored.
    pub(crate) fn sending(&self, offset: i64) {
        self.sent.store(offset, Ordering::SeqCst);
    }

    /// A broker has stored what came with a pull.
    pub(crate) fn sent_with_pull(&self, offset: i64) {
        // Whoever holds it writes something younger.
        if let Ok(mut stored) = self.stored.try_lock() {
            *stored = Some(offset);
        }
    }

    /// Is this progress the last that this member stored, as far as it knows?
    pub(crate) fn is_own(&self, known: Option<i64>, stored: i64) -> bool {
        known == Some(stored) || self.sent.load(Ordering::SeqCst) == stored
    }

    // Pausing.

    pub(crate) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Done when it is not paused.
    pub(crate) async fn resumed(&self) {
        let _ = self.paused.subscribe().wait_for(|paused| !*paused).await;
    }

    // The lock.

    fn lock(&self) -> MutexGuard<'_, QueueLock> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`QueueLock::continues`].
    pub(crate) fn lock_continues(&self, asked: Instant) -> bool {
        self.lock().continues(asked)
    }

    pub(crate) fn granted(&self, asked: Instant) {
        self.lock().granted(asked);
        self.last_lock_ms.store(now_ms(), Ordering::Relaxed);
        self.changes.send_replace(());
    }

    pub(crate) fn refused(&self) {
        self.lock().refused();
        self.changes.send_replace(());
    }

    pub(crate) fn doubt_lock(&self) {
        self.lock().doubt();
        self.changes.send_replace(());
    }

    pub(crate) fn may_consume(&self) -> bool {
        self.lock().may_consume(Instant::now())
    }

    /// Done when the lock has ended and was not renewed.
    pub(crate) async fn lock_ended(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            let Some(ends) = self.lock().ends() else { return };
            if ends <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(ends) => {}
                _ = changes.changed() => {}
            }
        }
    }

    // Times, for administrators.

    pub(crate) fn pulling(&self) {
        self.last_pull_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// When it was last pulled, consumed and locked, milliseconds since 1970.
    pub(crate) fn times(&self) -> [i64; 3] {
        [&self.last_pull_ms, &self.last_consume_ms, &self.last_lock_ms]
            .map(|time| time.load(Ordering::Relaxed))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let left = self.state().len();
        self.total.changed(left, 0);
    }
}
