//! Values of a model's parameters and of `--backend-config`, as Triton's backends read them (contract/backends.md
//! section 4; contract/frameworks.md section 0).

use nereid_request::Status;

/// true/on/1 and false/off/0 in any case.
pub fn parse_boolean(text: &str) -> Result<bool, Status> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(Status::invalid(format!("failed to convert '{text}' to boolean"))),
    }
}

/// A leading decimal number; the rest is ignored, as by `stoi`.
pub fn parse_integer(text: &str) -> Result<i32, Status> {
    let error = || Status::invalid(format!("failed to convert '{text}' to integral number"));
    let trimmed = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    let digits_from = usize::from(trimmed.starts_with(['+', '-']));
    let digits = trimmed[digits_from..].bytes().take_while(u8::is_ascii_digit).count();
    trimmed[..digits_from + digits].parse().map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Code;

    #[test]
    fn booleans_and_integers_follow_the_rules_of_the_configuration() {
        for text in ["true", "TRUE", "On", "1"] {
            assert_eq!(parse_boolean(text), Ok(true));
        }
        for text in ["false", "False", "OFF", "0"] {
            assert_eq!(parse_boolean(text), Ok(false));
        }
        let error = parse_boolean("yes").unwrap_err();
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, "failed to convert 'yes' to boolean"));
        for (text, number) in [("0", 0), (" 42", 42), ("-7", -7), ("+3", 3), ("8 cores", 8), ("2147483647", i32::MAX)] {
            assert_eq!(parse_integer(text), Ok(number), "{text}");
        }
        for text in ["", "-", "+", "x1", "2147483648", "99999999999999999999", "\u{e9}"] {
            let error = parse_integer(text).unwrap_err();
            assert_eq!(error.message, format!("failed to convert '{text}' to integral number"));
        }
    }
}
