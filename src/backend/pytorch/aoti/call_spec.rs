//! The call specification of a package: the places of the model's tensors in the arguments and results of its
//! `forward`, from which they take their names (contract/frameworks.md section 1a).
//!
//! It is JSON that the package's library returns: `[1, {type, context, children_spec}]`, a tree whose leaves are
//! tensors. The order of the leaves is the order in which the library takes and returns them.

use serde_json::Value;

/// The most leaves, and the most bytes of all their names: a nested tree repeats the keys on its way in every name.
const LEAVES_MAX: usize = 65_536;
const NAMES_BYTES_MAX: usize = 16 << 20;
/// The JSON reader stops at this depth as well; the trees that programs are exported with have a few levels.
const DEPTH_MAX: usize = 128;

const TUPLE: &str = "builtins.tuple";
const LIST: &str = "builtins.list";
const DICT: &str = "builtins.dict";

/// Why a specification has no names.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The reason is for the log: the text for clients is fixed.
    #[error("{0}")]
    Unreadable(String),
    #[error("the arguments are of type \"{0}\"")]
    NotTuple(String),
    #[error("the arguments are not a tuple of positional arguments and a dictionary of keyword arguments")]
    Structure,
    #[error("the dictionary key \"{0}\" has a quote, a bracket, white space or an unprintable character")]
    Key(String),
}

#[derive(Debug)]
enum Node {
    Tensor,
    Sequence(Vec<Node>),
    Dict(Vec<(String, Node)>),
}

/// The names of the inputs in their order: `ARGS[0]`, `ARGS[2][key]`, `KWARGS[key]`.
pub fn input_names(spec: &str) -> Result<Vec<String>, SpecError> {
    let root = root(spec)?;
    let kind = root.get("type").and_then(Value::as_str).unwrap_or("null");
    if kind != TUPLE {
        return Err(SpecError::NotTuple(kind.to_owned()));
    }
    let Node::Sequence(parts) = parse(&root, 0)? else { return Err(SpecError::Structure) };
    let [Node::Sequence(positional), Node::Dict(keyword)] = &parts[..] else { return Err(SpecError::Structure) };
    let mut names = Names::default();
    for (at, argument) in positional.iter().enumerate() {
        names.add(&format!("ARGS[{at}]"), argument)?;
    }
    for (key, argument) in keyword {
        names.add(&format!("KWARGS[{key}]"), argument)?;
    }
    Ok(names.names)
}

/// The names of the outputs in their order: `RESULT`, or `RESULT[0]`, `RESULT[key]`.
pub fn output_names(spec: &str) -> Result<Vec<String>, SpecError> {
    let mut names = Names::default();
    names.add("RESULT", &parse(&root(spec)?, 0)?)?;
    Ok(names.names)
}

fn unreadable(reason: impl ToString) -> SpecError {
    SpecError::Unreadable(reason.to_string())
}

/// The tree behind the version of the format.
fn root(spec: &str) -> Result<Value, SpecError> {
    let value: Value = serde_json::from_str(spec).map_err(unreadable)?;
    match value {
        Value::Array(mut parts) if parts.len() == 2 && parts.first().and_then(Value::as_u64) == Some(1) => {
            Ok(parts.pop().unwrap_or_default())
        }
        _ => Err(unreadable("it is not a pair of the version 1 and a tree")),
    }
}

fn parse(value: &Value, depth: usize) -> Result<Node, SpecError> {
    if depth > DEPTH_MAX {
        return Err(unreadable("it is nested too deep"));
    }
    let kind = value.get("type").ok_or_else(|| unreadable("a node has no type"))?;
    let children = match value.get("children_spec") {
        None => &[][..],
        Some(Value::Array(children)) => children,
        Some(_) => return Err(unreadable("the children of a node are not a list")),
    };
    let nodes = || children.iter().map(|child| parse(child, depth + 1));
    match kind {
        Value::Null if children.is_empty() => Ok(Node::Tensor),
        Value::String(kind) if kind == TUPLE || kind == LIST => Ok(Node::Sequence(nodes().collect::<Result<_, _>>()?)),
        Value::String(kind) if kind == DICT => {
            let keys = keys(value.get("context"))?;
            if keys.len() != children.len() {
                return Err(unreadable("a dictionary has not as many keys as values"));
            }
            Ok(Node::Dict(keys.into_iter().zip(nodes()).map(|(key, node)| Ok((key, node?))).collect::<Result<_, _>>()?))
        }
        other => Err(unreadable(format!("a node has the type {other}"))),
    }
}

