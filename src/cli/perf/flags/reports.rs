//! Flags of the reports and their files.

use super::Flag;

pub static FLAGS: &[Flag] = &[
    Flag::switch("verbose", "Report each measured window, too.", |g| g.verbose = true).or('v').own(),
    Flag::set("csv", "path", "A line for each load point, with perf_analyzer's columns.", |g, v| {
        g.reports.csv = Some(v.path()?);
        Ok(())
    })
    .or('f')
    .own(),
    Flag::switch("verbose-csv", "More columns: the mean, the time in the client, --collect-metrics.", |g| {
        g.reports.verbose_csv = true;
    }),
    Flag::set("json", "path", "Everything that was measured, with histograms and what it was measured on.", |g, v| {
        g.reports.json = Some(v.path()?);
        Ok(())
    })
    .own(),
    Flag::set("html", "path", "A report with plots, in one file.", |g, v| {
        g.reports.html = Some(v.path()?);
        Ok(())
    })
    .own(),
    Flag::set(
        "profile-export-file",
        "path",
        "The times of every request and response, in perf_analyzer's form.",
        |g, v| {
            g.reports.profile = Some(v.path()?);
            Ok(())
        },
    ),
    Flag::set(
        "profile-export-max",
        "requests",
        "Requests of a load point that are kept for it; further ones are counted. Default: 1000000.",
        |g, v| {
            g.reports.records_max = v.number(1..=100_000_000)?;
            Ok(())
        },
    )
    .own(),
    Flag::switch("no-server-statistics", "Do not read the server's statistics of where the time went.", |g| {
        g.server_statistics = false;
    })
    .own(),
    Flag::switch("collect-metrics", "Read the server's metrics while it is measured.", |g| g.metrics.wanted = true),
    Flag::set(
        "metrics-url",
        "url",
        "Where they are. Default: port 8002 of the server, its own port for openai, /metrics.",
        |g, v| {
            g.metrics.url = Some(v.name()?);
            Ok(())
        },
    ),
    Flag::set("metrics-interval", "ms", "How often they are read. Default: 1000.", |g, v| {
        g.metrics.interval_ms = Some(v.number(1..=3_600_000)?);
        Ok(())
    }),
];
