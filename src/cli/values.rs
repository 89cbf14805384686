//! The value types of Triton's flags, with their error texts (cli.md section 1).

use std::ffi::OsStr;
use std::path::PathBuf;

use super::options::BackendSetting;

/// The inner text of `Bad option: …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("invalid value for bool option: {0}")]
    Bool(String),
    #[error("Invalid option value. Got {0}")]
    Number(String),
    #[error("Provided option value is out of bound. Got {0}")]
    OutOfBound(String),
    #[error("invalid argument for --{0}")]
    Word(&'static str),
    #[error("--{0}={1} is not supported by this version of Nereid")]
    Unbuilt(&'static str, &'static str),
    #[error("--backend-config option format is '<backend name>,<setting>=<value>'. Got {0}")]
    BackendConfig(String),
    #[error("Error: --http-max-input-size must be greater than 0.")]
    InputSize,
}

/// What was given to a flag.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pub flag: &'static str,
    pub raw: &'a OsStr,
}

impl Value<'_> {
    pub fn text(self) -> String {
        self.raw.to_string_lossy().into_owned()
    }

    pub fn path(self) -> PathBuf {
        PathBuf::from(self.raw)
    }

    pub fn boolean(self) -> Result<bool, ValueError> {
        let text = self.text();
        match text.to_ascii_lowercase().as_str() {
            "true" | "on" | "1" => Ok(true),
            "false" | "off" | "0" => Ok(false),
            _ => Err(ValueError::Bool(text)),
        }
    }

    pub fn int(self) -> Result<i32, ValueError> {
        let number = self.int64_text().map_err(|error| self.number_error(error))?;
        i32::try_from(number).map_err(|_| ValueError::OutOfBound(self.text()))
    }

    pub fn int64(self) -> Result<i64, ValueError> {
        self.int64_text().map_err(|error| self.number_error(error))
    }

    /// An int where a negative one has no meaning.
    pub fn natural(self) -> Result<u32, ValueError> {
        u32::try_from(self.int()?).map_err(|_| ValueError::OutOfBound(self.text()))
    }

    /// `true` and `false` are 1 and 0 here; `on` and `off` are not known.
    pub fn int_or_boolean(self) -> Result<i32, ValueError> {
        match self.text().to_ascii_lowercase().as_str() {
            "true" => Ok(1),
            "false" => Ok(0),
            _ => self.int(),
        }
    }

    /// `<backend>,<setting>=<value>`, or `<setting>=<value>` for all backends. The first comma divides, so a global
    /// setting's value cannot have one.
    pub fn backend_setting(self) -> Result<BackendSetting, ValueError> {
        let text = self.text();
        let (backend, setting) = match text.split_once(',') {
            Some((backend, setting)) => (Some(backend), setting),
            None => (None, text.as_str()),
        };
        match setting.split_once('=') {
            Some((key, value)) if backend != Some("") && !key.is_empty() && !value.is_empty() => {
                Ok(BackendSetting { backend: backend.map(str::to_owned), key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err(ValueError::BackendConfig(text)),
        }
    }

    pub fn unknown_word(self) -> ValueError {
        ValueError::Word(self.flag)
    }

    fn number_error(self, error: NotANumber) -> ValueError {
        match error {
            NotANumber::NoDigits => ValueError::Number(self.text()),
            NotANumber::TooLarge => ValueError::OutOfBound(self.text()),
        }
    }

    /// A leading decimal number; whatever follows it is ignored (strtoll in base 10).
    fn int64_text(self) -> Result<i64, NotANumber> {
        let text = self.raw.as_encoded_bytes();
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
        let text = text.get(text.iter().take_while(|byte| blank(byte)).count()..).unwrap_or_default();
        let (is_negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] | digits => (false, digits),
        };
        if !digits.first().is_some_and(u8::is_ascii_digit) {
            return Err(NotANumber::NoDigits);
        }
        digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .try_fold(0i64, |sum, digit| {
                let digit = i64::from(digit - b'0');
                sum.checked_mul(10)?.checked_add(if is_negative { -digit } else { digit })
            })
            .ok_or(NotANumber::TooLarge)
    }
}

enum NotANumber {
    NoDigits,
    TooLarge,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(raw: &str) -> Value<'_> {
        Value { flag: "flag", raw: OsStr::new(raw) }
    }

    #[test]
    fn booleans_come_in_three_spellings_of_any_case() {
        for raw in ["true", "TRUE", "True", "on", "oN", "1"] {
            assert_eq!(value(raw).boolean(), Ok(true));
        }
        for raw in ["false", "False", "off", "OFF", "0"] {
            assert_eq!(value(raw).boolean(), Ok(false));
        }
        for raw in ["", "yes", "2", "01", "true ", " 1"] {
            let error = value(raw).boolean().unwrap_err();
            assert_eq!(error.to_string(), format!("invalid value for bool option: {raw}"));
        }
    }

    #[test]
    fn ints_are_leading_decimals() {
        let good = [
            ("8000", 8000),
            ("8000x", 8000),
            ("1.5", 1),
            ("-3-", -3),
            ("+4", 4),
            (" \t\n7", 7),
            ("0x10", 0),
            ("007", 7),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
        ];
        for (raw, number) in good {
            assert_eq!(value(raw).int(), Ok(number), "{raw}");
            assert_eq!(value(raw).int64(), Ok(i64::from(number)), "{raw}");
        }
        for raw in ["", "x8", "-", "+", "--1", "+-1", " ", ".5", "- 1"] {
            assert_eq!(value(raw).int().unwrap_err().to_string(), format!("Invalid option value. Got {raw}"));
        }
        for raw in ["2147483648", "-2147483649x", "99999999999999999999999999"] {
            let text = format!("Provided option value is out of bound. Got {raw}");
            assert_eq!(value(raw).int().unwrap_err().to_string(), text);
        }
        assert_eq!(value("-9223372036854775808").int64(), Ok(i64::MIN));
        assert_eq!(value("9223372036854775807").int64(), Ok(i64::MAX));
        assert_eq!(value("9223372036854775808").int64(), Err(ValueError::OutOfBound("9223372036854775808".to_owned())));
        assert_eq!(value("-1").natural(), Err(ValueError::OutOfBound("-1".to_owned())));
        assert_eq!(value("0").natural(), Ok(0));
    }

    #[test]
    fn verbosity_is_a_number_or_a_word() {
        assert_eq!(value("True").int_or_boolean(), Ok(1));
        assert_eq!(value("false").int_or_boolean(), Ok(0));
        assert_eq!(value("17").int_or_boolean(), Ok(17));
        assert_eq!(value("on").int_or_boolean().unwrap_err().to_string(), "Invalid option value. Got on");
    }

    #[test]
    fn backend_settings_have_three_parts_or_two() {
        let setting = |backend: Option<&str>, key: &str, value: &str| {
            Ok(BackendSetting { backend: backend.map(str::to_owned), key: key.to_owned(), value: value.to_owned() })
        };
        assert_eq!(value("onnx,a=b").backend_setting(), setting(Some("onnx"), "a", "b"));
        assert_eq!(value("a=b").backend_setting(), setting(None, "a", "b"));
        assert_eq!(value("py,a=b=c,d").backend_setting(), setting(Some("py"), "a", "b=c,d"));
        for raw in ["", "a", "=", "a=", "=b", ",a=b", "py,a", "py,=b", "py,a=", "a=b,c", ","] {
            let text = format!("--backend-config option format is '<backend name>,<setting>=<value>'. Got {raw}");
            assert_eq!(value(raw).backend_setting().unwrap_err().to_string(), text);
        }
    }
}
