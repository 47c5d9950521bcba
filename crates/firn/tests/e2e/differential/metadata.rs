//! Series, labels, label values, and errors about wrong parameters.

use serde_json::Value;

use super::answer::Answer;
use super::known;
use super::pair::Pair;

/// Requests with equal responses; `$start` and `$end` are those of the data.
const REQUESTS: [(&str, &str); 34] = [
    ("/api/v1/series", "match[]=up&start=$start&end=$end"),
    ("/api/v1/series", "match[]={job=\"api\"}&start=$start&end=$end"),
    ("/api/v1/series", "match[]=up&match[]={shape=~\"a|b\"}&start=$start&end=$end"),
    ("/api/v1/series", "match[]={__name__=~\".+_total\",method=\"\"}&start=$start&end=$end"),
    ("/api/v1/series", "match[]=nothing&start=$start&end=$end"),
    ("/api/v1/series", "match[]=wild&start=$end&end=$start"),
    ("/api/v1/series", "start=$start&end=$end"),
    ("/api/v1/series", "match[]=up{"),
    ("/api/v1/series", "match[]={}"),
    ("/api/v1/series", "match[]={a=\"\"}"),
    ("/api/v1/series", "match[]=up[5m]"),
    ("/api/v1/series", "match[]=sum(up)"),
    ("/api/v1/series", "match[]=up&start=x"),
    ("/api/v1/labels", "start=$start&end=$end"),
    ("/api/v1/labels", "match[]=limits&start=$start&end=$end"),
    ("/api/v1/labels", "match[]=limits&match[]=build_info&start=$start&end=$end"),
    ("/api/v1/labels", "match[]=nothing&start=$start&end=$end"),
    ("/api/v1/labels", "match[]=limits{"),
    ("/api/v1/label/job/values", "start=$start&end=$end"),
    ("/api/v1/label/room/values", "start=$start&end=$end"),
    ("/api/v1/label/__name__/values", "start=$start&end=$end"),
    ("/api/v1/label/__name__/values", "match[]={shape=\"a\"}&start=$start&end=$end"),
    ("/api/v1/label/method/values", "match[]=errors_total&match[]=bare&start=$start&end=$end"),
    ("/api/v1/label/nothing/values", "start=$start&end=$end"),
    ("/api/v1/query", ""),
    ("/api/v1/query", "query=up&time=x"),
    ("/api/v1/query", "query=up&time=$end&timeout=x"),
    ("/api/v1/query_range", "query=up"),
    ("/api/v1/query_range", "query=up&start=$start&end=$end"),
    ("/api/v1/query_range", "query=up&start=$start&end=$end&step=0"),
    ("/api/v1/query_range", "query=up&start=$start&end=$end&step=x"),
    ("/api/v1/query_range", "query=up&start=$end&end=$start&step=10"),
    ("/api/v1/query_range", "query=up&start=$start&end=$end&step=0.1"),
    ("/api/v1/query_range", "query=up[5m]&start=$start&end=$end&step=10"),
];

/// The differences.
pub(super) fn differences(pair: &Pair) -> Vec<String> {
    let mut differing = Vec::new();
    let seconds = |ms: i64| (ms / 1_000).to_string();
    for (path, parameters) in REQUESTS {
        let path = &pair.senders.rename(path);
        let filled = pair
            .senders
            .rename(parameters)
            .replace("$start", &seconds(pair.world.start))
            .replace("$end", &seconds(pair.world.end));
        let parameters: Vec<(&str, &str)> =
            filled.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let [theirs, ours] = pair.get(path, &parameters);
        let is_known = || {
            let [theirs, ours] = [&theirs, &ours].map(|(status, body)| Answer::read(*status, body));
            known::reason(pair.dialect, &theirs, &ours).is_some()
        };
        if plain(&theirs) != plain(&ours) && !is_known() {
            let (theirs, ours) = (plain(&theirs), plain(&ours));
            differing.push(format!("{path}?{filled}\n  Prometheus {theirs}\n  FirnDB     {ours}"));
        }
    }
    differing
}

/// Status, error or data, lists sorted: neither promises an order of series.
fn plain((status, body): &(u16, String)) -> String {
    let mut json: Value = serde_json::from_str(body).unwrap_or(Value::String(body.clone()));
    if let Some(list) = json["data"].as_array_mut() {
        list.sort_by_key(Value::to_string);
    }
    let text = match json["status"].as_str() {
        Some("error") => format!("{}: {}", json["errorType"], json["error"]),
        _ => json["data"].to_string(),
    };
    format!("{status} {text}")
}
