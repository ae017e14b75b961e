//! What earlier connections, and questions, have told of the kind of master behind a HA port. It decides how a master is spoken to that
//! cannot be asked.

use super::slave::MasterKind;
use crate::pair::Trouble;

/// See the module. About one HA port each, the last one of which there was something to learn.
#[derive(Debug, Default)]
pub(super) struct Acquaintance {
    /// A RingMQ node: it has said so, or answered a hello.
    ringmq: Option<String>,
    /// It could not be asked, and did not answer a hello.
    silent: Option<String>,
}

/// How to speak to a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// The 4.x protocol. `asked`: it can tell by requests how far its log goes.
    Stock { asked: bool },
    /// The hello. `known`: silence is no sign of a stock master.
    Hello { known: bool },
}

impl Acquaintance {
    /// How to speak to the master at `addr`, of which this was told when it was asked just now. That it is a RingMQ node is remembered
    /// for the time when it cannot be asked, whatever becomes of the connection.
    pub(super) fn meet(&mut self, addr: &str, kind: MasterKind) -> Manner {
        match kind {
            MasterKind::Stock => {
                self.forget(addr);
                Manner::Stock { asked: true }
            }
            MasterKind::RingMq => {
                self.is_ringmq(addr);
                Manner::Hello { known: true }
            }
            _ => match self.ringmq.as_deref() == Some(addr) {
                true => Manner::Hello { known: true },
                false if self.silent.as_deref() == Some(addr) => Manner::Stock { asked: false },
                false => Manner::Hello { known: false },
            },
        }
    }

    /// It is followed by the frames of a RingMQ node, or has said that it is one.
    pub(super) fn is_ringmq(&mut self, addr: &str) {
        self.ringmq = Some(addr.to_owned());
        self.silent = None;
    }

    /// A connection has ended. `welcomed`: its master had answered the hello.
    pub(super) fn ended(&mut self, addr: &str, why: &Trouble, welcomed: bool) {
        match why {
            // A stock master heeds its own pace: its heartbeat, which is no frame, may come sooner than a hello is given up.
            // A RingMQ master's frame that came damaged tells nothing.
            Trouble::NotRingMq | Trouble::Frame(_) if !welcomed => {
                self.silent = Some(addr.to_owned());
            }
            // Whoever is there now may be another one: it is asked again.
            Trouble::Silent(_) => self.forget(addr),
            _ => {}
        }
    }

    fn forget(&mut self, addr: &str) {
        self.ringmq.take_if(|known| known == addr);
    }
}

#[cfg(test)]
mod tests {
    use ringmq_net::ha_term_frame::TermFrameError;

    use super::*;

    const HERE: &str = "10.0.0.1:10912";
    const HELLO: Manner = Manner::Hello { known: true };
    const TRIED: Manner = Manner::Hello { known: false };

    fn damaged() -> Trouble {
        Trouble::Frame(TermFrameError::Kind(77))
    }

    #[test]
    fn a_frame_that_came_damaged_does_not_make_a_stock_master_of_one_that_cannot_be_asked_any_more()
    {
        // Its very first frame is damaged, then it refuses connections.
        let mut known = Acquaintance::default();
        assert_eq!(known.meet(HERE, MasterKind::RingMq), HELLO);
        known.ended(HERE, &damaged(), false);
        assert_eq!(known.meet(HERE, MasterKind::Unknown), HELLO);
        // The same of one that was never asked and is followed, in a later frame of any kind.
        let mut known = Acquaintance::default();
        assert_eq!(known.meet(HERE, MasterKind::Unknown), TRIED);
        known.is_ringmq(HERE);
        for why in [damaged(), Trouble::Damaged(4096)] {
            known.ended(HERE, &why, true);
            assert_eq!(known.meet(HERE, MasterKind::Unknown), HELLO);
        }
    }

    #[test]
    fn one_that_cannot_be_asked_and_does_not_answer_is_a_stock_master_until_it_is_known_better() {
        let mut known = Acquaintance::default();
        assert_eq!(known.meet(HERE, MasterKind::Unknown), TRIED);
        known.ended(HERE, &Trouble::NotRingMq, false);
        assert_eq!(known.meet(HERE, MasterKind::Unknown), Manner::Stock { asked: false });
        assert_eq!(known.meet("10.0.0.2:10912", MasterKind::Unknown), TRIED);
        assert_eq!(known.meet(HERE, MasterKind::RingMq), HELLO);
        assert_eq!(known.meet(HERE, MasterKind::Unknown), HELLO);
        // Another one may be there by now.
        known.ended(HERE, &Trouble::Silent(20_000), true);
        assert_eq!(known.meet(HERE, MasterKind::Unknown), TRIED);
        known.is_ringmq(HERE);
        assert_eq!(known.meet(HERE, MasterKind::Stock), Manner::Stock { asked: true });
        assert_eq!(known.meet(HERE, MasterKind::Unknown), TRIED);
    }
}
