//! Chat templates from the input, rendered in bounds.
//!
//! Whatever a template says, rendering it ends within its bounds, with a text or an error that says which bound it was.
//! Small bounds stop a rendering and change nothing of it. The input is a template and, behind a NUL, the messages.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, process};

use nereid_openai::json::{Bounds, Json};
use nereid_openai::template::{Conversation, RenderBounds, RenderError, Templates};

use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "openai_template",
    run,
    runs: 2_000,
    words: &[
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "{% if messages %}",
        "{% elif x is defined %}",
        "{% else %}",
        "{% endif %}",
        "{% for m in messages %}",
        "{% for i in range(100000) %}",
        "{% break %}",
        "{% continue %}",
        "{% endfor %}",
        "{% set x = namespace(y='a') %}",
        "{% set x.y = x.y ~ x.y %}",
        "{% set x.y = x.y + 1 %}",
        "{% set z %}",
        "{% endset %}",
        "{% macro m(a, b=1) %}",
        "{{ m(m) }}",
        "{% call m(1) %}",
        "{% endcall %}",
        "{% endmacro %}",
        "{% filter upper %}",
        "{% endfilter %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% include 'default' %}",
        "{% import 'default' as d %}",
        "{% extends 'default' %}",
        "{% block b %}",
        "{% endblock %}",
        "{{ self.b() }}",
        "{% raw %}",
        "{% endraw %}",
        "m.role",
        "m['content']",
        "loop.index0",
        "loop.previtem",
        "loop(m)",
        "recursive",
        "[::-1]",
        "[1:]",
        "(1, 2)",
        "{'a': 1}",
        "'abc'",
        "1.5e300",
        "9223372036854775807",
        "170141183460469231731687303715884105727",
        "1000000000",
        "-1",
        " ~ ",
        " + ",
        " * ",
        " ** ",
        " // ",
        " % ",
        " == ",
        " < ",
        " in ",
        " not ",
        " is ",
        " if a else b",
        "|tojson",
        "|tojson(indent=4)",
        "|tojson(separators=(',', ':'), sort_keys=true)",
        "|string",
        "|list",
        "|join(', ')",
        "|length",
        "|trim",
        "|indent(1000000000)",
        "|center(1000000000)",
        "|batch(3, 'x')",
        "|slice(1000000000)",
        "|sort",
        "|unique",
        "|groupby('role')",
        "|map(attribute='content')",
        "|selectattr('role', 'equalto', 'user')",
        "|items",
        "|dictsort",
        "|replace('', 'xxxxxxxx')",
        "|format(1, 2)",
        "'%1000000000d'",
        "'{:1000000000}'.format(1)",
        "|pprint",
        "|first",
        "|sum",
        "|round(400)",
        "|int",
        "|safe",
        "|urlencode",
        "|default('d', true)",
        ".split(',')",
        ".join(x.y)",
        ".replace('a', 'aaaaaaaa')",
        ".items()",
        ".strip()",
        ".startswith('a')",
        ".rsplit('a', 1)",
        ".partition('a')",
        "raise_exception('no')",
        "strftime_now('%Y-%m-%d')",
        "strftime_now('%')",
        "cycler(1, 2).next()",
        "joiner(',')()",
        "dict(a=1)",
        "lipsum(1000000)",
        "range(0, 1000000000, 2)",
        "bos_token",
        "add_generation_prompt",
        "tools",
        "\0[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}]",
    ],
    seeds,
};

/// Longer than any rendering of so few steps takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// More than renderings of so few steps hold.
const MEMORY_MAX: u64 = 512 << 20;

fn run(data: &[u8]) -> bool {
    let (mut dice, input) = split(data);
    let text = String::from_utf8_lossy(input);
    let (source, messages) = text.split_once('\0').unwrap_or((&text, ""));
    if is_beyond_bounds(source) {
        return false;
    }
    let (begun, memory) = (Instant::now(), memory_peak());
    let Ok(templates) = Templates::load(Path::new("/nonexistent"), Some(source)) else { return false };
    let messages = messages_of(messages);
    let arguments = [("x".to_owned(), Json::List(vec![Json::Int(1), Json::from("a"), Json::Float(0.5)]))];
    let has_tools = dice.one_in(2);
    let conversation = Conversation {
        messages: &messages,
        tools: has_tools.then_some(&messages[..]),
        add_generation_prompt: dice.one_in(2),
        arguments: &arguments,
    };
    let _ = templates.content_form(has_tools);
    let small = RenderBounds {
        steps_max: *dice.pick(&[100, 2_000, 20_000]),
        bytes_max: *dice.pick(&[10, 1_000, 100_000]),
        time_max: LONG,
    };
    let large = RenderBounds { steps_max: 100_000, bytes_max: 1 << 20, time_max: LONG };
    let rendered = render(&templates, &conversation, &small);
    let further = render(&templates, &conversation, &large);
    // The clock goes on between two renderings.
    if !source.contains("strftime_now") {
        let again = render(&templates, &conversation, &small);
        assert_eq!(rendered, again, "{source:?}");
        if matches!(rendered, Ok(_) | Err(RenderError::Failed(_))) {
            assert_eq!(rendered, further, "{small:?}: {source:?}");
        }
    }
    let none = RenderBounds { time_max: Duration::ZERO, ..small };
    // Without a byte and without a variable there is nothing where the clock is read.
    if let Ok(text) = render(&templates, &conversation, &none) {
        assert!(text.is_empty(), "{text:?} in no time: {source:?}");
    }
    assert!(begun.elapsed() < LONG, "{:?}: {source:?}", begun.elapsed());
    let grown = memory_peak().saturating_sub(memory);
    assert!(grown < MEMORY_MAX, "{grown} bytes more: {source:?}");
    further.is_ok()
}

