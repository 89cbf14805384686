//! Bodies of every kind, and that a seed makes the same ones.

use super::*;

pub fn openai() -> OpenAi {
    OpenAi {
        interface: Interface::Chat,
        path: "/v1/chat/completions".to_owned(),
        streaming: true,
        asks_usage: true,
        prompts: Prompts {
            source: PromptSource::Synthetic { length: Length { mean: 5, deviation: 0 }, count: 3 },
            shared_prefix: 0,
        },
        output: None,
        is_output_exact: false,
        extra: Map::new(),
        goals: Goals::default(),
    }
}

fn bodies(openai: &OpenAi, seed: u64) -> Vec<Value> {
    let templates = openai.templates("model", seed).unwrap();
    templates.iter().map(|template| serde_json::from_slice(template.body.as_ref().unwrap()).unwrap()).collect()
}

fn prompt(body: &Value) -> Vec<&str> {
    body["messages"][0]["content"].as_str().unwrap().split(' ').collect()
}

#[test]
fn bodies_have_what_was_asked_for() {
    let mut given = openai();
    let body = &bodies(&given, 1)[0];
    assert_eq!((&body["model"], &body["messages"][0]["role"]), (&json!("model"), &json!("user")));
    assert_eq!((&body["stream"], &body["stream_options"]), (&json!(true), &json!({"include_usage": true})));
    assert_eq!((prompt(body).len(), &body["max_tokens"]), (5, &Value::Null));
    given.asks_usage = false;
    given.output = Some(Length { mean: 9, deviation: 0 });
    given.extra.insert("temperature".to_owned(), json!(0));
    given.extra.insert("model".to_owned(), json!("other"));
    let body = &bodies(&given, 1)[0];
    assert_eq!(
        (&body["stream_options"], &body["max_tokens"], &body["ignore_eos"]),
        (&Value::Null, &json!(9), &Value::Null)
    );
    assert_eq!((&body["temperature"], &body["model"]), (&json!(0), &json!("other")));
    given.is_output_exact = true;
    given.interface = Interface::Completions;
    (given.streaming, given.asks_usage) = (false, true);
    let body = &bodies(&given, 1)[0];
    assert_eq!((&body["min_tokens"], &body["ignore_eos"]), (&json!(9), &json!(true)));
    assert_eq!(
        (&body["stream"], &body["stream_options"], &body["messages"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    assert_eq!(body["prompt"].as_str().unwrap().split(' ').count(), 5);
}

#[test]
fn the_seed_decides() {
    let mut given = openai();
    given.output = Some(Length { mean: 50, deviation: 20 });
    given.prompts.source = PromptSource::Synthetic { length: Length { mean: 30, deviation: 10 }, count: 20 };
    assert_eq!(bodies(&given, 7), bodies(&given, 7));
    assert_ne!(bodies(&given, 7), bodies(&given, 8));
    // More prompts begin with the same ones.
    let few = bodies(&given, 7);
    given.prompts.source = PromptSource::Synthetic { length: Length { mean: 30, deviation: 10 }, count: 40 };
    assert_eq!(bodies(&given, 7)[..20], few);
}

#[test]
fn a_shared_prefix_is_the_same_for_all() {
    let mut given = openai();
    given.prompts.shared_prefix = 4;
    let bodies = bodies(&given, 1);
    let prompts: Vec<Vec<&str>> = bodies.iter().map(prompt).collect();
    assert!(prompts.iter().all(|words| words.len() == 9 && words[..4] == prompts[0][..4]));
    assert_ne!(prompts[0][4..], prompts[1][4..]);
}

#[test]
fn lengths_have_their_mean_and_their_deviation() {
    let (mut random, length) = (Random::new(3), Length { mean: 200, deviation: 40 });
    let drawn: Vec<f64> = (0..20_000).map(|_| length.draw(&mut random) as f64).collect();
    let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
    let deviation = (drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64).sqrt();
    assert!((mean - 200.0).abs() < 2.0 && (deviation - 40.0).abs() < 2.0, "{mean} {deviation}");
    let short = Length { mean: 1, deviation: 50 };
    assert!((0..1000).all(|_| short.draw(&mut random) >= 1));
    assert_eq!(Length { mean: 0, deviation: 0 }.draw(&mut random), 1);
}

#[test]
fn files_of_prompts() {
    let path = std::env::temp_dir().join(format!("nereid-perf-prompts-{}", std::process::id()));
    let mut given = openai();
    given.prompts.source = PromptSource::File(path.clone());
    let templates = |given: &OpenAi, content: &str| {
        std::fs::write(&path, content).unwrap();
        let templates = given.templates("model", 1).map_err(|error| error.to_string())?;
        let body = |template: &Template| serde_json::from_slice::<Value>(template.body.as_ref().unwrap()).unwrap();
        Ok::<Vec<Value>, String>(templates.iter().map(body).collect())
    };
    let good = "{\"text_input\": \"a b\"}\n\n {\"prompt\": \"c\", \"more\": 1}\r\n{\"text\": \"\"}\n\
                {\"messages\": [{\"role\": \"system\", \"content\": \"d\"}]}";
    let bodies = templates(&given, good).unwrap();
    let contents: Vec<&Value> = bodies.iter().map(|body| &body["messages"][0]["content"]).collect();
    assert_eq!(contents, ["a b", "c", "", "d"]);
    assert_eq!(bodies[3]["messages"][0]["role"], "system");
    for (content, part) in [
        ("", "it has no prompts"),
        ("\n \n", "it has no prompts"),
        ("{\"prompt\": \"a\"}\nnonsense", "line 2: no good JSON"),
        ("[]", "line 1: it is no JSON object"),
        ("{\"prompt\": 7}", "line 1: 'prompt' is 7, not a text"),
        ("{\"messages\": \"a\"}", "line 1: 'messages' is \"a\", not a list"),
        ("{\"input\": \"a\"}", "line 1: it has neither 'messages' nor a text"),
    ] {
        let error = templates(&given, content).expect_err(content);
        assert!(error.contains(part), "{content}: {error}");
    }
    given.prompts.shared_prefix = 2;
    let text = templates(&given, "{\"prompt\": \"a b\"}").unwrap();
    let words = prompt(&text[0]);
    assert_eq!((words.len(), &words[2..]), (4, &["a", "b"][..]));
    assert!(templates(&given, good).unwrap_err().contains("line 5: 'messages' take no shared prefix"));
    given.interface = Interface::Completions;
    assert_eq!(templates(&given, "{\"text\": \"a\"}").unwrap()[0]["prompt"].as_str().unwrap().split(' ').count(), 3);
    given.prompts.shared_prefix = 0;
    assert!(templates(&given, good).unwrap_err().contains("line 5: 'messages' need the route of chats"));
    std::fs::remove_file(&path).unwrap();
    assert!(given.templates("model", 1).is_err());
    given.prompts.source = PromptSource::File(std::env::temp_dir());
    assert!(given.templates("model", 1).unwrap_err().to_string().contains("it is not a file"));
}

#[test]
fn the_words_differ() {
    let words: std::collections::BTreeSet<_> = vocabulary::WORDS.iter().collect();
    assert_eq!(words.len(), vocabulary::WORDS.len());
}

#[test]
fn prompts_have_an_end() {
    let mut given = openai();
    for (mean, count, shared_prefix) in [(TOKENS_MAX, 1000, 0), (1, 1000, TOKENS_MAX), (1, usize::MAX, usize::MAX)] {
        given.prompts.source = PromptSource::Synthetic { length: Length { mean, deviation: 0 }, count };
        given.prompts.shared_prefix = shared_prefix;
        assert!(matches!(given.templates("model", 1), Err(PromptError::TooMuch)));
    }
}
