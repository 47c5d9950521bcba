//! The vocabulary of the tables: requests, actions and expectations.

use std::time::Duration;

use crate::client::{Answer, CLOSED, Request};
use crate::target::{Setup, Target};

/// Attacks of one kind, on one server.
pub(crate) struct Family {
    /// The word that selects it.
    pub(crate) name: &'static str,
    /// The server under attack.
    pub(crate) setup: Setup,
    /// In the order in which they run.
    pub(crate) attacks: Vec<Attack>,
}

impl Family {
    /// A family without attacks yet.
    pub(crate) fn new(name: &'static str, setup: Setup) -> Family {
        Family { name, setup, attacks: Vec::new() }
    }

    /// Adds attacks that share a reason.
    pub(crate) fn because(
        mut self,
        reason: &'static str,
        attacks: impl IntoIterator<Item = Attack>,
    ) -> Family {
        self.attacks.extend(attacks.into_iter().map(|attack| Attack { reason, ..attack }));
        self
    }

    /// Makes the attacks with these names a part of the short run.
    pub(crate) fn with_quick(mut self, names: &[&str]) -> Family {
        for name in names {
            let attack = self.attacks.iter_mut().find(|attack| attack.name == *name);
            attack.expect("the list names attacks of the family").is_quick = true;
        }
        self
    }
}

/// One row of a table.
pub(crate) struct Attack {
    pub(crate) name: String,
    /// The property that the server must have.
    pub(crate) reason: &'static str,
    pub(crate) action: Action,
    pub(crate) expect: Expect,
    /// Part of the short run in `make test`.
    pub(crate) is_quick: bool,
}

/// A row: a name, an action, and the expected responses.
pub(crate) fn attack(name: impl Into<String>, action: impl Into<Action>, expect: Expect) -> Attack {
    Attack { name: name.into(), reason: "", action: action.into(), expect, is_quick: false }
}

impl Attack {
    /// Part of the short run.
    pub(crate) fn quick(mut self) -> Attack {
        self.is_quick = true;
        self
    }

    /// With further expectations.
    pub(crate) fn with(self, change: impl FnOnce(Expect) -> Expect) -> Attack {
        Attack { expect: change(self.expect), ..self }
    }
}

/// A function that sends, and returns the responses.
pub(crate) type Script = Box<dyn Fn(&Target) -> Vec<Answer>>;

/// The attacker's side.
pub(crate) enum Action {
    /// One request on a connection of its own.
    Send(Request),
    /// As many clients at the same time, each of which sends the request several times.
    Flood { request: Request, clients: usize, times: usize },
    /// Bytes on one connection. The responses until the server closes it, or has been silent.
    Raw(Vec<u8>),
    /// Connections that send these bytes and then nothing, for a time.
    Hold { bytes: Vec<u8>, connections: usize, time: Duration },
    /// Connections that send a byte, wait, send the next, for a time.
    Drip { bytes: Vec<u8>, connections: usize, pause: Duration, time: Duration },
    /// Connections that send a request and do not read the response, for a time.
    Deaf { request: Request, connections: usize, time: Duration },
    /// Any other behaviour.
    Script(Script),
}

impl From<Request> for Action {
    fn from(request: Request) -> Action {
        Action::Send(request)
    }
}

/// The request from many clients at once.
pub(crate) fn flood(clients: usize, times: usize, request: Request) -> Action {
    Action::Flood { request, clients, times }
}

/// Bytes as they are.
pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Action {
    Action::Raw(bytes.into())
}

/// Silent connections.
pub(crate) fn hold(connections: usize, seconds: u64, bytes: impl Into<Vec<u8>>) -> Action {
    Action::Hold { bytes: bytes.into(), connections, time: Duration::from_secs(seconds) }
}

/// Slow senders.
pub(crate) fn drip(
    connections: usize,
    pause_ms: u64,
    seconds: u64,
    bytes: impl Into<Vec<u8>>,
) -> Action {
    Action::Drip {
        bytes: bytes.into(),
        connections,
        pause: Duration::from_millis(pause_ms),
        time: Duration::from_secs(seconds),
    }
}

/// Clients that do not read.
pub(crate) fn deaf(connections: usize, seconds: u64, request: Request) -> Action {
    Action::Deaf { request, connections, time: Duration::from_secs(seconds) }
}

/// A function.
pub(crate) fn script(run: impl Fn(&Target) -> Vec<Answer> + 'static) -> Action {
    Action::Script(Box::new(run))
}

/// A further check of all responses.
pub(crate) type Check = Box<dyn Fn(&[Answer], &Target) -> Result<(), String>>;

/// Responses that are right.
pub(crate) struct Expect {
    statuses: Vec<u16>,
    contains: Vec<&'static str>,
    lacks: Vec<&'static str>,
    check: Option<Check>,
    time_max: Duration,
    body_bytes_max: u64,
}

// An error message repeats at most an excerpt of the request, once escaped.
const ERROR_BYTES_MAX: u64 = 8 << 10;
// Longer than the query timeout of the server under attack.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Each response has one of these statuses.
pub(crate) fn status(statuses: impl IntoIterator<Item = u16>) -> Expect {
    Expect {
        statuses: statuses.into_iter().collect(),
        contains: Vec::new(),
        lacks: Vec::new(),
        check: None,
        time_max: TIME_MAX,
        body_bytes_max: u64::MAX,
    }
}

