//! The rows of docs/differences.md: those that a set-up shows, and those that only requests and answers show.

/// A row that a set-up shows.
#[derive(Debug)]
pub struct Difference {
    /// Its anchor in the page.
    pub id: &'static str,
    /// A sentence for the user of the set-up.
    pub text: &'static str,
}

const fn row(id: &'static str, text: &'static str) -> Difference {
    Difference { id, text }
}

pub const NEWER: &str = "newer-than-251";
pub const LATER: &str = "releases-after-the-contracts";
pub const IDLE_FLAGS: &str = "flags-without-an-effect";
pub const IDLE_FIELDS: &str = "fields-and-settings-without-an-effect";
pub const BUILT_IN: &str = "a-built-in-backend-in-place-of-a-library";
pub const UNPUBLISHED: &str = "ports-that-a-container-does-not-publish";
pub const CHANGES: &str = "a-change-that-makes-nothing-newer";
pub const DISAPPEARS: &str = "a-repository-that-disappears";
pub const CACHE_KEY: &str = "the-key-of-the-response-cache";
pub const CACHE_ENTRIES: &str = "entries-of-caches-that-are-libraries";
pub const AGENT_LIFE: &str = "the-life-of-an-agents-library";
pub const SLOW_READERS: &str = "streams-whose-client-does-not-read";
pub const MISTAKE_PLACE: &str = "the-place-of-a-mistake-in-a-configuration";
pub const NO_VERSION: &str = "models-without-a-version-in-the-index";
pub const GPUS: &str = "instances-on-gpus";
pub const OUTPUT_ORDER: &str = "the-order-of-an-ensembles-outputs";
pub const EXECUTIONS: &str = "executions-of-an-ensemble";
pub const TEXT_IDS: &str = "texts-as-correlation-ids";
pub const ID_TYPES: &str = "correlation-ids-of-another-type-than-the-controls";
pub const SEQUENCE_ENDS: &str = "ends-of-iterative-sequences";
pub const DECOUPLED_VALUE: &str = "whose-value-a-decoupled-model-returned";
pub const POLICY: &str = "a-transaction-policy-without-its-setting";
pub const HUGE_VERSION: &str = "version-beyond-64-bits";
pub const HUGE_SHAPE: &str = "a-shape-beyond-the-address-space";
pub const NO_SCRIPT: &str = "default-model-filename-not-there";
pub const ENVIRONMENT: &str = "variables-of-execution-environments";

/// All that can be seen.
pub static ALL: [Difference; 26] = [
    row(NEWER, "the image's release is older than the one that this server follows, 26.11"),
    row(LATER, "the image's release is later than the one that this server follows, 26.11: what it added is not there"),
    row(IDLE_FLAGS, "is checked and has no effect"),
    row(IDLE_FIELDS, "has no effect"),
    row(BUILT_IN, "the built-in backend is used in place of the library; `runtime` in the configuration selects it"),
    row(UNPUBLISHED, "the container does not publish this port; outside of it the port is open to other machines"),
    row(CHANGES, "a model is loaded again after any change of its files, also where none became newer"),
    row(DISAPPEARS, "models stay while the repository cannot be read, and are not unloaded"),
    row(CACHE_KEY, "the key of a cached response has parameters and shapes in it; key=triton selects the other one"),
    row(CACHE_ENTRIES, "entries have a format of their own, so both servers cannot share the cache"),
    row(AGENT_LIFE, "an agent's library stays open until the server ends"),
    row(SLOW_READERS, "a stream ends with RESOURCE_EXHAUSTED if its client reads nothing for ten seconds"),
    row(MISTAKE_PLACE, "the log has the line, the column and what was expected behind Triton's text"),
    row(NO_VERSION, "a model of which no version is selected stays in the index"),
    row(GPUS, "the error about KIND_GPU on a host without a GPU has another text"),
    row(OUTPUT_ORDER, "outputs are in the order of the configuration"),
    row(EXECUTIONS, "requests to the ensemble count as executions"),
    row(TEXT_IDS, "a correlation id that is a string reaches the model, which 2.51 cannot pass on"),
    row(ID_TYPES, "a correlation id of another type than the control's is refused"),
    row(SEQUENCE_ENDS, "the end of an iterative sequence is no failed request"),
    row(DECOUPLED_VALUE, "the error about an `execute` that returns a value names the model, not the instance"),
    row(POLICY, "using_decoupled_model_transaction_policy() is False, and raises no KeyError"),
    row(HUGE_VERSION, "a version directory beyond 64 bits is ignored with a warning; 2.51 ends"),
    row(HUGE_SHAPE, "a shape with more elements than an address space has ends no server"),
    row(NO_SCRIPT, "a missing file of a Python model is a failed load; the load of 2.51 never ends"),
    row(ENVIRONMENT, "variables that bin/activate sets count, and LD_LIBRARY_PATH is put back"),
];

