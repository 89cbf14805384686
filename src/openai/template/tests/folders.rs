//! Where templates and special tokens are found.

use super::*;

fn hello(templates: &Templates, has_tools: bool) -> String {
    let messages = [message("user", text("hi"))];
    let tools = [object(&[])];
    let tools = has_tools.then_some(tools.as_slice());
    let conversation = Conversation { messages: &messages, tools, add_generation_prompt: true, arguments: &[] };
    templates.render(&conversation, &BOUNDS).unwrap()
}

#[test]
fn a_configured_template_is_used_with_the_tokens() {
    let config = r#"{
        "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false, "special": true}, "pad_token": null,
        "additional_special_tokens": ["<a>", {"content": "<b>"}],
        "extra_special_tokens": {"image_token": "<i>", "z": null},
        "model_max_length": 1000000000000000019884624838656, "added_tokens_decoder": {"0": {"content": "<s>"}},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}{{ more }}"
        }"#
    .replace("more", "additional_special_tokens }}{{ image_token");
    let folder = Folder::new().with("tokenizer_config.json", &config);
    assert_eq!(hello(&folder.load(), false), "<s>hi</s>False['<a>', '<b>']<i>");
    // An argument wins over a token.
    let arguments = [("bos_token".to_owned(), text("!"))];
    assert!(render_with(&folder.load(), &arguments).unwrap().starts_with("!hi"));
    let older = Folder::new()
        .with("special_tokens_map.json", r#"{"bos_token": {"content": "<s>"}, "eos_token": "x"}"#)
        .with("tokenizer_config.json", r#"{"eos_token": "y", "chat_template": "{{ bos_token }}{{ eos_token }}"}"#);
    assert_eq!(hello(&older.load(), false), "<s>y");
}

#[test]
fn tools_choose_the_template_for_them() {
    let config = r#"{"chat_template": [{"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"}, {"name": "rag", "template": "other"}]}"#;
    let folder = Folder::new().with("tokenizer_config.json", config);
    let templates = folder.load();
    assert_eq!([hello(&templates, false), hello(&templates, true)], ["plain", "with tools"]);
    let one = Folder::new().with("tokenizer_config.json", r#"{"chat_template": "one"}"#).load();
    assert_eq!([hello(&one, false), hello(&one, true)], ["one", "one"]);
}

#[test]
fn files_and_the_flag_win_over_the_configuration() {
    let folder = Folder::new()
        .with("tokenizer_config.json", r#"{"bos_token": "<s>", "chat_template": "configured"}"#)
        .with("chat_template.jinja", "{{ bos_token }}file\n")
        .with("additional_chat_templates/tool_use.jinja", "tools of a file");
    assert_eq!([hello(&folder.load(), false), hello(&folder.load(), true)], ["<s>file", "tools of a file"]);
    let replaced = Templates::load(&folder.0, Some("{{ bos_token }}flag")).unwrap();
    assert_eq!([hello(&replaced, false), hello(&replaced, true)], ["<s>flag", "<s>flag"]);
}

#[test]
fn without_a_template_rendering_fails_with_pythons_text() {
    for folder in [Folder::new(), Folder::new().with("tokenizer_config.json", r#"{"chat_template": null}"#)] {
        let error = render_with(&folder.load(), &[]).unwrap_err();
        assert!(matches!(&error, RenderError::NoTemplate(_)));
        let wanted = "Cannot use chat template functions because tokenizer.chat_template is not set";
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let config = r#"{"chat_template": [{"name": "a", "template": ""}, {"name": "b", "template": ""}]}"#;
    let error = render_with(&Folder::new().with("tokenizer_config.json", config).load(), &[]).unwrap_err();
    assert!(error.to_string().ends_with("Available template names are ['a', 'b']."), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let broken = Folder::new().with("tokenizer_config.json", r#"{"chat_template": "{% if %}"}"#);
    assert!(broken.error().contains("the chat template 'default'"), "{}", broken.error());
    let json = Folder::new().with("tokenizer_config.json", "{");
    assert!(json.error().contains("tokenizer_config.json cannot be understood"), "{}", json.error());
    let large = Folder::new().with("chat_template.jinja", &"a".repeat((4 << 20) + 1));
    assert!(large.error().contains("has more than 4194304 bytes"), "{}", large.error());
}

#[test]
fn threads_share_templates() {
    let folder = Folder::new().with("chat_template.jinja", "{{ messages[0].content }}");
    let templates = folder.load();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| assert_eq!(hello(&templates, false), "hi")));
        }
    });
}
