//! The shares of models, clients and connections, and admission by deadlines.

use super::*;

pub const ROWS: &[Row] = &[
    Row {
        flag: "request-memory-model-share",
        beside: "",
        good: &[("0.75", |_| {}), ("0.25", |o| o.request_memory_model_share = 0.25)],
        bad: &[("0", "Provided option value is out of bound. Got 0"), ("", "Invalid option value. Got ")],
    },
    Row {
        flag: "request-count-connection-share",
        beside: "",
        good: &[("0.5", |_| {}), ("0.25", |o| o.request_count_connection_share = 0.25)],
        bad: &[("1.5", "Provided option value is out of bound. Got 1.5"), ("all", "Invalid option value. Got all")],
    },
    Row {
        flag: "request-count-client-share",
        beside: "",
        good: &[("0.75", |_| {}), ("1", |o| o.request_count_client_share = 1.0)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("", "Invalid option value. Got ")],
    },
    Row {
        flag: "request-count-model-share",
        beside: "",
        good: &[("0.75", |_| {}), ("0.5", |o| o.request_count_model_share = 0.5)],
        bad: &[("0", "Provided option value is out of bound. Got 0"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "deadline-admission",
        beside: "",
        good: &[("off", |_| {}), ("on", |o| o.deadline_admission = true)],
        bad: &[("true", "invalid argument for --deadline-admission")],
    },
];
