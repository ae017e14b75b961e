//! Pulls that wait for the write of the gathered turn that brought them.
//!
//! A turn that is gathered brings sends and pulls together. A pull that is answered at once gets what earlier turns have written, and its
//! messages are as old as a turn by then; the turn's own write is a fraction of that away. So it waits for it, unless nothing of the turn is for its
//! queue, and never longer than until the next look at the connections.
//!
//! ```text
//!   wait ──► fresh ──end_turn──► waiting ──reach──► ready ──next_ready──► answered
//!                        │          └─────look────────►│
//!                        └──nothing for its queue─────►│
//! ```

use std::collections::VecDeque;

use ringmq_engine::state::ConnId;

/// Pulls that wait at most, and bytes of memory behind them; a further one is answered at once.
const PULLS_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;
/// Looks without waiting, at most, after pulls that have waited in vain.
const REST_MAX: u32 = 256;

struct Late<P> {
    conn: ConnId,
    bytes: usize,
    pull: P,
}

/// The pulls of one shard that wait for a turn's write. Bounded by [`PULLS_MAX`] and [`BYTES_MAX`].
pub(super) struct LatePulls<P> {
    /// Those of the turn that runs: what it appends is not known yet.
    fresh: Vec<Late<P>>,
    /// Those of turns that have ended, with where the log ended then. Ascending.
    waiting: VecDeque<(u64, Late<P>)>,
    ready: VecDeque<Late<P>>,
    bytes: usize,
    /// Looks that have to pass before pulls wait again, and how many it were last time: where writes take longer than from one look to the
    /// next, waiting costs a look and brings nothing.
    rest: u32,
    last_rest: u32,
}

impl<P> LatePulls<P> {
    pub(super) fn new() -> Self {
        LatePulls {
            fresh: Vec::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            bytes: 0,
            rest: 0,
            last_rest: 0,
        }
    }

