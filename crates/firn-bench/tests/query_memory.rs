//! The memory of parsing and compiling is reserved: the bytes that the allocator hands out never
//! exceed the reservations of the query's budget.

use std::sync::Mutex;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_model::{Budget, CancelToken, ErrorKind, MatchOp, Matcher, Pool, QueryContext};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// The allocator counts all threads, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());
const QUERY_BYTES: u64 = 256 << 20;
// Contexts, error texts, and the slots of one vector that doubles.
const SLACK_BYTES: usize = 64 << 10;

struct Measured<T> {
    result: T,
    /// Bytes above those that were allocated before.
    peak: usize,
    reserved_peak: u64,
    reserved_after: u64,
    live_after: usize,
}

fn measure<T>(work: impl FnOnce(&QueryContext) -> T) -> Measured<T> {
    let budget = Budget::new(QUERY_BYTES);
    let context = QueryContext::new(CancelToken::new(), budget.clone());
    let before = live_bytes();
    reset_peak();
    let result = work(&context);
    let usage = budget.usage();
    Measured {
        result,
        // The test's harness may release memory meanwhile.
        peak: peak_bytes().saturating_sub(before),
        reserved_peak: usage.peak_bytes,
        reserved_after: usage.used_bytes,
        live_after: live_bytes().saturating_sub(before),
    }
}

impl<T> Measured<T> {
    #[track_caller]
    fn check(&self, what: &str) {
        let Measured { peak, reserved_peak, reserved_after, live_after, .. } = *self;
        let text = format!(
            "{what}: peak {peak} of {reserved_peak} reserved, then {live_after} of {reserved_after}"
        );
        println!("{text}");
        assert!(peak <= reserved_peak as usize + SLACK_BYTES, "{text}");
        assert!(live_after <= reserved_after as usize * 21 / 20 + SLACK_BYTES, "{text}");
    }
}

fn patterns() -> Vec<(String, String)> {
    let named = |name: &str, pattern: String| (name.to_owned(), pattern);
    vec![
        named("small", "a[bc]+d".to_owned()),
        named(
            "alternatives",
            (0..10_000).map(|i| format!("host-{i}.*|")).collect::<String>() + "x",
        ),
        named("repetition", "(a{1000}){1000}".to_owned()),
        named("large repetition", "[ab]{1000}".repeat(60)),
        named("unicode class", r"\pL".to_owned()),
        named("unicode classes", r"\pL".repeat(2_000)),
        named("unicode classes in brackets", format!("[{}]", r"\pL\PN".repeat(2_000))),
        named("unicode repetition", r"(\pL{10}){20}".to_owned()),
        named("unicode large repetition", r"(\pL{100}){200}".to_owned()),
        named("case folding", format!("(?i){}", "k".repeat(100_000))),
        named("case folding of classes", format!("(?i){}", r"[\pL\pN]".repeat(1_000))),
        named("groups", "(a)".repeat(80_000)),
        named("empty groups", "()".repeat(100_000)),
        named("nested", format!("{}a{}", "(".repeat(90), ")".repeat(90))),
        named("too nested", format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
        named("bars", "a.|".repeat(80_000)),
        named("classes", "[a-cx-z]".repeat(30_000)),
        named(
            "wide class",
            format!(
                "[{}]",
                (0..40_000)
                    .map(|i| char::from_u32(0x4e00 + 2 * i % 20_000).unwrap_or('x'))
                    .collect::<String>()
            ),
        ),
        named("word boundaries", r"\b".repeat(100_000)),
        named("perl classes", r"[\w\d\s]\W".repeat(20_000)),
        named("flags", "(?i)(?-i)".repeat(25_000)),
        named("a long literal", format!("{}.?", "x".repeat(250_000))),
        named("too long", "x.".repeat(200_000)),
    ]
}

#[test]
fn the_memory_of_a_compilation_is_reserved() {
    let _alone = ALONE.lock().unwrap();
    for (name, pattern) in patterns() {
        let matcher = Matcher::parsed("a", MatchOp::Regex, pattern.as_str());
        let measured = measure(|context| matcher.compile(context));
        measured.check(&name);
        match &measured.result {
            Ok(()) => {}
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge),
                    "{error}"
                );
                assert!(error.to_string().len() < 1_024, "{name}: {}", error.to_string().len());
                assert_eq!(measured.reserved_after, 0, "{name}");
            }
        }
    }
}

