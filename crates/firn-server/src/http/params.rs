//! Parameters of the API: from the URL and, for a form, from the body, which wins.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request};
use firn_model::{Budget, Matcher, TimeRange, Timestamp};

use crate::http::answer::ApiError;
use crate::http::body;
use crate::wire::number::{parse_duration_ns, parse_time};

/// Names and values in the order in which they count.
#[derive(Debug, Default)]
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
}

// As Go's form parser: 10 MB of parameters are enough for everybody.
const FORM_BYTES_MAX: usize = 10 << 20;

impl Params {
    /// Reads the parameters of `request`. A body counts only with POST and as a form.
    pub(crate) async fn read(request: Request<Body>, budget: &Budget) -> Result<Params, ApiError> {
        let (parts, body) = request.into_parts();
        let mut pairs = Vec::new();
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
        let is_form = media_type.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded");
        if parts.method == Method::POST && is_form {
            let form = body::read(&parts.headers, body, FORM_BYTES_MAX, budget)
                .await
                .map_err(|e| ApiError::bad_data(format!("error parsing form values: {e}")))?;
            pairs.extend(form_urlencoded::parse(&form.bytes).into_owned());
        }
        let url = parts.uri.query().unwrap_or_default();
        pairs.extend(form_urlencoded::parse(url.as_bytes()).into_owned());
        Ok(Params { pairs })
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

    /// A time, if it is given.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let parse = |text| {
            parse_time(text).map_err(|e| {
                ApiError::parameter(name, format!("invalid time value for '{name}': {e}"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// A time that must be given.
    pub(crate) fn required_time(&self, name: &str) -> Result<Timestamp, ApiError> {
        let text = self.get(name).unwrap_or_default();
        parse_time(text).map_err(|e| ApiError::parameter(name, e))
    }

    /// A duration in nanoseconds, if it is given.
    pub(crate) fn duration_ns(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parse = |text| parse_duration_ns(text).map_err(|e| ApiError::parameter(name, e));
        self.get(name).map(parse).transpose()
    }

    /// `limit`: 0 if it is not given, which means none.
    pub(crate) fn limit(&self) -> Result<usize, ApiError> {
        let Some(text) = self.get("limit") else { return Ok(0) };
        match text.parse::<i64>() {
            Ok(limit) if limit < 0 => {
                Err(ApiError::parameter("limit", "limit must be non-negative"))
            }
            Ok(limit) => Ok(usize::try_from(limit).unwrap_or(usize::MAX)),
            Err(_) => Err(ApiError::parameter("limit", format!("{text:?} is not an integer"))),
        }
    }

    /// `start` and `end` of the label and series endpoints: all time by default.
    pub(crate) fn range(&self) -> Result<TimeRange, ApiError> {
        let start = self.time("start")?.unwrap_or(Timestamp::MIN);
        let end = self.time("end")?.unwrap_or(Timestamp::MAX);
        Ok(TimeRange::new(start, end))
    }

    /// `match[]`: selectors, each with at least one matcher that an absent label does not pass.
    pub(crate) fn selectors(&self) -> Result<Vec<Vec<Matcher>>, ApiError> {
        let parse = |text| {
            let matchers =
                firn_promql::parse_selector(text).map_err(|e| ApiError::parameter("match[]", e))?;
            if matchers.iter().all(Matcher::matches_absent) {
                let why = "match[] must contain at least one non-empty matcher";
                return Err(ApiError::parameter("match[]", why));
            }
            Ok(matchers)
        };
        self.all("match[]").map(parse).collect()
    }
}
