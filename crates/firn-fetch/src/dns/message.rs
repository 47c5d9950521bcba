//! Messages of DNS (RFC 1035): one query, and an answer that anyone may have sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use firn_collect::discovery::{DnsKind, DnsRecord};

pub(super) const NO_ERROR: u8 = 0;
pub(super) const NO_SUCH_NAME: u8 = 3;

const FORMAT_ERROR: u8 = 1;

/// The longest datagram that is requested: longer ones are split and lost on some ways.
pub(super) const DATAGRAM_BYTES_MAX: u16 = 1_232;

const HEADER_BYTES: usize = 12;
// The longest name, without its last byte, which is the length of the root.
const NAME_BYTES_MAX: usize = 254;
const LABEL_BYTES_MAX: usize = 63;
const INTERNET: u16 = 1;
// The pseudo record of RFC 6891 that names the longest datagram.
const EXTENSION: u16 = 41;

/// A query for the records of one kind.
#[derive(Debug)]
pub(super) struct Query {
    kind: DnsKind,
    bytes: Vec<u8>,
    question: std::ops::Range<usize>,
}

/// An answer to a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: u8,
    pub(super) is_truncated: bool,
    pub(super) records: Vec<DnsRecord>,
}

impl Query {
    /// # Errors
    /// If `name` is too long, or has an empty part.
    pub(super) fn new(id: u16, name: &str, kind: DnsKind, extended: bool) -> Result<Query, String> {
        let mut bytes = id.to_be_bytes().to_vec();
        // The server looks the name up, wherever it is; one question.
        bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(extended)]);
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.len() > NAME_BYTES_MAX {
            return Err("the name is longer than 255 bytes".to_owned());
        }
        for label in name.split('.').filter(|_| !name.is_empty()) {
            match u8::try_from(label.len()) {
                Ok(len) if (1..=LABEL_BYTES_MAX).contains(&label.len()) => bytes.push(len),
                _ => return Err("a part of the name has not 1 to 63 bytes".to_owned()),
            }
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend_from_slice(&type_of(kind).to_be_bytes());
        bytes.extend_from_slice(&INTERNET.to_be_bytes());
        let question = HEADER_BYTES..bytes.len();
        if extended {
            bytes.push(0);
            bytes.extend_from_slice(&EXTENSION.to_be_bytes());
            bytes.extend_from_slice(&DATAGRAM_BYTES_MAX.to_be_bytes());
            bytes.extend_from_slice(&[0; 6]);
        }
        Ok(Query { kind, bytes, question })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads a message; `None` if it is no answer to this query.
    pub(super) fn answer(&self, message: &[u8]) -> Option<Result<Answer, String>> {
        let header = message.first_chunk::<HEADER_BYTES>()?;
        let [_, _, flags, code, questions @ .., _, _, _, _, _, _] = header;
        let is_answer = message.get(..2) == self.bytes.get(..2) && flags & 0xf8 == 0x80;
        if !is_answer {
            return None;
        }
        let (code, is_truncated) = (code & 0x0f, flags & 0x02 != 0);
        let answer = |records| Answer { code, is_truncated, records };
        if *questions == [0, 0] && code == FORMAT_ERROR {
            return Some(Ok(answer(Vec::new())));
        }
        let question = self.bytes.get(self.question.clone())?;
        let after_question = self.question.end;
        let asked = message.get(self.question.clone())?;
        if *questions != [0, 1] || !asked.eq_ignore_ascii_case(question) {
            return None;
        }
        // The records of a truncated answer are read over TCP.
        if is_truncated || code != NO_ERROR {
            return Some(Ok(answer(Vec::new())));
        }
        let [.., high, low, _, _, _, _] = header;
        let count = u16::from_be_bytes([*high, *low]);
        let records = records(message, after_question, count, self.kind);
        Some(records.map(answer).ok_or_else(|| "the answer is malformed".to_owned()))
    }
}

fn type_of(kind: DnsKind) -> u16 {
    match kind {
        DnsKind::A => 1,
        DnsKind::Ns => 2,
        DnsKind::Mx => 15,
        DnsKind::Aaaa => 28,
        DnsKind::Srv => 33,
    }
}

/// The records of `kind` among `count` records at `pos`. Others are aliases of the name.
fn records(message: &[u8], mut pos: usize, count: u16, kind: DnsKind) -> Option<Vec<DnsRecord>> {
    let mut found = Vec::new();
    for _ in 0..count {
        pos = name_at(message, pos)?.1;
        let head = message.get(pos..)?.first_chunk::<10>()?;
        let [type_high, type_low, class_high, class_low, _, _, _, _, len_high, len_low] = *head;
        let start = pos.checked_add(head.len())?;
        let end = start.checked_add(u16::from_be_bytes([len_high, len_low]).into())?;
        let is_wanted = u16::from_be_bytes([type_high, type_low]) == type_of(kind)
            && u16::from_be_bytes([class_high, class_low]) == INTERNET;
        let data = message.get(start..end)?;
        if is_wanted {
            found.push(record(message, start, data, kind)?);
        }
        pos = end;
    }
    Some(found)
}

fn record(message: &[u8], start: usize, data: &[u8], kind: DnsKind) -> Option<DnsRecord> {
    // A name ends with its record; it may refer to the part of the message before.
    let name = |skipped: usize| {
        let (name, end) = name_at(message, start.checked_add(skipped)?)?;
        (end == start.checked_add(data.len())?).then_some(name)
    };
    Some(match kind {
        DnsKind::A => {
            DnsRecord::Address(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)))
        }
        DnsKind::Aaaa => {
            DnsRecord::Address(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)))
        }
        DnsKind::Ns => DnsRecord::NameServer(name(0)?),
        DnsKind::Mx => DnsRecord::MailServer(name(2)?),
        DnsKind::Srv => {
            let [_, _, _, _, high, low] = *data.first_chunk::<6>()?;
            DnsRecord::Service { target: name(6)?, port: u16::from_be_bytes([high, low]) }
        }
    })
}

/// The name at `pos`, and the place behind it.
fn name_at(message: &[u8], mut pos: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut bytes: usize = 0;
    let mut end = None;
    // References lead backwards, each before the part that it is in: there are no loops.
    let mut part_start = pos;
    loop {
        let len = *message.get(pos)?;
        let next = pos.checked_add(1)?;
        match len {
            0 => {
                end.get_or_insert(next);
                break;
            }
            1..=0x3f => {
                let label_end = next.checked_add(len.into())?;
                bytes = bytes.saturating_add(usize::from(len)).saturating_add(1);
                if bytes > NAME_BYTES_MAX {
                    return None;
                }
                push_label(&mut name, message.get(next..label_end)?);
                pos = label_end;
            }
            0xc0..=0xff => {
                end.get_or_insert(next.checked_add(1)?);
                let target = u16::from_be_bytes([len & 0x3f, *message.get(next)?]).into();
                if target >= part_start {
                    return None;
                }
                (pos, part_start) = (target, target);
            }
            _ => return None,
        }
    }
    if name.is_empty() {
        name.push('.');
    }
    Some((name, end?))
}

/// Appends a part of a name as zone files write it, with its dot.
fn push_label(name: &mut String, label: &[u8]) {
    for byte in label {
        match byte {
            b'.' | b' ' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\' => {
                name.push('\\');
                name.push(char::from(*byte));
            }
            b'!'..=b'~' => name.push(char::from(*byte)),
            _ => *name += &format!("\\{byte:03}"),
        }
    }
    name.push('.');
}

#[cfg(test)]
mod tests;
