//! Which form of content a template takes.

use super::*;
use crate::template::ContentForm;

#[test]
fn the_form_of_content_is_detected() {
    let cases = [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", ContentForm::Text),
        ("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", ContentForm::Text),
        ("{% for m in messages %}{{ m.content|trim }}{% endfor %}", ContentForm::Text),
        ("{% for m in messages %}{{ m.content|tojson }}{% endfor %}", ContentForm::Text),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", ContentForm::Parts),
        ("{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}", ContentForm::Parts),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
             {% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}",
            ContentForm::Both,
        ),
        ("{{ raise_exception('no') }}", ContentForm::Text),
    ];
    for (source, expected) in cases {
        let templates = template(source);
        assert_eq!(templates.content_form(false), expected, "{source}");
        assert_eq!(templates.wants_parts(true), expected != ContentForm::Text);
    }
}

#[test]
fn each_template_has_its_form() {
    let config = r#"{"chat_template": [{"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ messages[0].content[0].text }}"}]}"#;
    let templates = Folder::new().with("tokenizer_config.json", config).load();
    assert!(!templates.wants_parts(false));
    assert!(templates.wants_parts(true));
    assert!(!Folder::new().load().wants_parts(false));
}
