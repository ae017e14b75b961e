//! Telling the members of a large group that its members changed.
//!
//! Each member that comes or goes is told to all others. With ten thousand that is a hundred million notifications when they all
//! come at once. So the members of a large group are told once for all changes of a second, a few at a time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use glommio::timer::Timer;
use ringmq_net::map::SeededSet;

use super::Broker;
use super::signal::Signal;

/// Members told before others get their turn.
const TOLD_A_TURN: usize = 256;
/// The least time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// The large groups that changed since the last round.
#[derive(Default)]
pub(super) struct Crowds {
    groups: RefCell<SeededSet<Rc<str>>>,
    pub(super) changed: Signal,
}

impl Crowds {
    /// The members of this group are to be told.
    pub(super) fn note(&self, group: Rc<str>) {
        self.groups.borrow_mut().insert(group);
        self.changed.raise();
    }
}

impl Broker {
    /// Tells the members of large groups until the broker stops.
    pub(super) async fn notify_crowds(self: Rc<Self>) {
        while !self.stopped() {
            self.crowds.changed.wait().await;
            let groups = self.crowds.groups.take();
            for group in groups {
                let members = self.clients.borrow().consumer(&group).map(|g| g.members().conns());
                for some in members.unwrap_or_default().chunks(TOLD_A_TURN) {
                    self.notify(&group, some);
                    self.flush_replies();
                    glommio::executor().yield_task_queue_now().await;
                }
            }
            Timer::new(ROUND).await;
        }
    }
}
