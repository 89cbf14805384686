//! The traffic rule of a model, as the parameters `nereid.traffic.…` of its configuration give it (docs/traffic.md).
//!
//! A control thread reads it when the model loads. Everything that is wrong with it fails the load with a text that
//! names the parameter, its value and what is expected.

use super::rollback::Rollback;
use nereid_wire::inference::ModelConfig;

/// Versions of a model with a rule.
pub const VERSIONS_MAX: usize = 64;
/// Labels of a rule.
pub const LABELS_MAX: usize = 16;
/// Bytes of a label.
pub const LABEL_BYTES_MAX: usize = 64;
/// What the weights sum to.
pub const WEIGHTS_SUM: u32 = 100;

const PREFIX: &str = "nereid.traffic.";
const WEIGHTS: &str = "nereid.traffic.weights";
const STICKY: &str = "nereid.traffic.sticky";
const HEADER: &str = "nereid.traffic.header";
const LABELS: &str = "nereid.traffic.labels";
const SHADOW: &str = "nereid.traffic.shadow";
const ROLLBACK: &str = "nereid.traffic.rollback";
const TOLERANCE: &str = "nereid.traffic.tolerance";
const KEYS: [&str; 7] = [WEIGHTS, STICKY, HEADER, LABELS, SHADOW, ROLLBACK, TOLERANCE];

/// What keeps the requests of one user on one version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sticky {
    #[default]
    None,
    /// A header or a metadata entry, in lower case.
    Header(Box<str>),
    /// A parameter of the request.
    Parameter(Box<str>),
    /// The id of its sequence.
    Sequence,
}

/// The version that gets copies of requests, and the share of requests that it gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRule {
    pub version: i64,
    pub share: f64,
}

/// A rule that was checked against the versions that its model loads.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// All that the version policy loads, ascending.
    pub versions: Vec<i64>,
    /// One for each of the versions. All are 0 where the rule has no weights.
    pub weights: Vec<u32>,
    pub sticky: Sticky,
    /// Names the header, in lower case, in which a client chooses a version or a label.
    pub header: Option<Box<str>>,
    pub labels: Vec<(Box<str>, i64)>,
    pub shadow: Option<ShadowRule>,
    /// How far numbers of the two answers may be apart, absolutely and as a part of the number.
    pub tolerance: f64,
    pub rollback: Option<Rollback>,
}

/// What is wrong with a parameter.
fn wrong(key: &str, value: &str, why: impl std::fmt::Display) -> String {
    format!("parameter '{key}' is '{value}': {why}")
}

/// Whether a text can be a label: it cannot be taken for a number, nor for a part of a path.
pub fn is_label(text: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    text.len() <= LABEL_BYTES_MAX && text.first().is_some_and(is_letter) && text.iter().all(is_part)
}

impl Rule {
    /// The rule of a configuration, if it has one. `versions`: those that the version policy loads, ascending.
    pub fn read(config: &ModelConfig, versions: &[i64]) -> Result<Option<Rule>, String> {
        let mut values = [None::<&str>; KEYS.len()];
        for (name, parameter) in config.parameters.range(PREFIX.to_owned()..) {
            if !name.starts_with(PREFIX) {
                break;
            }
            let Some(at) = KEYS.iter().position(|key| key == name) else { return Err(unknown(name)) };
            let value = parameter.string_value.trim();
            if value.is_empty() {
                return Err(wrong(name, value, "it needs a value; remove the parameter to have no such rule"));
            }
            values[at] = Some(value);
        }
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        if versions.len() > VERSIONS_MAX {
            let text = "a model with parameters 'nereid.traffic.…' may load";
            return Err(format!("{text} {VERSIONS_MAX} versions, and its version policy loads {}", versions.len()));
        }
        let [weights, sticky, header, labels, shadow, rollback, tolerance] = values;
        let labels = labels.map(|value| read_labels(value, versions)).transpose()?.unwrap_or_default();
        if weights.is_none() {
            for (key, value) in [(STICKY, sticky), (ROLLBACK, rollback)] {
                if let Some(value) = value {
                    return Err(wrong(key, value, format_args!("it needs the parameter '{WEIGHTS}' beside it")));
                }
            }
        }
        if let (Some(value), None) = (tolerance, shadow) {
            return Err(wrong(TOLERANCE, value, format_args!("it needs the parameter '{SHADOW}' beside it")));
        }
        Ok(Some(Rule {
            versions: versions.to_vec(),
            weights: match weights {
                Some(value) => read_weights(value, versions)?,
                None => vec![0; versions.len()],
            },
            sticky: sticky.map(read_sticky).transpose()?.unwrap_or_default(),
            header: header.map(|value| header_name(HEADER, value, value)).transpose()?,
            shadow: shadow.map(|value| read_shadow(value, versions)).transpose()?,
            tolerance: tolerance.map(read_tolerance).transpose()?.unwrap_or(0.0),
            rollback: rollback.map(|value| read_rollback(value, versions, &labels)).transpose()?,
            labels,
        }))
    }

