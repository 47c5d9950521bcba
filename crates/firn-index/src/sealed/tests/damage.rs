//! Damaged files: each call returns the right result or an error with the offset, and never panics.

use super::*;

fn world() -> ModelSegment {
    let mut wishes = Vec::new();
    // 25 sets of up to eight series: five are lone series, and twenty are similar groups, most of
    // which lack a member.
    for number in (0..200u32).filter(|number| number % 11 != 7) {
        let text = |n: u32| format!("value-{n}");
        let (group, member) = (number % 25, number / 25);
        let (a, b, name) = (text(group), text(member % 7), text(member % 3));
        let labels = Labels::from_pairs([("a", &*a), ("b", &*b), ("__name__", &*name)]).unwrap();
        wishes.push(SeriesSpec { labels, lone: number % 5 == 0, gap: 0, segment: 0, dead: false });
    }
    ModelSegment::settle(&wishes, 64).0
}

fn bytes(world: &ModelSegment) -> Vec<u8> {
    let pairs = pairs_of(world);
    let mut builder = Builder::new(&[PairSource::Memory(&pairs)]).unwrap();
    add(&mut builder, (0, &pairs), world);
    let file = file();
    builder.finish(&*file).unwrap();
    file.map().unwrap().to_vec()
}

/// Runs calls of all kinds; results must be right.
fn query_all(bytes: Vec<u8>, world: &ModelSegment) -> Result<()> {
    let sealed = Sealed::open(Mapped::from(bytes), "test.seg")?;
    assert_eq!(sealed.series_count(), world.series.len() as u64);
    for (labels, &series) in world.series.iter().step_by(17) {
        assert_eq!(find(&sealed, labels)?, Some(series));
        assert_eq!(sealed.labels(series)?.as_ref(), Some(labels));
    }
    for (name, op, value, want) in [
        ("a", MatchOp::Equal, "value-3", "value-3"),
        ("b", MatchOp::Regex, ".*-[56]", ""),
        ("__name__", MatchOp::NotEqual, "value-1", ""),
    ] {
        let matcher = Matcher::new(name, op, value).unwrap();
        let (groups, _) = matches(&sealed, std::slice::from_ref(&matcher), &Grouping::Series)?;
        let count: usize = groups.iter().map(|group| group.members.len()).sum();
        let passes = |labels: &&Labels| matcher.matches(labels.get(name).unwrap_or(""));
        assert_eq!(count, world.series.keys().filter(passes).count(), "{want}");
    }
    let mut counts = sealed.pair_counts(&CancelToken::new())?;
    while counts.advance()? {}
    Builder::new(&[PairSource::File(&sealed)])?.merge(0, &sealed, &KeepAllSeries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn a_flipped_bit_is_reported_or_harmless(
        flips in prop::collection::vec((any::<u64>(), 0u8..8), 1..4),
    ) {
        let world = world();
        let whole = bytes(&world);
        let mut damaged = whole.clone();
        for (at, bit) in flips {
            let at = at as usize % damaged.len();
            damaged[at] ^= 1 << bit;
        }
        match query_all(damaged.clone(), &world) {
            Ok(()) => prop_assert_eq!(damaged, whole),
            Err(error) => {
                let is_reported = match error.kind() {
                    ErrorKind::Corrupt { file, offset } => {
                        file == "test.seg" && *offset <= whole.len() as u64
                    }
                    // Another version in a header with a valid checksum, which practically never
                    // happens.
                    kind => *kind == ErrorKind::Invalid,
                };
                prop_assert!(is_reported, "{}", error);
            }
        }
    }

    #[test]
    fn a_truncated_file_is_reported(len in any::<u64>()) {
        let world = world();
        let mut damaged = bytes(&world);
        let len = len as usize % damaged.len();
        damaged.truncate(len);
        let error = query_all(damaged, &world).unwrap_err();
        prop_assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{}", error);
    }

    /// With valid checksums on damaged bytes, every decoder reads malformed input.
    #[test]
    fn no_damage_causes_a_panic(flips in prop::collection::vec((any::<u64>(), any::<u8>()), 1..4)) {
        let world = world();
        let whole = bytes(&world);
        let mut damaged = whole.clone();
        for (at, byte) in flips {
            let at = 16 + at as usize % (damaged.len() - 16 - 12);
            damaged[at] = byte;
        }
        let sealed = resealed(damaged);
        let Ok(sealed) = sealed else { return Ok(()) };
        for (labels, &series) in world.series.iter().step_by(7) {
            let hashed = HashedLabels::new(labels);
            if let Ok(Some(found)) = sealed.find(&hashed)
                && let Ok(Some(neighbour)) = sealed.neighbour(&hashed, found, None)
            {
                let _ = neighbour.find(&hashed);
            }
            let _ = sealed.find_open_group(&HashedLabels::new(&labels.filter(is_identity)));
            let _ = sealed.contains(series);
            let _ = sealed.next_slot(series.group);
        }
        for (name, op, value) in [
            ("a", MatchOp::Equal, "value-3"),
            ("b", MatchOp::Regex, ".*-[56]"),
            ("__name__", MatchOp::NotEqual, "value-1"),
            ("a", MatchOp::Regex, "value-.+"),
        ] {
            let matcher = Matcher::new(name, op, value).unwrap();
            let by = Grouping::By(Vec::new());
            let _ = matches(&sealed, std::slice::from_ref(&matcher), &by);
            let context = QueryContext::unbounded();
            if let Ok(found) = sealed.select(&[matcher], &context) {
                let mut names = SealedNames::open(&sealed, &found, &context).ok();
                while let Some(names) = &mut names
                    && names.text().is_some()
                {
                    let _ = names.find_present(&context, &mut |_, _: &[Slot]| Ok(false));
                    if names.advance().is_err() {
                        break;
                    }
                }
                let values = SealedValues::open(&sealed, &found, "a", &context);
                let mut values = values.ok().flatten();
                while let Some(values) = &mut values
                    && values.text().is_some()
                {
                    let _ = values.find_present(&context, &mut |_, _: &[Slot]| Ok(false));
                    if values.advance().is_err() {
                        break;
                    }
                }
            }
        }
        if let Ok(mut counts) = sealed.pair_counts(&CancelToken::new()) {
            while counts.advance().unwrap_or(false) {}
        }
    }
}

/// Opens bytes after fixing the checksums of footer and blocks.
fn resealed(mut bytes: Vec<u8>) -> Result<Sealed> {
    use firn_codec::frame::crc32;
    let tail_at = bytes.len() - 12;
    let footer_bytes = u32::from_le_bytes(bytes[tail_at..tail_at + 4].try_into().unwrap()) as usize;
    let Some(footer_at) = tail_at.checked_sub(footer_bytes) else {
        return Err(firn_model::Error::invalid("no footer"));
    };
    let block = crate::sealed::format::blocks::BLOCK_BYTES;
    let count = footer_at.div_ceil(block);
    let sums: Vec<u8> =
        bytes[..footer_at].chunks(block).flat_map(|block| crc32(block).to_le_bytes()).collect();
    if footer_bytes < 4 * count {
        return Err(firn_model::Error::invalid("no footer"));
    }
    bytes[tail_at - 4 * count..tail_at].copy_from_slice(&sums);
    let footer_sum = crc32(&bytes[footer_at..tail_at]).to_le_bytes();
    bytes[tail_at + 4..tail_at + 8].copy_from_slice(&footer_sum);
    let tail_sum = crc32(&bytes[tail_at..tail_at + 8]).to_le_bytes();
    bytes[tail_at + 8..].copy_from_slice(&tail_sum);
    Sealed::open(Mapped::from(bytes), "test.seg")
}
