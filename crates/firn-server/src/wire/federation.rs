//! Samples for another Prometheus: text format 0.0.4, `OpenMetrics` and protobuf, untyped, with
//! explicit timestamps.

use std::fmt::Write as _;

use firn_model::{Labels, METRIC_NAME, Sample, encode_varint};

use crate::wire::number::{push_float, push_i64, push_time};

/// The format that a scraper accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FederationFormat {
    kind: FormatKind,
    escaping: Escaping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatKind {
    Text,
    OpenMetrics,
    /// Messages with their length before them.
    Protobuf,
}

/// The treatment of names with characters other than letters, digits and `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escaping {
    /// They stay, in quotes.
    None,
    /// Every other character becomes `_`.
    Underscores,
    /// `_dot_` for a dot, `__` for every other character.
    Dots,
    /// `U__` and the code of each character.
    Values,
}

impl FederationFormat {
    /// The first of the heaviest elements of `Accept` that is known here, else the text format.
    pub fn accepted(accept: &str) -> FederationFormat {
        let mut best: Option<(f32, FederationFormat)> = None;
        for element in accept.split(',') {
            let mut parts = element.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let params: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let param = |name: &str| {
                let found = params.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
                found.map_or("", |(_, value)| value.trim().trim_matches('"'))
            };
            let kind = match (media_type, param("version")) {
                ("text/plain", "" | "0.0.4" | "1.0.0") => FormatKind::Text,
                ("application/openmetrics-text", "" | "0.0.1" | "1.0.0") => FormatKind::OpenMetrics,
                ("application/vnd.google.protobuf", _)
                    if param("proto") == "io.prometheus.client.MetricFamily"
                        && param("encoding") == "delimited" =>
                {
                    FormatKind::Protobuf
                }
                _ => continue,
            };
            let escaping = match param("escaping") {
                "allow-utf-8" => Escaping::None,
                "dots" => Escaping::Dots,
                "values" => Escaping::Values,
                _ => Escaping::Underscores,
            };
            let weight = param("q").parse().unwrap_or(1.0);
            if weight > best.as_ref().map_or(0.0, |(weight, _)| *weight) {
                best = Some((weight, FederationFormat { kind, escaping }));
            }
        }
        best.map_or(
            FederationFormat { kind: FormatKind::Text, escaping: Escaping::Underscores },
            |best| best.1,
        )
    }

    /// The header's value.
    pub fn content_type(self) -> &'static str {
        macro_rules! with_escaping {
            ($media_type:literal) => {
                match self.escaping {
                    Escaping::None => concat!($media_type, "; escaping=allow-utf-8"),
                    Escaping::Underscores => concat!($media_type, "; escaping=underscores"),
                    Escaping::Dots => concat!($media_type, "; escaping=dots"),
                    Escaping::Values => concat!($media_type, "; escaping=values"),
                }
            };
        }
        match self.kind {
            FormatKind::Text => with_escaping!("text/plain; version=0.0.4; charset=utf-8"),
            FormatKind::OpenMetrics => {
                with_escaping!("application/openmetrics-text; version=1.0.0; charset=utf-8")
            }
            FormatKind::Protobuf => with_escaping!(
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            ),
        }
    }

    /// The bytes after the last sample.
    pub fn end(self) -> &'static str {
        if self.kind == FormatKind::OpenMetrics { "# EOF\n" } else { "" }
    }
}

/// Appends the samples of one metric, with the `external` labels that they lack, and with
/// `instance=""` if they have no instance; otherwise the scraper would add this server's. A metric
/// without a name is skipped.
pub fn push_samples(
    samples: &[(Labels, Sample)],
    external: &Labels,
    format: FederationFormat,
    out: &mut Vec<u8>,
) {
    let name = samples.first().map_or("", |(labels, _)| labels.metric_name());
    if name.is_empty() {
        return;
    }
    let name = format.escaping.escaped(name);
    if format.kind == FormatKind::Protobuf {
        return push_family(&name, samples, external, format, out);
    }
    let kind = if format.kind == FormatKind::OpenMetrics { "unknown" } else { "untyped" };
    let shown_name = if is_plain(&name) { name.clone() } else { quoted(&name) };
    out.extend_from_slice(format!("# TYPE {shown_name} {kind}\n").as_bytes());
    for (labels, sample) in samples {
        let mut text = String::new();
        let mut is_first = true;
        if is_plain(&name) {
            text.push_str(&name);
            text.push('{');
        } else {
            text.push('{');
            text.push_str(&shown_name);
            is_first = false;
        }
        for (label, value) in all_labels(labels, external) {
            if !std::mem::take(&mut is_first) {
                text.push(',');
            }
            let label = format.escaping.escaped(label);
            let label = if is_plain(&label) { label } else { quoted(&label) };
            let _ = write!(text, "{label}={}", quoted(value));
        }
        text.push_str("} ");
        out.extend_from_slice(text.as_bytes());
        push_float(sample.value, out);
        out.push(b' ');
        match format.kind {
            FormatKind::OpenMetrics => push_time(sample.ts, out),
            FormatKind::Text | FormatKind::Protobuf => push_i64(sample.ts, out),
        }
        out.push(b'\n');
    }
}

