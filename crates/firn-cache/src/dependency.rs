//! Dependencies: which samples the answer of a range query depends on, and which steps a change
//! touches.

use std::sync::Arc;

use firn_codec::varint::{
    encode_varint, encode_zigzag, take_bytes, take_count, take_u8, take_zigzag,
};
use firn_model::{Error, MatchOp, Matcher, Result, TimeRange, Timestamp};

const NOTE_VERSION: u8 = 1;
const COUNT_MAX: usize = 1 << 16;

/// A selector of an expression, and the samples of it that a step reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependency {
    /// Selects the series.
    pub matchers: Vec<Matcher>,
    /// The samples of each series.
    pub span: Span,
}

/// The samples that a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// From `step + first_ms` to `step + last_ms`, inclusive: window, lookback, offset and
    /// subqueries added up. `foo` has -lookback to 0, `rate(foo[5m] offset 1h)` has -65 min to -60
    /// min.
    Relative {
        /// The first sample, usually negative.
        first_ms: i64,
        /// The last sample; positive for a negative offset.
        last_ms: i64,
    },
    /// The same samples at every step: `foo @ 1000`.
    Fixed(TimeRange),
}

impl Span {
    /// The samples that the steps in `steps` read.
    pub(crate) fn needed_by(self, steps: TimeRange) -> TimeRange {
        match self {
            Span::Fixed(range) if !steps.is_empty() => range,
            Span::Relative { first_ms, last_ms } if !steps.is_empty() => TimeRange {
                start: steps.start.saturating_add(first_ms),
                end: steps.end.saturating_add(last_ms),
            },
            _ => TimeRange::EMPTY,
        }
    }

    /// The steps that read a sample of `samples`.
    pub(crate) fn touched_by(self, samples: TimeRange) -> TimeRange {
        match self {
            Span::Fixed(range) if range.overlaps(samples) => TimeRange::ALL,
            Span::Relative { first_ms, last_ms } if !samples.is_empty() => TimeRange {
                start: samples.start.saturating_sub(last_ms),
                end: samples.end.saturating_sub(first_ms),
            },
            _ => TimeRange::EMPTY,
        }
    }
}

/// The times at which an expression is evaluated: all that are `phase_ms` after a multiple of
/// `step_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    step_ms: i64,
    phase_ms: i64,
}

/// Times further from 0 are not cached: sums of them would wrap. 73 million years.
const TIME_MAX: Timestamp = 1 << 61;

impl Grid {
    /// The grid that contains `start`; `None` if adding its numbers could overflow.
    pub fn new(start: Timestamp, end: Timestamp, step_ms: i64) -> Option<Grid> {
        let is_small = |ts: i64| (-TIME_MAX..=TIME_MAX).contains(&ts);
        let fits = (1..=TIME_MAX).contains(&step_ms) && is_small(start) && is_small(end);
        fits.then(|| Grid { step_ms, phase_ms: start.rem_euclid(step_ms) })
    }

    /// From the first to the last step inside `range`; empty if there is none.
    pub fn steps_in(self, range: TimeRange) -> TimeRange {
        let range = range.intersect(TimeRange::new(-2 * TIME_MAX, 2 * TIME_MAX));
        if range.is_empty() {
            return TimeRange::EMPTY;
        }
        let end = self.floor(range.end);
        let start = self.floor(range.start);
        let start = if start == range.start { start } else { start + self.step_ms };
        if start > end { TimeRange::EMPTY } else { TimeRange { start, end } }
    }

    /// The last step at or before `ts`.
    pub fn floor(self, ts: Timestamp) -> Timestamp {
        ts - (ts - self.phase_ms).rem_euclid(self.step_ms)
    }

    /// The stored times of `steps`: each step covers the times up to the next, so neighbours touch.
    pub fn cells(self, steps: TimeRange) -> TimeRange {
        if steps.is_empty() {
            return TimeRange::EMPTY;
        }
        TimeRange { start: steps.start, end: steps.end + (self.step_ms - 1) }
    }

