//! Generates the headers of `include/triton/core` from the table.
//!
//! One header contains all declarations; the other three names that Triton's users include forward to it. The
//! declarations are source compatible with code that was written for Triton's own headers: the same names, and C enums.

use super::table::{Enum, Function, Group, Interface, Table};

const WIDTH: usize = 120;

/// A header: its name in `include/triton/core`, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub name: &'static str,
    pub text: String,
}

/// All headers.
pub fn headers(table: &Table) -> Vec<Header> {
    let mut headers = vec![Header { name: "tritonserver.h", text: whole(table) }];
    let others =
        [("tritonbackend.h", "backends"), ("tritonrepoagent.h", "repository agents"), ("tritoncache.h", "caches")];
    headers.extend(others.map(|(name, of)| {
        let text =
            format!("/* What {of} include; everything stands in one header. */\n\n#include \"tritonserver.h\"\n");
        Header { name, text }
    }));
    headers
}

const BEGINNING: &str = "\
#ifndef NEREID_TRITON_CORE_H
#define NEREID_TRITON_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

";

const END: &str = "\
#ifdef __cplusplus
}
#endif

#endif
";

fn whole(table: &Table) -> String {
    let versions: Vec<_> =
        table.interfaces.iter().map(|it| format!("{} {}.{}", it.prefix, it.major, it.minor)).collect();
    let mut text = comment(&format!(
        "Triton's C interfaces as Nereid offers them: for backends, caches and repository agents that are loaded as \
         libraries, and for programs that run the server inside themselves. Names, types and numbers are those of {}, \
         the last of which is Nereid's own. \
         This file is generated: nereid install writes it.",
        versions.join(", ")
    ));
    text += "\n";
    text += &comment(
        "Errors that are returned belong to the caller, which deletes them. Texts, shapes and handles that a function \
         gives out belong to the object that they came from and live as long as it does, unless a function says \
         otherwise. A NULL where an object or a result's address is due is TRITONSERVER_ERROR_INVALID_ARG.",
    );
    text += "\n";
    text += BEGINNING;
    macros(&mut text, table);
    text += "/* Objects; only their addresses are known. */\n\n";
    for handle in table.interfaces.iter().flat_map(|it| &it.handles) {
        text += &comment(&handle.note);
        text += &format!("struct {0};\ntypedef struct {0} {0};\n", handle.name);
    }
    text += "\n/* Numbers. */\n\n";
    table.interfaces.iter().flat_map(|it| &it.enums).for_each(|one| enumeration(&mut text, one));
    text += "/* Functions that a caller hands in. */\n\n";
    for callback in table.interfaces.iter().flat_map(|it| &it.callbacks) {
        text += &comment(&callback.note);
        let begin = format!("typedef {} (*{})(", callback.result, callback.name);
        text += &declaration(&begin, callback);
        text += "\n";
    }
    for interface in &table.interfaces {
        interface.groups.iter().for_each(|of| group(&mut text, interface, of));
    }
    text += END;
    text
}

/// Macros for versions and for the visibility of functions: a library's exports must be visible where its other symbols
/// are hidden.
fn macros(text: &mut String, table: &Table) {
    for Interface { prefix, major, minor, .. } in &table.interfaces {
        *text += &format!("#define {prefix}_API_VERSION_MAJOR {major}\n#define {prefix}_API_VERSION_MINOR {minor}\n");
    }
    *text += "\n/* How functions are found: those that the server offers, and those that a library gives to it. */\n";
    *text += "#if defined(__GNUC__)\n#define NEREID_VISIBLE __attribute__((visibility(\"default\")))\n";
    *text += "#else\n#define NEREID_VISIBLE\n#endif\n";
    for Interface { prefix, groups, .. } in &table.interfaces {
        *text += &format!("#define {prefix}_DECLSPEC NEREID_VISIBLE\n");
        if groups.iter().any(|group| group.is_given) {
            *text += &format!("#define {prefix}_ISPEC NEREID_VISIBLE\n");
        }
    }
    *text += "\n";
}

fn enumeration(text: &mut String, one: &Enum) {
    *text += &comment(&one.note);
    let values: Vec<_> = one.values.iter().map(|(name, number)| format!("  {name} = {number}")).collect();
    *text += &format!("typedef enum {{\n{}\n}} {};\n\n", values.join(",\n"), one.name);
}

fn group(text: &mut String, interface: &Interface, group: &Group) {
    let of = match interface.prefix.as_str() {
        "TRITONBACKEND" => "Backends: ",
        "TRITONREPOAGENT" => "Repository agents: ",
        "TRITONCACHE" => "Caches: ",
        "NEREID" => "Nereid: ",
        _ => "",
    };
    let mut title = format!("{of}{}", group.title);
    if !of.is_empty() {
        title.get_mut(of.len()..of.len() + 1).into_iter().for_each(str::make_ascii_lowercase);
    }
    let rule = WIDTH.saturating_sub(title.len() + 9);
    *text += &format!("/* {title}. {} */\n", "-".repeat(rule));
    *text += &comment(&group.note);
    *text += "\n";
    let word = if group.is_given { "ISPEC" } else { "DECLSPEC" };
    for (at, function) in group.functions.iter().enumerate() {
        if at > 0 && !function.note.is_empty() {
            text.push('\n');
        }
        *text += &comment(&function.note);
        let begin = format!("{}_{word} {} {}(", interface.prefix, function.result, function.name);
        *text += &declaration(&begin, function);
    }
    *text += "\n";
}

/// A declaration that starts with `begin`: in one line if it fits, else with its parameters below, never broken within
/// a parameter.
fn declaration(begin: &str, function: &Function) -> String {
    let parameters: Vec<_> = function.parameters.iter().map(|(name, of)| format!("{of} {name}")).collect();
    let line = format!("{begin}{});\n", parameters.join(", "));
    if line.len() <= WIDTH + 1 {
        return line;
    }
    let last = parameters.len().saturating_sub(1);
    let words = parameters.iter().enumerate().map(|(at, parameter)| {
        let end = if at == last { ");" } else { "," };
        format!("{parameter}{end}")
    });
    format!("{begin}\n{}", filled(words, "    ", "    "))
}

/// The note as a comment above a declaration; empty for an empty note.
fn comment(note: &str) -> String {
    if note.is_empty() {
        return String::new();
    }
    let mut words: Vec<String> = note.split(' ').map(str::to_owned).collect();
    words.last_mut().into_iter().for_each(|last| last.push_str(" */"));
    filled(words.into_iter(), "/* ", " * ")
}

/// Fills lines with words up to the allowed length.
fn filled(words: impl Iterator<Item = String>, first: &str, further: &str) -> String {
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in words {
        if !is_empty && line.len() + 1 + word.len() > WIDTH {
            text += &line;
            text.push('\n');
            line = further.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += &word;
        is_empty = false;
    }
    text + &line + "\n"
}