    /// Pulls that are not answered yet.
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.waiting.len() + self.ready.len()
    }

    /// Whether pulls wait at present. Asked before anything is allocated for one.
    pub(super) fn waits(&self) -> bool {
        self.rest == 0 && self.len() < PULLS_MAX
    }

    /// Has `pull`, with `bytes` of memory behind it, wait for the write of the turn that runs. Gives it back if there is no room.
    pub(super) fn wait(&mut self, conn: ConnId, bytes: usize, pull: P) -> Result<(), P> {
        if !self.waits() || self.bytes + bytes > BYTES_MAX {
            return Err(pull);
        }
        self.bytes += bytes;
        self.fresh.push(Late { conn, bytes, pull });
        Ok(())
    }

    /// The turn has ended with the log at `end`. Those are ready for whom `gains` says that it brought nothing.
    pub(super) fn end_turn(&mut self, end: u64, gains: impl Fn(&P) -> bool) {
        for late in self.fresh.drain(..) {
            if gains(&late.pull) {
                self.waiting.push_back((end, late));
            } else {
                self.ready.push_back(late);
            }
        }
    }

    /// Everything before `visible` is visible: who waited for that is ready.
    pub(super) fn reach(&mut self, visible: u64) {
        while self.waiting.front().is_some_and(|(end, _)| *end <= visible) {
            self.ready.extend(self.waiting.pop_front().map(|(_, late)| late));
            self.last_rest = 0;
        }
    }

    /// The next look begins: nobody waits longer.
    pub(super) fn look(&mut self) {
        if self.waiting.is_empty() && self.fresh.is_empty() {
            self.rest = self.rest.saturating_sub(1);
            return;
        }
        self.ready.extend(self.waiting.drain(..).map(|(_, late)| late));
        self.ready.extend(self.fresh.drain(..));
        self.last_rest = (2 * self.last_rest).clamp(1, REST_MAX);
        self.rest = self.last_rest;
    }

    /// The next pull to answer, in the order in which they came.
    pub(super) fn next_ready(&mut self) -> Option<P> {
        let late = self.ready.pop_front()?;
        self.bytes -= late.bytes;
        Some(late.pull)
    }

    /// Drops the pulls of a connection that is closed.
    pub(super) fn close_conn(&mut self, conn: ConnId) {
        if self.len() == 0 {
            return;
        }
        self.fresh.retain(|late| late.conn != conn);
        self.waiting.retain(|(_, late)| late.conn != conn);
        self.ready.retain(|late| late.conn != conn);
        let left = self.fresh.iter().chain(self.waiting.iter().map(|(_, late)| late));
        self.bytes = left.chain(&self.ready).map(|late| late.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_ready<P>(late: &mut LatePulls<P>) -> Vec<P> {
        std::iter::from_fn(|| late.next_ready()).collect()
    }

    #[test]
    fn a_pull_is_ready_when_the_write_of_its_turn_is_visible_and_not_before() {
        let mut late = LatePulls::new();
        late.wait(1, 10, "a").unwrap();
        late.wait(2, 10, "nothing for it").unwrap();
        assert_eq!(all_ready(&mut late), Vec::<&str>::new());
        late.end_turn(100, |pull| *pull == "a");
        assert_eq!(all_ready(&mut late), ["nothing for it"]);
        late.wait(1, 10, "b").unwrap();
        late.end_turn(200, |_| true);
        late.reach(99);
        assert_eq!(all_ready(&mut late), Vec::<&str>::new());
        late.reach(100);
        assert_eq!(all_ready(&mut late), ["a"]);
        late.reach(1_000);
        assert_eq!(all_ready(&mut late), ["b"]);
        assert_eq!((late.len(), late.bytes), (0, 0));
    }

    #[test]
    fn those_beyond_the_bounds_do_not_wait() {
        let mut late = LatePulls::new();
        assert_eq!(late.wait(1, BYTES_MAX + 1, 0), Err(0));
        late.wait(1, BYTES_MAX, 0).unwrap();
        assert_eq!(late.wait(2, 1, 1), Err(1));
        late.close_conn(1);
        for pull in 0..PULLS_MAX {
            late.wait(3, 1, pull).unwrap();
        }
        assert_eq!(late.wait(3, 1, 0), Err(0));
        assert!(!late.waits());
    }

    #[test]
    fn slow_writes_are_waited_for_more_and_more_rarely() {
        let mut late = LatePulls::new();
        let mut waited = 0;
        for _ in 0..10_000 {
            if late.wait(1, 1, ()).is_ok() {
                waited += 1;
                late.end_turn(100, |()| true);
            }
            late.look();
            all_ready(&mut late);
        }
        assert!((30..60).contains(&waited), "{waited}");
        // One write that is in time, and all is as it was.
        while late.wait(1, 1, ()).is_err() {
            late.look();
        }
        late.end_turn(100, |()| true);
        late.reach(100);
        late.look();
        assert!(late.waits());
        late.wait(1, 1, ()).unwrap();
        late.end_turn(200, |()| true);
        late.look();
        assert!(!late.waits());
        late.look();
        assert!(late.waits());
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Wait(ConnId),
        EndTurn { gains: bool },
        Reach,
        Look,
        Answer,
        Close(ConnId),
    }

    const STEPS: [Step; 8] = [
        Step::Wait(1),
        Step::Wait(2),
        Step::EndTurn { gains: true },
        Step::EndTurn { gains: false },
        Step::Reach,
        Step::Look,
        Step::Answer,
        Step::Close(1),
    ];

    /// Every sequence of six steps.
    #[test]
    fn every_pull_is_answered_once_or_dropped_with_its_connection_and_none_waits_over_a_look() {
        const LEN: u32 = 6;
        for number in 0..STEPS.len().pow(LEN) {
            let steps = (0..LEN).map(|at| STEPS[number / STEPS.len().pow(at) % STEPS.len()]);
            let mut late = LatePulls::new();
            // What is kept, in order of arrival.
            let (mut kept, mut next, mut end) = (Vec::<(ConnId, u32)>::new(), 0, 0);
            for step in steps {
                match step {
                    Step::Wait(conn) => {
                        if late.wait(conn, 7, (conn, next)).is_ok() {
                            kept.push((conn, next));
                        }
                        next += 1;
                    }
                    Step::EndTurn { gains } => {
                        end += 10;
                        late.end_turn(end, |_| gains);
                        assert!(late.fresh.is_empty());
                    }
                    Step::Reach => {
                        late.reach(end);
                        assert!(late.waiting.is_empty());
                    }
                    Step::Look => {
                        late.look();
                        assert!(late.waiting.is_empty() && late.fresh.is_empty());
                    }
                    Step::Answer => {
                        for pull in all_ready(&mut late) {
                            let at = kept.iter().position(|known| *known == pull);
                            kept.remove(at.expect("answered once, and not after its connection"));
                        }
                    }
                    Step::Close(conn) => {
                        late.close_conn(conn);
                        kept.retain(|(of, _)| *of != conn);
                    }
                }
                assert_eq!((late.len(), late.bytes), (kept.len(), 7 * kept.len()), "{number}");
            }
            late.look();
            let mut rest = all_ready(&mut late);
            rest.sort_by_key(|(_, number)| *number);
            assert_eq!(rest, kept);
        }
    }
}
