//! Environment variables for tests: the server warns at its start when one is set, because it then answers late,
//! slowly, or with simulated devices.

use std::ffi::OsString;

/// Prefix of the name, and the variable's effect. `docs/flags.md` lists all variables.
const FOR_TESTS: [(&str, &str); 5] = [
    ("TRITONSERVER_DELAY_", "it delays requests or answers"),
    ("TRITONSERVER_BACKLOG_DELAY_", "it delays requests"),
    ("TRITONSERVER_SERVER_DELAY_", "it delays answers"),
    (nereid_gpu::SIMULATED, simulated_gpus(nereid_gpu::CAN_SIMULATE)),
    ("NEREID_CHECK_HANDLES", "every handle of the C interface is looked up, which is slow"),
];

/// The variable's effect depends on the build.
const fn simulated_gpus(can_simulate: bool) -> &'static str {
    match can_simulate {
        true => "its GPUs are made up, in memory of the host",
        false => "it uses no GPU, because this build cannot make any up",
    }
}

/// A line for each variable that is set and for tests.
pub fn warnings(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let of = |(name, value): (OsString, OsString)| {
        let name = name.to_string_lossy().into_owned();
        let (_, effect) = FOR_TESTS.iter().find(|(begins, _)| name.starts_with(begins))?;
        let is_off = value.is_empty() || value == "0";
        (!is_off).then(|| format!("{name} is set ({}): {effect}. This is for tests", value.display()))
    };
    let mut warnings: Vec<String> = variables.into_iter().filter_map(of).collect();
    warnings.sort();
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_tests_is_named_with_its_effect() {
        let variables = [
            ("TRITONSERVER_DELAY_GRPC_RESPONSE", "5"),
            ("NEREID_SIMULATED_GPUS", "2"),
            ("TRITONSERVER_DELAY_SCHEDULER", "0"),
            ("NEREID_CHECK_HANDLES", ""),
            ("PATH", "/bin"),
        ];
        assert_eq!(
            warnings(variables.map(|(name, value)| (name.into(), value.into()))),
            [
                "NEREID_SIMULATED_GPUS is set (2): its GPUs are made up, in memory of the host. This is for tests",
                "TRITONSERVER_DELAY_GRPC_RESPONSE is set (5): it delays requests or answers. This is for tests",
            ]
        );
        assert_eq!(simulated_gpus(false), "it uses no GPU, because this build cannot make any up");
    }
}