/// The bytes that [`push_samples`] needs at most, for its output and on the way to it.
pub fn samples_bytes_max(
    samples: &[(Labels, Sample)],
    external: &Labels,
    format: FederationFormat,
) -> usize {
    // Signs around names and values, in all formats; a float, a time and separators.
    const LABEL_BYTES: usize = 16;
    const SAMPLE_BYTES: usize = 128;
    // `_dot_` for one character is the longest. Of a plain name, `_` may become `__`.
    let name_bytes = |name: &str| match is_plain(name) {
        true => name.len() + name.bytes().filter(|byte| *byte == b'_').count(),
        false => 5 * name.len(),
    };
    let is_escaped = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'"');
    let value_bytes = |value: &str| value.len() + value.bytes().filter(|b| is_escaped(b)).count();
    let labels_bytes = |labels: &Labels| -> usize {
        let bytes = |(name, value)| name_bytes(name) + value_bytes(value) + LABEL_BYTES;
        labels.iter().map(bytes).sum()
    };
    let external_bytes = labels_bytes(external) + SAMPLE_BYTES;
    let name = samples.first().map_or("", |(labels, _)| labels.metric_name());
    let of_name = name_bytes(name) + LABEL_BYTES;
    let of_samples = samples.iter().map(|(labels, _)| labels_bytes(labels) + external_bytes);
    let bytes = of_name * (samples.len() + 1) + of_samples.sum::<usize>();
    // A message is built before its length is known.
    if format.kind == FormatKind::Protobuf { 3 * bytes } else { bytes }
}

/// A `MetricFamily` with its length before it: name 1, type 3, metrics 4.
fn push_family(
    name: &str,
    samples: &[(Labels, Sample)],
    external: &Labels,
    format: FederationFormat,
    out: &mut Vec<u8>,
) {
    const UNTYPED: u64 = 3;
    let mut family = Vec::new();
    push_bytes(1, name.as_bytes(), &mut family);
    push_number(3, UNTYPED, &mut family);
    let (mut metric, mut pair) = (Vec::new(), Vec::new());
    for (labels, sample) in samples {
        metric.clear();
        for (label, value) in all_labels(labels, external) {
            pair.clear();
            push_bytes(1, format.escaping.escaped(label).as_bytes(), &mut pair);
            push_bytes(2, value.as_bytes(), &mut pair);
            push_bytes(1, &pair, &mut metric);
        }
        pair.clear();
        // `Untyped`, whose value is a double.
        encode_varint(1 << 3 | 1, &mut pair);
        pair.extend_from_slice(&sample.value.to_bits().to_le_bytes());
        push_bytes(5, &pair, &mut metric);
        push_number(6, sample.ts as u64, &mut metric);
        push_bytes(4, &metric, &mut family);
    }
    encode_varint(family.len() as u64, out);
    out.extend_from_slice(&family);
}

fn push_number(field: u64, value: u64, out: &mut Vec<u8>) {
    encode_varint(field << 3, out);
    encode_varint(value, out);
}

fn push_bytes(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    encode_varint(field << 3 | 2, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// The labels but the name, then those of `external` that are missing, sorted among themselves.
fn all_labels<'a>(
    labels: &'a Labels,
    external: &'a Labels,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut added: Vec<(&str, &str)> =
        external.iter().filter(|(name, _)| labels.get(name).is_none()).collect();
    if labels.get("instance").is_none() && external.get("instance").is_none() {
        added.push(("instance", ""));
    }
    added.sort_unstable();
    labels.iter().filter(|(name, _)| *name != METRIC_NAME).chain(added)
}

/// Whether `name` needs no quotes.
fn is_plain(name: &str) -> bool {
    name.char_indices().all(|(at, c)| is_legacy(at, c))
}

fn is_legacy(at: usize, c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || c == ':' || (at > 0 && c.is_ascii_digit())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\""))
}

