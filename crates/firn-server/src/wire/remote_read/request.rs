//! The remote read request.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{
    Error, Labels, MatchOp, Matcher, QueryContext, Reservation, Result, TimeRange, Timestamp,
};

use crate::wire::{LabelFault, utf8};
use firn_model::protobuf::{Reader, WireType, wrong_type};

/// A decoded request.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Evaluated in this order.
    pub queries: Vec<ReadQuery>,
    /// The first supported type of those that the client named.
    pub response_type: ResponseType,
}

/// One selection of raw samples.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadQuery {
    /// Both ends inside; empty if the start is behind the end.
    pub range: TimeRange,
    /// All must hold.
    pub matchers: Vec<Matcher>,
}

/// The form of an answer; the numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseType {
    /// One message with all samples.
    Samples = 0,
    /// Frames with chunks.
    StreamedXorChunks = 1,
}

// Prometheus sends one query a request with as many matchers as a selector has.
const QUERY_COUNT_MAX: usize = 1_000;
const MATCHER_COUNT_MAX: usize = 10_000;
// Memory of a matcher beside its texts, and for each byte of a text: a regular expression that is a
// list of literals becomes that list.
const MATCHER_BYTES: u64 = 256;
const TEXT_BYTES_PER_BYTE: u64 = 3;
const PATTERN_BYTES_PER_BYTE: u64 = 64;

/// Decodes an uncompressed request. `held` grows by its memory before that is taken. Regular
/// expressions are compiled by [`ReadRequest::compile`].
///
/// # Errors
/// `Invalid` for a malformed request, for response types none of which is known, for a matcher of
/// unknown type, and for too many queries or matchers; `Busy` without memory.
pub fn decode(body: &[u8], held: &mut Reservation) -> Result<ReadRequest> {
    let mut queries = Vec::new();
    let mut accepted = AcceptedTypes::default();
    let mut matcher_count = 0;
    let mut request = Reader::new(body);
    while !request.is_done() {
        let at = request.at();
        match request.key()? {
            (1, WireType::Bytes) => {
                let query = decode_query(request.message()?, &mut matcher_count, held)?;
                if queries.len() == QUERY_COUNT_MAX {
                    return Err(too_many(QUERY_COUNT_MAX, "queries"));
                }
                queries.push(query);
            }
            // Numbers one by one, or all in one field.
            (2, WireType::Varint) => accepted.add(request.varint()?),
            (2, WireType::Bytes) => {
                let mut packed = request.message()?;
                while !packed.is_done() {
                    accepted.add(packed.varint()?);
                }
            }
            (field @ (1 | 2), wire) => return Err(wrong_type(at, "ReadRequest", field, wire)),
            (field, wire) => request.skip(field, wire)?,
        }
    }
    Ok(ReadRequest { queries, response_type: accepted.negotiate()? })
}

impl ReadRequest {
    /// Compiles the regular expressions within the limits of `context`.
    ///
    /// # Errors
    /// As [`Matcher::compile`].
    pub fn compile(&self, context: &QueryContext) -> Result<()> {
        let mut matchers = self.queries.iter().flat_map(|query| &query.matchers);
        matchers.try_for_each(|matcher| matcher.compile(context))
    }
}

impl ReadQuery {
    /// The query without matchers on labels that the server adds itself: an equality with such a
    /// label and its value becomes a matcher for series without the label.
    pub fn without_external(mut self, external: &Labels) -> ReadQuery {
        for matcher in &mut self.matchers {
            let asks_for_it = external.get(matcher.name()) == Some(matcher.value());
            if matcher.op() == MatchOp::Equal && asks_for_it {
                *matcher = Matcher::equal(matcher.name(), "");
            }
        }
        self
    }
}

/// The response types that a client names. A request has room for millions: only the first ones are
/// kept.
#[derive(Debug, Default)]
struct AcceptedTypes {
    supported: Option<ResponseType>,
    named: Vec<u64>,
}

