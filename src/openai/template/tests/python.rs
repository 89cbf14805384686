//! What differs between minijinja and Python's Jinja2 as transformers sets it up. The expected texts are Python's.

use super::*;

#[test]
fn floats_print_as_in_python() {
    let cases = [
        (1e20, "1e+20"),
        (1e16, "1e+16"),
        (123_456_789_012_345.0, "123456789012345.0"),
        (1e15, "1000000000000000.0"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.5e-7, "1.5e-07"),
        (-2.5, "-2.5"),
        (3.0, "3.0"),
        (-0.0, "-0.0"),
        (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
    ];
    for (value, expected) in cases {
        assert_eq!(printed("x", Json::Float(value)), expected);
        assert_eq!(printed("x|string", Json::Float(value)), expected);
        assert_eq!(printed("[x]", Json::Float(value)), format!("[{expected}]"));
        assert_eq!(printed("x|tojson", Json::Float(value)), expected);
    }
    assert_eq!(printed("[x, x|tojson]", Json::Float(f64::INFINITY)), "[inf, 'Infinity']");
    assert_eq!(printed("[x, x|tojson]", Json::Float(f64::NAN)), "[nan, 'NaN']");
}

#[test]
fn integers_stay_integers() {
    assert_eq!(printed("x", Json::Int(3)), "3");
    assert_eq!(printed("x + 1", Json::Int(i128::from(u64::MAX))), "18446744073709551616");
    assert_eq!(printed("x is integer", Json::Int(1)), "True");
    assert_eq!(printed("x is integer", Json::Float(1.0)), "False");
    assert_eq!(printed("x is float", Json::Float(1.0)), "True");
}

#[test]
fn containers_print_as_in_python() {
    let x = object(&[
        ("b", Json::List(vec![Json::Null, Json::Bool(true), Json::Float(1.0), Json::Int(-1)])),
        ("a", text("it's")),
        ("c", text("\"'\\\n\u{7f}é\u{a0}\u{200b}\u{1f600}\u{301}")),
    ]);
    let expected = "{'b': [None, True, 1.0, -1], 'a': \"it's\", 'c': '\"\\'\\\\\\n\\x7fé\\xa0\\u200b\u{1f600}\u{301}'}";
    assert_eq!(printed("x", x.clone()), expected);
    assert_eq!(printed("x|string", x), expected);
    assert_eq!(rendered("{{ (1,) }}{{ () }}{{ (1, 'a') }}{{ {} }}{{ [] }}"), "(1,)()(1, 'a'){}[]");
    assert_eq!(rendered("{{ true }} {{ none }} {{ missing }}."), "True None .");
}

#[test]
fn tojson_is_json_dumps() {
    let x = || {
        object(&[
            ("b", Json::List(vec![Json::Int(1), Json::Float(1e20), Json::Null])),
            ("a", text("<é>&'\"\\\n\u{1}\u{7f}\u{1f600}")),
            ("e", Json::List(vec![])),
            ("o", object(&[])),
        ])
    };
    let plain = "{\"b\": [1, 1e+20, null], \"a\": \"<é>&'\\\"\\\\\\n\\u0001\u{7f}\u{1f600}\", \"e\": [], \"o\": {}}";
    assert_eq!(printed("x|tojson", x()), plain);
    assert_eq!(
        printed("x|tojson(ensure_ascii=true, sort_keys=true)", x()),
        "{\"a\": \"<\\u00e9>&'\\\"\\\\\\n\\u0001\\u007f\\ud83d\\ude00\", \"b\": [1, 1e+20, null], \"e\": [], \"o\": {}}"
    );
    assert_eq!(
        printed("{'a': [1, {'b': 2}], 'c': []}|tojson(indent=2)", Json::Null),
        "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": []\n}"
    );
    assert_eq!(printed("[1, 2]|tojson(separators=(',', ':'))", Json::Null), "[1,2]");
    assert_eq!(
        printed("[1, {'a': 2}]|tojson(separators=[',', ':'], indent='-')", Json::Null),
        "[\n-1,\n-{\n--\"a\":2\n-}\n]"
    );
    assert_eq!(printed("[1]|tojson(indent=0)", Json::Null), "[\n1\n]");
    assert_eq!(printed("(1, 'a')|tojson(true)", Json::Null), "[1, \"a\"]");
    assert_eq!(printed("{1: 2, none: 3, true: 4}|tojson", Json::Null), "{\"1\": 4, \"null\": 3}");
    assert!(failure("{{ missing|tojson }}").contains("Object of type Undefined is not JSON serializable"));
    assert!(failure("{{ [1]|tojson(depth=1) }}").contains("depth"));
}

