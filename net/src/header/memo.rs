//! Reading headers that look like one that was read before.
//!
//! A client writes the same header over and over, with another `opaque`, another queue, other properties. What stays the same needs to be
//! compared only, which takes a tenth of the time of reading it. A [`Memo`] keeps one header in pieces: literal text, and holes where
//! headers differed. A header that has the same literals and a plain value in each hole reads as its tokens say, which is what
//! the full reading would say, too; for anything else, that one is asked.

use super::{Fixed, Span};
use crate::json::lex::{self, Marks};

/// Headers longer than this are not kept: their values weigh more than their form.
const TEXT_BYTES_MAX: usize = 2048;
/// Most ext fields of a kept header.
const FIELDS_MAX: usize = 32;
/// A header that is learned and then does not help this often was a waste, and the next is learned later.
const USES_MIN: u32 = 8;
/// Most headers that pass before another is learned.
const PAUSE_MAX: u32 = 255;

/// Most kinds of headers that are remembered at a time.
const KINDS_MAX: usize = 8;

/// The forms of headers met lately, one for each kind. Headers of a kind begin alike: every stock encoder begins with the code.
#[derive(Debug, Default)]
pub(super) struct Memos {
    kinds: Vec<([u8; 12], Memo)>,
}

impl Memos {
    /// The memo for headers that begin like this one; `None` while those of other kinds are of more use.
    #[inline]
    pub(super) fn of(&mut self, text: &str) -> Option<&mut Memo> {
        let head = text.as_bytes().first_chunk::<12>()?;
        let at = match self.kinds.iter().position(|(kind, _)| kind == head) {
            Some(at) => at,
            None => self.make_room(*head)?,
        };
        self.kinds.get_mut(at).map(|(_, memo)| memo)
    }

    /// A place for another kind: a free one, or that of a kind which has not been met for long.
    #[cold]
    fn make_room(&mut self, head: [u8; 12]) -> Option<usize> {
        if self.kinds.len() < KINDS_MAX {
            self.kinds.push((head, Memo::default()));
            return Some(self.kinds.len() - 1);
        }
        let idle = self.kinds.iter().position(|(_, memo)| memo.weight == 0);
        for (_, memo) in &mut self.kinds {
            memo.weight = memo.weight.saturating_sub(1);
        }
        if let Some(kind) = idle.and_then(|at| self.kinds.get_mut(at)) {
            *kind = (head, Memo::default());
        }
        idle
    }
}

/// A header in pieces.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// The header that was learned last; empty: none.
    text: String,
    fixed: Fixed,
    pieces: Vec<Piece>,
    /// Key and value of the ext fields without a hole, counted from the start of their piece.
    constant: Vec<(Part, Part)>,
    /// All its ext fields.
    fields: Vec<Field>,
    /// How often it helped since it was learned.
    uses: u32,
    /// How often it helped, without the headers of kinds that are not remembered; at most 255.
    weight: u8,
    pause: u32,
    pause_left: u32,
}

/// Literal text, the ext fields inside it, and the hole behind it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    literal: Part,
    /// How many of the constant fields lie in it.
    fields: usize,
    hole: Hole,
}

#[derive(Clone, Copy, Debug)]
enum Hole {
    /// The value of an ext field, up to its quote. The key is counted from the start of the piece.
    Value { key: Part },
    /// The number of the request.
    Opaque,
    /// The header ends.
    End,
}

/// An ext field of the header that was learned.
#[derive(Clone, Copy, Debug)]
struct Field {
    key: Part,
    /// As it stands in the text, escapes and all.
    value: Part,
    hole: bool,
}

/// Bytes of a text, from `start` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: usize,
    end: usize,
}

impl Part {
    fn of(self, text: &str) -> &str {
        text.get(self.start..self.end).unwrap_or_default()
    }

    /// Counted from `base`, which is not behind its start.
    fn from(self, base: usize) -> Part {
        Part { start: self.start - base, end: self.end - base }
    }

    /// The same part where what it is counted from stands at `at`.
    fn span(self, at: usize) -> Span {
        Span::input(at + self.start, self.end - self.start)
    }
}

impl Memo {
    /// Reads `text` if it has the form that was learned. `ext` and `scratch` are to be empty; without an answer they hold nothing of use.
    pub(super) fn read(
        &mut self,
        text: &str,
        ext: &mut Vec<(Span, Span)>,
        scratch: &mut String,
    ) -> Option<Fixed> {
        let fixed = self.fill(text, ext, scratch)?;
        self.uses = self.uses.saturating_add(1);
        self.weight = self.weight.saturating_add(1);
        Some(fixed)
    }

    fn fill(&self, text: &str, ext: &mut Vec<(Span, Span)>, scratch: &mut String) -> Option<Fixed> {
        let bytes = text.as_bytes();
        let mut fixed = self.fixed;
        let mut marks = Marks::new();
        let mut constant = self.constant.as_slice();
        let mut at = 0;
        for piece in &self.pieces {
            let literal = piece.literal.of(&self.text).as_bytes();
            let from = at + literal.len();
            if bytes.get(at..from) != Some(literal) {
                return None;
            }
            let (inside, behind) = constant.split_at_checked(piece.fields)?;
            constant = behind;
            ext.extend(inside.iter().map(|(key, value)| (key.span(at), value.span(at))));
            at = match piece.hole {
                Hole::Value { key } => {
                    let (end, escaped) = marks.string_end(bytes, from).ok()?;
                    let value = if escaped {
                        let start = scratch.len();
                        lex::unescape_into(text.get(from..end)?, scratch).ok()?;
                        Span::scratch(start, scratch.len() - start)
                    } else {
                        Span::input(from, end - from)
                    };
                    ext.push((key.span(at), value));
                    end
                }
                Hole::Opaque => {
                    let end = number_end(bytes, from);
                    fixed.opaque = text.get(from..end)?.parse().ok()?;
                    end
                }
                Hole::End => return (from == bytes.len()).then_some(fixed),
            };
        }
        None
    }

