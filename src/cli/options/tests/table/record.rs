//! The recording of requests.

use super::*;

pub const ROWS: &[Row] = &[
    Row {
        flag: "record",
        beside: "",
        good: &[("", |_| {}), ("/file", |o| o.record.file = Some("/file".into()))],
        bad: &[],
    },
    Row {
        flag: "record-rate",
        beside: "",
        good: &[("1", |_| {}), ("100", |o| o.record.rate = 100)],
        bad: &[("0", "Provided option value is out of bound. Got 0"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "record-data",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.record.data = true)],
        bad: &[("maybe", "invalid value for bool option: maybe")],
    },
    Row {
        flag: "record-byte-size",
        beside: "",
        good: &[("1073741824", |_| {}), ("4096", |o| o.record.byte_size = 4096)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("much", "Invalid option value. Got much")],
    },
    Row {
        flag: "record-redact",
        beside: "",
        good: &[("X-Customer", |o| o.record.redact.push("X-Customer".to_owned()))],
        bad: &[("", "Provided option value is out of bound. Got ")],
    },
];