    /// The headers that decide about requests.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let sticky = match &self.sticky {
            Sticky::Header(name) => Some(&**name),
            Sticky::None | Sticky::Parameter(_) | Sticky::Sequence => None,
        };
        self.header.as_deref().into_iter().chain(sticky)
    }
}

/// The name of an unknown parameter, with the nearest known one.
fn unknown(name: &str) -> String {
    let distance = |key: &&str| strsim::osa_distance(name, key);
    let nearest = KEYS.iter().copied().min_by_key(distance).unwrap_or(WEIGHTS);
    format!("parameter '{name}' is unknown; the nearest is '{nearest}'")
}

/// Refuses a version that is not loaded.
fn check_version(key: &str, value: &str, version: i64, versions: &[i64]) -> Result<(), String> {
    if versions.contains(&version) {
        return Ok(());
    }
    let loaded: Vec<String> = versions.iter().map(i64::to_string).collect();
    let loaded = loaded.join(", ");
    let why = format!("it names version {version}, which the version policy does not load (it loads {loaded})");
    Err(wrong(key, value, why))
}

/// The two parts of an entry.
fn pair<'a>(key: &str, value: &str, entry: &'a str, form: &str) -> Result<(&'a str, &'a str), String> {
    let parts = entry.split_once(':').map(|(one, other)| (one.trim(), other.trim()));
    parts.ok_or_else(|| wrong(key, value, format_args!("'{}' is not of the form {form}", entry.trim())))
}

fn number<T: std::str::FromStr>(key: &str, value: &str, text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| wrong(key, value, format_args!("'{text}' is not {what}")))
}

/// `1:90,2:10`.
fn read_weights(value: &str, versions: &[i64]) -> Result<Vec<u32>, String> {
    let mut weights: Vec<Option<u32>> = vec![None; versions.len()];
    for entry in value.split(',') {
        let (version, weight) = pair(WEIGHTS, value, entry, "VERSION:WEIGHT")?;
        let version: i64 = number(WEIGHTS, value, version, "a version")?;
        check_version(WEIGHTS, value, version, versions)?;
        let weight: u32 = number(WEIGHTS, value, weight, "a weight, a whole number of percent")?;
        let place = versions.iter().position(|known| *known == version).and_then(|at| weights.get_mut(at));
        if let Some(place) = place
            && place.replace(weight).is_some()
        {
            return Err(wrong(WEIGHTS, value, format_args!("it names version {version} twice")));
        }
    }
    let sum = weights.iter().flatten().fold(0u32, |sum, weight| sum.saturating_add(*weight));
    if sum != WEIGHTS_SUM {
        return Err(wrong(WEIGHTS, value, format_args!("the weights sum to {sum}, they must sum to {WEIGHTS_SUM}")));
    }
    Ok(weights.into_iter().map(Option::unwrap_or_default).collect())
}

/// `stable:1,canary:2`.
fn read_labels(value: &str, versions: &[i64]) -> Result<Vec<(Box<str>, i64)>, String> {
    let mut labels: Vec<(Box<str>, i64)> = Vec::new();
    for entry in value.split(',') {
        let (label, version) = pair(LABELS, value, entry, "LABEL:VERSION")?;
        if !is_label(label.as_bytes()) {
            let form = "a label begins with a letter and has letters, digits and the characters _ - . only";
            return Err(wrong(LABELS, value, format_args!("'{label}' is not a label; {form}")));
        }
        let version: i64 = number(LABELS, value, version, "a version")?;
        check_version(LABELS, value, version, versions)?;
        if labels.iter().any(|(known, _)| **known == *label) {
            return Err(wrong(LABELS, value, format_args!("it names the label '{label}' twice")));
        }
        labels.push((label.into(), version));
    }
    if labels.len() > LABELS_MAX {
        return Err(wrong(LABELS, value, format_args!("a model may have {LABELS_MAX} labels")));
    }
    Ok(labels)
}

