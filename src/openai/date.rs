//! Dates as HTTP writes them (RFC 9110, section 5.6.7).

use chrono::DateTime;

/// The date of a second since 1970; empty beyond the years that have four digits.
pub fn http_date(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    date.map(|date| date.format("%a, %d %b %Y %H:%M:%S GMT").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_standard() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(u64::MAX), "");
    }
}
