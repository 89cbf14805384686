//! Finds the tensor of the model that a tensor of the configuration means (contract/frameworks.md section 1a).

use std::collections::HashMap;

/// The inputs, or the outputs, of a model, by their names.
#[derive(Debug)]
pub struct TensorNames {
    /// What a name by position begins with: `INPUT__`.
    ordinal: &'static str,
    positions: HashMap<String, usize>,
    count: usize,
}

impl TensorNames {
    pub fn of_inputs(names: &[String]) -> TensorNames {
        let mut found = TensorNames::new("INPUT__", names);
        // Triton's implementation has no brackets there, its documentation has them.
        for (at, name) in names.iter().enumerate() {
            if let Some((key, rest)) = name.strip_prefix("KWARGS[").and_then(|rest| rest.split_once(']')) {
                found.positions.entry(format!("KWARGS{key}{rest}")).or_insert(at);
            }
        }
        found
    }

    pub fn of_outputs(names: &[String]) -> TensorNames {
        TensorNames::new("OUTPUT__", names)
    }

    fn new(ordinal: &'static str, names: &[String]) -> TensorNames {
        let positions = names.iter().enumerate().map(|(at, name)| (name.clone(), at)).collect();
        TensorNames { ordinal, positions, count: names.len() }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The position of `ARGS[0]` or `INPUT__0`.
    pub fn position(&self, name: &str) -> Option<usize> {
        let by_position = || self.at(name.strip_prefix(self.ordinal)?);
        self.positions.get(name).copied().or_else(by_position)
    }

    /// The same for a control or a state of a sequence, which may also be `<any name>__0`.
    pub fn position_of_hidden(&self, name: &str) -> Option<usize> {
        self.position(name).or_else(|| self.at(name.split_once("__")?.1))
    }

    fn at(&self, number: &str) -> Option<usize> {
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
        number.parse().ok().filter(|at| is_plain && *at < self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> TensorNames {
        let names = ["ARGS[0]", "ARGS[1][o1]", "KWARGS[kw1]", "KWARGS[kw2][0]"].map(str::to_owned);
        TensorNames::of_inputs(&names)
    }

    #[test]
    fn inputs_are_found_by_place_and_by_position() {
        let inputs = inputs();
        for (name, position) in [
            ("ARGS[0]", 0),
            ("ARGS[1][o1]", 1),
            ("KWARGS[kw1]", 2),
            ("KWARGSkw1", 2),
            ("KWARGS[kw2][0]", 3),
            ("KWARGSkw2[0]", 3),
            ("INPUT__0", 0),
            ("INPUT__3", 3),
        ] {
            assert_eq!(inputs.position(name), Some(position), "{name}");
            assert_eq!(inputs.position_of_hidden(name), Some(position), "{name}");
        }
        for name in ["", "INPUT__4", "INPUT__", "INPUT__00", "INPUT__+1", "INPUT_0", "input__0", "OUTPUT__0", "ARGS[1]"]
        {
            assert_eq!(inputs.position(name), None, "{name}");
        }
        assert_eq!(inputs.position("INPUT__99999999999999999999"), None);
        assert_eq!(inputs.len(), 4);
    }

    #[test]
    fn controls_and_states_may_have_any_name_with_a_position() {
        let inputs = inputs();
        assert_eq!(inputs.position("START__1"), None);
        assert_eq!(inputs.position_of_hidden("START__1"), Some(1));
        for name in ["START", "START__", "START__4", "START__x", "A__B__1"] {
            assert_eq!(inputs.position_of_hidden(name), None, "{name}");
        }
    }

    #[test]
    fn outputs_are_found_by_place_and_by_position() {
        let single = TensorNames::of_outputs(&["RESULT".to_owned()]);
        assert_eq!((single.position("RESULT"), single.position("OUTPUT__0")), (Some(0), Some(0)));
        assert_eq!((single.position("INPUT__0"), single.position("RESULT[0]")), (None, None));
        let dict = TensorNames::of_outputs(&["RESULT[AAA]", "RESULT[BBB][0]"].map(str::to_owned));
        assert_eq!((dict.position("RESULT[BBB][0]"), dict.position("OUTPUT__1")), (Some(1), Some(1)));
    }
}
