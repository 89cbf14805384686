//! Compares docs/life-of-a-request.md with the sources: each function is defined in the named file and is called from
//! the named step, and the counts are those of the steps.
//!
//! The calls of a step's function are read from its body, without comments, literals and tests. A dynamic call counts
//! by the name of the method, because the page names the implementation.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{blank_out, demand_none, without_tests};

const PAGE: &str = "docs/life-of-a-request.md";
/// The part whose functions hold no request. A step may be called from there, and its rows belong to no path.
const WAITS: &str = "X";
/// The parts whose rows belong to no path.
const BESIDE: [&str; 2] = [WAITS, "Z"];
/// The row of the folder changes of a path without detours.
const REST: &str = "the rest";

/// A row of a part.
#[derive(Debug)]
struct Step {
    id: String,
    /// Empty: a thread begins here.
    from: Vec<Join>,
    file: String,
    function: String,
}

/// How an earlier step leads to a step.
#[derive(Debug)]
struct Join {
    id: String,
    /// Names that the earlier and the later function contain; `None`: the earlier one calls the later one.
    through: Option<(String, String)>,
}

/// A row of the table of paths.
#[derive(Debug)]
struct RequestPath {
    name: String,
    parts: Vec<String>,
    /// Steps, files, changes of folder.
    counts: [usize; 3],
}

/// A row of the table of places where the first path returns to a folder.
#[derive(Debug)]
struct Detour {
    first: String,
    last: String,
    folders: Vec<String>,
    /// Changes of folder more than in one direction.
    surplus: usize,
}

#[derive(Debug, Default)]
struct Tables {
    paths: Vec<RequestPath>,
    detours: Vec<Detour>,
    steps: Vec<Step>,
    /// Steps that its text names.
    mentioned: BTreeSet<String>,
}

impl Tables {
    /// `Err` with a row of another form.
    fn read(text: &str) -> Result<Tables, String> {
        let mut page = Tables::default();
        let mut part = String::new();
        for line in text.lines() {
            if let Some((letter, _)) = line.strip_prefix("### ").and_then(|title| title.split_once(". ")) {
                part = letter.to_owned();
            }
            page.mentioned.extend(mentions(line));
            let Some(cells) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else { continue };
            let cells: Vec<&str> = cells.split(" | ").collect();
            let odd = || format!("{PAGE}: the row '{line}' has another form than the others");
            match cells[..] {
                [name, parts, steps, files, changes] if !name.starts_with("Path") && is_number(steps) => {
                    let numbers = [steps, files, changes].map(|number| number.parse().map_err(|_| odd()));
                    let [steps, files, changes] = numbers;
                    page.paths.push(RequestPath {
                        name: name.to_owned(),
                        parts: parts.split(", ").map(str::to_owned).collect(),
                        counts: [steps?, files?, changes?],
                    });
                }
                [steps, folders, surplus, _] if is_number(surplus) => {
                    let (first, last) = steps.split_once(" to ").ok_or_else(odd)?;
                    page.detours.push(Detour {
                        first: first.to_owned(),
                        last: last.to_owned(),
                        folders: folders.split(", ").map(str::to_owned).collect(),
                        surplus: surplus.parse().map_err(|_| odd())?,
                    });
                }
                ["Step", ..] => {}
                [id, from, file, function, _, _] => {
                    let (file, function) = (quoted(file).ok_or_else(odd)?, quoted(function).ok_or_else(odd)?);
                    let from = joins(from).ok_or_else(odd)?;
                    if part_of(id) != part {
                        return Err(odd());
                    }
                    page.steps.push(Step { id: id.to_owned(), from, file, function });
                }
                _ if !part.is_empty() => return Err(odd()),
                _ => {}
            }
        }
        Ok(page)
    }

    fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }

    fn findings(&self, sources: &Sources) -> Vec<String> {
        let mut findings = self.misnumbered();
        for step in &self.steps {
            let Step { id, file, function, .. } = step;
            if !sources.has(file) {
                findings.push(format!("{id}: there is no file {file}"));
            } else if sources.bodies(step).is_empty() {
                findings.push(format!("{id}: {file} does not define {function}"));
            }
        }
        if !findings.is_empty() {
            return findings;
        }
        let unknown = self.mentioned.iter().filter(|id| self.step(id).is_none());
        findings.extend(unknown.map(|id| format!("there is no step {id}")));
        findings.extend(self.wrong_detours());
        let mut used = BTreeSet::new();
        for path in &self.paths {
            findings.extend(self.walk(path, sources, &mut used));
        }
        for step in self.steps.iter().filter(|step| BESIDE.contains(&part_of(&step.id))) {
            findings.extend(step.from.iter().filter_map(|join| self.fault(join, step, sources, &mut used)));
        }
        for step in &self.steps {
            let unused = step.from.iter().filter(|join| !used.contains(&*format!("{} {}", step.id, join.id)));
            findings.extend(unused.map(|join| format!("{}: no path enters it from {}", step.id, join.id)));
        }
        // Paths share parts.
        let mut known = BTreeSet::new();
        findings.retain(|finding| known.insert(finding.clone()));
        findings
    }

    /// Steps that do not count up from 1 in their part.
    fn misnumbered(&self) -> Vec<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut findings = Vec::new();
        for step in &self.steps {
            let part = part_of(&step.id);
            let count = counts.entry(part.to_owned()).or_default();
            *count += 1;
            if step.id != format!("{part}{count}") {
                findings.push(format!("{}: the step is number {count} of part {part}", step.id));
            }
        }
        findings
    }

    /// The steps of a path.
    fn along<'a>(&'a self, path: &'a RequestPath) -> impl Iterator<Item = &'a Step> + 'a {
        let of = |part: &'a String| self.steps.iter().filter(move |step| part_of(&step.id) == part);
        path.parts.iter().flat_map(of)
    }

    /// Detours in the table that the first path does not have.
    fn wrong_detours(&self) -> Vec<String> {
        let Some(path) = self.paths.first() else { return Vec::new() };
        let mut findings = Vec::new();
        let mut left = path.counts[2];
        for Detour { first, last, folders, surplus } in &self.detours {
            if folders[..] == [REST] {
                if *surplus != left {
                    findings
                        .push(format!("{}: the page says that {surplus} changes are left, it is {left}", path.name));
                }
                continue;
            }
            left = left.saturating_sub(*surplus);
            let mut is_over = false;
            let behind = self.along(path).skip_while(|step| step.id != *first);
            let within = behind.take_while(|step| !std::mem::replace(&mut is_over, step.id == *last));
            let mut is: Vec<&str> = within.map(|step| folder(&step.file)).collect();
            is.dedup();
            if is != *folders {
                findings.push(format!("{first} to {last}: the folders are {}", is.join(", ")));
            }
        }
        findings
    }

    /// The faults along one path; `used` gets the joins on it.
    fn walk(&self, path: &RequestPath, sources: &Sources, used: &mut BTreeSet<String>) -> Vec<String> {
        let name = &path.name;
        let mut findings = Vec::new();
        let mut passed: Vec<&Step> = Vec::new();
        let missing = path.parts.iter().filter(|part| !self.steps.iter().any(|step| part_of(&step.id) == *part));
        findings.extend(missing.map(|part| format!("{name}: there is no part {part}")));
        let beside = path.parts.iter().filter(|part| BESIDE.contains(&part.as_str()));
        findings.extend(beside.map(|part| format!("{name}: part {part} belongs to no path")));
        for step in self.along(path) {
            let is_passed = |id: &str| passed.iter().any(|before| before.id == id);
            let leads = |join: &&Join| is_passed(&join.id) || self.waits(&join.id, &is_passed);
            let joins: Vec<&Join> = step.from.iter().filter(leads).collect();
            if joins.is_empty() && !step.from.is_empty() {
                findings.push(format!("{name}: nothing before {} leads to it", step.id));
            }
            findings.extend(joins.into_iter().filter_map(|join| self.fault(join, step, sources, used)));
            passed.push(step);
        }
        let files: BTreeSet<&str> = passed.iter().map(|step| &*step.file).collect();
        let changes = passed.windows(2).filter(|pair| folder(&pair[0].file) != folder(&pair[1].file)).count();
        let counts = [passed.len(), files.len(), changes];
        for ((what, said), is) in ["steps", "files", "changes of folder"].iter().zip(path.counts).zip(counts) {
            if said != is {
                findings.push(format!("{name}: the page says {said} {what}, its steps have {is}"));
            }
        }
        findings
    }

    /// Whether a thread is in that row of the part of waits: it begins there, or reaches it from a step that was
    /// passed. Rows lead to later ones only.
    fn waits(&self, id: &str, is_passed: &impl Fn(&str) -> bool) -> bool {
        let Some(at) = self.steps.iter().position(|step| step.id == id && part_of(id) == WAITS) else { return false };
        let is_earlier = |id: &str| self.steps[..at].iter().any(|step| step.id == id);
        let from = &self.steps[at].from;
        let leads = |join: &Join| is_passed(&join.id) || is_earlier(&join.id) && self.waits(&join.id, is_passed);
        from.is_empty() || from.iter().any(leads)
    }

    /// The reason if the sources do not lead to `step` in that way.
    fn fault(&self, join: &Join, step: &Step, sources: &Sources, used: &mut BTreeSet<String>) -> Option<String> {
        used.insert(format!("{} {}", step.id, join.id));
        let Some(before) = self.step(&join.id) else {
            return Some(format!("{}: there is no step {}", step.id, join.id));
        };
        let Some((earlier, later)) = &join.through else {
            let name = name_of(&step.function);
            let is_called = sources.bodies(before).iter().any(|body| calls(body, name));
            return (!is_called)
                .then(|| format!("{}: {} ({}) does not call {name}", step.id, before.function, join.id));
        };
        [(before, earlier), (step, later)].into_iter().find_map(|(at, named)| {
            let is_named = sources.bodies(at).iter().any(|body| words(body, named).next().is_some());
            (!is_named).then(|| format!("{}: {} ({}) does not name {named}", step.id, at.function, at.id))
        })
    }
}

