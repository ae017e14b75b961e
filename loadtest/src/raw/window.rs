//! The requests of one connection that may be under way, and their encoded frames.
//!
//! ```text
//!   frames   [ slot 0 | slot 1 | slot 2 | slot 3 ]     one buffer, all slots of one length
//!   slot       free -> queued -> in flight -> free     a frame is patched when its slot leaves `free`
//! ```
//!
//! Queued frames that touch leave in one piece, so a connection whose messages have one size and are answered in order sends with one or
//! two pieces however large its window. The correlation id carries the slot and how often it was used: an answer that
//! comes twice, or to nothing, is told from one that was waited for.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use crate::floor::Floor;
use crate::raw::template::{Held, OPAQUE_BASE, OPAQUE_SPAN, Place, SendPatch, SendTemplate, Shape};

/// Largest window.
pub const WINDOW_MAX: usize = 1 << 16;
/// Most pieces of one write.
const PIECES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Queued,
    InFlight,
}

#[derive(Clone, Debug)]
struct Slot {
    state: SlotState,
    use_count: u32,
    started: u64,
    first_message: u64,
    size: u32,
    held: Held,
    /// Where its frame is in the buffer of all slots.
    frame: Range<usize>,
}

/// What differs from send to send, but for what the window itself adds.
#[derive(Clone, Copy, Debug)]
pub struct Sending<'a> {
    /// Where to send to.
    pub place: Place,
    /// What to send; drawn by the template if it is not given.
    pub shape: Option<Shape>,
    /// See [`SendPatch::born`].
    pub born: &'a [u8; 13],
    /// From when on the request is timed, on the run's clock: its intended time, or now.
    pub started: u64,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// From when on it is timed.
    pub started: u64,
    /// Number of its first message among those of the connection.
    pub first_message: u64,
    /// Bytes of all its messages' bodies.
    pub bytes: u64,
}

/// Bytes of a window of `size` requests.
#[must_use]
pub fn slots_bytes(template: &SendTemplate, size: usize) -> usize {
    template.slot_bytes().saturating_mul(size)
}

/// The window of one connection.
#[derive(Debug)]
pub struct Window {
    template: SendTemplate,
    frames: Vec<u8>,
    slots: Vec<Slot>,
    slot_bits: u32,
    free: VecDeque<u32>,
    queued: VecDeque<u32>,
    /// Bytes of the first queued frame that are written.
    written: usize,
    floor: Floor,
    epoch: u32,
}

impl Window {
    /// A window of `size` requests (1 to [`WINDOW_MAX`]).
    #[must_use]
    pub fn new(template: SendTemplate, size: usize) -> Self {
        let size = size.clamp(1, WINDOW_MAX);
        let slot = Slot {
            state: SlotState::Free,
            use_count: 0,
            started: 0,
            first_message: 0,
            size: 0,
            held: Held::default(),
            frame: 0..0,
        };
        Window {
            frames: vec![0; template.slot_bytes() * size],
            floor: Floor::new(template.messages() as u64),
            template,
            slots: vec![slot; size],
            slot_bits: size.next_power_of_two().trailing_zeros(),
            free: (0..size as u32).collect(),
            queued: VecDeque::with_capacity(size),
            written: 0,
            epoch: 0,
        }
    }

    /// Whether another request may begin.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Whether frames wait for being written.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Messages in a request.
    #[must_use]
    pub fn messages_per_request(&self) -> usize {
        self.template.messages()
    }

    /// The connection that it belongs to.
    #[must_use]
    pub fn connection(&self) -> usize {
        self.template.connection()
    }

    /// Queues a request; returns false when the window is full.
    pub fn push(&mut self, sending: &Sending<'_>) -> bool {
        let Some(number) = self.free.pop_front() else { return false };
        let uses = OPAQUE_SPAN >> self.slot_bits;
        let slot_bytes = self.template.slot_bytes();
        let shape = sending.shape.unwrap_or_else(|| self.template.shape(self.floor.next()));
        let slot = &mut self.slots[number as usize];
        slot.use_count = (slot.use_count + 1) % uses;
        (slot.state, slot.started) = (SlotState::Queued, sending.started);
        let floor = self.floor.first();
        let first_message = self.floor.begin();
        (slot.first_message, slot.size) = (first_message, shape.size);
        let opaque = OPAQUE_BASE + (slot.use_count << self.slot_bits | number) as i32;
        let patch = SendPatch {
            opaque,
            place: sending.place,
            born: sending.born,
            first_message,
            intended: sending.started,
            epoch: self.epoch,
            floor,
        };
        let at = number as usize * slot_bytes;
        let bytes = &mut self.frames[at..at + slot_bytes];
        let frame = self.template.patch(bytes, &mut slot.held, shape, &patch);
        slot.frame = at + frame.start..at + frame.end;
        self.queued.push_back(number);
        true
    }

