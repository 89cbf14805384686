//! Every setting in every type, in both protocols. Each test has a log of its own.

use std::path::PathBuf;

use super::*;
use nereid_memory::Pool;
use nereid_request::Code;

fn log() -> Logger {
    let settings = LogSettings { file: Some(PathBuf::from("/dev/null")), ..LogSettings::default() };
    Logger::start(&settings, true).unwrap()
}

fn post(logger: &Logger, body: &str) -> Result<String, (Code, String)> {
    let pool = Pool::new(1 << 20);
    let answer = change_by_json(logger, &Slice::copy_of(body.as_bytes()));
    answer.map_err(|status| (status.code, status.message.to_string()))?;
    Ok(String::from_utf8(to_json(&logger.settings(), &pool).to_vec()).unwrap())
}

fn shown(info: bool, warning: bool, error: bool, level: u32, format: &str) -> String {
    format!(
        "{{\"log_file\":\"/dev/null\",\"log_info\":{info},\"log_warning\":{warning},\"log_error\":{error},\
         \"log_verbose_level\":{level},\"log_format\":\"{format}\"}}"
    )
}

#[test]
fn json_changes_one_setting_after_the_other() {
    let log = log();
    let all = shown(true, true, true, 0, "default");
    for nothing in ["{}", "[]", "1", "{\"other\":5}", "{\"log_info\":null,\"log_file\":null,\"log_format\":null}"] {
        assert_eq!(post(&log, nothing), Ok(all.clone()), "{nothing}");
    }
    assert_eq!(post(&log, "{\"log_info\":false}"), Ok(shown(false, true, true, 0, "default")));
    assert_eq!(post(&log, "{\"log_warning\":false}"), Ok(shown(false, false, true, 0, "default")));
    assert_eq!(post(&log, "{\"log_error\":false}"), Ok(shown(false, false, false, 0, "default")));
    assert_eq!(post(&log, "{\"log_info\":true,\"log_info\":false}"), Ok(shown(true, false, false, 0, "default")));
    assert_eq!(post(&log, "{\"log_format\":\"ISO8601\"}"), Ok(shown(true, false, false, 0, "ISO8601")));
    assert_eq!(post(&log, "{\"log_format\":\"json\"}"), Ok(shown(true, false, false, 0, "json")));
    let levels = [
        ("3", 3),
        ("2147483647", 2_147_483_647),
        ("2147483648", 0),
        ("4294967295", 0),
        ("4294967297", 1),
        ("18446744073709551615", 0),
        ("0", 0),
    ];
    for (given, level) in levels {
        let answer = post(&log, &format!("{{\"log_verbose_level\":{given}}}"));
        assert_eq!(answer, Ok(shown(true, false, false, level, "json")), "{given}");
    }
    assert_eq!(post(&log, &log_of_everything()), Ok(shown(true, true, true, 2, "default")));
}

fn log_of_everything() -> String {
    shown(true, true, true, 2, "default").replace("\"/dev/null\"", "null")
}

#[test]
fn json_of_wrong_types_is_refused_and_what_came_before_it_sticks() {
    let log = log();
    let boolean = "attempt to access JSON non-boolean as boolean";
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let string = "attempt to access JSON non-string as string";
    let no_file = "log file location can not be updated through network protocol";
    let format = |given: &str| format!("invalid argument for --log_format, got: {given}");
    let cases = [
        ("{\"log_info\":1}", Code::Internal, boolean.to_owned()),
        ("{\"log_warning\":\"false\"}", Code::Internal, boolean.to_owned()),
        ("{\"log_error\":-1}", Code::Internal, boolean.to_owned()),
        ("{\"log_verbose_level\":-1}", Code::Internal, unsigned.to_owned()),
        ("{\"log_verbose_level\":1.5}", Code::Internal, unsigned.to_owned()),
        ("{\"log_verbose_level\":true}", Code::Internal, unsigned.to_owned()),
        ("{\"log_format\":5}", Code::Internal, string.to_owned()),
        ("{\"log_format\":\"x\"}", Code::Unavailable, format("x")),
        ("{\"log_format\":\"iso8601\"}", Code::Unavailable, format("iso8601")),
        ("{\"log_file\":\"x\",\"log_info\":false}", Code::Unsupported, no_file.to_owned()),
        ("{\"log_info\":false,\"log_file\":\"\"}", Code::Unsupported, no_file.to_owned()),
    ];
    for (body, code, text) in cases {
        assert_eq!(post(&log, body), Err((code, text)), "{body}");
        assert_eq!(log.settings(), self::log().settings(), "{body} changed something");
    }
    let (code, text) = post(&log, "").unwrap_err();
    assert_eq!(
        (code, &*text),
        (Code::Internal, "failed to parse the request JSON buffer: The document is empty. at 0")
    );
    let (code, text) = post(&log, &format!("{{\"log_info\":false{}}}", " ".repeat(BODY_BYTES_MAX))).unwrap_err();
    assert_eq!(code, Code::InvalidArg);
    assert!(text.ends_with("exceed the limit of 65536 bytes"), "{text}");
    assert!(post(&log, "{\"log_format\":\"x\",\"log_verbose_level\":1,\"log_info\":false}").is_err());
    assert_eq!(post(&log, "{}"), Ok(shown(false, true, true, 1, "default")));
}