    /// The first and the last step of `cells`; `None` if that is empty.
    pub(crate) fn ends_of(self, cells: TimeRange) -> Option<(Timestamp, Timestamp)> {
        (!cells.is_empty()).then(|| (self.floor(cells.start), self.floor(cells.end)))
    }

    /// Number of steps from the first to the last.
    pub fn count(self, steps: TimeRange) -> u64 {
        if steps.is_empty() { 0 } else { ((steps.end - steps.start) / self.step_ms) as u64 + 1 }
    }

    /// All of `steps`, in order.
    pub fn iter(self, steps: TimeRange) -> impl Iterator<Item = Timestamp> {
        let mut next = (!steps.is_empty()).then_some(steps.start);
        std::iter::from_fn(move || {
            let step = next?;
            next = Some(step + self.step_ms).filter(|&ts| ts <= steps.end);
            Some(step)
        })
    }
}

/// The key of an expression on a grid.
pub(crate) fn encode_key(expression: &str, grid: Grid, lookback_ms: i64) -> Arc<[u8]> {
    let mut key = Vec::new();
    encode_zigzag(grid.step_ms, &mut key);
    encode_zigzag(grid.phase_ms, &mut key);
    encode_zigzag(lookback_ms, &mut key);
    key.extend_from_slice(expression.as_bytes());
    key.into()
}

/// The grid of a key.
///
/// # Errors
/// `Corrupt` if it is not a key.
pub(crate) fn grid_of_key(key: &[u8]) -> Result<Grid> {
    let mut input = key;
    let step_ms = take_zigzag(&mut input, "step")?;
    let phase_ms = take_zigzag(&mut input, "phase")?;
    let is_grid = (1..=TIME_MAX).contains(&step_ms) && (0..step_ms).contains(&phase_ms);
    if is_grid { Ok(Grid { step_ms, phase_ms }) } else { Err(bad("step and phase make no grid")) }
}

