//! The findings of `nereid doctor`, for people and for programs.

use serde_json::json;

use super::access::User;
use nereid_monitor::plain;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Ok,
    /// The server runs, slower or with less than it could have.
    Warning,
    /// The server does not start, or does not serve what it should.
    Problem,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// The part of the host that a finding belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    Host,
    Runtimes,
    Ports,
    Files,
}

impl Area {
    const ALL: [Area; 4] = [Area::Host, Area::Runtimes, Area::Ports, Area::Files];

    fn name(self) -> &'static str {
        match self {
            Area::Host => "host",
            Area::Runtimes => "runtimes",
            Area::Ports => "ports",
            Area::Files => "files",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub area: Area,
    /// What was checked, in a word.
    pub name: String,
    pub level: Level,
    pub what: String,
    /// What to do about it.
    pub next: Option<String>,
}

#[derive(Debug)]
pub struct Report {
    user: String,
    uid: u32,
    gid: u32,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(user: &User) -> Report {
        Report { user: user.name.clone(), uid: user.uid, gid: user.gid, findings: Vec::new() }
    }

    pub fn ok(&mut self, area: Area, name: impl Into<String>, what: impl Into<String>) {
        let (name, what) = (name.into(), what.into());
        self.findings.push(Finding { area, name, level: Level::Ok, what, next: None });
    }

    /// A warning or a problem, with the next step.
    pub fn bad(
        &mut self,
        level: Level,
        area: Area,
        name: impl Into<String>,
        what: impl Into<String>,
        next: impl Into<String>,
    ) {
        let (name, what, next) = (name.into(), what.into(), Some(next.into()));
        self.findings.push(Finding { area, name, level, what, next });
    }

    pub fn has_problem(&self) -> bool {
        self.count(Level::Problem) > 0
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    pub fn text(&self) -> String {
        let names = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        let mut text = format!("for a server that runs as {} (uid {}, gid {})\n", self.user, self.uid, self.gid);
        for area in Area::ALL {
            let of_area: Vec<&Finding> = self.findings.iter().filter(|finding| finding.area == area).collect();
            if of_area.is_empty() {
                continue;
            }
            text.push_str(&format!("\n{}\n", area.name()));
            for Finding { name, level, what, next, .. } in of_area {
                // Names of files and messages of libraries could have what steers a terminal.
                text.push_str(&format!("  {:<7}  {name:<names$}  {}\n", level.name(), plain(what)));
                if let Some(next) = next {
                    text.push_str(&format!("  {:<7}  {:<names$}  next: {}\n", "", "", plain(next)));
                }
            }
        }
        let [ok, warnings, problems] = [Level::Ok, Level::Warning, Level::Problem].map(|level| self.count(level));
        text.push_str(&format!("\n{ok} ok, {warnings} warnings, {problems} problems\n"));
        text
    }

    /// docs/monitoring.md describes the members.
    pub fn json(&self) -> String {
        let findings = self.findings.iter().map(|finding| {
            json!({
                "area": finding.area.name(),
                "name": finding.name,
                "level": finding.level.name(),
                "what": finding.what,
                "next": finding.next,
            })
        });
        let document = json!({
            "user": {"name": self.user, "uid": self.uid, "gid": self.gid},
            "findings": findings.collect::<Vec<_>>(),
            "ok": self.count(Level::Ok),
            "warnings": self.count(Level::Warning),
            "problems": self.count(Level::Problem),
        });
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }
}