fn call(logger: &Logger, settings: &[(&str, Option<GivenChoice>)]) -> Result<(), (Code, String)> {
    let given = settings.iter().cloned();
    let given = given.map(|(key, choice)| (key.to_owned(), Given { parameter_choice: choice }));
    let request = wire::LogSettingsRequest { settings: given.collect() };
    change_by_message(logger, &request).map_err(|status| (status.code, status.message.to_string()))
}

#[test]
fn messages_change_and_show_all_settings() {
    let log = log();
    call(&log, &[]).unwrap();
    call(&log, &[("other", None)]).unwrap();
    assert_eq!(log.settings(), self::log().settings());
    let switches = SEVERITIES.map(|key| (key, Some(GivenChoice::BoolParam(false))));
    call(&log, &switches).unwrap();
    call(&log, &[("log_verbose_level", Some(GivenChoice::Uint32Param(7)))]).unwrap();
    call(&log, &[("log_format", Some(GivenChoice::StringParam("ISO8601".into())))]).unwrap();
    let shown = to_message(&log.settings()).settings;
    let choice = |key: &str| shown.get(key).and_then(|value| value.parameter_choice.clone()).unwrap();
    for key in SEVERITIES {
        assert_eq!(choice(key), ShownChoice::BoolParam(false));
    }
    assert_eq!(choice("log_verbose_level"), ShownChoice::Uint32Param(7));
    assert_eq!(choice("log_format"), ShownChoice::StringParam("ISO8601".into()));
    assert_eq!(choice("log_file"), ShownChoice::StringParam("/dev/null".into()));
    assert_eq!(shown.len(), 6);
    call(&log, &[("log_verbose_level", Some(GivenChoice::Uint32Param(u32::MAX)))]).unwrap();
    assert_eq!(log.settings().verbose_level, 0);
}

#[test]
fn messages_of_wrong_types_are_refused_and_what_came_before_them_sticks() {
    let log = log();
    let string = |text: &str| Some(GivenChoice::StringParam(text.to_owned()));
    let (boolean, number) = (Some(GivenChoice::BoolParam(true)), Some(GivenChoice::Uint32Param(1)));
    let no_file = "log file location can not be updated through network protocol";
    let mut cases = Vec::new();
    for key in SEVERITIES {
        let text = format!("expect boolean for '{key}'");
        cases.extend([None, number.clone(), string("true")].map(|given| (key, given, Code::InvalidArg, text.clone())));
    }
    let text = "expect int32 for 'log_verbose_level'";
    let given = [None, boolean.clone(), string("1")];
    cases.extend(given.map(|given| (LOG_VERBOSE_LEVEL, given, Code::InvalidArg, text.to_owned())));
    let text = "expect string for 'log_format'";
    let given = [None, boolean.clone(), number.clone()];
    cases.extend(given.map(|given| (LOG_FORMAT, given, Code::InvalidArg, text.to_owned())));
    let text = "invalid argument for log_format, got: x".to_owned();
    cases.push((LOG_FORMAT, string("x"), Code::InvalidArg, text));
    let given = [None, boolean, number, string("x")];
    cases.extend(given.map(|given| (LOG_FILE, given, Code::Unsupported, no_file.to_owned())));
    for (key, given, code, text) in cases {
        assert_eq!(call(&log, &[(key, given.clone())]), Err((code, text)), "{key} {given:?}");
        assert_eq!(log.settings(), self::log().settings(), "{key} {given:?} changed something");
    }
    let two = [("log_format", string("x")), ("log_error", Some(GivenChoice::BoolParam(false)))];
    assert!(call(&log, &two).is_err());
    assert!(!log.settings().error, "it comes before the format");
}
