//! Requests that the broker sends to a client and whose answer it waits for: what administrators ask of consumers.
//!
//! Both directions of a connection carry requests. The broker's have opaques of its own, and a response that comes in is looked up by
//! connection and opaque. Nothing here is on the way of a send or a pull.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ringmq_net::command::Command;
use ringmq_net::header::HeaderView;
use ringmq_net::server::Conn;
use rustc_hash::FxHashMap;

use super::Broker;
use super::signal::Signal;

/// What is known of one request to a client.
enum State {
    Asked,
    Answered(Command),
    /// The connection ended.
    Gone,
}

struct Call {
    state: RefCell<State>,
    changed: Signal,
}

/// The requests to clients that are not answered yet, by connection and opaque. Bounded by the tasks that wait for them.
#[derive(Default)]
pub(super) struct Calls(RefCell<FxHashMap<(u64, i32), Rc<Call>>>);

/// Why a client gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// It said nothing.
    #[error("wait response on the channel <{peer}> timeout, {waited:?}")]
    Late {
        /// Whom.
        peer: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It went away.
    #[error("the channel <{peer}> closed before the answer")]
    Gone {
        /// Whom.
        peer: String,
    },
}

/// A request that was sent. Dropped, its answer is nobody's.
pub(super) struct Asked {
    broker: Rc<Broker>,
    conn: Rc<Conn>,
    opaque: i32,
    call: Rc<Call>,
    since: Instant,
}

impl Broker {
    /// Sends a request to a client, under an opaque of the broker's.
    pub(super) fn ask(self: &Rc<Self>, conn: &Rc<Conn>, mut command: Command) -> Asked {
        let opaque = self.next_opaque();
        command.opaque = opaque;
        let call = Rc::new(Call { state: RefCell::new(State::Asked), changed: Signal::default() });
        self.calls.0.borrow_mut().insert((conn.id(), opaque), Rc::clone(&call));
        conn.push(|out: &mut BytesMut| command.encode(out));
        self.flush_replies();
        let (broker, conn) = (Rc::clone(self), Rc::clone(conn));
        Asked { broker, conn, opaque, call, since: Instant::now() }
    }

    /// Takes in a response. One that nobody waits for is dropped.
    pub(super) fn on_answer(&self, conn: &Rc<Conn>, view: &HeaderView<'_>, body: &[u8]) {
        let calls = self.calls.0.borrow();
        if let Some(call) = calls.get(&(conn.id(), view.opaque())) {
            let answer = Command::from_view(view, Bytes::copy_from_slice(body));
            *call.state.borrow_mut() = State::Answered(answer);
            call.changed.raise();
        }
    }

    /// A connection ended: what was asked there is not answered any more.
    pub(super) fn end_calls(&self, conn: &Rc<Conn>) {
        for ((of, _), call) in self.calls.0.borrow().iter() {
            if *of == conn.id() {
                *call.state.borrow_mut() = State::Gone;
                call.changed.raise();
            }
        }
    }
}

impl Asked {
    /// Waits for the answer, until `limit` after the request was sent.
    pub(super) async fn answer(self, limit: Duration) -> Result<Command, NoAnswer> {
        loop {
            let state = std::mem::replace(&mut *self.call.state.borrow_mut(), State::Asked);
            let peer = self.conn.peer().to_string();
            match state {
                State::Answered(answer) => return Ok(answer),
                State::Gone => return Err(NoAnswer::Gone { peer }),
                State::Asked if self.conn.is_closed() => return Err(NoAnswer::Gone { peer }),
                State::Asked => {}
            }
            let left = limit.saturating_sub(self.since.elapsed());
            if left.is_zero() || !self.call.changed.wait_at_most(left).await {
                let answered = matches!(*self.call.state.borrow(), State::Answered(_));
                if !answered {
                    return Err(NoAnswer::Late { peer, waited: limit });
                }
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.broker.calls.0.borrow_mut().remove(&(self.conn.id(), self.opaque));
    }
}