/// Encodes the dependencies of a key as its note.
pub(crate) fn encode_note(dependencies: &[Dependency]) -> Vec<u8> {
    let mut out = vec![NOTE_VERSION];
    encode_varint(dependencies.len() as u64, &mut out);
    for Dependency { matchers, span } in dependencies {
        let (kind, first, last) = match *span {
            Span::Relative { first_ms, last_ms } => (0, first_ms, last_ms),
            Span::Fixed(range) => (1, range.start, range.end),
        };
        out.push(kind);
        encode_zigzag(first, &mut out);
        encode_zigzag(last, &mut out);
        encode_varint(matchers.len() as u64, &mut out);
        for matcher in matchers {
            out.push(match matcher.op() {
                MatchOp::Equal => 0,
                MatchOp::NotEqual => 1,
                MatchOp::Regex => 2,
                MatchOp::NotRegex => 3,
            });
            for text in [matcher.name(), matcher.value()] {
                encode_varint(text.len() as u64, &mut out);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    out
}

/// Decodes the dependencies of a note.
///
/// # Errors
/// `Corrupt` if it is not a note.
pub(crate) fn decode_note(note: &[u8]) -> Result<Vec<Dependency>> {
    let mut input = note;
    let input = &mut input;
    if take_u8(input, "version of a note")? != NOTE_VERSION {
        return Err(bad("a note of another version"));
    }
    let count = take_count(input, COUNT_MAX, "dependencies")?;
    let mut dependencies = Vec::new();
    for _ in 0..count {
        let kind = take_u8(input, "kind of a span")?;
        let (first, last) = (take_zigzag(input, "span")?, take_zigzag(input, "span")?);
        let span = match kind {
            0 => Span::Relative { first_ms: first, last_ms: last },
            1 => Span::Fixed(TimeRange::new(first, last)),
            _ => return Err(bad("a span of unknown kind")),
        };
        let matcher_count = take_count(input, COUNT_MAX, "matchers")?;
        let mut matchers = Vec::new();
        for _ in 0..matcher_count {
            matchers.push(take_matcher(input)?);
        }
        dependencies.push(Dependency { matchers, span });
    }
    Ok(dependencies)
}

fn take_matcher(input: &mut &[u8]) -> Result<Matcher> {
    let op = match take_u8(input, "operator")? {
        0 => MatchOp::Equal,
        1 => MatchOp::NotEqual,
        2 => MatchOp::Regex,
        3 => MatchOp::NotRegex,
        _ => return Err(bad("an unknown operator")),
    };
    let mut text = || -> Result<&str> {
        let len = take_count(input, u32::MAX as usize, "text of a matcher")?;
        let bytes = take_bytes(input, len, "text of a matcher")?;
        std::str::from_utf8(bytes).map_err(|_| bad("a matcher's text is not UTF-8"))
    };
    let (name, value) = (text()?, text()?);
    Matcher::new(name, op, value)
}

fn bad(what: &str) -> Error {
    Error::corrupt("cached answer", 0, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_the_steps_whose_window_reaches_it() {
        let window = Span::Relative { first_ms: -65, last_ms: -60 };
        for step in -200..200i64 {
            for sample in [-50, 0, 7] {
                let looks = (step - 65..=step - 60).contains(&sample);
                let touched = window.touched_by(TimeRange::at(sample)).contains(step);
                assert_eq!(touched, looks, "step {step} sample {sample}");
                let needed = window.needed_by(TimeRange::at(step)).contains(sample);
                assert_eq!(needed, looks, "step {step} sample {sample}");
            }
        }
        let fixed = Span::Fixed(TimeRange::new(5, 9));
        assert_eq!(fixed.touched_by(TimeRange::at(9)), TimeRange::ALL);
        assert!(fixed.touched_by(TimeRange::at(10)).is_empty());
        assert!(window.touched_by(TimeRange::EMPTY).is_empty());
        let end = window.touched_by(TimeRange::new(i64::MIN, i64::MAX));
        assert_eq!(end, TimeRange::new(i64::MIN + 60, i64::MAX));
    }

    #[test]
    fn a_grid_knows_its_steps() {
        let grid = Grid::new(-7, 100, 10).unwrap();
        let f =
            |start, end| grid.iter(grid.steps_in(TimeRange::new(start, end))).collect::<Vec<_>>();
        assert_eq!(f(-7, 13), [-7, 3, 13]);
        assert_eq!(f(-6, 12), [3]);
        assert!(f(4, 12).is_empty());
        assert_eq!(grid.cells(TimeRange::new(3, 13)), TimeRange::new(3, 22));
        assert!(grid.steps_in(TimeRange::ALL).covers(TimeRange::new(-7, 3)));
        assert_eq!(grid_of_key(&encode_key("up", grid, 5)).unwrap(), grid);
        assert!(Grid::new(0, i64::MAX, 10).is_none() && Grid::new(0, 1, 0).is_none());
    }

    #[test]
    fn notes_come_back() {
        let matcher = |op, value| Matcher::new("job", op, value).unwrap();
        let all = [MatchOp::Equal, MatchOp::NotEqual, MatchOp::Regex, MatchOp::NotRegex];
        let dependencies = [
            Dependency {
                matchers: all.map(|op| matcher(op, "a.*")).to_vec(),
                span: Span::Relative { first_ms: -300_000, last_ms: 60_000 },
            },
            Dependency { matchers: Vec::new(), span: Span::Fixed(TimeRange::ALL) },
        ];
        let note = encode_note(&dependencies);
        assert_eq!(decode_note(&note).unwrap(), dependencies);
        for len in 0..note.len() {
            assert!(decode_note(&note[..len]).is_err());
        }
    }
}
