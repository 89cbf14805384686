//! The table: interfaces with their handles, enums, callbacks and functions, and the notation of the texts that define
//! them.
//!
//! A text defines one interface, with one item a line:
//!
//! ```text
//! interface TRITONSERVER 1.34                        the prefix of its names, and its version
//! handle Error                                       an opaque type
//! enum MemoryType MEMORY                             a type, and what its values' names begin with
//!   GPU = 2                                          a value: TRITONSERVER_MEMORY_GPU
//! callback StartFn_t(userp: void*)                   the type of a function that a caller hands in
//! group Errors                                       a title over functions that the server offers
//! given What a backend exports                       a title over functions that a library gives to the server
//! function ErrorMessage(error: Error*) -> const char*
//! ```
//!
//! Without a result a function returns an error. A name that begins with a capital is one of the same interface, `S.X`,
//! `B.X`, `A.X` and `C.X` are those of the server, of backends, agents and caches; all else is C. What stands indented
//! by four blanks under an item or title is its comment. A list of parameters may take several lines.
//!
//! The build script reads this file too: nothing of the crate can be named here.

use std::fmt;

/// The texts, the server's first: the others use its types.
const TEXTS: [(&str, &str); 5] = [
    ("server.txt", include_str!("server.txt")),
    ("backend.txt", include_str!("backend.txt")),
    ("agent.txt", include_str!("agent.txt")),
    ("cache.txt", include_str!("cache.txt")),
    ("nereid.txt", include_str!("nereid.txt")),
];

/// The letters before a name of another interface, and the prefixes that they abbreviate.
const LETTERS: [(char, &str); 4] =
    [('S', "TRITONSERVER"), ('B', "TRITONBACKEND"), ('A', "TRITONREPOAGENT"), ('C', "TRITONCACHE")];

/// What a function without a result in the table returns.
const ERROR: &str = "TRITONSERVER_Error*";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub interfaces: Vec<Interface>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub prefix: String,
    pub major: u32,
    pub minor: u32,
    pub handles: Vec<Handle>,
    pub enums: Vec<Enum>,
    pub callbacks: Vec<Function>,
    pub groups: Vec<Group>,
}

/// An opaque type. Names in the table are complete: `TRITONSERVER_Error`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handle {
    pub name: String,
    pub note: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Enum {
    pub name: String,
    pub note: String,
    pub values: Vec<(String, u32)>,
    stem: String,
}

/// Functions under one title.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    pub title: String,
    pub note: String,
    /// Whether libraries export these to the server; else the server offers them.
    pub is_given: bool,
    pub functions: Vec<Function>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub note: String,
    /// Names and C types.
    pub parameters: Vec<(String, String)>,
    /// The C type.
    pub result: String,
}

/// A violation of the notation: where, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableError {
    pub text: &'static str,
    pub line: usize,
    pub reason: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.text, self.line, self.reason)
    }
}

impl std::error::Error for TableError {}

impl Table {
    /// The table of this build.
    pub fn own() -> Result<Table, TableError> {
        let interfaces: Result<_, _> = TEXTS.iter().map(|(name, text)| Interface::parse(name, text)).collect();
        Ok(Table { interfaces: interfaces? })
    }

    /// The functions that the server offers.
    pub fn offered(&self) -> impl Iterator<Item = &Function> {
        let groups = self.interfaces.iter().flat_map(|interface| &interface.groups);
        groups.filter(|group| !group.is_given).flat_map(|group| &group.functions)
    }

    /// The kinds of a function's parameters and result as letters, `pw>p`: `p` a pointer, `w` and `l` an integer of 32
    /// and 64 bits, `b` a bool, `d` a double, `v` nothing. None if it uses an unknown type.
    pub fn kinds(&self, function: &Function) -> Option<String> {
        let mut kinds = String::new();
        for (_, of_type) in &function.parameters {
            kinds.push(self.kind(of_type)?);
        }
        kinds.push('>');
        kinds.push(self.kind(&function.result)?);
        Some(kinds)
    }

    fn kind(&self, of_type: &str) -> Option<char> {
        let bare = of_type.strip_prefix("const ").unwrap_or(of_type);
        Some(match bare {
            "int" | "unsigned int" | "int32_t" | "uint32_t" => 'w',
            "int64_t" | "uint64_t" | "size_t" => 'l',
            "bool" => 'b',
            "double" => 'd',
            "void" => 'v',
            _ if bare.ends_with('*') => 'p',
            _ if self.interfaces.iter().any(|it| it.enums.iter().any(|one| one.name == bare)) => 'w',
            _ if self.interfaces.iter().any(|it| it.callbacks.iter().any(|one| one.name == bare)) => 'p',
            _ => return None,
        })
    }
}

/// The last item read, which the next comment or value belongs to.
enum Last {
    Interface,
    Handle,
    Enum,
    Callback,
    Group,
    Function,
}

