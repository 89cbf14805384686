//! Models that are loaded and unloaded by use.

use super::*;

const ON: &str = "--model-load-on-demand=true";

fn on(options: &mut ServeOptions) -> &mut crate::repository::ResidencySettings {
    options.residency.on_demand = true;
    &mut options.residency
}

pub const ROWS: &[Row] = &[
    Row {
        flag: "model-load-on-demand",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.residency.on_demand = true)],
        bad: &[("maybe", "invalid value for bool option: maybe")],
    },
    Row {
        flag: "model-load-wait-secs",
        beside: "",
        good: &[("30", |_| {}), ("5", |o| o.residency.wait_secs = 5)],
        bad: &[("0", "Provided option value is out of bound. Got 0"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "model-idle-secs",
        beside: ON,
        good: &[("0", |o| _ = on(o)), ("60", |o| on(o).idle_secs = 60)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "model-count-max",
        beside: ON,
        good: &[("0", |o| _ = on(o)), ("8", |o| on(o).count_max = 8)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("", "Invalid option value. Got ")],
    },
    Row {
        flag: "model-memory-byte-size",
        beside: ON,
        good: &[("0", |o| _ = on(o)), ("5000000000", |o| on(o).host_bytes = 5_000_000_000)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("much", "Invalid option value. Got much")],
    },
    Row {
        flag: "model-device-memory-byte-size",
        beside: ON,
        good: &[("1:5000000000", |o| _ = on(o).device_bytes.insert(1, 5_000_000_000))],
        bad: &[
            (
                "5",
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format \
                 <first>:<second>. Found: 5",
            ),
            ("0:-1", "Provided option value is out of bound. Got -1"),
        ],
    },
    Row { flag: "model-pin", beside: ON, good: &[("m", |o| _ = on(o).pinned.insert("m".to_owned()))], bad: &[] },
    Row {
        flag: "model-prewarm",
        beside: ON,
        good: &[("m@08:30-17:00", |o| on(o).prewarm = vec!["m@08:30-17:00".parse().expect("a schedule")])],
        bad: &[("m@8", "--model-prewarm option format is '<name>@<HH:MM>[-<HH:MM>]'. Got m@8")],
    },
    Row {
        flag: "keep-generations",
        beside: "",
        good: &[("0", |_| {}), ("3", |o| o.keep_generations = 3)],
        bad: &[("101", "Provided option value is out of bound. Got 101"), ("x", "Invalid option value. Got x")],
    },
];
