//! Claims of folders that older versions wrote, and of copies of one folder.

use std::sync::Arc;
use std::time::Duration;

use firn_env::PutMode;
use firn_model::{Budget, CancelToken, Labels, Pool, RowBatch};
use firn_sim::{Operation, Sim};

use crate::edit::{Edit, Room};
use crate::folder::Folder;
use crate::manifest::Manifest;
use crate::parts::{self, EngineParts};
use crate::slow::claim::claim_as;
use crate::slow::description::{KEY, read};
use crate::{Engine, EngineOptions, Lane, RecoveryProgress};

fn open(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions { shard_count: 4, ..EngineOptions::default() };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

/// All work that is due after a sample, its upload too; an error of the slow tier is left for
/// later.
fn upload(sim: &Sim, engine: &Engine) {
    let labels = Labels::from_pairs([("__name__", "m")]).expect("labels");
    let series = engine.resolve(&[labels]).remove(0).expect("resolves");
    let mut batch = RowBatch::default();
    batch.push(series, sim.env().clock.now_ms(), 1.0);
    engine.write(&mut batch).expect("a write");
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).is_ok_and(|step| step.is_some()) {}
}

/// Makes the folder as versions left it that recorded no claims.
fn forget_claims(sim: &Sim) {
    let (mut manifest, found) = Manifest::open(sim.env().disk).expect("a manifest");
    let mut state = Edit::default();
    for room in [Room::Engine, Room::Log, Room::Index, Room::Tree] {
        for part in found.parts(room) {
            if room != Room::Engine || !parts::is_claims(part) {
                state = state.with(room, part.to_vec());
            }
        }
    }
    manifest.commit(&Edit::default(), || state).expect("a commit");
}

fn claims(sim: &Sim) -> Option<Vec<u64>> {
    let (_, found) = Manifest::open(sim.env().disk).expect("a manifest");
    let memory = Budget::unlimited().empty(Pool::Index);
    EngineParts::decode(found.parts(Room::Engine).into_iter(), memory).expect("parts").claims
}

/// An older version wrote the folder last. Its manifest on the slow tier is recognised by the mark,
/// even if the first claim does not get there, and can be repaired. From then on the folder records
/// its claims.
#[test]
fn a_folder_without_claims_is_recognised_by_its_mark() {
    let sim = Sim::new(2);
    upload(&sim, &open(&sim));
    forget_claims(&sim);
    assert_eq!(claims(&sim), None);
    let before = sim.bucket.bytes(KEY).expect("a manifest");

    sim.faults.set_rate(Operation::Put, 1.0);
    upload(&sim, &open(&sim));
    sim.faults.clear();
    assert_eq!(claims(&sim).expect("remembered").len(), 2);
    assert!(sim.bucket.bytes(KEY).expect("a manifest") == before);
    let engine = open(&sim);
    upload(&sim, &engine);
    assert!(!engine.slow.is_fenced());
    assert!(sim.bucket.bytes(KEY).expect("a manifest") != before);
    drop(engine);

    for is_ruined in [false, true] {
        forget_claims(&sim);
        if is_ruined {
            let ruin = |bytes: &mut Vec<u8>| {
                let half = bytes.len() / 2;
                [half - 1, 2 * half - 1].iter().for_each(|&at| bytes[at] ^= 1);
            };
            sim.bucket.damage(KEY, ruin).expect("a manifest");
        }
        let engine = open(&sim);
        let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
        assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
        assert_eq!(report.findings.len(), usize::from(is_ruined));
        upload(&sim, &engine);
        assert!(!engine.slow.is_fenced());
        drop(engine);
        assert!(claims(&sim).is_some());
    }
}

/// Two servers with copies of one folder claim the same manifest. With equal objects, each would
/// take a put without an answer for its own.
#[test]
fn no_two_claims_are_the_same() {
    let put = |sim: &Sim| {
        let writer = Folder::new(7, None).writer();
        claim_as(&sim.bucket, None, writer, &Edit::default()).expect("a claim");
        let found = read(&sim.bucket, &Budget::unlimited()).expect("readable").expect("there");
        assert_eq!((found.epoch, found.writer.mark), (1, 7));
        claim_as(&sim.bucket, Some(&found), writer, &Edit::default()).expect("a claim");
        sim.bucket.bytes(KEY).expect("a manifest")
    };
    let [one, other] = [Sim::new(1), Sim::new(1)].map(|sim| put(&sim));
    assert_eq!(one.len(), other.len());
    assert_ne!(one, other);
}

/// One object of another program, whose key the client of the store cannot parse, failed every
/// listing, and so all uploads after a start.
#[test]
fn a_failing_listing_delays_the_removal_of_garbage_only() {
    // Left by a killed upload of an earlier writer.
    const LEFT: [&str; 2] = ["index/90-0.seg", "tables/500.fst"];
    let sim = Sim::new(3);
    upload(&sim, &open(&sim));
    for key in LEFT {
        sim.env().bucket.put(key, vec![1].into(), PutMode::Create).expect("a put");
    }
    let before = sim.bucket.bytes(KEY).expect("a manifest");
    sim.faults.set_rate(Operation::ListObjects, 1.0);
    let engine = open(&sim);
    upload(&sim, &engine);
    assert!(sim.bucket.bytes(KEY).expect("a manifest") != before, "uploads go on");
    upload(&sim, &engine);
    assert!(LEFT.iter().all(|key| sim.bucket.bytes(key).is_some()));

    sim.faults.clear();
    for _ in 0..3 {
        upload(&sim, &engine);
    }
    assert!(LEFT.iter().all(|key| sim.bucket.bytes(key).is_none()), "they are found later");
}