/// The name of a header, in lower case.
fn header_name(key: &str, value: &str, name: &str) -> Result<Box<str>, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_part) {
        true => Ok(name.to_ascii_lowercase().into()),
        false => Err(wrong(key, value, format_args!("'{name}' is not the name of a header"))),
    }
}

/// `header:x-user-id`, `parameter:name` or `sequence`.
fn read_sticky(value: &str) -> Result<Sticky, String> {
    match value.split_once(':').map(|(kind, name)| (kind.trim(), name.trim())) {
        Some(("header", name)) => header_name(STICKY, value, name).map(Sticky::Header),
        Some(("parameter", name)) if !name.is_empty() => Ok(Sticky::Parameter(name.into())),
        None if value == "sequence" => Ok(Sticky::Sequence),
        _ => Err(wrong(STICKY, value, "it must be 'header:NAME', 'parameter:NAME' or 'sequence'")),
    }
}

/// `3:0.1`.
fn read_shadow(value: &str, versions: &[i64]) -> Result<ShadowRule, String> {
    let (version, share) = pair(SHADOW, value, value, "VERSION:SHARE")?;
    let version: i64 = number(SHADOW, value, version, "a version")?;
    check_version(SHADOW, value, version, versions)?;
    let share: f64 = number(SHADOW, value, share, "a share between 0 and 1")?;
    match share > 0.0 && share <= 1.0 {
        true => Ok(ShadowRule { version, share }),
        false => Err(wrong(SHADOW, value, "the share must be above 0 and at most 1")),
    }
}

fn read_tolerance(value: &str) -> Result<f64, String> {
    let tolerance: f64 = number(TOLERANCE, value, value, "a number")?;
    match tolerance.is_finite() && tolerance >= 0.0 {
        true => Ok(tolerance),
        false => Err(wrong(TOLERANCE, value, "it must be 0 or more")),
    }
}

