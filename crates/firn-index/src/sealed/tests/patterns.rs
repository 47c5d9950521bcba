//! Patterns over many values, compared with trying each value.

use super::*;

const REGEXES: [&str; 22] = [
    "a.*b",
    "(?i)A.*",
    ".*x1.*",
    "[ab]+c?",
    "pod-1[0-9]*-.*",
    "pod-(1|22|3.)-[ab]+",
    ".*-b",
    "é.*",
    ".*é.*",
    "\\w+",
    "\\bpod\\b.*",
    ".*\\b1",
    "(a|b|c)|(pod-1.*)",
    "(a)|(b)",
    "pod-.",
    "z.*",
    "..",
    "[^p].*",
    "pod-[0-9]{1,2}-a?b?",
    "(pod-1|pod-2)?.+",
    ".*(1|2)$",
    "\\d*",
];

fn arb_value() -> impl Strategy<Value = String> {
    prop_oneof![
        "pod-[1-4]{1,2}-[ab]{1,3}",
        "pod-1[0-9]{0,3}",
        "[abcx1é]{1,6}",
        "aaaaaaaaaaaaaaaaaaaaaaaa[ab]{1,4}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn scanning_values_agrees_with_trying_each(
        values in prop::collection::btree_set(arb_value(), 130..400),
        contains in prop::collection::vec("[ab1é]{1,3}", 3),
        prefixes in prop::collection::vec("(pod-)?[a1-3]{0,2}", 3),
    ) {
        let mut texts = Pairs::default();
        let other = texts.intern(b"other", b"x").unwrap();
        let ids: Vec<u32> =
            values.iter().map(|value| texts.intern(b"name", value.as_bytes()).unwrap()).collect();
        let mut builder = Builder::new(&[PairSource::Memory(&texts)]).unwrap();
        for (group, id) in (0..).zip(ids) {
            let pairs = [builder.pair(0, id), builder.pair(0, other)];
            let (group, identity) = (GroupId(group), &pairs[..]);
            builder.part(PartInput { group, lone: true, identity, next_slot: 0 });
        }
        let sealed = built(builder);
        let contains = contains.iter().map(|text| format!(".*{text}.*"));
        let prefixes = prefixes.iter().flat_map(|text| [format!("{text}.*"), format!("{text}.+")]);
        let regexes = REGEXES.iter().map(|&regex| regex.to_owned());
        for regex in contains.chain(prefixes).chain(regexes) {
            for op in [MatchOp::Regex, MatchOp::NotRegex] {
                let matcher = Matcher::new("name", op, regex.as_str()).unwrap();
                let want: BTreeSet<&String> =
                    values.iter().filter(|v| matcher.matches(v)).collect();
                let by_name = Grouping::By(vec!["name".into()]);
                let (_, keys) = matches(&sealed, &[matcher], &by_name).unwrap();
                let got: BTreeSet<String> =
                    keys.iter().map(|key| key.get("name").unwrap().to_owned()).collect();
                prop_assert_eq!(got.iter().collect::<BTreeSet<_>>(), want, "{} {:?}", regex, op);
            }
        }
    }
}