/// Files by their paths from the root, read once.
struct Sources<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
    code: RefCell<BTreeMap<String, Option<String>>>,
}

impl<'a> Sources<'a> {
    fn new(read: &'a dyn Fn(&str) -> Option<String>) -> Sources<'a> {
        Sources { read, code: RefCell::default() }
    }

    /// The text of a file; of Rust without comments, literals and tests.
    fn code(&self, file: &str) -> Option<String> {
        let mut known = self.code.borrow_mut();
        let code = known.entry(file.to_owned()).or_insert_with(|| {
            let text = (self.read)(file)?;
            Some(if file.ends_with(".rs") { without_tests(&blank_out(&text)) } else { text })
        });
        code.clone()
    }

    fn has(&self, file: &str) -> bool {
        self.code(file).is_some()
    }

    /// The bodies of a step's function: of a type there can be several in one file, which belong to its traits.
    fn bodies(&self, step: &Step) -> Vec<String> {
        let Some(code) = self.code(&step.file) else { return Vec::new() };
        let name = name_of(&step.function);
        if step.file.ends_with(".py") {
            let class = step.function.split_once('.').map(|(class, _)| class);
            return python_bodies(&code, class, name);
        }
        let owner = step.function.split_once("::").map(|(owner, _)| owner);
        let (blocks, rest) = impl_blocks(&code);
        match owner {
            None => rust_bodies(&rest, name),
            Some(owner) => {
                let own = blocks.iter().filter(|(of, _)| of == owner);
                own.flat_map(|(_, block)| rust_bodies(block, name)).collect()
            }
        }
    }
}

/// The blocks `impl … {}` with their types, and the rest of the text.
fn impl_blocks(code: &str) -> (Vec<(String, String)>, String) {
    let (mut blocks, mut rest, mut left) = (Vec::new(), String::new(), code);
    let begins = |text: &str| {
        let mut at = 0;
        text.split_inclusive('\n').find_map(|line| {
            let here = at;
            at += line.len();
            let word = line.trim_start().strip_prefix("unsafe ").unwrap_or(line.trim_start());
            word.strip_prefix("impl").filter(|after| after.starts_with([' ', '<'])).map(|_| here)
        })
    };
    while let Some(at) = begins(left) {
        let (before, from) = left.split_at(at);
        rest.push_str(before);
        let Some((head, _)) = from.split_once('{') else { break };
        let block = braced(&from[head.len()..]);
        blocks.push((owner_of(head), block.to_owned()));
        left = &from[head.len() + block.len()..];
    }
    rest.push_str(left);
    (blocks, rest)
}

/// The type in `impl<S: Service> http1::Handler for Handler<'_, S> where …`.
fn owner_of(head: &str) -> String {
    let head = head.trim().trim_start_matches("unsafe ").trim_start_matches("impl");
    let head = match head.starts_with('<') {
        true => &head[angled(head)..],
        false => head,
    };
    let of = head.split(" where").next().unwrap_or(head);
    let of = of.rsplit_once(" for ").map_or(of, |(_, owner)| owner);
    let path = of.split('<').next().unwrap_or(of);
    path.rsplit("::").next().unwrap_or(path).trim().to_owned()
}

/// The length of `<…>` at the start of a text; the arrow of a function's type is not a closing bracket.
fn angled(text: &str) -> usize {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
        before = c;
    }
    text.len()
}