// The types that an error names.
const NAMED_COUNT_MAX: usize = 16;

impl AcceptedTypes {
    fn add(&mut self, number: u64) {
        let supported = match number {
            0 => Some(ResponseType::Samples),
            1 => Some(ResponseType::StreamedXorChunks),
            _ => None,
        };
        self.supported = self.supported.or(supported);
        if self.named.len() < NAMED_COUNT_MAX {
            self.named.push(number);
        }
    }

    /// A client that names no type predates the choice and receives samples.
    fn negotiate(self) -> Result<ResponseType> {
        if self.named.is_empty() {
            return Ok(ResponseType::Samples);
        }
        self.supported.ok_or_else(|| {
            Error::invalid(format!(
                "none of the response types {:?} is supported; request SAMPLES (0) or \
                 STREAMED_XOR_CHUNKS (1)",
                self.named
            ))
        })
    }
}

fn decode_query(
    mut message: Reader<'_>,
    matcher_count: &mut usize,
    held: &mut Reservation,
) -> Result<ReadQuery> {
    let mut query = ReadQuery { range: TimeRange::new(0, 0), matchers: Vec::new() };
    while !message.is_done() {
        let at = message.at();
        match message.key()? {
            (1, WireType::Varint) => query.range.start = message.varint()? as Timestamp,
            (2, WireType::Varint) => query.range.end = message.varint()? as Timestamp,
            (3, WireType::Bytes) => {
                *matcher_count = matcher_count.saturating_add(1);
                if *matcher_count > MATCHER_COUNT_MAX {
                    return Err(too_many(MATCHER_COUNT_MAX, "matchers"));
                }
                query.matchers.push(decode_matcher(message.message()?, held)?);
            }
            (field @ 1..=3, wire) => return Err(wrong_type(at, "Query", field, wire)),
            (field, wire) => message.skip(field, wire)?,
        }
    }
    Ok(query)
}

fn decode_matcher(mut message: Reader<'_>, held: &mut Reservation) -> Result<Matcher> {
    let (mut kind, mut name, mut value) = (0, &[][..], &[][..]);
    while !message.is_done() {
        let at = message.at();
        match message.key()? {
            (1, WireType::Varint) => kind = message.varint()?,
            (2, WireType::Bytes) => name = message.bytes()?,
            (3, WireType::Bytes) => value = message.bytes()?,
            (field @ 1..=3, wire) => return Err(wrong_type(at, "LabelMatcher", field, wire)),
            (field, wire) => message.skip(field, wire)?,
        }
    }
    let op = match kind {
        0 => MatchOp::Equal,
        1 => MatchOp::NotEqual,
        2 => MatchOp::Regex,
        3 => MatchOp::NotRegex,
        other => {
            return Err(Error::invalid(format!(
                "matcher type {other} does not exist; there are 0 (=), 1 (!=), 2 (=~) and 3 (!~)"
            )));
        }
    };
    let per_byte = match op {
        MatchOp::Equal | MatchOp::NotEqual => TEXT_BYTES_PER_BYTE,
        MatchOp::Regex | MatchOp::NotRegex => PATTERN_BYTES_PER_BYTE,
    };
    let text_bytes = (name.len() as u64).saturating_add(value.len() as u64);
    held.grow(text_bytes.saturating_mul(per_byte).saturating_add(MATCHER_BYTES))?;
    let (name, value) = (text("name of a matcher", name)?, text("value of a matcher", value)?);
    Ok(Matcher::parsed(name, op, value))
}

fn text<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str> {
    utf8(what, bytes).map_err(|fault| match fault {
        LabelFault::Malformed(error) | LabelFault::Refused(error) => error,
    })
}

fn too_many(count_max: usize, items: &str) -> Error {
    Error::invalid(format!("the request has over {count_max} {items}: send several requests"))
}