#[test]
fn tests_of_types_are_those_of_jinja2() {
    let iterable = |value| rendered(&format!("{{{{ {value} is iterable }}}}"));
    assert_eq!(["none", "1", "true"].map(iterable), ["False"; 3]);
    assert_eq!(["'a'", "[]", "{}", "()", "missing", "range(2)"].map(iterable), ["True"; 6]);
    let sequence = |value| rendered(&format!("{{{{ {value} is sequence }}}}"));
    assert_eq!(["none", "1", "true"].map(sequence), ["False"; 3]);
    assert_eq!(["'a'", "[]", "{}", "()", "missing", "range(2)"].map(sequence), ["True"; 6]);
    assert_eq!(rendered("{% if tools is iterable and tools|length > 0 %}y{% else %}n{% endif %}"), "n");
}

#[test]
fn what_was_generated_is_rendered() {
    let source = "a\n{%- generation -%}\n b\n{%- endgeneration -%}\n c{% generation %}d{%+endgeneration+%}\
                  {% if true %}e{% endif %}";
    assert_eq!(rendered(source), "abcde");
    // Neither a name that begins so nor a variable is the statement.
    assert!(Templates::load(Path::new("/nonexistent"), Some("{% generations %}")).is_err());
    assert_eq!(rendered("{% set generation = 1 %}{{ generation }}{% generation %}{% endgeneration %}"), "1");
}

#[test]
fn lines_of_statements_leave_no_blanks() {
    let source = "a\r\n  {% if true %}\r\n  b\r\n  {# c #}\r\n  {% endif %}\r\nd\n";
    assert_eq!(rendered(source), "a\n  b\nd");
    assert_eq!(rendered("{{ '<&>' }}{{ ['<'] }}"), "<&>['<']");
    let left = "{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}";
    assert_eq!(rendered(&format!("{{% for i in range(9) %}}{left}{{{{ i }}}}{{% endfor %}}")), "02");
}

#[test]
fn functions_of_the_environment_exist() {
    assert_eq!(failure("{{ raise_exception('No such role: ' ~ messages[0].role) }}"), "No such role: user");
    assert_eq!(failure("{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{{ m() }}"), "inside");
    let year = rendered("{{ strftime_now('%Y') }}");
    assert!(year.parse::<u32>().unwrap() >= 2024, "{year}");
    assert!(failure("{{ strftime_now('%Q') }}").contains("%Q"));
    assert_eq!(rendered("{% set n = namespace(a=1) %}{% for i in [2] %}{% set n.a = i %}{% endfor %}{{ n.a }}"), "2");
    assert_eq!(rendered("{{ dict(a=1) }}{{ range(3)|list }}"), "{'a': 1}[0, 1, 2]");
    assert!(failure("{{ missing.attribute }}").contains("undefined"));
}

#[test]
fn methods_of_pythons_types_exist() {
    let expressions = "['abc'.removeprefix('a'), 'abc'.removesuffix('c'), 'abc'.removeprefix('x'),\
        'a-b-c'.partition('-'),\
        'a-b-c'.rpartition('-'), 'abc'.partition('-'), 'abc'.rpartition('-'), 'a-b-c'.rsplit('-', 1), ' a '.strip(),\
        'a,b'.split(','), 'ab'.startswith('a'), {'a': 1}.get('b', 2), 'a{}'.format(1)]";
    let expected = "['bc', 'ab', 'abc', ['a', '-', 'b-c'], ['a-b', '-', 'c'], ['abc', '', ''], ['', '', 'abc'], \
                    ['a-b', 'c'], 'a', ['a', 'b'], True, 2, 'a1']";
    assert_eq!(rendered(&format!("{{{{ {expressions} }}}}")), expected);
    // The methods of a mapping win over members of the same names.
    let x = object(&[("items", Json::Int(1)), ("get", Json::Int(2))]);
    assert_eq!(printed("x.items()|list", x.clone()), "[('items', 1), ('get', 2)]");
    assert_eq!(printed("x.get('items')", x), "1");
    assert!(failure("{{ 'a'.nonsense() }}").contains("nonsense"));
}

#[test]
fn the_conversation_is_visible_in_variables() {
    let source =
        "{{ messages[0].content }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ x }}|{{ y is defined }}";
    let arguments = [("x".to_owned(), Json::Int(1)), ("messages".to_owned(), Json::Null)];
    assert_eq!(render_with(&template(source), &arguments).unwrap(), "hi|None|None|True|1|False");
    let documents = [("documents".to_owned(), Json::List(vec![]))];
    assert_eq!(render_with(&template("{{ documents }}"), &documents).unwrap(), "[]");
    let tools = [object(&[("name", text("f"))])];
    let conversation =
        Conversation { messages: &[], tools: Some(&tools), add_generation_prompt: false, arguments: &[] };
    let output = template("{{ messages }}{{ tools }}{{ add_generation_prompt }}").render(&conversation, &BOUNDS);
    assert_eq!(output.unwrap(), "[][{'name': 'f'}]False");
}
