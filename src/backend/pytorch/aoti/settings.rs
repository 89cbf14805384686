//! The parameters of a model that are read (contract/frameworks.md section 1a): counts of threads, and the sharing of
//! weights. Others of TorchScript's are accepted, and mean nothing to compiled code.

use nereid_backend::ModelContext;
use nereid_backend::parameters::{parse_boolean, parse_integer};
use nereid_request::Status;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Threads of an operator; `None`: no number above 0 is given.
    pub intra_op_threads: Option<i32>,
    /// Threads for operators side by side, which compiled code does not use.
    pub inter_op_threads: Option<i32>,
    /// Whether the instances share one copy of the weights.
    pub is_shared: bool,
}

impl Settings {
    pub fn parse(context: &ModelContext) -> Result<Settings, Status> {
        let threads = |key: &str| {
            let count = context.parameter(key).map(parse_integer).transpose()?;
            Ok::<_, Status>(count.filter(|count| *count > 0))
        };
        let is_shared = context.parameter("ENABLE_WEIGHT_SHARING").map_or(Ok(true), parse_boolean)?;
        Ok(Settings {
            intra_op_threads: threads("INTRA_OP_THREAD_COUNT")?,
            inter_op_threads: threads("INTER_OP_THREAD_COUNT")?,
            is_shared,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures::with_parameters;

    fn parsed(parameters: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::parse(&with_parameters(Default::default(), parameters)).map_err(|status| status.message.to_string())
    }

    #[test]
    fn thread_counts_and_sharing_are_read() {
        let usual = Settings { intra_op_threads: None, inter_op_threads: None, is_shared: true };
        assert_eq!(parsed(&[]), Ok(usual));
        assert_eq!(parsed(&[("INFERENCE_MODE", "perhaps"), ("DISABLE_CUDNN", "2")]), Ok(usual));
        assert_eq!(parsed(&[("INTRA_OP_THREAD_COUNT", "0"), ("INTER_OP_THREAD_COUNT", "-1")]), Ok(usual));
        let given =
            parsed(&[("INTRA_OP_THREAD_COUNT", "3"), ("INTER_OP_THREAD_COUNT", "2"), ("ENABLE_WEIGHT_SHARING", "Off")]);
        let expected = Settings { intra_op_threads: Some(3), inter_op_threads: Some(2), is_shared: false };
        assert_eq!(given, Ok(expected));
        let refused = |key, value| parsed(&[(key, value)]).unwrap_err();
        assert_eq!(refused("INTRA_OP_THREAD_COUNT", "x"), "failed to convert 'x' to integral number");
        assert_eq!(refused("ENABLE_WEIGHT_SHARING", "x"), "failed to convert 'x' to boolean");
    }
}
