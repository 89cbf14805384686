//! Metrics that an application defines (contract/metrics.md section 2, contract/c_api.md section 4).

use super::program::Program;

#[test]
fn an_application_keeps_metrics() {
    let Some(program) = Program::compiled("metrics.c") else { return };
    program.run::<&str>(&[]);
    program.run_checked::<&str>(&[]);
}
