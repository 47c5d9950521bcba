//! Parameters of the API: from the URL and, for a form, from the body, which wins.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::num::IntErrorKind;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Method, Request};
use firn_model::{
    Budget, Error, ErrorKind, Matcher, Pool, QueryContext, Reservation, TimeRange, Timestamp,
    excerpt,
};
use firn_promql::Expr;

use crate::answer::ApiError;
use crate::http::auth::Caller;
use crate::http::body::{self, BodyLimit};
use crate::wire::number::{parse_duration_ns, parse_time};

/// Names and values in the order in which they count.
#[derive(Debug, Default)]
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
    /// The memory of `pairs`.
    _held: Option<Reservation>,
}

// A URL has at most the length of a request's head; its parameters take a multiple of it.
const URL_PARAMS_BYTES_MAX: u64 = 8 << 20;
// As Go's form parser.
const FORM_BYTES_MAX: usize = 10 << 20;
// A longer form takes milliseconds, in which a network thread would serve no other client.
const DECODED_HERE_MAX: usize = 64 << 10;
// A parameter takes 0.1 us, and as much when it is dropped. A URL has room for 32,000: from 200
// clients at once they would keep the network threads from all others for half a second.
pub(crate) const PARAMETER_COUNT_MAX: usize = 2_048;
// Each selector of a request searches the whole index. Programs send some dozens.
const SELECTOR_COUNT_MAX: usize = 1_000;

/// The budget of parameters where the database may not be open.
pub(crate) fn url_budget() -> Budget {
    Budget::unlimited().part(URL_PARAMS_BYTES_MAX)
}

impl Params {
    /// Reads the parameters of `request`. A body counts only with POST or PUT and as a form.
    pub(crate) async fn read(request: Request<Body>, budget: &Budget) -> Result<Params, ApiError> {
        let (parts, body) = request.into_parts();
        let mut pairs = Vec::new();
        let mut held = budget.of_request(Pool::Query, 0);
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
        let is_form = media_type.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded");
        if matches!(parts.method, Method::POST | Method::PUT) && is_form {
            // One that arrives slowly holds memory as a query does.
            let len =
                parts.headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
            let _query = match len {
                Some(0..=DECODED_HERE_MAX) => None,
                _ => {
                    let query = Caller::of_parts(&parts).user.begin_query();
                    Some(query.ok_or_else(ApiError::too_many_queries)?)
                }
            };
            let limit = BodyLimit::form(FORM_BYTES_MAX);
            let form = body::read(&parts.headers, body, limit, (budget, Pool::Query))
                .await
                .map_err(unread_form)?;
            let form_len = form.bytes.len();
            let form_budget = budget.clone();
            let read = move || {
                // Both exist at once, so both decide whether the form can ever fit.
                let (form, mut held) = form.into_parts();
                check_count(&form).map_err(bad_form)?;
                let form_bytes = held.bytes();
                held.grow(decoded_bytes(&form))
                    .map_err(|error| too_long(error, form.len(), &form_budget))?;
                decode(&form, &mut pairs)?;
                drop(form);
                held.shrink(form_bytes);
                Ok::<_, ApiError>((pairs, held))
            };
            let decoded = match form_len {
                0..=DECODED_HERE_MAX => read(),
                _ => tokio::task::spawn_blocking(read)
                    .await
                    .unwrap_or_else(|_| Err(Error::internal("decoding the form panicked").into())),
            };
            (pairs, held) = decoded?;
        }
        if let Some(query) = parts.uri.query() {
            check_count(query.as_bytes()).map_err(bad_form)?;
            let wanted = decoded_bytes(query.as_bytes());
            held.grow(wanted).map_err(|error| too_long(error, query.len(), budget))?;
            decode(query.as_bytes(), &mut pairs)?;
        }
        Ok(Params { pairs, _held: Some(held) })
    }