pub fn find(id: &str) -> Option<&'static Difference> {
    ALL.iter().find(|row| row.id == id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const REQUESTS: &str = "depends on a request";
    const ANSWERS: &str = "is a form of answers, of every set-up";
    const CODE: &str = "depends on the code of a model, which is not read";
    const BY_IMAGE: &str = "found by the image's release (NEWER)";

    /// Rows that cannot be seen in a set-up, and why.
    const UNSEEN: [(&str, &str); 56] = [
        ("the-limit-of-the-inputs-size", BY_IMAGE),
        ("libraries-outside-the-backends-directory", BY_IMAGE),
        ("too-few-numbers", BY_IMAGE),
        ("integers-that-their-type-has-no-room-for", BY_IMAGE),
        ("a-length-that-is-no-number", BY_IMAGE),
        ("an-empty-content-encoding", BY_IMAGE),
        ("a-string-that-ends-early", BY_IMAGE),
        ("a-batch-of-no-rows", BY_IMAGE),
        ("the-text-about-a-missing-version", BY_IMAGE),
        ("buckets-of-a-models-histograms", BY_IMAGE),
        ("chunks-beside-a-length", REQUESTS),
        ("when-to-come-again", ANSWERS),
        ("the-last-digits-of-a-double", ANSWERS),
        ("the-order-of-the-inputs-in-a-complaint", REQUESTS),
        ("the-name-of-a-raw-input", REQUESTS),
        ("a-batch-of-less-than-no-rows", REQUESTS),
        ("a-blank-after-the-directories-that-were-searched", ANSWERS),
        ("the-release", ANSWERS),
        ("the-limit-of-an-ensembles-requests", BY_IMAGE),
        ("which-input-is-named-first", REQUESTS),
        ("an-output-that-is-asked-for-twice", REQUESTS),
        ("an-output-that-is-made-twice", CODE),
        ("the-status-of-a-generation-that-fails", REQUESTS),
        ("arguments-that-fit-no-type-of-c", CODE),
        ("parameters-of-responses", CODE),
        ("the-datatype-of-a-tensor", CODE),
        ("a-region-beyond-its-end", REQUESTS),
        ("the-code-of-a-callees-error", CODE),
        ("an-error-among-the-responses-of-a-callee", CODE),
        ("cancelling-an-iterator", CODE),
        ("frames-of-the-backend-itself", ANSWERS),
        ("the-type-of-an-empty-answer", ANSWERS),
        ("families-of-our-own", ANSWERS),
        ("counters-of-models-that-are-gone", ANSWERS),
        ("statistics-of-a-model-that-was-loaded-again", ANSWERS),
        ("a-model-without-execute", CODE),
        ("datatypes-that-there-are-not", CODE),
        ("texts-without-a-cause-here", ANSWERS),
        ("names-in-load-requests", REQUESTS),
        ("ready-in-index-requests", REQUESTS),
        ("a-directory-that-was-removed", REQUESTS),
        ("index-during-a-load", REQUESTS),
        ("execute-without-a-response", CODE),
        ("response-senders-over-http", CODE),
        ("callees-that-raise", CODE),
        ("refused-metrics-and-model-control", CODE),
        ("negative-increments", CODE),
        ("capsules-used-twice", CODE),
        ("classes-of-strings", REQUESTS),
        ("model-control-in-auto-complete", CODE),
        // Sections, whose rows are listed.
        ("ours-alone", ""),
        ("python-models", ""),
        ("set-ups", ""),
        ("repository-agents-and-caches", ""),
        ("not-compared", ""),
        ("where-our-answers-differ-from-the-251-servers", ""),
    ];

    /// As links name a heading.
    fn anchor(title: &str) -> String {
        let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    }

    #[test]
    fn every_row_of_the_page_is_found_or_listed_as_unseen() {
        let page = include_str!("../../../docs/differences.md");
        let mut rows = BTreeSet::new();
        let mut is_table_of_rows = false;
        for line in page.lines() {
            if let Some(title) = line.strip_prefix('#') {
                rows.insert(anchor(title.trim_start_matches('#').trim()));
                is_table_of_rows = title.trim_start_matches('#').trim() == "Not compared";
            }
            let Some(row) = line.strip_prefix("| ").filter(|_| is_table_of_rows && !line.starts_with("| Case ")) else {
                continue;
            };
            let id = row.strip_prefix("<a id=\"").and_then(|rest| rest.split_once("\"></a>"));
            rows.insert(id.unwrap_or_else(|| panic!("a row without an anchor: {line}")).0.to_owned());
        }
        let known = ALL.iter().map(|row| row.id).chain(UNSEEN.iter().map(|(id, _)| *id));
        let mut listed = BTreeSet::new();
        for id in known {
            assert!(listed.insert(id.to_owned()), "{id} is listed twice");
        }
        let absent: Vec<_> = listed.difference(&rows).collect();
        let new: Vec<_> = rows.difference(&listed).collect();
        assert!(absent.is_empty() && new.is_empty(), "not in the page: {absent:?}; in no list here: {new:?}");
    }
}
