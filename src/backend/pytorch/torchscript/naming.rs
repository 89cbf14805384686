//! How tensors of the configuration map to arguments of `forward` and to its results (contract/frameworks.md section 1,
//! "Names").

use nereid_request::Status;

/// Separates a tensor's name from its index.
const DELIMITER: &str = "__";

/// What names of inputs mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputNaming {
    /// Each is an argument of `forward`.
    Arguments,
    /// Each is `<name>__<index>`.
    Indices,
    /// The position in the configuration counts.
    Order,
}

/// The index of `<name>__<index>`: what follows the first delimiter is digits only, or nothing, which counts as 0.
pub fn index_of(name: &str) -> Option<usize> {
    let (_, digits) = name.split_once(DELIMITER)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large is no argument of any model.
    is_number.then(|| if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) })
}

impl InputNaming {
    /// Of the inputs `names` of `model` whose `forward` has these `arguments`; and a warning for the log.
    pub fn of(names: &[&str], arguments: &[&str], model: &str) -> (InputNaming, Option<String>) {
        if names.iter().all(|name| arguments.contains(name)) {
            return (InputNaming::Arguments, None);
        }
        let Some(odd) = names.iter().find(|name| index_of(name).is_none()) else {
            return (InputNaming::Indices, None);
        };
        let warning = odd.contains(DELIMITER).then(|| {
            format!(
                "input '{odd}' or previous input(s) are neither an input argument to the model '{model}' nor do they \
                 follow the <name>__<index> naming convention. Falling back to enforcing strict ordering from model \
                 configuration."
            )
        });
        (InputNaming::Order, warning)
    }

    /// The argument of input `name`, which is at `position` of the configuration.
    pub fn argument(self, name: &str, position: usize, arguments: &[&str]) -> Option<usize> {
        match self {
            InputNaming::Arguments => arguments.iter().position(|argument| *argument == name),
            InputNaming::Indices => index_of(name),
            InputNaming::Order => Some(position),
        }
    }
}

/// The positions of the outputs `names` in the result; and a warning for the log, if one name that has no index makes
/// the configuration's order count for all.
pub fn output_positions(names: &[&str], model: &str) -> (Vec<usize>, Option<String>) {
    let Some(odd) = names.iter().find(|name| index_of(name).is_none()) else {
        return (names.iter().filter_map(|name| index_of(name)).collect(), None);
    };
    let warning = format!(
        "output '{odd}' or previous output(s) of the model '{model}' do not follow the <name>__<index> naming \
         convention. Falling back to enforcing strict ordering from model configuration."
    );
    ((0..names.len()).collect(), Some(warning))
}

/// The argument of a sequence control.
pub fn control_argument(name: &str) -> Result<usize, Status> {
    index_of(name)
        .ok_or_else(|| Status::internal(format!("input '{name}' does not follow <name>__<index> naming convention.")))
}

/// Checks the names of a model with states: `tensors` are those of its inputs and outputs, `states` those of its
/// states' inputs and outputs. Inputs may be arguments by names that have an index.
pub fn check_states(tensors: &[&str], states: &[&str], model: &str) -> Result<(), Status> {
    let has_indices = tensors.iter().all(|name| index_of(name).is_some());
    let refused = |what: &str| {
        Err(Status::invalid(format!(
            "PyTorch model '{model}' is using sequence batching with state but {what} the <name>__<index> naming \
             convention. "
        )))
    };
    if !has_indices {
        return refused("not all inputs and outputs follow");
    }
    match states.iter().find(|name| index_of(name).is_none()) {
        Some(odd) => refused(&format!("state '{odd}' does not follow")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_what_follows_the_first_two_underscores() {
        for (name, index) in [
            ("INPUT__0", Some(0)),
            ("INPUT__12", Some(12)),
            ("INPUT__", Some(0)),
            ("__3", Some(3)),
            ("A__99999999999999999999", Some(usize::MAX)),
            ("INPUT0", None),
            ("INPUT_0", None),
            ("INPUT__a", None),
            ("INPUT__1__2", None),
            ("INPUT___1", None),
            ("INPUT__-1", None),
        ] {
            assert_eq!(index_of(name), index, "{name}");
        }
    }

    /// The arguments of the inputs, and whether a warning comes with them.
    fn mapped(names: &[&str]) -> (InputNaming, Vec<Option<usize>>, bool) {
        let arguments = ["INPUT0", "INPUT1"];
        let (naming, warning) = InputNaming::of(names, &arguments, "m");
        let map = names.iter().enumerate().map(|(at, name)| naming.argument(name, at, &arguments)).collect();
        (naming, map, warning.is_some())
    }

    #[test]
    fn inputs_are_named_by_arguments_by_indices_or_not_at_all() {
        use InputNaming::{Arguments, Indices, Order};
        let both = |first, second| vec![Some(first), Some(second)];
        assert_eq!(mapped(&["INPUT1", "INPUT0"]), (Arguments, both(1, 0), false));
        assert_eq!(mapped(&["INPUT__1", "INPUT__0"]), (Indices, both(1, 0), false));
        assert_eq!(mapped(&["X__1", "Y__"]), (Indices, both(1, 0), false));
        // One name that is neither moves all of them.
        assert_eq!(mapped(&["INPUT1", "OTHER"]), (Order, both(0, 1), false));
        assert_eq!(mapped(&["INPUT__1", "INPUT0"]), (Order, both(0, 1), false));
        assert_eq!(mapped(&["INPUT__1", "INPUT__x"]), (Order, both(0, 1), true));
        let (_, warning) = InputNaming::of(&["A__x"], &["B"], "m");
        assert_eq!(
            warning.unwrap(),
            "input 'A__x' or previous input(s) are neither an input argument to the model 'm' nor do they follow the \
             <name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration."
        );
    }

    #[test]
    fn outputs_have_indices_or_the_order_of_the_configuration() {
        assert_eq!(output_positions(&["OUT__1", "OUT__0"], "m"), (vec![1, 0], None));
        assert_eq!(output_positions(&["OUT__3"], "m"), (vec![3], None), "a subset");
        let (positions, warning) = output_positions(&["OUT__1", "SUM"], "m");
        assert_eq!(positions, [0, 1]);
        assert_eq!(
            warning.unwrap(),
            "output 'SUM' or previous output(s) of the model 'm' do not follow the <name>__<index> naming convention. \
             Falling back to enforcing strict ordering from model configuration."
        );
    }

    #[test]
    fn controls_and_states_need_indices() {
        assert_eq!(control_argument("START__2"), Ok(2));
        let error = control_argument("START").unwrap_err();
        assert_eq!(error, Status::internal("input 'START' does not follow <name>__<index> naming convention."));
        let check = |tensors: &[&str], states: &[&str]| check_states(tensors, states, "m");
        assert_eq!(check(&["IN__0", "OUT__0"], &["IN_STATE__1", "OUT_STATE__1"]), Ok(()));
        let text = "PyTorch model 'm' is using sequence batching with state but not all inputs and outputs follow the \
                    <name>__<index> naming convention. ";
        assert_eq!(check(&["IN", "OUT__0"], &[]), Err(Status::invalid(text)));
        assert_eq!(check(&["IN__0", "OUT"], &[]), Err(Status::invalid(text)));
        let text = "PyTorch model 'm' is using sequence batching with state but state 'S' does not follow the \
                    <name>__<index> naming convention. ";
        assert_eq!(check(&["IN__0", "OUT__0"], &["S"]), Err(Status::invalid(text)));
    }
}
