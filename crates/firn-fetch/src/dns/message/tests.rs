use super::*;

fn query(kind: DnsKind) -> Query {
    Query::new(0x1234, "_p._tcp.example.", kind, true).unwrap()
}

/// An answer to `query` with `count` records in `records`.
fn answer(query: &Query, count: u16, records: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x81, 0x80, 0, 1];
    bytes.extend_from_slice(&count.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&query.bytes()[query.question.clone()]);
    bytes.extend_from_slice(records);
    bytes
}

/// A record of the name of the question.
fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xc0, 12];
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
    bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn read(kind: DnsKind, count: u16, records: &[u8]) -> Result<Vec<DnsRecord>, String> {
    let query = query(kind);
    query.answer(&answer(&query, count, records)).unwrap().map(|answer| answer.records)
}

#[test]
fn a_query_has_one_question() {
    let bytes = Query::new(0xabcd, "a.bc.", DnsKind::Srv, false).unwrap().bytes;
    assert_eq!(bytes, b"\xab\xcd\x01\0\0\x01\0\0\0\0\0\0\x01a\x02bc\0\0\x21\0\x01");
    let bytes = Query::new(0, ".", DnsKind::Ns, true).unwrap().bytes;
    assert_eq!(bytes, b"\0\0\x01\0\0\x01\0\0\0\0\0\x01\0\0\x02\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0");
    let long = "a".repeat(63);
    let name = [long.as_str(); 4].join(".");
    for (name, is_valid) in [
        (long.clone(), true),
        ("a".repeat(64), false),
        ("a..b".to_owned(), false),
        (".a".to_owned(), false),
        (name[..253].to_owned(), true),
        (name, false),
    ] {
        assert_eq!(Query::new(0, &name, DnsKind::A, true).is_ok(), is_valid, "{name}");
    }
}

#[test]
fn records_of_the_kind_are_read() {
    // A server that the first byte of the question's `example` names, and a whole name.
    let compressed = record(33, b"\0\x01\0\x02\x23\x82\x01h\xc0\x14");
    let whole = record(33, b"\0\0\0\0\0\x50\x01H\x02x;\0");
    let alias = record(5, b"\xc0\x0c");
    let all = [alias, compressed, whole].concat();
    assert_eq!(
        read(DnsKind::Srv, 3, &all).unwrap(),
        [
            DnsRecord::Service { target: "h.example.".to_owned(), port: 9090 },
            DnsRecord::Service { target: "H.x\\;.".to_owned(), port: 80 },
        ]
    );
    let mail = record(15, b"\0\x0a\x01m\xc0\x14");
    assert_eq!(read(DnsKind::Mx, 1, &mail).unwrap(), [DnsRecord::MailServer("m.example.".into())]);
    let server = record(2, b"\0");
    assert_eq!(read(DnsKind::Ns, 1, &server).unwrap(), [DnsRecord::NameServer(".".into())]);
    let address = record(1, &[10, 0, 0, 1]);
    let want = DnsRecord::Address("10.0.0.1".parse().unwrap());
    assert_eq!(read(DnsKind::A, 1, &address).unwrap(), [want]);
    let mut address = [0; 16];
    address[15] = 1;
    let want = DnsRecord::Address("::1".parse().unwrap());
    assert_eq!(read(DnsKind::Aaaa, 1, &record(28, &address)).unwrap(), [want]);
    assert_eq!(read(DnsKind::Srv, 0, &[]).unwrap(), []);
}