/// The keys of a dictionary, which its context lists in their order, as JSON in a string.
fn keys(context: Option<&Value>) -> Result<Vec<String>, SpecError> {
    let text = context.and_then(Value::as_str).ok_or_else(|| unreadable("a dictionary has no context"))?;
    let keys: Vec<Value> = serde_json::from_str(text).map_err(unreadable)?;
    let key = |key: Value| match key {
        Value::String(key) if key.chars().all(is_allowed) && !key.is_empty() => Ok(key),
        Value::String(key) => Err(SpecError::Key(key)),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(unreadable("a key of a dictionary is neither a text nor a number")),
    };
    keys.into_iter().map(key).collect()
}

fn is_allowed(c: char) -> bool {
    !(matches!(c, '"' | '[' | ']') || c.is_whitespace() || c.is_control())
}

#[derive(Default)]
struct Names {
    names: Vec<String>,
    bytes: usize,
}

impl Names {
    fn add(&mut self, name: &str, node: &Node) -> Result<(), SpecError> {
        match node {
            Node::Tensor => {
                self.bytes = self.bytes.saturating_add(name.len());
                if self.names.len() >= LEAVES_MAX || self.bytes > NAMES_BYTES_MAX {
                    return Err(unreadable("it has too many tensors"));
                }
                self.names.push(name.to_owned());
            }
            Node::Sequence(nodes) => {
                for (at, node) in nodes.iter().enumerate() {
                    self.add(&format!("{name}[{at}]"), node)?;
                }
            }
            Node::Dict(nodes) => {
                for (key, node) in nodes {
                    self.add(&format!("{name}[{key}]"), node)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENSOR: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn sequence(kind: &str, children: &[&str]) -> String {
        format!(r#"{{"type": "builtins.{kind}", "context": "null", "children_spec": [{}]}}"#, children.join(", "))
    }

    fn dict(children: &[(&str, &str)]) -> String {
        let keys: Vec<&str> = children.iter().map(|(key, _)| *key).collect();
        let context = serde_json::to_string(&serde_json::to_string(&keys).unwrap()).unwrap();
        let children: Vec<&str> = children.iter().map(|(_, child)| *child).collect();
        let children = children.join(", ");
        format!(r#"{{"type": "builtins.dict", "context": {context}, "children_spec": [{children}]}}"#)
    }

    fn spec(root: &str) -> String {
        format!("[1, {root}]")
    }

    fn inputs(positional: &[&str], keyword: &[(&str, &str)]) -> Result<Vec<String>, SpecError> {
        input_names(&spec(&sequence("tuple", &[&sequence("tuple", positional), &dict(keyword)])))
    }

    #[test]
    fn inputs_are_named_by_their_place_in_the_arguments() {
        let nested = dict(&[("o1", TENSOR), ("o2", TENSOR)]);
        let names = inputs(&[TENSOR, TENSOR, &nested], &[("kw1", TENSOR), ("kw0", &sequence("list", &[TENSOR]))]);
        let expected = ["ARGS[0]", "ARGS[1]", "ARGS[2][o1]", "ARGS[2][o2]", "KWARGS[kw1]", "KWARGS[kw0][0]"];
        assert_eq!(names.unwrap(), expected);
        assert_eq!(inputs(&[], &[]), Ok(Vec::new()));
    }

    #[test]
    fn outputs_are_named_in_the_order_of_insertion() {
        assert_eq!(output_names(&spec(TENSOR)).unwrap(), ["RESULT"]);
        assert_eq!(output_names(&spec(&sequence("tuple", &[TENSOR]))).unwrap(), ["RESULT[0]"]);
        let pair = sequence("tuple", &[TENSOR, TENSOR]);
        let names = output_names(&spec(&dict(&[("AAA", TENSOR), ("ZZZ", TENSOR), ("BBB", &pair)])));
        assert_eq!(names.unwrap(), ["RESULT[AAA]", "RESULT[ZZZ]", "RESULT[BBB][0]", "RESULT[BBB][1]"]);
    }

    #[test]
    fn arguments_that_are_no_tuple_and_dictionary_are_refused() {
        let not_tuple = |kind: &str| Err(SpecError::NotTuple(kind.to_owned()));
        assert_eq!(input_names(&spec(&sequence("list", &[]))), not_tuple(LIST));
        assert_eq!(input_names(&spec(TENSOR)), not_tuple("null"));
        assert_eq!(input_names(r#"[1, {"type": 7}]"#), not_tuple("null"));
        let (empty, none) = (sequence("tuple", &[]), dict(&[]));
        let wrong = [vec![], vec![&*empty], vec![&*none, &*empty], vec![&*empty, &*none, &*none], vec![TENSOR, &*none]];
        for parts in wrong {
            assert_eq!(input_names(&spec(&sequence("tuple", &parts))), Err(SpecError::Structure), "{parts:?}");
        }
    }

    #[test]
    fn what_is_no_specification_is_an_error() {
        let deep = (0..DEPTH_MAX).fold(TENSOR.to_owned(), |inner, _| sequence("list", &[&inner]));
        let named = format!(r#"{{"type": "collections.namedtuple", "context": "x", "children_spec": [{TENSOR}]}}"#);
        let cases = [
            String::new(),
            "{}".to_owned(),
            format!("[2, {TENSOR}]"),
            format!("[1, {TENSOR}, 2]"),
            "[1, 2]".to_owned(),
            r#"[1, {"type": null, "children_spec": 5}]"#.to_owned(),
            format!(r#"[1, {{"type": null, "children_spec": [{TENSOR}]}}]"#),
            r#"[1, {"type": "builtins.dict", "context": null, "children_spec": []}]"#.to_owned(),
            r#"[1, {"type": "builtins.dict", "context": "[[]]", "children_spec": [{}]}]"#.to_owned(),
            format!(r#"[1, {{"type": "builtins.dict", "context": "[]", "children_spec": [{TENSOR}]}}]"#),
            spec(&deep),
            spec(&named),
            "[".repeat(100_000),
        ];
        for text in cases {
            let found = output_names(&text);
            assert!(matches!(found, Err(SpecError::Unreadable(_))), "{found:?} of {}", &text[..text.len().min(99)]);
        }
    }

    #[test]
    fn keys_that_no_name_can_have_are_refused() {
        for key in ["", "a b", "a\"b", "a[b", "a]b", "a\u{1}", "\u{a0}"] {
            let found = output_names(&spec(&dict(&[(key, TENSOR)])));
            assert_eq!(found, Err(SpecError::Key(key.to_owned())), "{key:?}");
        }
        let numbers = r#"[1, {"type": "builtins.dict", "context": "[3]", "children_spec": [{"type": null}]}]"#;
        assert_eq!(output_names(numbers).unwrap(), ["RESULT[3]"]);
    }

    #[test]
    fn the_names_of_a_tree_are_bounded() {
        let wide = sequence("list", &vec![TENSOR; LEAVES_MAX + 1]);
        assert!(matches!(output_names(&spec(&wide)), Err(SpecError::Unreadable(_))));
        let long = "k".repeat(1 << 20);
        let named = dict(&[(&long, &sequence("list", &vec![TENSOR; 17]))]);
        assert!(matches!(output_names(&spec(&named)), Err(SpecError::Unreadable(_))));
    }
}
