//! Splits the text of a command line as a shell does: quotes, escapes, variables, and several commands in one line.
//!
//! Nothing is executed: of the substitutions of commands only `pwd` has a value.

/// The longest text that is split, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Looks up a variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The commands of a text, each as its words; redirections are left out. The error is a sentence for the user.
pub fn commands(text: &str, variables: Variables<'_>) -> Result<Vec<Vec<String>>, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("the command line has more than {TEXT_BYTES_MAX} bytes"));
    }
    let mut splitter = Splitter { rest: text, variables, word: None, words: Vec::new(), commands: Vec::new() };
    splitter.split()?;
    Ok(splitter.commands)
}

struct Splitter<'a> {
    rest: &'a str,
    variables: Variables<'a>,
    /// None between words; an empty word was written as quotes.
    word: Option<String>,
    words: Vec<String>,
    commands: Vec<Vec<String>>,
}

impl<'a> Splitter<'a> {
    fn split(&mut self) -> Result<(), String> {
        while let Some(next) = self.take() {
            match next {
                '\\' => match self.take() {
                    // A line that goes on.
                    Some('\n') | None => {}
                    Some(escaped) => self.push(escaped),
                },
                '\'' => {
                    let (inside, rest) = self.rest.split_once('\'').ok_or("a quote ' has no end")?;
                    self.rest = rest;
                    self.word.get_or_insert_default().push_str(inside);
                }
                '"' => self.double_quoted()?,
                '$' | '`' => {
                    let value = self.substitution(next)?;
                    // Unquoted values are split at blanks.
                    let mut parts = value.split([' ', '\t', '\n']);
                    self.word.get_or_insert_default().push_str(parts.next().unwrap_or_default());
                    for part in parts {
                        self.end_word();
                        self.word.get_or_insert_default().push_str(part);
                    }
                }
                '#' if self.word.is_none() => {
                    self.rest = self.rest.find('\n').and_then(|end| self.rest.get(end..)).unwrap_or_default();
                }
                '>' | '<' => self.redirect(),
                '&' if self.rest.starts_with('>') => self.redirect(),
                ';' | '|' | '&' | '\n' => self.end_command(),
                blank if blank.is_whitespace() => self.end_word(),
                other => self.push(other),
            }
        }
        self.end_command();
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.take().ok_or("a quote \" has no end")? {
                '"' => return Ok(()),
                '\\' => match self.take().ok_or("a quote \" has no end")? {
                    '\n' => {}
                    escaped @ ('$' | '`' | '"' | '\\') => self.push(escaped),
                    other => {
                        self.push('\\');
                        self.push(other);
                    }
                },
                start @ ('$' | '`') => {
                    let value = self.substitution(start)?;
                    self.word.get_or_insert_default().push_str(&value);
                }
                other => self.push(other),
            }
        }
    }

    /// The value behind `$` or a backquote.
    fn substitution(&mut self, start: char) -> Result<String, String> {
        let (inside, rest) = match (start, self.rest.chars().next()) {
            ('`', _) => self.rest.split_once('`').ok_or("a quote ` has no end")?,
            (_, Some('(')) => self.enclosed(')')?,
            (_, Some('{')) => {
                let (inside, rest) = self.enclosed('}')?;
                self.rest = rest;
                let (name, default) = inside.split_once(":-").unwrap_or((inside, ""));
                let given = (self.variables)(name).filter(|value| !value.is_empty());
                return match (given, inside.contains(":-")) {
                    (Some(value), _) => Ok(value),
                    (None, true) => Ok(default.to_owned()),
                    (None, false) => Err(unknown(name)),
                };
            }
            _ => {
                let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                let end = self.rest.find(|letter| !is_of_name(letter)).unwrap_or(self.rest.len());
                let (name, rest) = self.rest.split_at(end);
                self.rest = rest;
                return match name {
                    "" => Ok("$".to_owned()),
                    name => (self.variables)(name).ok_or_else(|| unknown(name)),
                };
            }
        };
        self.rest = rest;
        match inside.trim() {
            "pwd" => (self.variables)("PWD").ok_or_else(|| unknown("PWD")),
            other => Err(format!("the value of $({other}) is not known without running it: write the value instead")),
        }
    }

    /// What stands between the next character and `end`, and what follows.
    fn enclosed(&self, end: char) -> Result<(&'a str, &'a str), String> {
        self.rest[1..].split_once(end).ok_or_else(|| format!("'{end}' is missing behind a '$'"))
    }

    /// Leaves out a redirection: a number before it, and the file behind it.
    fn redirect(&mut self) {
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        self.rest = self.rest.trim_start_matches(['>', '<', '&', ' ', '\t']);
        let end = self.rest.find([' ', '\t', '\n', ';', '|', '&', '>', '<']).unwrap_or(self.rest.len());
        self.rest = &self.rest[end..];
    }

    fn take(&mut self) -> Option<char> {
        let mut letters = self.rest.chars();
        let next = letters.next();
        self.rest = letters.as_str();
        next
    }

    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

fn unknown(name: &str) -> String {
    format!("the variable {name} of the command line has no value here: write the value instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(name: &str) -> Option<String> {
        match name {
            "PWD" => Some("/here".to_owned()),
            "TWO" => Some("a b".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for (text, expected) in [
            ("a  b\tc", vec!["a", "b", "c"]),
            ("a \\\n  b", vec!["a", "b"]),
            ("'a b'c \"d 'e'\" '' \\  f\\ g", vec!["a bc", "d 'e'", "", " ", "f g"]),
            ("\"\\$x \\n \\\"\"", vec!["$x \\n \""]),
            (
                "$PWD/m ${PWD}/m $(pwd)/m `pwd`/m \"$PWD\" '$PWD'",
                vec!["/here/m", "/here/m", "/here/m", "/here/m", "/here", "$PWD"],
            ),
            ("${NONE:-x} ${EMPTY:-y} ${PWD:-z} $", vec!["x", "y", "/here", "$"]),
            ("$TWO \"$TWO\"", vec!["a", "b", "a b"]),
            ("a 2>&1 b >/dev/null c &> x d < y", vec!["a", "b", "c", "d"]),
            ("a # b\n", vec!["a"]),
            ("ä=ü", vec!["ä=ü"]),
        ] {
            assert_eq!(
                commands(text, &variables),
                Ok(vec![expected.iter().map(ToString::to_string).collect()]),
                "{text}"
            );
        }
    }

    #[test]
    fn commands_are_told_apart() {
        let found = commands("cd /x && a b; c | d &\n\n e", &variables).unwrap();
        let found: Vec<String> = found.iter().map(|words| words.join(" ")).collect();
        assert_eq!(found, ["cd /x", "a b", "c", "d", "e"]);
        assert_eq!(commands(" # nothing", &variables), Ok(vec![]));
    }

    #[test]
    fn what_has_no_value_is_named() {
        for (text, part) in [
            ("a 'b", "a quote ' has no end"),
            ("a \"b", "a quote \" has no end"),
            ("a \"b\\", "a quote \" has no end"),
            ("`pwd", "a quote ` has no end"),
            ("$NONE", "the variable NONE"),
            ("${NONE}", "the variable NONE"),
            ("${NONE", "'}' is missing"),
            ("$(id -u)", "$(id -u) is not known"),
            ("$(pwd", "')' is missing"),
        ] {
            let error = commands(text, &variables).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(commands(&"a".repeat(TEXT_BYTES_MAX + 1), &variables).unwrap_err().contains("more than"));
    }
}
