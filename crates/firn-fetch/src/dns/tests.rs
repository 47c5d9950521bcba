use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;

use super::*;

/// The answer to the bytes of a query, and whether it came over TCP. `None` is silence.
type Zone = dyn Fn(&[u8], bool) -> Option<Vec<u8>> + Send + Sync;

/// A name server on one port of UDP and TCP, which keeps the names of its queries.
struct NameServer {
    address: SocketAddr,
    names: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    async fn start(
        respond: impl Fn(&[u8], bool) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        // A port that is free for both.
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let respond: Arc<Zone> = Arc::new(respond);
        let names = Arc::<Mutex<Vec<String>>>::default();
        let (seen, answer) = (Arc::clone(&names), Arc::clone(&respond));
        tokio::spawn(async move {
            let mut query = [0; 4_096];
            while let Ok((len, client)) = udp.recv_from(&mut query).await {
                seen.lock().unwrap().push(asked(&query[..len]));
                if let Some(answer) = answer(&query[..len], false) {
                    udp.send_to(&answer, client).await.unwrap();
                }
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut query = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut query).await.unwrap();
                if let Some(answer) = respond(&query, true) {
                    stream.write_all(&(answer.len() as u16).to_be_bytes()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        });
        NameServer { address, names }
    }

    fn names(&self) -> Vec<String> {
        std::mem::take(&mut *self.names.lock().unwrap())
    }
}

/// The name of a query.
fn asked(query: &[u8]) -> String {
    let mut name = String::new();
    let mut pos = 12;
    while query[pos] > 0 {
        let end = pos + 1 + usize::from(query[pos]);
        name += &format!("{}.", String::from_utf8_lossy(&query[pos + 1..end]));
        pos = end;
    }
    name
}

/// An answer with `count` addresses.
fn answer(query: &[u8], code: u8, count: u8) -> Vec<u8> {
    let end = 12 + asked(query).len() + 5;
    let mut answer = query[..end].to_vec();
    answer[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    for idx in 0..count {
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 0, 0, idx]);
    }
    answer
}

fn truncated(query: &[u8]) -> Vec<u8> {
    let mut answer = answer(query, 0, 0);
    answer[2] |= 2;
    answer
}

/// A lookup of servers that all answer.
async fn lookup(name: &str, servers: &[&NameServer]) -> Result<usize, String> {
    lookup_within(10_000, name, servers).await
}

/// A lookup with a short time limit for each query.
async fn lookup_briefly(name: &str, servers: &[&NameServer]) -> Result<usize, String> {
    lookup_within(200, name, servers).await
}

async fn lookup_within(
    timeout_ms: u64,
    name: &str,
    servers: &[&NameServer],
) -> Result<usize, String> {
    let settings = DnsSettings {
        servers: servers.iter().map(|server| server.address).collect(),
        timeout: Duration::from_millis(timeout_ms),
        ..DnsSettings::parse("search a.example b.example")
    };
    let found = records(name, DnsKind::A, &settings).await;
    found.map(|records| records.len()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_search_list_ends_at_the_first_name_that_exists() {
    let server = NameServer::start(|query, _| {
        let name = asked(query);
        Some(match name.as_str() {
            "x.b.example." => answer(query, 0, 2),
            "empty.a.example." => answer(query, 0, 0),
            _ => answer(query, NO_SUCH_NAME, 0),
        })
    })
    .await;
    assert_eq!(lookup("x", &[&server]).await, Ok(2));
    assert_eq!(server.names(), ["x.a.example.", "x.b.example."]);
    // A name without records of this kind exists, too.
    assert_eq!(lookup("empty", &[&server]).await, Ok(0));
    assert_eq!(server.names(), ["empty.a.example."]);
    // No name exists: there are no records, which is no error.
    assert_eq!(lookup("y.z", &[&server]).await, Ok(0));
    assert_eq!(server.names(), ["y.z.", "y.z.a.example.", "y.z.b.example."]);
    assert!(lookup("a..b", &[&server]).await.unwrap_err().contains("1 to 63 bytes"));
}

#[tokio::test]
async fn the_next_server_is_asked_after_a_failure() {
    let failing = NameServer::start(|query, _| Some(answer(query, 2, 0))).await;
    let silent = NameServer::start(|_, _| None).await;
    let good = NameServer::start(|query, _| Some(answer(query, 0, 1))).await;
    // The time that a silent server takes; the others answer within it.
    assert_eq!(lookup_within(1_000, "x.", &[&failing, &silent, &good]).await, Ok(1));
    let error = lookup_within(1_000, "x.", &[&silent, &failing]).await.unwrap_err();
    assert!(error.contains("lookup x.: server 127.0.0.1: code 2"), "{error}");
    assert_eq!(failing.names().len(), 3);
    let error = lookup_briefly("x.", &[&silent]).await.unwrap_err();
    assert!(error.contains("i/o timeout"), "{error}");
}

// A name of the search list whose servers fail may exist: the list before it stays.
#[tokio::test]
async fn a_failure_is_no_missing_name() {
    let server = NameServer::start(|query, _| {
        let code = if asked(query) == "x.a.example." { 2 } else { NO_SUCH_NAME };
        Some(answer(query, code, 0))
    })
    .await;
    assert!(lookup("x", &[&server]).await.is_err());
}

#[tokio::test]
async fn a_truncated_answer_is_read_over_tcp() {
    let server = NameServer::start(|query, is_tcp| {
        Some(if is_tcp { answer(query, 0, 200) } else { truncated(query) })
    })
    .await;
    assert_eq!(lookup("x.", &[&server]).await, Ok(200));
    let server = NameServer::start(|query, _| Some(truncated(query))).await;
    assert!(lookup("x.", &[&server]).await.unwrap_err().contains("truncated over TCP"));
    let server = NameServer::start(|query, is_tcp| (!is_tcp).then(|| truncated(query))).await;
    assert!(lookup_briefly("x.", &[&server]).await.is_err());
    let server = NameServer::start(|query, is_tcp| {
        let mut forged = answer(query, 0, 1);
        forged[0] ^= 1;
        Some(if is_tcp { forged } else { truncated(query) })
    })
    .await;
    assert!(lookup("x.", &[&server]).await.unwrap_err().contains("another query"));
}

#[tokio::test]
async fn forged_answers_are_ignored() {
    let server = NameServer::start(|query, _| {
        let mut forged = answer(query, 0, 1);
        forged[0] ^= 1;
        Some(forged)
    })
    .await;
    assert!(lookup_briefly("x.", &[&server]).await.unwrap_err().contains("i/o timeout"));
}

// Old servers refuse the extension, so later attempts do without.
#[tokio::test]
async fn a_server_without_extensions_is_asked_again() {
    let server = NameServer::start(|query, _| {
        Some(if query[11] > 0 { answer(query, 1, 0) } else { answer(query, 0, 1) })
    })
    .await;
    assert_eq!(lookup("x.", &[&server]).await, Ok(1));
}

/// Messages of an attacker, to a query for an address: each is a failed lookup, over UDP and TCP.
#[tokio::test]
async fn messages_of_an_attacker_are_failed_lookups() {
    let changed = |at_end: usize, bytes: &'static [u8]| {
        move |query: &[u8]| {
            let mut answer = answer(query, 0, 2);
            let at = answer.len() - at_end;
            answer[at..at + bytes.len()].copy_from_slice(bytes);
            answer
        }
    };
    type Make = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;
    let makes: Vec<(&str, Make)> = vec![
        ("no byte", Box::new(|_| Vec::new())),
        ("one byte", Box::new(|query| vec![query[0]])),
        ("the query", Box::new(<[u8]>::to_vec)),
        ("noise", Box::new(|query| (0..1_200).map(|idx| (idx * 31) as u8 ^ query[0]).collect())),
        ("half a record", Box::new(|query| answer(query, 0, 2)[..40].to_vec())),
        (
            "more records than there are",
            Box::new(|query| {
                let mut answer = answer(query, 0, 1);
                answer[6..8].copy_from_slice(&[0xff, 0xff]);
                answer
            }),
        ),
        (
            "another question",
            Box::new(|query| {
                let mut answer = answer(query, 0, 1);
                answer[13] ^= 0x81;
                answer
            }),
        ),
        ("a record of 64 KiB", Box::new(changed(6, b"\xff\xff"))),
        ("an address of 3 bytes", Box::new(changed(6, b"\0\x03"))),
        ("a name that refers to the end", Box::new(changed(16, b"\xff\xff"))),
        ("a name that refers to itself", Box::new(changed(16, b"\xc0\x23"))),
        ("a name with another kind of part", Box::new(changed(16, b"\x80\x0c"))),
        ("a name that does not end", Box::new(changed(16, b"\x3f\x3f"))),
    ];
    for (name, make) in makes {
        let make = Arc::new(make);
        let (over_udp, over_tcp) = (Arc::clone(&make), make);
        let server = NameServer::start(move |query, _| Some(over_udp(query))).await;
        assert!(lookup_briefly("x.", &[&server]).await.is_err(), "{name}");
        let server = NameServer::start(move |query, is_tcp| {
            Some(if is_tcp { over_tcp(query) } else { truncated(query) })
        })
        .await;
        assert!(lookup_briefly("x.", &[&server]).await.is_err(), "{name} over TCP");
    }
}

/// A server announces 64 KiB over TCP, and sends them byte by byte, or not at all: the time limit
/// of a query ends each attempt. Another one sends datagrams without end.
#[tokio::test]
async fn servers_that_do_not_end_are_failed_lookups() {
    for drips in [false, true] {
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 4_096];
            while let Ok((len, client)) = udp.recv_from(&mut query).await {
                udp.send_to(&truncated(&query[..len]), client).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                tokio::spawn(async move {
                    stream.write_all(b"\xff\xff").await.unwrap();
                    while drips && stream.write_all(b"x").await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        let server = NameServer { address, names: Arc::default() };
        let error = lookup_briefly("x.", &[&server]).await.unwrap_err();
        assert!(error.contains("i/o timeout"), "{error}");
    }
    let udp = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let address = udp.local_addr().unwrap();
    tokio::spawn(async move {
        let mut query = [0; 4_096];
        let (len, client) = udp.recv_from(&mut query).await.unwrap();
        let mut forged = answer(&query[..len], 0, 1);
        forged[0] ^= 1;
        // The socket of an attempt that has ended refuses.
        while udp.send_to(&forged, client).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    let server = NameServer { address, names: Arc::default() };
    assert!(lookup_briefly("x.", &[&server]).await.unwrap_err().contains("i/o timeout"));
}
