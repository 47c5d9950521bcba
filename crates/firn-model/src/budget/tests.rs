use super::*;

#[test]
fn invariant_8_reservations_never_exceed_the_limit_and_release_on_drop() {
    let budget = Budget::new(100);
    let mut head = budget.reserve(Pool::Head, 60).unwrap();
    let refused = budget.reserve(Pool::Query, 41).unwrap_err();
    assert!(refused.is_retriable());
    assert!(refused.to_string().contains("query needs 41 more bytes, but 60 of 100"));
    let part = head.split(20);
    let mut hot = budget.empty(Pool::Hot);
    hot.merge(part);
    assert_eq!(budget.usage().by_pool[Pool::Hot as usize], 20);
    assert_eq!(budget.usage().used_bytes, 60);
    drop(head);
    assert_eq!(budget.usage().used_bytes, 20);
    drop(hot);
    assert_eq!(budget.usage().used_bytes, 0);
    assert_eq!(budget.usage().peak_bytes, 60);
}

/// The client repeated such a request for ever.
#[test]
fn a_request_that_never_fits_is_refused_for_good() {
    for (pool, beside) in [(Pool::Requests, 0), (Pool::Query, 20)] {
        for part in [None, Some(1_000)] {
            let whole = Budget::new(80);
            let budget = part.map_or(whole.clone(), |bytes_max| whole.part(bytes_max));
            let fits = 50 - beside;
            let mut held = budget.of_request(pool, beside);
            held.grow(fits).unwrap();
            let error = held.grow(1).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::TooLarge, "{error}");
            let wanted = "needs 51 bytes of memory, one may take 50 (5/8 of --memory)";
            assert!(error.to_string().contains(wanted), "{error}");
            let split = held.split(0).cover(fits + 1).unwrap_err();
            assert_eq!(split.kind(), &ErrorKind::TooLarge, "{split}");
            assert_eq!((held.bytes(), budget.usage().used_bytes), (fits, fits));
            // Others hold the rest.
            let _others = budget.reserve(pool, 80 - 30 - fits).unwrap();
            assert!(budget.of_request(pool, beside).grow(30).unwrap_err().is_retriable());
        }
    }
}

#[test]
fn cover_reserves_in_steps_up_to_the_last_byte() {
    let budget = Budget::new(10_000);
    let mut held = budget.empty(Pool::Query);
    let mut steps = 0;
    for bytes in 1..=8_800 {
        let before = held.bytes();
        held.cover(bytes).unwrap();
        assert!((bytes..=bytes + bytes / 8).contains(&held.bytes()), "{held:?} for {bytes}");
        steps += u64::from(held.bytes() > before && bytes < 8_000);
    }
    assert!(steps < 100, "{steps} steps");
    assert_eq!(budget.usage().refused[Pool::Query as usize], 0);
    held.cover(5).unwrap();
    assert_eq!(held.bytes(), 8_800, "the threshold of queries; nothing was reclaimed");
    assert!(held.cover_of_free(8_800) && !held.cover_of_free(8_801));
    assert_eq!(held.bytes(), 8_800);
    assert!(held.cover(8_801).unwrap_err().is_retriable());
}

#[test]
fn kept_memory_leaves_its_part_and_its_pool() {
    let budget = Budget::new(100);
    let part = budget.part(50);
    let mut held = part.reserve(Pool::Query, 30).unwrap();
    held.keep_for(Pool::Cache);
    assert_eq!(part.usage().used_bytes, 0);
    let usage = budget.usage();
    assert_eq!(usage.by_pool[Pool::Query as usize], 0);
    assert_eq!((usage.by_pool[Pool::Cache as usize], usage.used_bytes), (30, 30));
    drop(held);
    assert_eq!(budget.usage().used_bytes, 0);
}

#[test]
fn a_part_counts_in_the_whole() {
    let budget = Budget::new(100);
    let part = budget.part(50);
    let mut first = part.reserve(Pool::Query, 30).unwrap();
    assert_eq!(budget.usage().by_pool[Pool::Query as usize], 30);
    let refused = first.grow(21).unwrap_err();
    assert_eq!(refused.kind(), &ErrorKind::TooLarge);
    let _rest = budget.reserve(Pool::Head, 55).unwrap();
    assert!(first.grow(15).unwrap_err().is_retriable(), "the whole is used up");
    assert_eq!((part.usage().used_bytes, part.usage().peak_bytes), (30, 30));
    drop(first);
    assert_eq!((part.usage().used_bytes, budget.usage().used_bytes), (0, 55));
}

