//! The value types of Triton's flags, with their error texts (contract/cli.md section 1).

use std::ffi::OsStr;
use std::path::PathBuf;

use super::options::{BackendSetting, CacheSetting, HostPolicySetting, RateLimitResource};
use crate::server::options::HeaderPattern;

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
    #[error(
        "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format \
         <first>{separator}<second>. Found: {given}"
    )]
    Pair { separator: char, given: String },
    #[error("--{flag} option format is '{form}'. Got {given}")]
    Form { flag: &'static str, form: &'static str, given: String },
    #[error("No {what} specified. --{flag} option format is {form}. Got {given}")]
    Nameless { what: &'static str, flag: &'static str, form: &'static str, given: String },
    #[error("--metrics-config option format is <setting>=<value>. Got {0}")]
    MetricsConfig(String),
    #[error("Error: --{0} must be greater than 0.")]
    NotPositive(&'static str),
    #[error("invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")]
    InferThreads,
    #[error("invalid argument for --grpc_infer_cq_count. Must be in the range 0 to 128.")]
    InferQueues,
    #[error("Error: empty argument for --model-config-name")]
    NoConfigName,
    #[error("invalid value for trace level option: {0}")]
    TraceLevel(String),
    #[error("invalid value for trace mode option: {0}. Available options are \"triton\" and \"opentelemetry\"")]
    TraceMode(String),
    // The blank at the end is part of the text.
    #[error("unknown restricted {kind} '{group}' ")]
    UnknownGroup { kind: &'static str, group: String },
    #[error("invalid pattern for --{flag}: {reason}")]
    Pattern { flag: &'static str, reason: String },
    #[error("tool parser: '{0}' not found in tool_call_parsers; there are llama3, mistral, hermes and pythonic")]
    UnknownToolParser(String),
    #[error("restricted {kind} '{group}' can not be specified in multiple config groups")]
    GroupTwice { kind: &'static str, group: String },
}

/// The value of a flag.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pub flag: &'static str,
    pub raw: &'a OsStr,
}

impl Value<'_> {
    /// A piece of the value, which is checked like a value of its own.
    pub fn part(self, raw: &str) -> Value<'_> {
        Value { flag: self.flag, raw: OsStr::new(raw) }
    }

    pub fn text(self) -> String {
        self.raw.to_string_lossy().into_owned()
    }

    pub fn path(self) -> PathBuf {
        PathBuf::from(self.raw)
    }

    /// For words whose case does not matter.
    pub fn lower_case(self) -> String {
        self.text().to_ascii_lowercase()
    }

    pub fn boolean(self) -> Result<bool, ValueError> {
        match self.lower_case().as_str() {
            "true" | "on" | "1" => Ok(true),
            "false" | "off" | "0" => Ok(false),
            _ => Err(ValueError::Bool(self.text())),
        }
    }

    pub fn int(self) -> Result<i32, ValueError> {
        i32::try_from(self.int64()?).map_err(|_| ValueError::OutOfBound(self.text()))
    }

    pub fn int64(self) -> Result<i64, ValueError> {
        self.int64_text().map_err(|error| self.number_error(error))
    }

    /// An int where a negative one has no meaning.
    pub fn natural(self) -> Result<u32, ValueError> {
        u32::try_from(self.int()?).map_err(|_| ValueError::OutOfBound(self.text()))
    }

    /// A number of bytes.
    pub fn bytes(self) -> Result<u64, ValueError> {
        u64::try_from(self.int64()?).map_err(|_| ValueError::OutOfBound(self.text()))
    }

    /// An int, of which a negative one counts as 0.
    pub fn at_least_zero(self) -> Result<u32, ValueError> {
        Ok(self.int()?.max(0).unsigned_abs())
    }

    pub fn positive(self) -> Result<i32, ValueError> {
        Some(self.int()?).filter(|number| *number > 0).ok_or(ValueError::NotPositive(self.flag))
    }

    /// `true` and `false` are 1 and 0 here; `on` and `off` are refused.
    pub fn int_or_boolean(self) -> Result<i32, ValueError> {
        match self.lower_case().as_str() {
            "true" => Ok(1),
            "false" => Ok(0),
            _ => self.int(),
        }
    }

    /// A leading decimal number, with a point and an exponent where it has them (strtod without its hexadecimal).
    pub fn float(self) -> Result<f64, ValueError> {
        let text = self.text();
        let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
        let number = text.get(..float_length(text.as_bytes())).and_then(|number| number.parse::<f64>().ok());
        match number {
            None => Err(ValueError::Number(self.text())),
            Some(number) if number.is_infinite() => Err(ValueError::OutOfBound(self.text())),
            Some(number) => Ok(number),
        }
    }

    /// Split at the first separator.
    pub fn pair(self, separator: char) -> Result<(String, String), ValueError> {
        let text = self.text();
        match text.split_once(separator) {
            Some((first, second)) => Ok((first.to_owned(), second.to_owned())),
            None => Err(ValueError::Pair { separator, given: text }),
        }
    }

    /// `<device>:<number>`, the number read by `read`.
    pub fn per_device<T>(self, read: fn(Value<'_>) -> Result<T, ValueError>) -> Result<(i32, T), ValueError> {
        let (device, number) = self.pair(':')?;
        Ok((self.part(&device).int()?, read(self.part(&number))?))
    }

    /// `<name><separator><setting>=<value>` without empty parts; `form` is its form in the error text.
    pub fn named_setting(self, separator: char, form: &'static str) -> Result<[String; 3], ValueError> {
        let text = self.text();
        let parts = text.split_once(separator).and_then(|(name, setting)| {
            let (key, value) = setting.split_once('=')?;
            Some([name, key, value])
        });
        match parts {
            Some(parts) if parts.iter().all(|part| !part.is_empty()) => Ok(parts.map(str::to_owned)),
            _ => Err(ValueError::Form { flag: self.flag, form, given: text }),
        }
    }

    /// A regular expression for names of headers. Triton logs an invalid one and forwards no header; here the server
    /// does not start, so that the error is seen in time.
    pub fn header_pattern(self) -> Result<String, ValueError> {
        let text = self.text();
        match HeaderPattern::new(&text) {
            Ok(_) => Ok(text),
            Err(reason) => Err(ValueError::Pattern { flag: self.flag, reason }),
        }
    }

    /// `<backend>,<setting>=<value>`, or `<setting>=<value>` for all backends. The first comma divides, so a global
    /// setting's value cannot have one.
    pub fn backend_setting(self) -> Result<BackendSetting, ValueError> {
        let (backend, key, value) = self.optional_name(
            "backend",
            "<backend name>,<setting>=<value> or <setting>=<value>",
            "<backend name>,<setting>=<value>",
        )?;
        Ok(BackendSetting { backend, key, value })
    }

    /// `[<name>,]<setting>=<value>`: the name, the setting, the value.
    pub fn optional_name(
        self,
        what: &'static str,
        long_form: &'static str,
        form: &'static str,
    ) -> Result<(Option<String>, String, String), ValueError> {
        let text = self.text();
        let (name, setting) = match text.split_once(',') {
            Some(("", _)) => {
                return Err(ValueError::Nameless { what, flag: self.flag, form: long_form, given: text });
            }
            Some((name, setting)) => (Some(name), setting),
            None => (None, text.as_str()),
        };
        match setting.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                Ok((name.map(str::to_owned), key.to_owned(), value.to_owned()))
            }
            _ => Err(ValueError::Form { flag: self.flag, form, given: text }),
        }
    }

    pub fn host_policy(self) -> Result<HostPolicySetting, ValueError> {
        let [policy, key, value] = self.named_setting(',', "<policy name>,<setting>=<value>")?;
        Ok(HostPolicySetting { policy, key, value })
    }

    pub fn cache_setting(self) -> Result<CacheSetting, ValueError> {
        const FORM: &str = "<cache name>,<setting>=<value>";
        let text = self.text();
        match text.split_once(',') {
            None | Some(("", _)) => {
                Err(ValueError::Nameless { what: "cache", flag: self.flag, form: FORM, given: text })
            }
            Some(_) => self.named_setting(',', FORM).map(|[cache, key, value]| CacheSetting { cache, key, value }),
        }
    }

    /// `<setting>=<value>` in which the setting has no comma.
    pub fn metrics_setting(self) -> Result<(String, String), ValueError> {
        let text = self.text();
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() && !key.contains(',') => {
                Ok((key.to_owned(), value.to_owned()))
            }
            _ => Err(ValueError::MetricsConfig(text)),
        }
    }

    /// `<name>:<count>[:<device>]`.
    pub fn rate_limit_resource(self) -> Result<RateLimitResource, ValueError> {
        let text = self.text();
        let parts: Vec<&str> = text.split(':').collect();
        let int = |part: &str| self.part(part).int();
        let resource =
            |name: &str, count: i32, device| RateLimitResource { name: name.to_owned(), count: count.into(), device };
        match parts[..] {
            [name, count] => Ok(resource(name, int(count)?, None)),
            // -1 is how Triton writes each device.
            [name, count, device] => {
                let count = int(count)?;
                Ok(resource(name, count, Some(int(device)?).filter(|device| *device != -1)))
            }
            _ => Err(ValueError::Form {
                flag: self.flag,
                form: "<resource_name>:<count>:<device>' or '<resource_name>:<count>",
                given: text,
            }),
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

/// Bytes of the floating-point number that `text` begins with; 0: none.
fn float_length(text: &[u8]) -> usize {
    let digits = |at: usize| text.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
    let sign = |at: usize| usize::from(matches!(text.get(at), Some(b'+' | b'-')));
    let mut at = sign(0);
    let whole = digits(at);
    at += whole;
    let has_point = text.get(at) == Some(&b'.');
    let fraction = if has_point { digits(at + 1) } else { 0 };
    if whole + fraction == 0 {
        return 0;
    }
    at += fraction + usize::from(has_point);
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let start = at + 1 + sign(at + 1);
        let exponent = digits(start);
        if exponent > 0 {
            at = start + exponent;
        }
    }
    at
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
        for raw in ["", "a", "=", "a=", "=b", "py,a", "py,=b", "py,a=", "a=b,c"] {
            let text = format!("--flag option format is '<backend name>,<setting>=<value>'. Got {raw}");
            assert_eq!(value(raw).backend_setting().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn floats_are_leading_decimals() {
        let good =
            [("7.5", 7.5), ("7", 7.0), (".5x", 0.5), ("5.", 5.0), ("-1e2e3", -100.0), (" +1e", 1.0), ("2e-1", 0.2)];
        for (raw, number) in good {
            assert_eq!(value(raw).float(), Ok(number), "{raw}");
        }
        for raw in ["", ".", "-", "e5", "x", "nan", "inf"] {
            assert_eq!(value(raw).float().unwrap_err().to_string(), format!("Invalid option value. Got {raw}"));
        }
        assert_eq!(value("1e999").float(), Err(ValueError::OutOfBound("1e999".to_owned())));
    }

    #[test]
    fn pairs_are_split_at_the_first_separator() {
        assert_eq!(value("a:b:c").pair(':'), Ok(("a".to_owned(), "b:c".to_owned())));
        assert_eq!(value(":").pair(':'), Ok((String::new(), String::new())));
        let text = "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires \
                    format <first>-<second>. Found: a:b";
        assert_eq!(value("a:b").pair('-').unwrap_err().to_string(), text);
        assert_eq!(value("1:2x").per_device(|bytes| bytes.bytes()), Ok((1, 2)));
    }
}