    /// Has `write` write queued frames, as long as it takes all it is given. Returns whether all are written.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write_queued<E>(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<bool, E> {
        while !self.queued.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let (count, bytes) = self.pieces(&mut pieces);
            let written = write(&pieces[..count])?;
            self.note_written(written);
            if written < bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gathers queued frames, those that touch in one piece; returns the number of pieces and their bytes.
    fn pieces<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES_MAX]) -> (usize, usize) {
        let mut frames =
            self.queued.iter().map(|number| self.slots[*number as usize].frame.clone()).peekable();
        let (mut count, mut bytes, mut skip) = (0, 0, self.written);
        while let (Some(first), Some(piece)) = (frames.peek().cloned(), pieces.get_mut(count)) {
            frames.next();
            let mut end = first.end;
            while let Some(next) = frames.next_if(|next| next.start == end) {
                end = next.end;
            }
            let part = &self.frames[first.start + std::mem::take(&mut skip)..end];
            *piece = IoSlice::new(part);
            bytes += part.len();
            count += 1;
        }
        (count, bytes)
    }

    fn note_written(&mut self, written: usize) {
        self.written += written;
        while let Some(number) = self.queued.front() {
            let slot = &mut self.slots[*number as usize];
            let Some(rest) = self.written.checked_sub(slot.frame.len()) else { return };
            slot.state = SlotState::InFlight;
            self.queued.pop_front();
            self.written = rest;
        }
    }

    /// Takes the answer with this correlation id; `None` if no request waits for it.
    pub fn on_answer(&mut self, opaque: i32) -> Option<Answered> {
        let value = opaque.checked_sub(OPAQUE_BASE).and_then(|value| u32::try_from(value).ok())?;
        let number = value & ((1 << self.slot_bits) - 1);
        let slot = self.slots.get_mut(number as usize)?;
        if slot.state != SlotState::InFlight || slot.use_count != value >> self.slot_bits {
            return None;
        }
        slot.state = SlotState::Free;
        self.free.push_back(number);
        let messages = self.template.messages() as u64;
        let answered = Answered {
            started: slot.started,
            first_message: slot.first_message,
            bytes: messages * u64::from(slot.size),
        };
        self.floor.answer(answered.first_message);
        Some(answered)
    }

    /// Forgets everything under way, as its connection is gone. Returns how many requests will never be answered: those
    /// written in part or whole, which the broker may have stored, and those not yet.
    pub fn abandon(&mut self) -> usize {
        let abandoned = self.slots.len() - self.free.len();
        for slot in &mut self.slots {
            slot.state = SlotState::Free;
        }
        self.free.clear();
        self.free.extend(0..self.slots.len() as u32);
        self.queued.clear();
        self.written = 0;
        self.floor.abandon();
        self.epoch = (self.epoch + 1) & 0xFFFF;
        abandoned
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::convert::Infallible;

    use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
    use ringmq_net::header::HeaderDecoder;
    use ringmq_net::headers::SendHeader;
    use ringmq_net::record::Properties;

    use super::*;
    use crate::kind::Kind;
    use crate::raw::template::{SendSpec, born_digits};
    use crate::sizes::Sizes;

    fn window(size: usize) -> Window {
        sized(size, "40")
    }

    fn sized(size: usize, sizes: &str) -> Window {
        let kind = |tag: &str| Kind { topic: "T".into(), tag: tag.into() };
        let sizes: Sizes = sizes.parse().unwrap();
        let spec = SendSpec {
            kinds: if sizes.min() == sizes.max() {
                vec![kind("")]
            } else {
                vec![kind(""), kind("ABC")]
            },
            group: "G".into(),
            keys: 0,
            delay_level: 0,
            topics: 1,
            default_queues: 4,
            sizes,
            batch: 1,
            serialize: SerializeType::Json,
            run_id: 1,
            stamped: false,
        };
        Window::new(SendTemplate::new(&spec).unwrap(), size)
    }

    fn push(window: &mut Window, started: u64) -> bool {
        window.push(&Sending {
            place: Place { topic: 0, queue: 1 },
            shape: None,
            born: &born_digits(0),
            started,
        })
    }

    /// What a broker would see: the correlation id and key of each whole frame, and their bytes.
    fn frames(mut bytes: &[u8]) -> (Vec<(i32, String)>, usize) {
        let (mut decoder, mut out, mut whole) = (HeaderDecoder::new(), Vec::new(), 0);
        while let Ok(Peek::Frame(frame)) = peek(bytes, FRAME_BYTES_MAX) {
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            let header = SendHeader::v2(&view).unwrap();
            let key = Properties::new(header.properties).get("UNIQ_KEY").unwrap();
            out.push((view.opaque(), key.to_owned()));
            whole += frame.len;
            bytes = &bytes[frame.len..];
        }
        (out, whole)
    }

    /// Sends, answers in a scrambled order and in part, again and again, through a socket that takes any number of bytes.
    #[test]
    fn every_request_reaches_the_wire_whole_once_and_is_answered_once() {
        for (size, sizes) in
            [(1, "40"), (2, "40"), (3, "40"), (64, "40"), (100, "40"), (64, "0..900")]
        {
            let mut window = sized(size, sizes);
            let (mut wire, mut state) = (Vec::new(), 12345u64);
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % below
            };
            let (mut waiting, mut read, mut keys) = (Vec::new(), 0, HashSet::new());
            let mut pushed = 0u64;
            while pushed < 2_000 {
                while random(4) > 0 && push(&mut window, pushed) {
                    pushed += 1;
                }
                let take = |parts: &[IoSlice<'_>]| -> Result<usize, Infallible> {
                    let all: usize = parts.iter().map(|part| part.len()).sum();
                    let take = if random(3) == 0 { random(all + 1) } else { all };
                    let bytes = parts.iter().flat_map(|part| part.iter());
                    wire.extend(bytes.take(take));
                    Ok(take)
                };
                let Ok(all) = window.write_queued(take);
                assert_eq!(all, !window.has_queued());
                let (arrived, whole) = frames(&wire[read..]);
                for (opaque, key) in arrived {
                    assert!(keys.insert(key), "a key is sent twice");
                    waiting.push((opaque, keys.len() as u64 - 1));
                }
                read += whole;
                while random(5) > 0 && !waiting.is_empty() {
                    let (opaque, started) = waiting.swap_remove(random(waiting.len()));
                    assert_eq!(
                        window.on_answer(opaque).map(|answer| answer.started),
                        Some(started)
                    );
                    assert_eq!(window.on_answer(opaque), None, "answered twice");
                }
            }
            for (opaque, started) in waiting.drain(..) {
                assert_eq!(window.on_answer(opaque).map(|answer| answer.started), Some(started));
            }
            let queued = window.queued.len();
            assert_eq!((keys.len() + queued) as u64, pushed);
            assert_eq!(window.abandon(), queued);
            assert!(window.is_empty());
        }
    }

    #[test]
    fn answers_to_nothing_are_not_taken() {
        let mut window = window(3);
        assert!(push(&mut window, 9));
        let opaque = OPAQUE_BASE + (1 << window.slot_bits);
        assert_eq!(window.on_answer(opaque), None, "not yet written");
        let Ok(true) = window
            .write_queued(|parts| Ok::<_, Infallible>(parts.iter().map(|part| part.len()).sum()))
        else {
            panic!("not written")
        };
        for stray in [0, -1, i32::MIN, i32::MAX, opaque + 1, opaque - 1, opaque + 4] {
            assert_eq!(window.on_answer(stray), None, "{stray}");
        }
        let answered = Answered { started: 9, first_message: 0, bytes: 40 };
        assert_eq!(window.on_answer(opaque), Some(answered));
        assert!(window.is_empty());
    }

    #[test]
    fn a_full_window_takes_no_more() {
        let mut window = window(2);
        assert!(push(&mut window, 0) && push(&mut window, 0) && !push(&mut window, 0));
        assert!(!window.has_room());
        assert_eq!(window.abandon(), 2);
        assert!(window.has_room() && !window.has_queued());
    }

    #[test]
    fn the_floor_is_the_oldest_that_has_no_answer() {
        let mut window = window(4);
        let everything =
            |parts: &[IoSlice<'_>]| Ok::<_, Infallible>(parts.iter().map(|part| part.len()).sum());
        (0..4).for_each(|started| assert!(push(&mut window, started)));
        let Ok(true) = window.write_queued(everything) else { panic!("not written") };
        let opaque = |slot: i32| OPAQUE_BASE + (1 << window.slot_bits) + slot;
        let opaques = [0, 1, 2, 3].map(opaque);
        let mut floors = Vec::new();
        for at in [1, 0, 3, 2] {
            window.on_answer(opaques[at]).unwrap();
            floors.push(window.floor.first());
        }
        assert_eq!(floors, [0, 2, 2, 4]);
        assert!(push(&mut window, 4));
        assert_eq!((window.abandon(), window.floor.first(), window.epoch), (1, 5, 1));
    }
}