    /// The parameters of a form.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_form(form: &[u8]) -> Result<Params, ApiError> {
        let mut pairs = Vec::new();
        decode(form, &mut pairs)?;
        Ok(Params { pairs, _held: None })
    }

    /// The first value of `name` that counts; an empty one is the same as none.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let first = self.pairs.iter().find(|pair| pair.0 == name);
        first.map(|pair| pair.1.as_str()).filter(|value| !value.is_empty())
    }

    /// Every value of `name`.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |pair| pair.0 == name).map(|pair| pair.1.as_str())
    }

    /// An optional time.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let parse = |text| {
            parse_time(text).map_err(|e| {
                ApiError::parameter(name, format!("invalid time value for '{name}': {e}"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// A required time.
    pub(crate) fn required_time(&self, name: &str) -> Result<Timestamp, ApiError> {
        let text = self.get(name).unwrap_or_default();
        parse_time(text).map_err(|e| ApiError::parameter(name, e))
    }

    /// An optional duration in nanoseconds.
    pub(crate) fn duration_ns(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.duration_ns_or_why(name).map_err(|why| ApiError::parameter(name, why))
    }

    /// An optional duration in nanoseconds, or its parse error.
    pub(crate) fn duration_ns_or_why(&self, name: &str) -> firn_model::Result<Option<i64>> {
        self.get(name).map(parse_duration_ns).transpose()
    }

    /// `query`, parsed and compiled within the limits of `context`. Runs on a query thread.
    pub(crate) fn expr(&self, context: &QueryContext) -> Result<Expr, ApiError> {
        let text = self.get("query").unwrap_or_default();
        firn_promql::prepare(text, context)
            .map_err(|why| refused(why, |why| ApiError::parameter("query", why)))
    }

    /// `limit`: 0, which means none, if it is absent.
    pub(crate) fn limit(&self) -> Result<usize, ApiError> {
        let Some(text) = self.get("limit") else { return Ok(0) };
        match text.parse::<i64>() {
            Ok(limit) if limit < 0 => {
                Err(ApiError::parameter("limit", "limit must be non-negative"))
            }
            Ok(limit) => Ok(usize::try_from(limit).unwrap_or(usize::MAX)),
            Err(e) => {
                let why = match e.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                let text = excerpt(text);
                Err(ApiError::parameter("limit", format!("strconv.Atoi: parsing {text:?}: {why}")))
            }
        }
    }

    /// `start` and `end` of the label and series endpoints: all time by default.
    pub(crate) fn range(&self) -> Result<TimeRange, ApiError> {
        let start = self.time("start")?.unwrap_or(Timestamp::MIN);
        let end = self.time("end")?.unwrap_or(Timestamp::MAX);
        Ok(TimeRange::new(start, end))
    }

    /// The texts of `match[]`.
    pub(crate) fn selector_texts(&self) -> Result<Vec<&str>, ApiError> {
        let texts: Vec<&str> = self.all("match[]").collect();
        if texts.len() > SELECTOR_COUNT_MAX {
            let count = texts.len();
            let why = format!("got {count} selectors, expected at most {SELECTOR_COUNT_MAX}");
            return Err(ApiError::parameter("match[]", why));
        }
        Ok(texts)
    }

    /// `match[]`: selectors, each with at least one matcher that an absent label does not pass,
    /// compiled within the limits of `context`. Runs on a query thread. As in Prometheus, an error
    /// does not name the parameter.
    pub(crate) fn selectors(&self, context: &QueryContext) -> Result<Vec<Vec<Matcher>>, ApiError> {
        self.selectors_or(context, |why| ApiError::bad_data(why.to_string()))
    }

    /// The same for endpoints that need one. An error names the parameter.
    pub(crate) fn required_selectors(
        &self,
        context: &QueryContext,
    ) -> Result<Vec<Vec<Matcher>>, ApiError> {
        self.selectors_or(context, |why| ApiError::parameter("match[]", why))
    }

    /// Fails without a selector.
    pub(crate) fn require_selector(&self) -> Result<(), ApiError> {
        match self.all("match[]").next() {
            Some(_) => Ok(()),
            None => Err(ApiError::bad_data("no match[] parameter provided")),
        }
    }

    fn selectors_or(
        &self,
        context: &QueryContext,
        wrong: fn(Error) -> ApiError,
    ) -> Result<Vec<Vec<Matcher>>, ApiError> {
        let parse = |text| {
            let matchers =
                firn_promql::parse_selector(text, context).map_err(|why| refused(why, wrong))?;
            if matchers.iter().all(Matcher::matches_absent) {
                return Err(wrong(Error::invalid(
                    "match[] must contain at least one non-empty matcher",
                )));
            }
            Ok(matchers)
        };
        self.selector_texts()?.into_iter().map(parse).collect()
    }
}

/// The API's error for a text that is not a query: `named` if the text is wrong, otherwise as for
/// any query.
pub(crate) fn refused(why: Error, named: impl FnOnce(Error) -> ApiError) -> ApiError {
    if *why.kind() == ErrorKind::Invalid { named(why) } else { why.into() }
}

/// The API's error for a form that was not read. Clients repeat a request for which there was no
/// memory, but not one that is wrong or never fits.
/// As Go's `strconv.ParseBool`, which Prometheus uses.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn unread_form(why: Error) -> ApiError {
    match why.kind() {
        ErrorKind::Busy { .. } | ErrorKind::TooLarge => why.into(),
        _ => bad_form(why),
    }
}

fn too_long(why: Error, len: usize, budget: &Budget) -> Error {
    budget.error_of_text(why, "a form", len)
}

fn bad_form(why: impl std::fmt::Display) -> ApiError {
    ApiError::bad_data(format!("error parsing form values: {why}"))
}

/// Checks the number of parameters in a form or in the query of a URL, before they are decoded.
///
/// # Errors
/// `Invalid` if there are too many.
pub(crate) fn check_count(form: &[u8]) -> firn_model::Result<()> {
    let count = form.iter().filter(|byte| **byte == b'&').count().saturating_add(1);
    match count <= PARAMETER_COUNT_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "got {count} parameters, expected at most {PARAMETER_COUNT_MAX}"
        ))),
    }
}

