//! Templates that would take too much.

use super::*;

fn bounded(source: &str, bounds: RenderBounds) -> RenderError {
    let conversation = Conversation { messages: &[], tools: None, add_generation_prompt: true, arguments: &[] };
    template(source).render(&conversation, &bounds).unwrap_err()
}

#[test]
fn steps_are_bounded() {
    let nested = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert_eq!(bounded(nested, BOUNDS), RenderError::TooManySteps(BOUNDS.steps_max));
    // Inside a macro, whose error is another one's source.
    let called = format!("{{% macro m() %}}{nested}{{% endmacro %}}{{{{ m() }}}}");
    assert_eq!(bounded(&called, BOUNDS), RenderError::TooManySteps(BOUNDS.steps_max));
}

#[test]
fn held_text_is_bounded_with_the_steps() {
    // Few, since text is written until they are used up.
    let bounds = RenderBounds { steps_max: 50_000, ..BOUNDS };
    let too_many = RenderError::TooManySteps(bounds.steps_max);
    let doubled = "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
    assert_eq!(bounded(doubled, bounds), too_many);
    // Short in memory, long as text.
    let prints = ["{{ n.x }}", "{{ n.x|tojson }}", "{{ n.x|string }}", "{{ n.x|join }}", "{{ raise_exception(n.x) }}"];
    for print in prints {
        let shared = "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
        assert_eq!(bounded(&format!("{shared}{print}"), bounds), too_many);
    }
    for items in ["''", "'ab'", "1"] {
        let repeated = format!("{{% set x = ([{items}] * 100000000)|join %}}");
        assert_eq!(bounded(&repeated, bounds), too_many, "{items}");
    }
    let many = "{% set x = ('{0}' * 100000).format('a' * 100000) %}";
    let named = "{% set x = ('{a[0]}' * 100000).format(a=['a' * 100000]) %}";
    for wide in ["{{ [1]|tojson(indent=1000000000000) }}", "{{ '{:>1000000000}'.format(1) }}", many, named] {
        assert_eq!(bounded(wide, bounds), too_many);
    }
}

#[test]
fn bytes_are_bounded() {
    let bounds = RenderBounds { bytes_max: 10, ..BOUNDS };
    assert_eq!(bounded("{% for i in range(6) %}ab{% endfor %}", bounds), RenderError::TooLong(10));
    assert_eq!(bounded("{{ 'abcdefghijk' }}", bounds), RenderError::TooLong(10));
    let conversation = Conversation { messages: &[], tools: None, add_generation_prompt: true, arguments: &[] };
    assert_eq!(template("{{ 'abcdefghij' }}").render(&conversation, &bounds).unwrap(), "abcdefghij");
}

#[test]
fn time_is_bounded() {
    let bounds = RenderBounds { time_max: Duration::ZERO, ..BOUNDS };
    assert_eq!(bounded("a", bounds), RenderError::TooSlow(0));
    // Without output, and before the steps end.
    let silent = "{% for a in range(1000) %}{% set x = messages %}{% endfor %}";
    assert_eq!(bounded(silent, bounds), RenderError::TooSlow(0));
}

#[test]
fn recursion_is_bounded() {
    let endless = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(bounded(endless, BOUNDS), RenderError::Failed(text) if text.contains("recursion")));
    for print in ["{{ n.x }}", "{{ n.x|tojson }}"] {
        let deep = "{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}";
        let error = bounded(&format!("{deep}{print}"), BOUNDS);
        assert!(matches!(&error, RenderError::Failed(text) if text.contains("nested")), "{error:?}");
    }
}
