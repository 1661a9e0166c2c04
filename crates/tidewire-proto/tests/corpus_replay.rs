//! Replays the corpora of the fuzz targets in the ordinary test run, so that a bug found by a fuzzer stays fixed
//! without running the fuzzer.

pub mod decoders;

use std::fs;
use std::path::Path;

use decoders::TARGETS;

#[test]
fn every_corpus_replays() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let corpus = corpora.join(name);
        let mut replayed = 0;
        let entries = fs::read_dir(&corpus)
            .unwrap_or_else(|error| panic!("no corpus at {}: {error}", corpus.display()));
        for entry in entries {
            let path = entry.expect("a directory entry").path();
            let bytes = fs::read(&path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "target {name} fails on {}", path.display());
            replayed += 1;
        }
        assert!(replayed > 0, "the corpus of {name} is empty");
    }
}

#[test]
fn every_corpus_has_a_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let names_in = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(fuzz.join(directory)).expect("the directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("a directory entry").path())
            .map(|path| {
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    };
    let mut targets: Vec<_> = TARGETS.map(|(name, _)| name.to_owned()).into();
    // The tests of `tidewire` replay this one.
    targets.push("tls".to_owned());
    targets.sort();
    assert_eq!(names_in("corpus"), targets);
    assert_eq!(names_in("fuzz_targets"), targets);
}