/// Rules were advised to raise the memory of queries, and commands to raise that of a server.
#[test]
fn a_shortage_names_the_setting_of_its_limit() {
    let budget = Budget::new(100);
    let query = budget.part_of_setting(50, "--query-memory");
    let rules = Budget::unlimited().part_of_setting(50, "--rule-memory");
    let fixed = Budget::unlimited().part(50);
    for (budget, wanted) in [
        (&budget, ", or raise --memory"),
        (&budget.part(50), ", or raise --memory"),
        (&query, ", or raise --query-memory"),
        (&query.part(40).part(30), ", or raise --query-memory"),
        (&rules.part(40), ", or raise --rule-memory"),
        (&fixed, "50 bytes of memory, a fixed limit: shorten it or split it"),
    ] {
        let error = budget.reserve(Pool::Query, 90).unwrap_err().to_string();
        assert!(error.ends_with(wanted), "{error}");
    }
    let f = |budget: &Budget, wanted: &str| {
        let error = budget.reserve(Pool::Query, 60).unwrap_err();
        let text = budget.error_of_text(error, "a text", 3).to_string();
        let start = "a text of 3 bytes takes more memory than the limit allows: shorten it";
        assert_eq!(text, format!("{start}{wanted}"));
    };
    f(&query, ", or raise --query-memory (at most a part of --memory)");
    f(&rules, ", or raise --rule-memory");
    f(&fixed, "");
    let busy = budget.error_of_text(Error::busy(1, "memory"), "a text", 3);
    assert_eq!(busy.to_string(), "memory");
}

#[test]
fn overload_refuses_pools_in_order_of_their_thresholds() {
    let budget = Budget::new(1_000);
    let order =
        [Pool::Hot, Pool::Cache, Pool::Index, Pool::Requests, Pool::Head, Pool::Query, Pool::Jobs];
    assert!(order.is_sorted_by_key(|pool| pool.threshold_percent()));
    for pool in order {
        let threshold = 10 * pool.threshold_percent();
        let mut own = budget.empty(pool);
        own.take(31);
        let mut filled = budget.empty(Pool::Process);
        filled.take(threshold - 31);
        assert!(budget.reserve(pool, 1).is_err(), "{pool:?} over its threshold");
        filled.shrink(1);
        drop(budget.reserve(pool, 1).unwrap());
        assert_eq!(budget.missing_bytes(pool, 11), 10);
        assert_eq!(budget.usage().refused[pool as usize], 1);
    }
}

#[test]
fn unreserved_memory_of_the_process_counts() {
    let budget = Budget::new(6_400);
    let resident = Arc::new(AtomicU64::new(2_000));
    let seen = Arc::clone(&resident);
    budget.set_meter(move || Some(seen.load(Ordering::Relaxed)));
    let unreserved = || budget.usage().by_pool[Pool::Process as usize];
    let head = budget.reserve(Pool::Head, 3_000).unwrap();
    assert_eq!(unreserved(), 2_000, "measured before a large grant");
    budget.measure();
    assert_eq!(unreserved(), 1_750, "all of it is reserved by now, and the count falls slowly");
    (0..50).for_each(|_| budget.measure());
    assert!(unreserved() < 8, "{}", unreserved());
    resident.store(5_000, Ordering::Relaxed);
    // One grant is too small to trigger a measurement; a hundred are not.
    let small: Vec<_> = (0..101).map(|_| budget.reserve(Pool::Head, 1).unwrap()).collect();
    assert!((1_890..=2_000).contains(&unreserved()), "{}", unreserved());
    let refused = budget.reserve(Pool::Head, 1_000).unwrap_err();
    assert!(refused.to_string().contains("most by head"), "{refused}");
    resident.store(50_000, Ordering::Relaxed);
    budget.measure();
    assert_eq!(unreserved(), 4_800, "a quarter of the limit stays for reservations");
    drop((head, small));
    resident.store(0, Ordering::Relaxed);
    (0..100).for_each(|_| budget.measure());
    let ahead = budget.reserve(Pool::Index, 2_000).unwrap();
    resident.store(2_500, Ordering::Relaxed);
    budget.measure();
    assert_eq!(unreserved(), 500);
    budget.set_standby(1_500);
    budget.measure();
    assert_eq!(unreserved(), 2_000, "memory that is kept ready hides none");
    drop(ahead);
    budget.set_standby(0);
    resident.store(0, Ordering::Relaxed);
    (0..100).for_each(|_| budget.measure());
    assert!(budget.usage().used_bytes < 8);
}

struct Cache(std::sync::Mutex<Reservation>);

impl Reclaim for Cache {
    fn reclaim(&self, bytes: u64) -> u64 {
        let mut held = self.0.lock().unwrap();
        let before = held.bytes();
        held.shrink(bytes);
        before - held.bytes()
    }
}

#[test]
fn queries_are_refused_only_after_caches_are_reclaimed() {
    let budget = Budget::new(1_000);
    let cache = Arc::new(Cache(std::sync::Mutex::new(budget.reserve(Pool::Cache, 700).unwrap())));
    let reclaimer: Weak<Cache> = Arc::downgrade(&cache);
    budget.set_reclaimer(reclaimer);
    let query = budget.part(900).reserve(Pool::Query, 800).unwrap();
    assert_eq!((query.bytes(), cache.0.lock().unwrap().bytes()), (800, 80));
    assert!(budget.reserve(Pool::Head, 200).is_err(), "writes reclaim before they take locks");
    let of_free = budget.part(900).of_free();
    assert!(of_free.reserve(Pool::Query, 1).is_err(), "nothing is reclaimed for it");
    assert_eq!(cache.0.lock().unwrap().bytes(), 80);
    assert!(budget.reserve(Pool::Query, 81).is_err());
    assert_eq!(cache.0.lock().unwrap().bytes(), 0);
}