/// Success with an answer.
pub(crate) fn ok() -> Expect {
    status([200])
}

/// Success of a write.
pub(crate) fn written() -> Expect {
    status([204])
}

/// The request is malformed.
pub(crate) fn bad() -> Expect {
    status([400])
}

/// Refused for the work or memory that it needs; a retry or a smaller request may help.
pub(crate) fn limited() -> Expect {
    status([400, 413, 422, 429, 503, 500])
}

/// Any outcome with one of the usual statuses: only the process, its memory and data count.
pub(crate) fn survived() -> Expect {
    status([200, 204, 400, 404, 405, 413, 415, 422, 429, 500, 503, CLOSED])
}

/// A malformed frame: refused, or the connection is closed.
pub(crate) fn not_served() -> Expect {
    status([400, 405, 408, 411, 413, 414, 417, 431, 501, 505, CLOSED])
}

impl Expect {
    /// Also allowed.
    pub(crate) fn or(mut self, status: u16) -> Expect {
        self.statuses.push(status);
        self
    }

    /// The head or body of each response contains the text.
    pub(crate) fn contains(mut self, text: &'static str) -> Expect {
        self.contains.push(text);
        self
    }

    /// Neither head nor body of any response contains the text.
    pub(crate) fn lacks(mut self, text: &'static str) -> Expect {
        self.lacks.push(text);
        self
    }

    /// Checks all responses together.
    pub(crate) fn check(
        mut self,
        check: impl Fn(&[Answer], &Target) -> Result<(), String> + 'static,
    ) -> Expect {
        self.check = Some(Box::new(check));
        self
    }

    /// The attack ends within this time, in the short run within a multiple of it.
    pub(crate) fn within(mut self, seconds: u64) -> Expect {
        self.time_max = Duration::from_secs(seconds);
        self
    }

    /// Bodies are no longer than this.
    pub(crate) fn at_most_bytes(mut self, bytes: u64) -> Expect {
        self.body_bytes_max = bytes;
        self
    }

    /// Whether a response may have the status.
    pub(crate) fn allows(&self, status: u16) -> bool {
        self.statuses.contains(&status)
    }

    /// The first difference.
    pub(crate) fn verify(
        &self,
        answers: &[Answer],
        took: Duration,
        target: &Target,
    ) -> Result<(), String> {
        if answers.is_empty() {
            return Err("no connection was made".to_owned());
        }
        for answer in answers {
            self.verify_one(answer)?;
        }
        let time_max = target.limit(self.time_max);
        if took > time_max {
            return Err(format!("took {took:.1?}, expected at most {time_max:.0?}"));
        }
        self.check.as_ref().map_or(Ok(()), |check| check(answers, target))
    }

    fn verify_one(&self, answer: &Answer) -> Result<(), String> {
        let shown = || answer.excerpt();
        if !self.allows(answer.status) {
            return Err(format!("{}, expected {:?}", shown(), self.statuses));
        }
        let is_error = answer.status >= 400;
        if is_error && answer.body_bytes == 0 && !answer.is_head {
            return Err(format!("an error without a body: {}", shown()));
        }
        if is_error && answer.body_bytes > ERROR_BYTES_MAX {
            return Err(format!("an error of {} bytes: {}", answer.body_bytes, shown()));
        }
        let is_fault =
            |text: &str| ["\"internal\"", "bug", "panic"].iter().any(|word| text.contains(word));
        if answer.status == 500 && is_fault(&answer.text()) {
            return Err(format!("an internal error: {}", shown()));
        }
        if answer.body_bytes > self.body_bytes_max {
            return Err(format!("a body of {} bytes: {}", answer.body_bytes, shown()));
        }
        let text = answer.text();
        for wanted in &self.contains {
            if !text.contains(wanted) {
                return Err(format!("{wanted:?} is missing: {}", shown()));
            }
        }
        match self.lacks.iter().find(|unwanted| text.contains(**unwanted)) {
            Some(unwanted) => Err(format!("contains {unwanted:?}: {}", shown())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::SILENT;

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status,
            body: body.as_bytes().to_vec(),
            body_bytes: body.len() as u64,
            ..Answer::default()
        }
    }

    #[test]
    fn every_kind_of_fault_is_found() {
        let f = |expect: Expect, found: Answer, want: &str| match expect.verify_one(&found) {
            Ok(()) => assert_eq!(want, "", "{}", found.excerpt()),
            Err(fault) => assert!(!want.is_empty() && fault.contains(want), "{fault}"),
        };
        f(ok(), answer(200, ""), "");
        f(ok(), answer(204, ""), "expected [200]");
        f(bad(), answer(400, "why"), "");
        f(bad(), answer(400, ""), "without a body");
        f(bad(), answer(400, &"x".repeat(10_000)), "an error of 10000 bytes");
        f(limited(), answer(500, "unavailable: no memory"), "");
        f(limited(), answer(500, "a request failed by a bug"), "an internal error");
        f(ok().contains("yes"), answer(200, "no"), "missing");
        f(ok().lacks("secret"), answer(200, "a secret"), "contains");
        f(ok().at_most_bytes(3), answer(200, "long"), "a body of 4 bytes");
        f(bad().or(CLOSED), Answer::of_status(CLOSED), "");
        f(bad(), Answer::of_status(SILENT), "silent");
    }
}