/// The text from its first brace to the one that closes it.
fn braced(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == '}' && depth == 0 {
            return &text[..=at];
        }
    }
    text
}

/// The bodies of the functions of that name; a declaration has none.
fn rust_bodies(code: &str, name: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    for at in words(code, name) {
        if !code[..at].ends_with("fn ") {
            continue;
        }
        let from = &code[at + name.len()..];
        let mut depth = 0;
        let end = from.char_indices().find(|(_, c)| {
            depth += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
            depth == 0 && matches!(c, '{' | ';')
        });
        if let Some((at, '{')) = end {
            bodies.push(braced(&from[at..]).to_owned());
        }
    }
    bodies
}

/// The same for Python: lines that are indented further than their `def`.
fn python_bodies(code: &str, class: Option<&str>, name: &str) -> Vec<String> {
    let (mut owner, mut bodies) = (None, Vec::new());
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if let Some(class) = line.strip_prefix("class ") {
            owner = Some(class.split(['(', ':']).next().unwrap_or(class));
        } else if indent == 0 && !line.is_empty() {
            owner = None;
        }
        let is_it = line.trim_start().strip_prefix("def ").and_then(|line| line.strip_prefix(name));
        if is_it.is_none_or(|after| !after.starts_with('(')) || owner != class {
            continue;
        }
        let mut body = String::new();
        while let Some(line) =
            lines.next_if(|line| line.trim().is_empty() || line.len() - line.trim_start().len() > indent)
        {
            body.push_str(line);
            body.push('\n');
        }
        bodies.push(body);
    }
    bodies
}

/// Whether `body` calls or passes on a function of that name.
fn calls(body: &str, name: &str) -> bool {
    words(body, name).any(|at| {
        let after = body[at + name.len()..].trim_start();
        after.starts_with('(') || after.starts_with("::<") || body[..at].ends_with("::")
    })
}

/// The positions of `word` in a text where it is not a part of a longer word.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back().is_some_and(is_part);
        !before && !text[at + word.len()..].starts_with(is_part)
    })
}

/// `Connection::receive`, `Link.receive`, `live`: the function's own name.
fn name_of(function: &str) -> &str {
    function.rsplit(['.', ':']).next().unwrap_or(function)
}

fn part_of(id: &str) -> &str {
    id.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The first component below src: `net` of `src/net/lib.rs` and of `src/net/http.rs`.
fn folder(file: &str) -> &str {
    let below = file.strip_prefix("src/").unwrap_or(file);
    below.split('/').next().unwrap_or(below).trim_end_matches(".rs")
}

/// Words such as `B16` outside backquotes.
fn mentions(line: &str) -> impl Iterator<Item = String> + '_ {
    let words = line.split('`').step_by(2).flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
    let is_step = |word: &&str| {
        let number = word.strip_prefix(|c: char| c.is_ascii_uppercase());
        number.is_some_and(is_number)
    };
    words.filter(is_step).map(str::to_owned)
}

fn is_number(cell: &str) -> bool {
    !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit())
}

fn quoted(cell: &str) -> Option<String> {
    cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned)
}

/// `–`, ``A4, A1``, ``A4 `Event::Received` ``, ``X4 `owed` to `credits` ``.
fn joins(cell: &str) -> Option<Vec<Join>> {
    if cell == "–" {
        return Some(Vec::new());
    }
    let joins = cell.split(", ").map(|join| {
        let Some((id, through)) = join.split_once(' ') else {
            return Some(Join { id: join.to_owned(), through: None });
        };
        let (earlier, later) = through.split_once(" to ").unwrap_or((through, through));
        Some(Join { id: id.to_owned(), through: Some((quoted(earlier)?, quoted(later)?)) })
    });
    joins.collect()
}

