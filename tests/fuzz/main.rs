//! The fuzz targets of `fuzz/` on the committed inputs, and on mutations of them, which follow from a fixed seed.

/// One test, because targets look at what the whole process holds.
#[test]
fn every_target_holds_on_its_corpus_and_on_mutations_of_it() {
    nereid_fuzz::drive(&[]).unwrap_or_else(|error| panic!("{error}"));
}
