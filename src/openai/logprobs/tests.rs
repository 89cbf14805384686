//! Tests of the JSON of log probabilities, in both forms of answers.

use super::*;

const OPENAI: LogprobsForm = LogprobsForm { compat: Compat::OpenAi, stream: false, alternatives: 2 };
const TRITON: LogprobsForm = LogprobsForm { compat: Compat::Triton, stream: false, alternatives: 2 };

/// The chosen token has rank 2; the second one's text has two bytes.
const TWO: &str = r#"[{"7": {"logprob": -1.5, "rank": 2, "decoded_token": " a"}, "3": {"logprob": -0.25, "rank": 1,
    "decoded_token": "b"}, "9": {"logprob": -3, "rank": 3, "decoded_token": "c"}}, {}, null,
    {"1": {"logprob": -1e-05, "rank": 1, "decoded_token": "é"}}]"#;

fn chat(output: &str, form: LogprobsForm) -> Result<String, LogprobsError> {
    let mut out = String::from("x");
    let result = write_chat(output.as_bytes(), form, &mut out);
    finished(result, &out)
}

fn completions(output: &str, form: LogprobsForm, first_offset: u64) -> Result<String, LogprobsError> {
    let mut out = String::from("x");
    let result = write_completions(output.as_bytes(), form, first_offset, &mut out);
    finished(result, &out)
}

/// What was written behind the text that was there before.
fn finished(result: Result<bool, LogprobsError>, out: &str) -> Result<String, LogprobsError> {
    let written = out.strip_prefix('x').unwrap();
    assert_eq!(matches!(result, Ok(true)), !written.is_empty());
    result?;
    Ok(written.into())
}

#[test]
fn chat_has_the_chosen_token_and_the_most_likely_ones() {
    assert_eq!(
        chat(TWO, OPENAI).unwrap(),
        concat!(
            r#"{"content":[{"token":" a","logprob":-1.5,"bytes":[32,97],"top_logprobs":["#,
            r#"{"token":"b","logprob":-0.25,"bytes":[98]},{"token":" a","logprob":-1.5,"bytes":[32,97]}]},"#,
            r#"{"token":"é","logprob":-1e-05,"bytes":[195,169],"top_logprobs":["#,
            r#"{"token":"é","logprob":-1e-05,"bytes":[195,169]}]}]}"#
        )
    );
    let none = LogprobsForm { alternatives: 0, ..OPENAI };
    let first = chat(TWO, none).unwrap();
    assert!(
        first.starts_with(r#"{"content":[{"token":" a","logprob":-1.5,"bytes":[32,97],"top_logprobs":[]},"#),
        "{first}"
    );
}

#[test]
fn chat_of_triton_takes_the_most_likely_token_and_gives_all() {
    let written = chat(TWO, TRITON).unwrap();
    let expected = concat!(
        r#"{"content":[{"token":"b","logprob":-0.25,"bytes":[98],"top_logprobs":["#,
        r#"{"token":"b","logprob":-0.25,"bytes":[98]},{"token":" a","logprob":-1.5,"bytes":[32,97]},"#,
        r#"{"token":"c","logprob":-3.0,"bytes":[99]}]},"#
    );
    assert!(written.starts_with(expected), "{written}");
}

#[test]
fn completions_have_four_lists() {
    assert_eq!(
        completions(TWO, OPENAI, 0).unwrap(),
        concat!(
            r#"{"text_offset":[0,2],"token_logprobs":[-1.5,-1e-05],"tokens":[" a","é"],"#,
            r#""top_logprobs":[{" a":-1.5,"b":-0.25,"c":-3.0},{"é":-1e-05}]}"#
        )
    );
    assert_eq!(
        completions(TWO, TRITON, 10).unwrap(),
        concat!(
            r#"{"text_offset":[10,11],"token_logprobs":[-0.25,-1e-05],"tokens":["b","é"],"#,
            r#""top_logprobs":[{"b":-0.25," a":-1.5,"c":-3.0},{"é":-1e-05}]}"#
        )
    );
}

#[test]
fn offsets_count_characters() {
    let output =
        r#"[{"1":{"logprob":0,"rank":1,"decoded_token":"é😀"}},{"2":{"logprob":0,"rank":1,"decoded_token":"a"}}]"#;
    let written = completions(output, OPENAI, 3).unwrap();
    assert!(written.starts_with(r#"{"text_offset":[3,5],"token_logprobs":[0.0,0.0],"#), "{written}");
}

#[test]
fn a_token_that_comes_again_has_its_place_and_the_last_value() {
    let output = r#"[{"1":{"logprob":-1,"rank":1,"decoded_token":"\ufffd"},
        "2":{"logprob":-2,"rank":2,"decoded_token":"a"},
        "3":{"logprob":-3,"rank":3,"decoded_token":"\ufffd"}}]"#;
    let written = completions(output, OPENAI, 0).unwrap();
    assert!(written.ends_with("\"top_logprobs\":[{\"\u{fffd}\":-3.0,\"a\":-2.0}]}"), "{written}");
}

#[test]
fn without_tokens_there_is_null() {
    for output in ["null", "[]", " [ {} , {}, null ] "] {
        for form in [OPENAI, TRITON] {
            assert_eq!(chat(output, form).unwrap(), "", "{output}");
            assert_eq!(completions(output, form, 0).unwrap(), "", "{output}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_replaced_or_refused() {
    for literal in ["NaN", "Infinity", "-Infinity"] {
        let output = format!(r#"[{{"1":{{"logprob":{literal},"rank":1,"decoded_token":"NaN\"-Infinity\\"}}}}]"#);
        let token = r#""NaN\"-Infinity\\""#;
        let of = |number| {
            let lists = format!(r#"{{"text_offset":[0],"token_logprobs":[{number}],"tokens":[{token}],"#);
            format!(r#"{lists}"top_logprobs":[{{{token}:{number}}}]}}"#)
        };
        assert_eq!(completions(&output, OPENAI, 0).unwrap(), of("-9999.0"));
        assert_eq!(completions(&output, LogprobsForm { stream: true, ..TRITON }, 0).unwrap(), of("null"));
        assert!(matches!(completions(&output, TRITON, 0), Err(LogprobsError::NonFinite)));
        assert!(matches!(chat(&output, TRITON), Err(LogprobsError::NonFinite)));
        assert!(chat(&output, OPENAI).unwrap().contains(r#""logprob":-9999.0"#));
    }
}

#[test]
fn what_is_no_such_list_is_refused_and_leaves_nothing() {
    let entry = r#"{"1":{"logprob":-1,"rank":1,"decoded_token":"a"}}"#;
    let deep = format!("[{{\"1\":{{\"x\":{}", "[".repeat(100_000));
    for output in [
        "",
        "5",
        "{}",
        "\"a\"",
        "[1]",
        "[[]]",
        "[{\"1\":5}]",
        "[{\"1\":{\"rank\":1,\"decoded_token\":\"a\"}}]",
        &format!("[{entry}"),
        &format!("[{entry},"),
        &format!("[{entry}] x"),
        &deep,
    ] {
        for form in [OPENAI, TRITON] {
            assert!(matches!(chat(output, form), Err(LogprobsError::Malformed(_))), "{output}");
            assert!(matches!(completions(output, form, 0), Err(LogprobsError::Malformed(_))), "{output}");
        }
    }
    assert!(write_chat(b"[{\"1\":{\"decoded_token\":\"\xff\"}}]", OPENAI, &mut String::new()).is_err());
}