#[test]
fn the_memory_of_matching_is_reserved_and_released_with_the_matcher() {
    let _alone = ALONE.lock().unwrap();
    // Its automaton has a state for each set of the last twenty letters: it grows with every text.
    let matcher = Matcher::parsed("a", MatchOp::Regex, "[ab]*a[ab]{20}");
    let budget = Budget::new(QUERY_BYTES);
    let context = QueryContext::new(CancelToken::new(), budget.clone());
    let before = live_bytes();
    matcher.compile(&context).unwrap();
    let compiled = budget.usage().used_bytes;
    let (mut number, mut grown) = (1u64, 0);
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..60 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push(if number >> 60 & 1 == 0 { 'a' } else { 'b' });
        }
        let wanted = text.as_bytes()[60 - 21] == b'a';
        assert_eq!(matcher.matches(&text), wanted, "{text}");
        let live = live_bytes().saturating_sub(before);
        let reserved = budget.usage().used_bytes;
        grown = grown.max(reserved - compiled);
        assert!(live <= reserved as usize + SLACK_BYTES, "{live} of {reserved} reserved");
    }
    assert!((1 << 20..8 << 20).contains(&grown), "{grown}");
    // A budget without room: the automaton's cache is dropped, and matching continues.
    let small = Budget::new(1 << 20);
    let tight = Matcher::parsed("a", MatchOp::Regex, "[ab]*a[ab]{20}");
    tight.compile(&QueryContext::new(CancelToken::new(), small.clone())).unwrap();
    let mut rest = small.empty(Pool::Query);
    rest.take((1 << 20) - 2 * compiled);
    for text in ["aab".repeat(40), "bba".repeat(40), "abbab".repeat(40)] {
        assert_eq!(tight.matches(&text), matcher.matches(&text));
        assert!(small.usage().used_bytes <= 1 << 20);
    }
    drop(rest);
    drop((matcher, tight));
    assert_eq!((budget.usage().used_bytes, small.usage().used_bytes), (0, 0));
}

#[test]
fn the_memory_of_parsing_is_reserved() {
    let _alone = ALONE.lock().unwrap();
    let many = |piece: &str, len: usize| piece.repeat(len / piece.len());
    let megabyte = (1 << 20) - 100;
    let queries = [
        ("matchers", format!("{{{}}}", many("a=\"\",", 4_900))),
        ("selectors", format!("({})", many("{a=\"\"}or ", 300) + "b")),
        ("arguments", format!("absent({}1)", many("1,", 190_000))),
        ("names", format!("absent({}a)", many("a,", 190_000))),
        ("names in a call of names", format!("a({}a)", many("a,", 190_000))),
        ("names and signs", format!("{}a", many("a+", 4_000))),
        ("grouping", format!("sum by ({}a) (b)", many("a,", megabyte))),
        ("literals", format!("{{a=~\"{}\"}}", many("a|", megabyte))),
        ("parentheses", many("(", megabyte)),
        ("numbers", many("1 ", megabyte)),
        ("operators", many("+", megabyte)),
        ("a string", format!("\"{}\"", many("\\n", megabyte))),
        ("an identifier", many("a", megabyte)),
        ("too long", many("a", 4 << 20)),
        ("regexes", format!("{{{}}}", many("a=~\".b\",", 8_000))),
        ("too many regexes", many("a{b=~\".c\"}*", 300_000) + "1"),
    ];
    for (name, query) in &queries {
        let measured = measure(|context| firn_promql::prepare(query, context));
        measured.check(name);
        if let Err(error) = &measured.result {
            let text = error.to_string();
            assert!(text.len() < 1_300, "{name}: {} bytes", text.len());
            assert_eq!(measured.reserved_after, 0, "{name}");
        }
        let mut kept = None;
        let measured = measure(|context| {
            kept = Some(context.clone());
            firn_promql::parse_selector(query, context)
        });
        measured.check(name);
        drop(measured.result);
        let budget = kept.map(|context| context.budget.clone());
        assert_eq!(budget.map_or(0, |budget| budget.usage().used_bytes), 0, "{name}");
    }
}

#[test]
fn a_request_has_one_allowance() {
    let _alone = ALONE.lock().unwrap();
    let context = QueryContext::unbounded();
    let compile = |pattern: &str, context: &QueryContext| {
        Matcher::parsed("a", MatchOp::Regex, pattern).compile(context)
    };
    for _ in 0..1_000 {
        compile("a[bc]", &context).unwrap();
    }
    let error = compile("a[bc]", &context.clone()).unwrap_err();
    assert!(error.to_string().contains("over 1000 regular expressions"), "{error}");
    let context = QueryContext::unbounded();
    let compiled = (0..1_000).take_while(|_| compile(r"(\pL{10}){20}", &context).is_ok()).count();
    assert!((5..100).contains(&compiled), "{compiled}");
    let canceled = QueryContext::unbounded();
    canceled.cancel.time_out();
    assert_eq!(compile("a[bc]", &canceled).unwrap_err().kind(), &ErrorKind::Timeout);
}

/// Each type took eight bytes that were not counted: 24 MB of them, in a small snappy block, took
/// more than the limit of a small server.
#[test]
fn the_response_types_of_a_remote_read_take_no_memory() {
    let _alone = ALONE.lock().expect("no panic");
    let count = 4 << 20;
    let mut body = vec![0x12];
    firn_model::encode_varint(count as u64, &mut body);
    body.resize(body.len() + count, 7);
    let read = measure(|context| {
        firn_server::wire::remote_read::decode(&body, &mut context.budget.empty(Pool::Query))
    });
    read.check("response types");
    assert_eq!(read.result.map(|_| ()).unwrap_err().kind(), &ErrorKind::Invalid);
}