/// Three queries without a pause, each for all free memory, held up writes for minutes.
#[test]
fn queries_leave_room_for_what_was_refused() {
    let budget = Budget::new(10_000);
    budget.set_meter(|| Some(0));
    let mut query = budget.reserve(Pool::Query, 7_900).unwrap();
    let mut body = budget.of_request(Pool::Requests, 0);
    body.grow(100).unwrap();
    assert!(body.grow(400).is_err());
    drop(body);
    assert_eq!(budget.usage().owed_bytes, 1_000, "of the whole body, for two steps");
    let refused = query.grow(100).unwrap_err();
    assert!(refused.is_retriable());
    let text = "above 70 percent (88 unless others were refused lately)";
    assert!(refused.to_string().contains(text), "{refused}");
    // The query's released memory is the write's.
    query.shrink(900);
    for _ in 0..100 {
        assert!(query.grow(100).is_err());
        budget.measure();
    }
    assert_eq!(budget.usage().owed_bytes, 1_000, "neither queries nor measurements forget");
    let small = budget.reserve(Pool::Head, 100).unwrap();
    let body = budget.reserve(Pool::Requests, 500).unwrap();
    let head = budget.reserve(Pool::Head, 300).unwrap();
    drop((small, body, head));
    // Half in four seconds, and all of it some time later.
    (0..16).for_each(|_| budget.forget_owed(250));
    assert!((400..=600).contains(&budget.usage().owed_bytes), "{:?}", budget.usage());
    (0..400).for_each(|_| budget.forget_owed(250));
    assert_eq!(budget.usage().owed_bytes, 0);
    query.grow(1_800).unwrap();
}

#[test]
fn owed_memory_is_bounded_and_queries_have_a_part_of_their_own() {
    let budget = Budget::new(10_000);
    let filled = budget.reserve(Pool::Index, 8_000).unwrap();
    assert!(budget.reserve(Pool::Jobs, 5_000).is_err());
    assert_eq!(budget.usage().owed_bytes, 0, "it may never fit");
    (0..9).for_each(|_| assert!(budget.reserve(Pool::Requests, 5_000).is_err()));
    assert_eq!(budget.usage().owed_bytes, 2_500);
    let mut query = budget.part(9_000).reserve(Pool::Query, 625).unwrap();
    assert!(query.grow(1).is_err());
    drop(filled);
    query.grow(5_500 - 625 - 1_000).unwrap();
    let others = budget.reserve(Pool::Query, 1_000).unwrap();
    assert!(budget.reserve(Pool::Query, 1).is_err());
    drop((others, query));
    budget.forget_owed(u64::MAX);
    assert_eq!(budget.usage().owed_bytes, 0);

    // One more series of a large index, beside caches that it may reclaim.
    let mut index = budget.reserve(Pool::Index, 2_000).unwrap();
    let mut cache = budget.empty(Pool::Cache);
    cache.take(4_000);
    let mut query = budget.reserve(Pool::Query, 2_000).unwrap();
    assert!(index.grow(100).is_err());
    assert_eq!(budget.usage().owed_bytes, 200);
    assert!(query.grow(700).is_ok());
    assert!(query.grow(200).is_err(), "over the threshold of queries itself");
}

/// 12 clients in bulk and the caches of large targets refused nearly all queries of a few KiB.
#[test]
fn small_queries_find_memory_above_the_threshold() {
    let budget = Budget::new(10_000);
    let mut process = budget.empty(Pool::Process);
    process.take(8_900);
    let mut query = budget.part(9_000).reserve(Pool::Query, 312).unwrap();
    assert!(query.grow(1).is_err());
    assert!(budget.reserve(Pool::Requests, 5_000).is_err(), "and it is owed some");
    query.shrink(100);
    query.grow(100).unwrap();
    process.take(300);
    query.shrink(200);
    query.grow(88).unwrap();
    assert!(query.grow(1).is_err(), "94 percent");
}

#[test]
fn memory_in_use_counts_even_over_the_limit() {
    let budget = Budget::new(100);
    let mut index = budget.empty(Pool::Index);
    for bytes in [30, 170, 150] {
        index.take_exactly(bytes);
        assert_eq!((index.bytes(), budget.usage().used_bytes), (bytes, bytes));
    }
    assert!(budget.reserve(Pool::Jobs, 1).is_err());
    index.shrink(100);
    assert!(budget.reserve(Pool::Jobs, 1).is_ok());
}
