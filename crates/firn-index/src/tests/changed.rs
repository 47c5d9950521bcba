//! Another program changes segment files while the index reads them through maps.

use std::sync::Arc;

use firn_env::{Disk, DiskFile, LocalDisk, OpenMode};
use firn_model::{Error, ErrorKind, Grouping, MatchOp, Matcher, QueryContext, Result};

use super::{bits, labels, options, resolve};
use crate::Index;

/// A way through which a caller reads labels.
type Call = Box<dyn Fn(&Index) -> Result<()>>;

/// An index with one file, all of whose blocks were verified, and the file's path.
struct Scene {
    _folder: tempfile::TempDir,
    disk: Arc<dyn Disk>,
    index: Index,
    path: String,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder.path()).unwrap());
        let index = Index::open(Arc::clone(&disk), bits(), options(), &[]).unwrap();
        for text in texts() {
            resolve(&index, &text);
        }
        let part = index.plan_seal().unwrap().run(&*disk).unwrap();
        index.apply(&part).unwrap();
        let path = index.segment_paths().remove(0);
        let scene = Scene { _folder: folder, disk, index, path };
        scene.calls().into_iter().for_each(|call| call(&scene.index).unwrap());
        scene
    }

    /// The file, as another program opens it.
    fn file(&self) -> Arc<dyn DiskFile> {
        self.disk.open(&self.path, OpenMode::Write).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        self.file().map().unwrap().to_vec()
    }

    /// Writes until the file system notes another time, which it does in steps.
    fn write(&self, at: usize, bytes: &[u8]) {
        let file = self.file();
        let before = file.stamp().unwrap();
        while file.stamp().unwrap() == before {
            file.write_at(at as u64, bytes).unwrap();
        }
    }

    /// Every way through which callers read labels.
    fn calls(&self) -> Vec<Call> {
        let matchers = || [Matcher::new("host", MatchOp::Regex, "host-.*7").unwrap()];
        let context = QueryContext::unbounded;
        let all = move |index: &Index| index.view().select(&matchers(), &context());
        vec![
            Box::new(move |index| all(index).map(drop)),
            Box::new(move |index| {
                let found = all(index)?;
                found.collect_groups(&Grouping::Series, &context()).map(drop)
            }),
            Box::new(move |index| {
                let mut values = 0;
                all(index)?.each_value(
                    "host",
                    &context(),
                    &mut |_, _: &[_]| Ok(true),
                    &mut |_| {
                        values += 1;
                        Ok(std::ops::ControlFlow::Continue(()))
                    },
                )?;
                assert_eq!(values, 20);
                Ok(())
            }),
            Box::new(move |index| index.view().cardinality(3, &context()).map(drop)),
            Box::new(|index| {
                for text in texts() {
                    let series = index.lookup(&labels(&text))?.expect("it is known");
                    let found = index.view().labels(series)?;
                    assert_eq!(found, Some(labels(&text)));
                }
                Ok(())
            }),
        ]
    }
}

fn texts() -> Vec<String> {
    (0..200).map(|n| format!("__name__=m,host=host-{n}")).collect()
}

fn is_corrupt(error: &Error, path: &str) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt { file, .. } if file == path)
}

/// Before, a block was verified once: later flips of its bits changed labels, silently.
#[test]
fn a_changed_segment_is_verified_again_before_its_next_use() {
    let scene = Scene::new();
    let whole = scene.bytes();
    // A letter of a label value, probably.
    let at = whole.windows(4).position(|four| four == b"host").unwrap_or(whole.len() / 2);
    let calls = scene.calls();
    for call in &calls {
        scene.write(at, &[whole[at] ^ 4]);
        let error = call(&scene.index).expect_err("damaged");
        assert!(is_corrupt(&error, &scene.path), "{error}");
        // A restore in place.
        scene.write(at, &whole[at..=at]);
        calls.iter().for_each(|call| call(&scene.index).unwrap());
    }
    scene.write(at, &[whole[at] ^ 4]);
    assert_eq!(scene.index.check().len(), 1);
}

/// A change between the beginning and the end of a call.
#[test]
fn a_segment_that_is_damaged_during_a_call_fails_the_call() {
    let scene = Scene::new();
    let whole = scene.bytes();
    let at = whole.len() / 2;
    let context = QueryContext::unbounded();
    let list = |change: &dyn Fn()| {
        let found = scene.index.view().select(&[], &context)?;
        let mut is_first = true;
        found.each_value("host", &context, &mut |_, _: &[_]| Ok(true), &mut |_| {
            if std::mem::take(&mut is_first) {
                change();
            }
            Ok(std::ops::ControlFlow::Continue(()))
        })
    };
    let error = list(&|| scene.write(at, &[whole[at] ^ 1])).expect_err("damaged meanwhile");
    assert!(is_corrupt(&error, &scene.path), "{error}");
    scene.write(at, &whole[at..=at]);
    // The same bytes now, but what were those that the call has read?
    let error = list(&|| scene.write(at, &whole[at..=at])).expect_err("written to meanwhile");
    assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
    let link = || {
        // A new name changes the stamp of the file, and no byte.
        let before = scene.file().stamp().unwrap();
        while scene.file().stamp().unwrap() == before {
            scene.disk.rename(&scene.path, "other").unwrap();
            scene.disk.rename("other", &scene.path).unwrap();
        }
    };
    list(&link).expect("a file with another name");
}