/// True if a template may nest or repeat values without bounds, which the fuel of minijinja does not pay for (see
/// `nereid_openai::template`): its namespaces hold more than texts and numbers, or it repeats something often.
fn is_beyond_bounds(source: &str) -> bool {
    let is_long = |digits: &str| digits.len() > 3;
    let repeats = source.contains('*') && source.split(|digit: char| !digit.is_ascii_digit()).any(is_long);
    let sets = source.split("set").skip(1).filter_map(|set| set.split("%}").next()?.split_once('='));
    let nests = |(target, value): (&str, &str)| {
        let Some((name, _)) = target.split_once('.') else { return false };
        let mentions = value.matches(name.trim()).count();
        let is_text = value.contains('~');
        let is_simple = !value.contains(['[', '{', '(', '|', '*']);
        !is_simple || (!is_text && (mentions > 1 || !value.contains(['+', '-', '\'', '"'])))
    };
    repeats || (source.contains("namespace") && sets.into_iter().any(nests))
}

fn render(
    templates: &Templates,
    conversation: &Conversation<'_>,
    bounds: &RenderBounds,
) -> Result<String, RenderError> {
    let rendered = templates.render(conversation, bounds);
    match &rendered {
        Ok(text) => assert!(text.len() <= bounds.bytes_max, "{} bytes of {bounds:?}", text.len()),
        Err(RenderError::TooManySteps(max)) => assert_eq!(*max, bounds.steps_max),
        Err(RenderError::TooLong(max)) => assert_eq!(*max, bounds.bytes_max),
        Err(RenderError::TooSlow(max)) => {
            assert_eq!(*max, bounds.time_max.as_millis());
            assert!(bounds.time_max < LONG, "{bounds:?} end no rendering");
        }
        Err(RenderError::Failed(text)) => assert!(!text.contains("fuel"), "{text}"),
        Err(error @ RenderError::NoTemplate(_)) => panic!("{error}"),
    }
    rendered
}

/// Those of the input if they are a list, else a few.
fn messages_of(text: &str) -> Vec<Json> {
    const FEW: &str = r#"[{"role":"system","content":"s"},{"role":"user","content":"<hi> 'ß'"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]}]"#;
    let read = |text: &str| Json::parse(text.as_bytes(), &Bounds::default()).ok();
    match read(text).or_else(|| read(FEW)) {
        Some(Json::List(messages)) => messages,
        other => other.into_iter().collect(),
    }
}

/// The most memory that this process has had at once.
fn memory_peak() -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process::id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content']|trim }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "{%- if tools %}{{ tools|tojson(indent=4) }}{% endif %}\n{%- for m in messages[1:] if m.role != 'system' -%}\n\
         {% if m.content is string %}{{ m.content }}{% elif m.content is iterable %}{% for p in m.content %}\
         {{ p.text|default('') }}{% endfor %}{% endif %}{{ loop.index0 ~ loop.last }}{% endfor %}",
        "{% macro show(a, b='c', **kwargs) %}[{{ a|upper }}{{ b }}]{% endmacro %}{% set ns = namespace(n=0, s='') %}\
         {% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s + m.role %}{% endfor %}{{ ns.n }}{{ show(ns.s) }}",
        "{% if messages|length % 2 == 1 and x[0] is defined %}{{ raise_exception('must alternate') }}{% endif %}",
        "{{ strftime_now('%d %b %Y') }}{{ messages|map(attribute='role')|join(', ') }}{{ x|string }}{{ {'a': (1,), 'b': none} }}",
        "{% generation %}{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}\
         {{ 'a,b'.rsplit(',', 1) }}{{ 'ab'.partition('b')|list }}{{ messages[0].items()|list }}",
        "{% set n = namespace(x='a') %}{% for i in range(30) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}",
        "{{ ([1, 'a', x] * 20)|join(', ') }}{{ ''.join(x|map('string')) }}{{ x|join('-', attribute='a.0') }}",
        "{% for a in messages recursive %}{{ a.role }}{% if loop.depth < 3 %}{{ loop(messages) }}{% endif %}{% endfor %}",
        "{% set s %}a{{ x }}b{% endset %}{{ s|replace('a', 'xx')|indent(2)|title }}{{ '%s-%05d'|format('a', 3) }}{{ x|batch(2, '-')|list }}",
        "{{ messages[0].content }}\0[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}]",
    ]
    .iter()
    .zip(1u32..)
    .map(|(text, number)| [&number.to_be_bytes()[..], text.as_bytes()].concat())
    .collect()
}