    /// Whether it has not helped since it learned last.
    #[cfg(test)]
    pub(super) fn is_fresh(&self) -> bool {
        self.uses == 0
    }

    /// Learns the form of a header that [`Memo::read`] did not know. It was read as `fixed` and `ext`, with escapes undone in `scratch`.
    /// Values that differ from those of the header learned before become holes.
    pub(super) fn learn(&mut self, text: &str, fixed: Fixed, ext: &[(Span, Span)], scratch: &str) {
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return;
        }
        self.pause = if self.uses >= USES_MIN { 0 } else { (2 * self.pause + 1).min(PAUSE_MAX) };
        self.pause_left = self.pause;
        self.uses = 0;
        let built = self.build(text, fixed, ext);
        if built.is_none() || !self.reads_as(fixed, ext, scratch) {
            self.text.clear();
            self.fields.clear();
            self.pieces.clear();
        }
    }

    /// `None` if the header has no form that could be kept.
    fn build(&mut self, text: &str, fixed: Fixed, ext: &[(Span, Span)]) -> Option<()> {
        let plain = text.len() <= TEXT_BYTES_MAX && ext.len() <= FIELDS_MAX;
        // Of a number that is not 0, the place that names it is the one that counts, and not one in some object that is skipped.
        if !plain || fixed.remark != Span::EMPTY || fixed.opaque == 0 {
            return None;
        }
        let mut fields = Vec::with_capacity(ext.len());
        for (key, _) in ext {
            let (key, value) = field_at(text, *key)?;
            let before = self.fields.iter().find(|f| f.key.of(&self.text) == key.of(text));
            let varies = before.is_some_and(|b| b.hole || b.value.of(&self.text) != value.of(text));
            let hole = varies || value.of(text).contains('\\');
            fields.push(Field { key, value, hole });
        }
        let number = opaque_at(text, &fields)?;
        self.text.clear();
        self.text.push_str(text);
        self.fixed = fixed;
        self.fields = fields;
        self.cut(number);
        Some(())
    }

    /// Cuts the text at its holes.
    fn cut(&mut self, number: Part) {
        self.pieces.clear();
        self.constant.clear();
        let (mut start, mut inside) = (0, 0);
        let mut number = Some(number);
        let mut end_piece = |start: &mut usize, inside: &mut usize, hole: Part, kind: Hole| {
            let literal = Part { start: *start, end: hole.start };
            self.pieces.push(Piece { literal, fields: *inside, hole: kind });
            (*start, *inside) = (hole.end, 0);
        };
        for field in &self.fields {
            if let Some(number) = number.take_if(|number| number.start < field.key.start) {
                end_piece(&mut start, &mut inside, number, Hole::Opaque);
            }
            let key = field.key.from(start);
            if field.hole {
                end_piece(&mut start, &mut inside, field.value, Hole::Value { key });
            } else {
                self.constant.push((key, field.value.from(start)));
                inside += 1;
            }
        }
        if let Some(number) = number {
            end_piece(&mut start, &mut inside, number, Hole::Opaque);
        }
        let end = self.text.len();
        end_piece(&mut start, &mut inside, Part { start: end, end }, Hole::End);
    }

    /// Whether the learned header reads as it did in full.
    fn reads_as(&self, fixed: Fixed, ext: &[(Span, Span)], scratch: &str) -> bool {
        let (mut own_ext, mut own_scratch) = (Vec::new(), String::new());
        let Some(own) = self.fill(&self.text, &mut own_ext, &mut own_scratch) else { return false };
        let text = self.text.as_str();
        own == fixed
            && own_ext.len() == ext.len()
            && own_ext.iter().zip(ext).all(|((own_key, own_value), (key, value))| {
                own_key.of(text, &own_scratch) == key.of(text, scratch)
                    && own_value.of(text, &own_scratch) == value.of(text, scratch)
            })
    }
}

/// Key and value of the ext field with this key, if it has the form that every stock encoder writes, `"name":"text"`.
fn field_at(text: &str, key: Span) -> Option<(Part, Part)> {
    let key = key.in_input()?;
    let key = Part { start: key.start, end: key.end };
    let start = key.end + BETWEEN.len();
    if text.get(key.end..start) != Some(BETWEEN) {
        return None;
    }
    let (end, _) = lex::string_end(text.as_bytes(), start, b'"').ok()?;
    Some((key, Part { start, end }))
}

/// What stands between the name and the text of a field.
const BETWEEN: &str = "\":\"";

/// Where the number of the request stands: before the ext fields or behind them, once and spelled plainly.
fn opaque_at(text: &str, fields: &[Field]) -> Option<Part> {
    const NAME: &str = "\"opaque\":";
    let before = text.get(..fields.first().map_or(0, |field| field.key.start))?;
    let from = fields.last().map_or(0, |field| field.value.end);
    let behind = text.get(from..)?;
    let mentions = [before, behind].map(|part| part.matches("opaque").count());
    if mentions[0] + mentions[1] != 1 || before.contains('\\') || behind.contains('\\') {
        return None;
    }
    let found = before.find(NAME).or_else(|| behind.find(NAME).map(|at| from + at))?;
    let start = found + NAME.len();
    Some(Part { start, end: number_end(text.as_bytes(), start) })
}

/// Where the number that starts at `from` ends: at the first byte that no number has.
fn number_end(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let len = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'-');
    from + len.unwrap_or(rest.len())
}