fn read_rollback(value: &str, versions: &[i64], labels: &[(Box<str>, i64)]) -> Result<Rollback, String> {
    let rollback = Rollback::parse(value).map_err(|why| wrong(ROLLBACK, value, why))?;
    let target = &rollback.target;
    if labels.iter().any(|(label, _)| *label == *target) {
        return Ok(rollback);
    }
    match target.parse::<i64>() {
        Ok(version) => check_version(ROLLBACK, value, version, versions).map(|()| rollback),
        Err(_) => {
            let why = format!("'{target}' is neither a version nor one of the labels of '{LABELS}'");
            Err(wrong(ROLLBACK, value, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference::ModelParameter;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let parameter =
            |(key, value): &(&str, &str)| ((*key).to_owned(), ModelParameter { string_value: (*value).to_owned() });
        ModelConfig { parameters: parameters.iter().map(parameter).collect(), ..ModelConfig::default() }
    }

    fn read(parameters: &[(&str, &str)]) -> Result<Option<Rule>, String> {
        Rule::read(&config(parameters), &[1, 2, 3])
    }

    #[test]
    fn a_model_without_the_parameters_has_no_rule() {
        assert_eq!(read(&[("nereid.other", "1"), ("zzz", "2"), ("a", "")]), Ok(None));
    }

    #[test]
    fn all_parts_of_a_rule_are_read() {
        let rule = read(&[
            (WEIGHTS, "1:90, 2:10"),
            (STICKY, "header:X-User-Id"),
            (HEADER, "X-Canary"),
            (LABELS, "stable:1,canary:2"),
            (SHADOW, "3:0.1"),
            (ROLLBACK, "canary error_rate>0.05 latency_p99_ms>50 min_requests=20 window_secs=10"),
            (TOLERANCE, "1e-5"),
        ]);
        let rule = rule.unwrap().unwrap();
        assert_eq!((&rule.weights[..], &rule.versions[..]), (&[90, 10, 0][..], &[1, 2, 3][..]));
        assert_eq!(rule.sticky, Sticky::Header("x-user-id".into()));
        assert_eq!(rule.fields().collect::<Vec<_>>(), ["x-canary", "x-user-id"]);
        assert_eq!(rule.labels, [("stable".into(), 1), ("canary".into(), 2)]);
        assert_eq!(rule.shadow, Some(ShadowRule { version: 3, share: 0.1 }));
        assert_eq!(rule.tolerance, 1e-5);
        let rollback = rule.rollback.unwrap();
        assert_eq!((&*rollback.target, rollback.requests_min, rollback.window_secs), ("canary", 20, 10));
        assert_eq!((rollback.error_rate, rollback.latency_p99_ms), (Some(0.05), Some(50.0)));
    }

    #[test]
    fn what_is_wrong_is_said_exactly() {
        let of = |key: &str, value: &str, why: &str| format!("parameter '{key}' is '{value}': {why}");
        let loads = "which the version policy does not load (it loads 1, 2, 3)";
        for (key, value, why) in [
            (WEIGHTS, "1:90,2:20", "the weights sum to 110, they must sum to 100"),
            (WEIGHTS, "1:90,4:10", &*format!("it names version 4, {loads}")),
            (WEIGHTS, "1:50,1:50", "it names version 1 twice"),
            (WEIGHTS, "1=90", "'1=90' is not of the form VERSION:WEIGHT"),
            (WEIGHTS, "1:9.5", "'9.5' is not a weight, a whole number of percent"),
            (WEIGHTS, "1:4294967295,2:101", "the weights sum to 4294967295, they must sum to 100"),
            (WEIGHTS, "", "it needs a value; remove the parameter to have no such rule"),
            (
                LABELS,
                "1st:1",
                "'1st' is not a label; a label begins with a letter and has letters, digits and the \
                               characters _ - . only",
            ),
            (LABELS, "a:1,a:2", "it names the label 'a' twice"),
            (LABELS, "a:9", &*format!("it names version 9, {loads}")),
            (HEADER, "x canary", "'x canary' is not the name of a header"),
            (SHADOW, "3:0", "the share must be above 0 and at most 1"),
            (SHADOW, "3:NaN", "the share must be above 0 and at most 1"),
            (SHADOW, "7:1", &*format!("it names version 7, {loads}")),
            (TOLERANCE, "1", "it needs the parameter 'nereid.traffic.shadow' beside it"),
            (STICKY, "sequence", "it needs the parameter 'nereid.traffic.weights' beside it"),
        ] {
            assert_eq!(read(&[(key, value)]), Err(of(key, value, why)), "{key} {value}");
        }
        let weighted = |key, value| read(&[(WEIGHTS, "1:100"), (key, value)]);
        for (key, value, why) in [
            (STICKY, "cookie:x", "it must be 'header:NAME', 'parameter:NAME' or 'sequence'"),
            (STICKY, "parameter:", "it must be 'header:NAME', 'parameter:NAME' or 'sequence'"),
            (
                ROLLBACK,
                "canary error_rate>0.1",
                "'canary' is neither a version nor one of the labels of \
                                                 'nereid.traffic.labels'",
            ),
            (ROLLBACK, "8 error_rate>0.1", &*format!("it names version 8, {loads}")),
        ] {
            assert_eq!(weighted(key, value), Err(of(key, value, why)), "{key} {value}");
        }
        let nearest = "parameter 'nereid.traffic.wieght' is unknown; the nearest is 'nereid.traffic.weights'";
        assert_eq!(read(&[("nereid.traffic.wieght", "1:100")]), Err(nearest.to_owned()));
        let many: Vec<i64> = (1..=65).collect();
        let text = "a model with parameters 'nereid.traffic.…' may load 64 versions, and its version policy loads 65";
        assert_eq!(Rule::read(&config(&[(WEIGHTS, "1:100")]), &many), Err(text.to_owned()));
    }

    #[test]
    fn a_label_cannot_be_taken_for_a_version() {
        for label in ["canary", "v2", "_x", "a-b.c"] {
            assert!(is_label(label.as_bytes()), "{label}");
        }
        for text in ["", "1", "-1", "+a", " a", "2x", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_label(text.as_bytes()), "{text}");
        }
    }
}