#[test]
fn malformed_answers_are_refused() {
    // The record begins at byte 33: names there are at 33, its data at 45.
    let srv = |name: &[u8]| record(33, &[b"\0\0\0\0\0\x01", name].concat());
    let long: Vec<u8> = [&[63][..], &[b'a'; 63]].concat();
    let long = [long.repeat(4), vec![0]].concat();
    for (records, why) in [
        (srv(b"\xc0\x33"), "a name that refers to itself"),
        (srv(b"\x01a\xc0\x33"), "a name that refers to its beginning"),
        (srv(b"\xc0\xff"), "a name that refers to a later place"),
        (srv(b"\xff\xff"), "a name that refers behind the end"),
        (srv(b"\xc0"), "half a reference"),
        (srv(b"\x40a\0"), "a part of an unknown kind"),
        (srv(b"\x05a\0"), "a part that is longer than the record"),
        (srv(b"\x01a\0\0"), "data behind the name"),
        (srv(b""), "no name"),
        (srv(&long), "a name of more than 255 bytes"),
        (record(33, b"\0\0"), "a record without a port"),
        (record(33, b"\0\0\0\0\0\x01\0")[..12].to_vec(), "data that is missing"),
        (record(33, b"\0\0\0\0\0\x01\0")[..5].to_vec(), "half a record"),
        (Vec::new(), "no record"),
    ] {
        assert!(read(DnsKind::Srv, 1, &records).is_err(), "{why}");
    }
    assert!(read(DnsKind::A, 1, &record(1, &[1, 2, 3])).is_err());
    assert!(read(DnsKind::Aaaa, 1, &record(28, &[1, 2, 3, 4])).is_err());
}

// Pointers to pointers: each leads to the part before, so that the work is bounded.
#[test]
fn chains_of_references_end() {
    let query = query(DnsKind::Ns);
    let mut message = answer(&query, 1, &[]);
    let mut target = 12_u16;
    let head_at = message.len();
    message.extend_from_slice(&record(16, &[0; 60_000])[..12]);
    while message.len() < 16_000 {
        let at = message.len() as u16;
        message.extend_from_slice(&(target | 0xc000).to_be_bytes());
        target = at;
    }
    let len = (message.len() - head_at - 12) as u16;
    message[head_at + 10..head_at + 12].copy_from_slice(&len.to_be_bytes());
    for _ in 0..3_000 {
        message.extend_from_slice(&record(2, &(target | 0xc000).to_be_bytes()));
    }
    message[6..8].copy_from_slice(&3_001_u16.to_be_bytes());
    let answer = query.answer(&message).unwrap().unwrap();
    assert_eq!(answer.records.len(), 3_000);
    assert_eq!(answer.records[0], DnsRecord::NameServer("_p._tcp.example.".to_owned()));
}

#[test]
fn an_answer_to_another_query_is_ignored() {
    let query = query(DnsKind::A);
    let good = answer(&query, 1, &record(1, &[10, 0, 0, 1]));
    assert!(query.answer(&good).unwrap().is_ok());
    let mut upper = good.clone();
    upper[12..24].make_ascii_uppercase();
    assert!(query.answer(&upper).unwrap().is_ok());
    for (at, byte, why) in [
        (0, 0, "another id"),
        (2, 0x01, "a query"),
        (2, 0x89, "another operation"),
        (5, 0, "no question"),
        (5, 2, "two questions"),
        (14, b'x', "another name"),
        (30, 0x1c, "another type"),
        (32, 3, "another class"),
    ] {
        let mut other = good.clone();
        other[at] = byte;
        assert_eq!(query.answer(&other), None, "{why}");
    }
    for len in 0..33 {
        assert_eq!(query.answer(&good[..len]), None, "{len}");
    }
}

#[test]
fn codes_and_truncation_are_read() {
    let query = query(DnsKind::A);
    let mut message = answer(&query, 9, &[]);
    message[2] |= 2;
    let read = query.answer(&message).unwrap().unwrap();
    assert!(read.is_truncated && read.records.is_empty());
    message[2] &= !2;
    message[3] = 0x83;
    assert_eq!(query.answer(&message).unwrap().unwrap().code, NO_SUCH_NAME);
    // Of a server that does not know extensions.
    let refusal = b"\x12\x34\x80\x01\0\0\0\0\0\0\0\0";
    assert_eq!(query.answer(refusal).unwrap().unwrap().code, FORMAT_ERROR);
}

// Each cut and each changed byte of an answer is an answer, a refusal or no answer.
#[test]
fn changed_answers_do_not_panic() {
    let records = record(33, b"\0\x01\0\x02\x23\x82\x01h\xc0\x14").repeat(3);
    let query = query(DnsKind::Srv);
    let good = answer(&query, 3, &records);
    for len in 0..good.len() {
        assert!(query.answer(&good[..len]).is_none_or(|read| read.is_err()), "{len}");
    }
    for at in 0..good.len() {
        for byte in 0..=255 {
            let mut changed = good.clone();
            changed[at] = byte;
            let _ = query.answer(&changed);
        }
    }
}