#[test]
fn the_life_of_a_request_is_as_its_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).ok();
    let page = Tables::read(&read(PAGE).expect("the page")).unwrap_or_else(|error| panic!("{error}"));
    let sizes = [page.paths.len(), page.detours.len(), page.steps.len()];
    assert!(sizes.iter().zip([5, 1, 200]).all(|(size, least)| *size >= least), "the tables of {PAGE}: {sizes:?}");
    demand_none(PAGE, page.findings(&Sources::new(&read)));
}

/// Two files, a call between them, a queue, and a thread that begins behind it.
#[test]
fn a_wrong_page_is_found() {
    let page = "\
| Path | Parts | Steps | Files | Changes of folder |
| one | A, B | 4 | 4 | 2 |
| Steps | Folders | More than in one direction | Why |
| A2 to B2 | net, queue, api.py | 1 | x |
| A1 to B2 | the rest | 1 | B1 waits |
### A. Asks
| Step | From | File | Function | Thread | Handed over |
| A1 | – | `src/net/lib.rs` | `Net::event` | shard | x |
| A2 | A1 | `src/net/http.rs` | `take` | shard | x |
### B. Answers
| B1 | – | `src/queue/run.rs` | `Worker::run` | worker | x |
| B2 | B1, A2 `inbox` | `src/api.py` | `Loop.answer` | Python | x |
### Z. Beside
| Z1 | A1 | `src/net/http.rs` | `refuse` | shard | x |
";
    let read = |file: &str| {
        let text = match file {
            "src/net/lib.rs" => {
                "impl Other { fn event(&self) {} }\nimpl<S: Fn() -> u8> Handler for Net<S> where S: Send {\n\
                 fn event(&mut self, of: [u8; 2]) {\n// other()\nhttp::take(of);\nrefuse()\n}\n}\n"
            }
            "src/net/http.rs" => "fn take(of: [u8; 2]) {\n    inbox.push(of)\n}\nfn refuse() {}\n",
            "src/queue/run.rs" => "impl Worker { fn run(&self) { self.answer() } }\n",
            "src/api.py" => {
                "class Loop:\n    def answer(self):\n        return self.inbox.pop()\n\n    def other(self):\n        \
                 pass\n"
            }
            _ => return None,
        };
        Some(text.to_owned())
    };
    let findings = |from: &str, to: &str| {
        assert!(page.contains(from), "{from}");
        match Tables::read(&page.replace(from, to)) {
            Ok(page) => page.findings(&Sources::new(&read)),
            Err(odd) => vec![odd],
        }
    };
    assert_eq!(findings("A, B", "A, B"), [""; 0]);
    for (from, to, finding) in [
        ("src/queue/run.rs", "src/queue/none.rs", "B1: there is no file src/queue/none.rs"),
        ("Net::event", "Net::events", "A1: src/net/lib.rs does not define Net::events"),
        ("Net::event", "event", "A1: src/net/lib.rs does not define event"),
        ("`take`", "`Net::take`", "A2: src/net/http.rs does not define Net::take"),
        ("Loop.answer", "answer", "B2: src/api.py does not define answer"),
        ("Loop.answer", "Loop.other", "B2: Worker::run (B1) does not call other"),
        ("Net::event", "Other::event", "A2: Other::event (A1) does not call take"),
        ("A2 `inbox`", "A2 `outbox`", "B2: take (A2) does not name outbox"),
        ("A2 `inbox`", "A2 `inbox` to `outbox`", "B2: Loop.answer (B2) does not name outbox"),
        ("B1, A2 `inbox`", "B1, A1 `inbox`", "B2: Net::event (A1) does not name inbox"),
        ("B1, A2 `inbox`", "B3", "one: nothing before B2 leads to it"),
        ("| A2 |", "| A3 |", "A3: the step is number 2 of part A"),
        ("| A2 |", "| C2 |", "C2 |"),
        ("`take` |", "take |", "has another form"),
        ("| shard | x |", "| shard | x | y |", "has another form"),
        ("| A2 | A1 | `src/net/http.rs` | `take` | shard | x |\n", "", "B2: no path enters it from A2"),
        ("| one | A, B |", "| one | A, B, C |", "one: there is no part C"),
        ("| one | A, B |", "| one | B |", "B2: no path enters it from A2"),
        ("| 4 | 4 | 2 |", "| 5 | 4 | 2 |", "one: the page says 5 steps, its steps have 4"),
        ("| 4 | 4 | 2 |", "| 4 | 3 | 2 |", "one: the page says 3 files, its steps have 4"),
        ("| 4 | 4 | 2 |", "| 4 | 4 | 1 |", "one: the page says 1 changes of folder, its steps have 2"),
        (
            "| A2 to B2 | net, queue, api.py | 1 |",
            "| A2 to B2 | net, api.py | 1 |",
            "the folders are net, queue, api.py",
        ),
        ("| A2 to B2 |", "| B1 to B2 |", "B1 to B2: the folders are queue, api.py"),
        ("net, queue, api.py | 1 |", "net, queue, api.py | 2 |", "the page says that 1 changes are left, it is 0"),
        ("B1 waits", "B7 waits", "there is no step B7"),
        ("| Z1 | A1 |", "| Z1 | A2 |", "Z1: take (A2) does not call refuse"),
        ("| Z1 | A1 |", "| Z1 | A9 |", "Z1: there is no step A9"),
    ] {
        let found = findings(from, to);
        assert!(found.iter().any(|one| one.contains(finding)), "'{to}' for '{from}' is found: {found:?}");
    }
}