/// Memory of the pairs of a form: two bytes can become two strings.
fn decoded_bytes(form: &[u8]) -> u64 {
    // Two strings, and the allocator's smallest block for each.
    const PAIR_BYTES: u64 = 48 + 2 * 16;
    (pieces(form).count() as u64).saturating_mul(PAIR_BYTES).saturating_add(form.len() as u64)
}

/// The pairs, still encoded.
fn pieces(form: &[u8]) -> impl Iterator<Item = &[u8]> {
    form.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty())
}

/// Appends the pairs of `name=value&name=value`. Names that are not UTF-8 match no parameter and
/// are skipped.
fn decode(form: &[u8], pairs: &mut Vec<(String, String)>) -> Result<(), ApiError> {
    pairs.reserve_exact(pieces(form).count());
    for pair in pieces(form) {
        let name_len = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let (name, value) = pair.split_at(name_len);
        let Ok(name) = String::from_utf8(form_text(name)?) else { continue };
        match String::from_utf8(form_text(value.get(1..).unwrap_or_default())?) {
            Ok(value) => pairs.push((name, value)),
            Err(e) => {
                let valid = e.utf8_error().valid_up_to();
                let before = e.as_bytes().get(..valid).unwrap_or_default();
                let line = before.split(|byte| *byte == b'\n').count();
                let last_line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
                let column = last_line.len().saturating_add(1);
                let why = format!("{line}:{column}: parse error: invalid UTF-8 rune");
                return Err(ApiError::parameter(&name, why));
            }
        }
    }
    Ok(())
}

/// A name or value of a form: `+` is a blank.
fn form_text(text: &[u8]) -> Result<Vec<u8>, ApiError> {
    unescape(text, b' ').map_err(bad_form)
}

/// A parameter in the path: the segment before the last `after` ones. It may be no UTF-8.
pub(crate) fn of_path(path: &str, after: usize) -> Result<Vec<u8>, ApiError> {
    let segment = path.rsplit('/').nth(after).unwrap_or_default();
    unescape(segment.as_bytes(), b'+').map_err(ApiError::bad_data)
}

