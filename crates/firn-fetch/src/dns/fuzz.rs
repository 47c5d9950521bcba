//! The check that the fuzzer in `fuzz/` runs on answers of name servers. Compiled for tests and
//! fuzzers only.

use firn_collect::discovery::{DnsKind, DnsRecord};

use super::message::Query;

const KINDS: [DnsKind; 5] = [DnsKind::A, DnsKind::Aaaa, DnsKind::Mx, DnsKind::Ns, DnsKind::Srv];
// Each of 254 bytes may take four characters.
const NAME_BYTES_MAX: usize = 4 * 254 + 1;

/// A message. The first byte chooses the kind of records; with its highest bit the rest is a whole
/// message, else the number of records and the records after a valid header and question.
///
/// # Panics
/// If a name is too long or not absolute, if there are more records than the message has room for,
/// or for a long message of an error.
pub fn dns_message(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let Some(kind) = KINDS.get(usize::from(first & 0x7f) % KINDS.len()) else { return };
    let Ok(query) = Query::new(0x1234, "_p._tcp.example.", *kind, false) else { return };
    let message = match (first & 0x80, rest.split_at_checked(2)) {
        (0, Some((count, records))) => {
            let question = query.bytes().get(12..).unwrap_or_default();
            let head = [b"\x12\x34\x81\x80\0\x01", count, b"\0\0\0\0"].concat();
            [&head, question, records].concat()
        }
        _ => rest.to_vec(),
    };
    match query.answer(&message) {
        None => {}
        Some(Err(error)) => assert!(error.len() <= 100, "{error:.200}"),
        Some(Ok(answer)) => {
            // A reference, and ten bytes before the data.
            assert!(answer.records.len() <= message.len() / 12);
            answer.records.iter().for_each(check_record);
        }
    }
}

fn check_record(record: &DnsRecord) {
    let name = match record {
        DnsRecord::Address(_) => return,
        DnsRecord::MailServer(name) | DnsRecord::NameServer(name) => name,
        DnsRecord::Service { target, .. } => target,
    };
    assert!(name.ends_with('.') && name.len() <= NAME_BYTES_MAX, "{name}");
    assert!(name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{name}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `xtask/src/corpus.rs` writes it.
    const CORPUS: &[u8] = include_bytes!("../../../../fuzz/corpus/dns_message.pack");

    #[test]
    fn the_corpus_passes() {
        let mut rest = CORPUS.strip_prefix(b"firn-corpus-1\n").expect("a corpus");
        while let Some((len, behind)) = rest.split_first_chunk() {
            let (input, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
            dns_message(input);
            rest = behind;
        }
    }

    #[test]
    fn messages_pass() {
        dns_message(b"");
        dns_message(b"\x04");
        dns_message(b"\x04\0\x01\xc0\x0c\0\x21\0\x01\0\0\0\x3c\0\x09\0\0\0\0\0\x50\x01h\0");
        dns_message(b"\x00\xff\xff\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\0\0\x01");
        dns_message(b"\x84\x12\x34\x81\x82\0\x01\0\0\0\0\0\0\x02_p");
        // A name that refers to itself, and one that refers to the end.
        dns_message(b"\x03\0\x01\xc0\x0c\0\x02\0\x01\0\0\0\x3c\0\x02\xc0\x2c");
        dns_message(b"\x03\0\x01\xc0\x0c\0\x02\0\x01\0\0\0\x3c\0\x02\xff\xff");
    }
}