impl Escaping {
    fn escaped(self, name: &str) -> String {
        if self == Escaping::None || (self != Escaping::Dots && is_plain(name)) {
            return name.to_owned();
        }
        let mut out = String::new();
        if self == Escaping::Values {
            out.push_str("U__");
        }
        for (at, c) in name.char_indices() {
            match (self, c) {
                (Escaping::Dots | Escaping::Values, '_') => out.push_str("__"),
                _ if is_legacy(at, c) => out.push(c),
                (Escaping::Dots, '.') => out.push_str("_dot_"),
                (Escaping::Dots, _) => out.push_str("__"),
                (Escaping::Values, _) => {
                    let _ = write!(out, "_{:x}_", u32::from(c));
                }
                _ => out.push('_'),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(format: FederationFormat) -> Vec<u8> {
        let entry = |pairs: &[(&str, &str)], ts, value| {
            (Labels::from_pairs(pairs.iter().copied()).unwrap(), Sample { ts, value })
        };
        let samples = [
            entry(&[("__name__", "a.b"), ("x", "1\n\"\\")], 1_500, f64::NAN),
            entry(&[("__name__", "a.b"), ("instance", "i"), ("region", "us")], -1, 2.0),
        ];
        let external = Labels::from_pairs([("region", "eu"), ("a", "z")]).unwrap();
        let mut out = Vec::new();
        push_samples(&samples, &external, format, &mut out);
        assert!(out.len() <= samples_bytes_max(&samples, &external, format));
        out.extend_from_slice(format.end().as_bytes());
        out
    }

    fn text(accept: &str) -> String {
        String::from_utf8(pushed(FederationFormat::accepted(accept))).unwrap()
    }

    /// Before, the bound missed that a plain name of underscores doubles.
    #[test]
    fn names_of_underscores_are_within_the_bound() {
        let name = "_".repeat(1_024);
        for escaping in ["dots", "underscores", "values", "allow-utf-8"] {
            for kind in ["text/plain;version=1.0.0", "application/openmetrics-text;version=1.0.0"] {
                let format = FederationFormat::accepted(&format!("{kind};escaping={escaping}"));
                let labels =
                    Labels::from_pairs([("__name__", name.as_str()), (&name, "v")]).unwrap();
                let samples = [(labels, Sample { ts: 0, value: 1.0 })];
                let mut out = Vec::new();
                push_samples(&samples, &Labels::empty(), format, &mut out);
                assert!(
                    out.len() <= samples_bytes_max(&samples, &Labels::empty(), format),
                    "{format:?}"
                );
            }
        }
    }

    #[test]
    fn texts_have_names_labels_and_times() {
        assert_eq!(
            text(""),
            "# TYPE a_b untyped\n\
             a_b{x=\"1\\n\\\"\\\\\",a=\"z\",instance=\"\",region=\"eu\"} NaN 1500\n\
             a_b{instance=\"i\",region=\"us\",a=\"z\"} 2 -1\n"
        );
        let quoted = text("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8");
        assert!(quoted.starts_with("# TYPE \"a.b\" unknown\n{\"a.b\",x="), "{quoted}");
        assert!(quoted.contains("} NaN 1.500\n"), "{quoted}");
        assert!(quoted.ends_with("} 2 -0.001\n# EOF\n"), "{quoted}");
        assert!(text("text/plain;escaping=dots").starts_with("# TYPE a_dot_b untyped\n"));
        assert!(text("text/plain;escaping=values").starts_with("# TYPE U__a_2e_b untyped\n"));
    }

    #[test]
    fn the_heaviest_known_format_is_taken() {
        let f = |accept: &str, wanted: &str| {
            assert!(
                FederationFormat::accepted(accept).content_type().starts_with(wanted),
                "{accept}"
            );
        };
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        f("*/*", "text/plain; version=0.0.4");
        f(&format!("{protobuf};q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"), "application/vnd");
        f("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.6", "text/plain");
        f("application/openmetrics-text; version=1.0.0", "application/openmetrics-text");
        f("application/vnd.google.protobuf;encoding=text", "text/plain");
        f("text/plain;q=0", "text/plain");
    }

    #[test]
    fn messages_are_delimited() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let bytes = pushed(FederationFormat::accepted(protobuf));
        let mut length = Vec::new();
        encode_varint(bytes.len() as u64 - 2, &mut length);
        assert_eq!(bytes[..2], length);
        assert_eq!(&bytes[2..9], b"\x0a\x03a_b\x18\x03");
        // The second metric ends with its value and its time, -1 in ten bytes.
        assert!(bytes.ends_with(
            b"\x2a\x09\x09\0\0\0\0\0\0\0\x40\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        ));
    }
}