impl Interface {
    pub(super) fn parse(text: &'static str, content: &str) -> Result<Interface, TableError> {
        let mut interface = Interface::default();
        let mut last = Last::Interface;
        let mut lines = content.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let broken = |reason: &str| TableError { text, line: index + 1, reason: reason.to_owned() };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(note) = line.strip_prefix("    ") {
                interface.add_note(&last, note.trim()).ok_or_else(|| broken("a comment of nothing"))?;
                continue;
            }
            if let Some(value) = line.strip_prefix("  ") {
                interface.add_value(&last, value).ok_or_else(|| broken("no value of an enum"))?;
                continue;
            }
            let mut item = line.to_owned();
            while item.contains('(') && !item.contains(')') {
                let (_, more) = lines.next().ok_or_else(|| broken("the list of parameters does not end"))?;
                if !item.ends_with('(') {
                    item.push(' ');
                }
                item.push_str(more.trim());
            }
            last = interface.add_item(&item).ok_or_else(|| broken("no item of the table"))?;
        }
        Ok(interface)
    }

    fn add_item(&mut self, item: &str) -> Option<Last> {
        let (word, rest) = item.split_once(' ')?;
        if word != "interface" && self.prefix.is_empty() {
            return None;
        }
        Some(match word {
            "interface" => {
                let (prefix, version) = rest.split_once(' ')?;
                let (major, minor) = version.split_once('.')?;
                (self.major, self.minor) = (major.parse().ok()?, minor.parse().ok()?);
                self.prefix = prefix.to_owned();
                Last::Interface
            }
            "handle" => {
                self.handles.push(Handle { name: self.whole(rest)?, note: String::new() });
                Last::Handle
            }
            "enum" => {
                let (name, stem) = rest.split_once(' ')?;
                let stem = format!("{}_{stem}", self.prefix);
                self.enums.push(Enum { name: self.whole(name)?, stem, ..Enum::default() });
                Last::Enum
            }
            "callback" => {
                let function = self.function(rest)?;
                self.callbacks.push(function);
                Last::Callback
            }
            "group" | "given" => {
                let is_given = word == "given";
                self.groups.push(Group { title: rest.to_owned(), is_given, ..Group::default() });
                Last::Group
            }
            "function" => {
                let function = self.function(rest)?;
                self.groups.last_mut()?.functions.push(function);
                Last::Function
            }
            _ => return None,
        })
    }

    fn add_note(&mut self, last: &Last, line: &str) -> Option<()> {
        let note = match last {
            Last::Interface => return None,
            Last::Handle => &mut self.handles.last_mut()?.note,
            Last::Enum => &mut self.enums.last_mut()?.note,
            Last::Callback => &mut self.callbacks.last_mut()?.note,
            Last::Group => &mut self.groups.last_mut()?.note,
            Last::Function => &mut self.groups.last_mut()?.functions.last_mut()?.note,
        };
        if !note.is_empty() {
            note.push(' ');
        }
        note.push_str(line);
        Some(())
    }

    fn add_value(&mut self, last: &Last, value: &str) -> Option<()> {
        if !matches!(last, Last::Enum) {
            return None;
        }
        let (name, number) = value.split_once(" = ")?;
        let of = self.enums.last_mut()?;
        let name = format!("{}_{name}", of.stem);
        of.values.push((name, number.parse().ok()?));
        Some(())
    }

    /// Reads `Name(parameter: type, ...)`, with ` -> type` where the result is no error.
    fn function(&self, text: &str) -> Option<Function> {
        let (name, rest) = text.split_once('(')?;
        let (parameters, after) = rest.split_once(')')?;
        let result = match after.strip_prefix(" -> ") {
            Some(result) => self.c_type(result)?,
            None if after.is_empty() => ERROR.to_owned(),
            None => return None,
        };
        let parameters = parameters.split(", ").map(|parameter| {
            let (name, of_type) = parameter.split_once(": ")?;
            Some((name.to_owned(), self.c_type(of_type)?))
        });
        let parameters: Option<Vec<_>> = parameters.collect();
        Some(Function { name: self.whole(name)?, note: String::new(), parameters: parameters?, result })
    }

    /// The C type of a type name in the table.
    fn c_type(&self, text: &str) -> Option<String> {
        let (constant, bare) = match text.strip_prefix("const ") {
            Some(bare) => ("const ", bare),
            None => ("", text),
        };
        let begins_own = bare.starts_with(|c: char| c.is_ascii_uppercase());
        Some(if begins_own { format!("{constant}{}", self.whole(bare)?) } else { text.to_owned() })
    }

    /// The complete name for an abbreviated one of the table, with the text that follows it.
    fn whole(&self, name: &str) -> Option<String> {
        let Some((letter, rest)) = name.split_once('.') else { return Some(format!("{}_{name}", self.prefix)) };
        let (_, prefix) = LETTERS.iter().find(|(known, _)| letter.chars().eq([*known]))?;
        Some(format!("{prefix}_{rest}"))
    }
}