/// `%41` is a byte, `+` is `plus`.
fn unescape(text: &[u8], plus: u8) -> Result<Vec<u8>, String> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => plain.push(plus),
            b'%' => {
                let escape = after.get(..2).unwrap_or(after);
                let digits = std::str::from_utf8(escape).ok().filter(|digits| {
                    digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
                });
                let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                let Some(decoded) = decoded else {
                    let escape = format!("%{}", String::from_utf8_lossy(escape));
                    return Err(format!("invalid URL escape {escape:?}"));
                };
                plain.push(decoded);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => plain.push(byte),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::answer::ApiErrorKind;

    /// Short pairs take most memory for their length: it is reserved, from the URL too.
    #[test]
    fn the_memory_of_pairs_is_reserved() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pairs = "a&".repeat(1_000);
        let request = Request::post(format!("/?{pairs}"))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(pairs))
            .unwrap();
        let budget = Budget::unlimited();
        let params = runtime.block_on(Params::read(request, &budget)).unwrap();
        assert_eq!(params.pairs.len(), 2_000);
        let taken = params.pairs.capacity() * size_of::<(String, String)>() + 2_000 * 16;
        assert!(budget.usage().used_bytes >= taken as u64, "{:?}", budget.usage());
        drop(params);
        assert_eq!(budget.usage().used_bytes, 0);
    }

    /// Before, a URL had up to 32,000 parameters, which a network thread decoded.
    #[test]
    fn the_number_of_parameters_is_limited() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (url_count, form_count, is_read) in
            [(2_047, 2_047, true), (2_048, 0, false), (0, 2_048, false), (30_000, 0, false)]
        {
            let request = Request::post(format!("/?{}", "&".repeat(url_count)))
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Body::from("a&".repeat(form_count)))
                .unwrap();
            let read = runtime.block_on(Params::read(request, &Budget::unlimited()));
            assert_eq!(read.is_ok(), is_read, "{url_count} {form_count}");
            let is_named = |e: ApiError| e.text.contains("expected at most 2048");
            assert!(read.map_or_else(is_named, |_| true), "{url_count} {form_count}");
        }
    }

    #[test]
    fn a_long_form_is_decoded_on_another_thread() {
        let threads = Arc::<AtomicUsize>::default();
        let started = Arc::clone(&threads);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .on_thread_start(move || {
                started.fetch_add(1, Ordering::Relaxed);
            })
            .build()
            .unwrap();
        for (len, is_long) in [(10, false), (DECODED_HERE_MAX + 1, true)] {
            let request = Request::post("/?time=1")
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Body::from(format!("query={}", "a".repeat(len))))
                .unwrap();
            let params = runtime.block_on(Params::read(request, &Budget::unlimited())).unwrap();
            assert_eq!(params.get("query").map(str::len), Some(len));
            assert_eq!(params.get("time"), Some("1"));
            assert_eq!(threads.load(Ordering::Relaxed), usize::from(is_long));
        }
    }

    /// Before, it was status 400, which clients do not repeat.
    #[test]
    fn a_form_without_memory_may_be_sent_again() {
        let budget = Budget::new(40_000);
        let _others = budget.reserve(Pool::Query, 30_000).unwrap();
        let error = read("query=load&time=1", budget);
        assert!(matches!(error.kind, ApiErrorKind::Busy { .. }), "{error:?}");
        assert!(matches!(read("query=%zz", Budget::new(1 << 20)).kind, ApiErrorKind::BadData));
    }

    /// It was status 503 with `Retry-After`, for ever.
    #[test]
    fn a_form_that_never_fits_is_over_a_limit() {
        for bytes in [10, 100, 20_000] {
            // The body alone, then its pairs.
            let form = format!("query=load{}", "&a".repeat(if bytes > 100 { 100 } else { 0 }));
            let error = read(&form, Budget::new(bytes));
            assert!(matches!(error.kind, ApiErrorKind::Execution), "{bytes}: {error:?}");
            assert!(error.text.contains("--memory"), "{error:?}");
        }
    }

    fn read(body: &str, budget: Budget) -> ApiError {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let request = Request::post("/")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(body.to_owned()))
            .unwrap();
        runtime.block_on(Params::read(request, &budget)).unwrap_err()
    }

    #[test]
    fn forms_are_decoded_strictly() {
        let f = |form: &str| {
            let mut pairs = Vec::new();
            decode(form.as_bytes(), &mut pairs).map(|()| pairs).map_err(|e| e.text)
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            f("a=1%2B+2&&b&=c&d==").unwrap(),
            [pair("a", "1+ 2"), pair("b", ""), pair("", "c"), pair("d", "="),]
        );
        assert_eq!(f("%ff=1&a=%C3%A9").unwrap(), [pair("a", "é")]);
        for (form, escape) in [("a=%zz", "%zz"), ("a=%", "%"), ("a=1%4", "%4"), ("%+1=2", "%+1")] {
            let wanted = format!("error parsing form values: invalid URL escape {escape:?}");
            assert_eq!(f(form).unwrap_err(), wanted);
        }
        let wanted = r#"invalid parameter "query": 2:3: parse error: invalid UTF-8 rune"#;
        assert_eq!(f("query=a%0Ab+%ff").unwrap_err(), wanted);
    }
}
