//! TensorFlow models in a whole server (contract/frameworks.md section 5). The models are those of
//! tests/fixtures/tensorflow; the tests run only if NEREID_TEST_LARGE_RUNTIMES is set.

mod loading;
mod sequences;
mod serving;
mod stand;