/// A step that is called from a function without a request: a thread must reach that function, and it must call the
/// step.
#[test]
fn a_wait_leads_to_a_step_where_its_thread_has_come_there() {
    let page = "\
| Path | Parts | Steps | Files | Changes of folder |
| one | A, B | 3 | 2 | 1 |
### A. Asks
| Step | From | File | Function | Thread | Handed over |
| A1 | – | `src/net.rs` | `turn` | shard | x |
| A2 | X1 | `src/net.rs` | `take` | shard | x |
### B. Answers
| B1 | A2 `inbox`, X3 | `src/queue.rs` | `pop` | worker | x |
### X. Waits
| X1 | A1 | `src/net.rs` | `flush` | shard | x |
| X2 | – | `src/queue.rs` | `run` | worker | x |
| X3 | X2 | `src/queue.rs` | `poll` | worker | x |
";
    let read = |file: &str| {
        let text = match file {
            "src/net.rs" => {
                "fn turn() { flush() }\nfn flush() { take() }\nfn take() { inbox.push(1) }\nfn other() {}\n"
            }
            "src/queue.rs" => "fn run() { poll() }\nfn poll() { pop() }\nfn pop() { inbox.pop() }\nfn other() {}\n",
            _ => return None,
        };
        Some(text.to_owned())
    };
    let findings = |from: &str, to: &str| {
        assert!(page.contains(from), "{from}");
        Tables::read(&page.replace(from, to)).unwrap().findings(&Sources::new(&read))
    };
    assert_eq!(findings("A, B", "A, B"), [""; 0]);
    for (from, to, finding) in [
        ("`flush`", "`other`", "A2: other (X1) does not call take"),
        ("`flush`", "`other`", "X1: turn (A1) does not call other"),
        ("`poll`", "`other`", "B1: other (X3) does not call pop"),
        ("`flush`", "`flushes`", "X1: src/net.rs does not define flushes"),
        ("| X1 | A1 |", "| X1 | B1 |", "one: nothing before A2 leads to it"),
        ("| X1 | A1 |", "| X1 | X2 |", "one: nothing before A2 leads to it"),
        ("| X1 | A1 |", "| X1 | A9 |", "X1: there is no step A9"),
        ("| A2 | X1 |", "| A2 | X9 |", "one: nothing before A2 leads to it"),
        ("| X3 | X2 |", "| X3 | B1 |", "X3: pop (B1) does not call poll"),
        ("| A, B | 3 | 2 | 1 |", "| A, B, X | 6 | 2 | 3 |", "one: part X belongs to no path"),
        ("| A, B | 3 | 2 | 1 |", "| A, B | 6 | 2 | 1 |", "one: the page says 6 steps, its steps have 3"),
    ] {
        let found = findings(from, to);
        assert!(found.iter().any(|one| one.contains(finding)), "'{to}' for '{from}' is found: {found:?}");
    }
}
