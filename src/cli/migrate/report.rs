//! What was found in a set-up, for people and for programs.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::differences;

/// The page that describes every difference.
pub const PAGE: &str = "docs/differences.md";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Works here as it does there.
    Works,
    /// Works, and not in all as it does there.
    Differs,
    /// Does not work here as it is.
    Missing,
    /// Neither is known.
    Unseen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub group: Group,
    /// What it is about: a flag, a model, a repository.
    pub subject: String,
    pub text: String,
    /// The anchor in [`PAGE`].
    pub difference: Option<&'static str>,
    /// What replaces it, the likeliest first.
    pub instead: Vec<String>,
}

/// The exit codes, which the usage text and docs/coming-from-triton.md list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    AllWorks = 0,
    Differs = 1,
    Missing = 2,
}

/// All findings on a set-up.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// The command line that starts this server in place of the other; none for repositories alone.
    pub command: Option<Vec<String>>,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(outcome as u8)
    }
}

impl Report {
    pub fn works(&mut self, subject: impl Into<String>, text: impl Into<String>) {
        self.push(Group::Works, subject, text, None, Vec::new());
    }

    /// `difference` is one of [`differences::ALL`].
    pub fn differs(&mut self, subject: impl Into<String>, difference: &'static str, text: impl Into<String>) {
        debug_assert!(differences::find(difference).is_some(), "{difference}");
        self.push(Group::Differs, subject, text, Some(difference), Vec::new());
    }

    /// The same with the sentence of the table.
    pub fn differs_as_listed(&mut self, subject: impl Into<String>, difference: &'static str) {
        let text = differences::find(difference).map_or("", |known| known.text);
        self.differs(subject, difference, text);
    }

    pub fn missing(&mut self, subject: impl Into<String>, text: impl Into<String>, instead: Vec<String>) {
        self.push(Group::Missing, subject, text, None, instead);
    }

    pub fn unseen(&mut self, subject: impl Into<String>, text: impl Into<String>) {
        self.push(Group::Unseen, subject, text, None, Vec::new());
    }

    fn push(
        &mut self,
        group: Group,
        subject: impl Into<String>,
        text: impl Into<String>,
        difference: Option<&'static str>,
        instead: Vec<String>,
    ) {
        let finding = Finding { group, subject: subject.into(), text: text.into(), difference, instead };
        self.findings.push(finding);
    }

    /// A repository that was not looked into may hold what differs.
    pub fn outcome(&self) -> Outcome {
        match self.findings.iter().map(|finding| finding.group).filter(|group| *group != Group::Works) {
            groups if groups.clone().any(|group| group == Group::Missing) => Outcome::Missing,
            mut groups => match groups.next() {
                Some(_) => Outcome::Differs,
                None => Outcome::AllWorks,
            },
        }
    }

    fn of(&self, group: Group) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.group == group)
    }

    /// `is_all`: with what works.
    pub fn text(&self, is_all: bool) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail, here and below.
        let works = self.of(Group::Works).count();
        let hint = if is_all || works == 0 { "" } else { "; --all lists it" };
        let _ = writeln!(text, "Works: {works}{hint}");
        if is_all {
            self.of(Group::Works).for_each(|finding| finding.push_text(&mut text));
        }
        for (group, title) in
            [(Group::Differs, "Differs"), (Group::Missing, "Missing"), (Group::Unseen, "Not looked into")]
        {
            let count = self.of(group).count();
            if count == 0 && group == Group::Unseen {
                continue;
            }
            let _ = writeln!(text, "\n{title}: {count}");
            self.of(group).for_each(|finding| finding.push_text(&mut text));
        }
        if let Some(command) = &self.command {
            let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
            let _ = writeln!(text, "\nCommand: {}", words.join(" "));
        }
        text
    }

    pub fn json(&self) -> String {
        let findings = |group| Value::from(self.of(group).map(Finding::json).collect::<Vec<Value>>());
        let report = json!({
            "works": findings(Group::Works),
            "differs": findings(Group::Differs),
            "missing": findings(Group::Missing),
            "not_looked_into": findings(Group::Unseen),
            "command": self.command,
            "exit_code": self.outcome() as u8,
        });
        format!("{report:#}\n")
    }
}

impl Finding {
    fn link(&self) -> Option<String> {
        self.difference.map(|anchor| format!("{PAGE}#{anchor}"))
    }

    fn push_text(&self, text: &mut String) {
        let mut lines = self.text.lines().filter(|line| !line.trim().is_empty());
        let _ = writeln!(text, "  {}: {}", self.subject, lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(text, "      {line}");
        }
        if let Some(link) = self.link() {
            let _ = writeln!(text, "      see {link}");
        }
        for instead in &self.instead {
            let _ = writeln!(text, "      instead: {instead}");
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({ "subject": self.subject, "text": self.text });
        if let Some(link) = self.link() {
            value["see"] = link.into();
        }
        if self.group == Group::Missing {
            value["instead"] = self.instead.clone().into();
        }
        value
    }
}

/// The word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=/.,:+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let mut report = Report::default();
        assert_eq!(report.outcome(), Outcome::AllWorks);
        report.works("a", "");
        assert_eq!(report.outcome(), Outcome::AllWorks);
        report.unseen("b", "");
        assert_eq!(report.outcome(), Outcome::Differs);
        report.missing("c", "", vec![]);
        report.differs_as_listed("d", "executions-of-an-ensemble");
        assert_eq!(report.outcome(), Outcome::Missing);
    }

    #[test]
    fn texts_have_the_groups_in_their_order() {
        let mut report = Report::default();
        report.works("--id", "works");
        report.missing("model m", "first\n\n  second", vec!["use x".to_owned()]);
        report.differs("model e", "executions-of-an-ensemble", "counts");
        report.command = Some(vec!["nereid".to_owned(), "--id=a b".to_owned(), "it's".to_owned(), String::new()]);
        let text = "Works: 1; --all lists it\n\
                    \nDiffers: 1\n  model e: counts\n      see docs/differences.md#executions-of-an-ensemble\n\
                    \nMissing: 1\n  model m: first\n        second\n      instead: use x\n\
                    \nCommand: nereid '--id=a b' 'it'\\''s' ''\n";
        assert_eq!(report.text(false), text);
        assert!(report.text(true).starts_with("Works: 1\n  --id: works\n\nDiffers: 1\n"));
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["differs"][0]["see"], "docs/differences.md#executions-of-an-ensemble");
        assert_eq!(json["missing"][0]["instead"][0], "use x");
        assert_eq!(json["exit_code"], 2);
    }
}
