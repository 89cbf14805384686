//! A head that is equal to the head before it, but for the numbers of its lengths.
//!
//! A client sends the same head again and again. What is compared byte by byte needs no second reading, and what a
//! caller made of the first one holds for the second: see [`Head::mark`].

use super::head::{BodyLength, Head, Span, content_length};

/// Fields whose numbers differ from request to request, in lower case: of the body, and of the JSON in front of
/// tensors in it.
const LENGTHS: [&str; 2] = ["content-length", "inference-header-content-length"];
/// Digits of a length that is taken over without a second reading of the head: it fits 32 bits.
const DIGITS_MAX: usize = 9;

/// Where the lengths of a head stand, in their order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gaps {
    spans: [Span; LENGTHS.len()],
    count: usize,
    /// The gap that is the body's length.
    body: Option<usize>,
    /// The gap that is the length of the JSON.
    json: Option<usize>,
}

impl Gaps {
    /// Of a head that was read; `None` for one that cannot be recognised, because a length is given twice or is none.
    pub fn of(head: &Head) -> Option<Gaps> {
        let mut gaps = Gaps::default();
        let mut seen = [false; LENGTHS.len()];
        for &(name, value) in &head.fields {
            let Some(which) = LENGTHS.iter().position(|known| known.len() == name.len() && head.has_name(name, known))
            else {
                continue;
            };
            let digits = head.bytes(value);
            let is_number = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
            if !is_number || std::mem::replace(seen.get_mut(which)?, true) {
                return None;
            }
            match which {
                0 => gaps.body = Some(gaps.count),
                _ => gaps.json = Some(gaps.count),
            }
            *gaps.spans.get_mut(gaps.count)? = value;
            gaps.count += 1;
        }
        Some(gaps)
    }

    pub fn spans(&self) -> &[Span] {
        self.spans.get(..self.count).unwrap_or_default()
    }

    /// Where the head states how long the JSON is.
    #[inline]
    pub fn json(&self) -> Option<Span> {
        self.spans.get(self.json?).copied()
    }

    /// Where the gaps are in `input`, if all that is around them is as in `raw`; and the length of the whole.
    fn find_in(&self, raw: &[u8], input: &[u8]) -> Option<(Gaps, usize)> {
        let mut found = *self;
        let (mut from, mut at) = (0, 0);
        for (old, new) in self.spans().iter().zip(&mut found.spans) {
            let part = raw.get(from..old.start as usize)?;
            let rest = input.get(at..)?;
            if !rest.starts_with(part) {
                return None;
            }
            at += part.len();
            let digits = rest.get(part.len()..)?.iter().take(DIGITS_MAX).take_while(|byte| byte.is_ascii_digit());
            let digits = digits.count();
            *new = Span { start: at as u32, end: (at + digits) as u32 };
            if digits == 0 {
                return None;
            }
            at += digits;
            from = old.end as usize;
        }
        let last = raw.get(from..)?;
        input.get(at..)?.starts_with(last).then_some((found, at + last.len()))
    }
}

impl Head {
    /// If `input` begins with a head that differs from this one in the numbers of its lengths only, becomes that head,
    /// which keeps its mark, and returns how long it is. Heads of more than `limit` bytes are not recognised.
    pub(super) fn repeat(&mut self, input: &[u8], limit: usize) -> Option<usize> {
        let gaps = self.gaps?;
        if self.raw.len() <= limit && input.starts_with(&self.raw) {
            return Some(self.raw.len());
        }
        let (found, len) = gaps.find_in(&self.raw, input).filter(|(_, len)| *len <= limit)?;
        // Both have as many.
        for (old, new) in gaps.spans().iter().zip(found.spans()).rev() {
            let by = new.len().wrapping_sub(old.len()) as u32;
            if by == 0 {
                continue;
            }
            // What stands behind the last gap moves first, and then by what each gap before it has grown.
            let behind = |place: &&mut u32| **place >= old.end;
            let places = self
                .fields
                .iter_mut()
                .flat_map(|(name, value)| [&mut name.start, &mut name.end, &mut value.start, &mut value.end]);
            places.filter(behind).for_each(|place| *place = place.wrapping_add(by));
        }
        self.raw.clear();
        self.raw.extend_from_slice(input.get(..len)?);
        self.gaps = Some(found);
        if let Some(body) = found.body.and_then(|which| found.spans.get(which)) {
            self.body = content_length(self.bytes(*body));
        }
        debug_assert!(matches!(self.body, BodyLength::Known(_) | BodyLength::Chunked));
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;

    const LIMIT: usize = 64 * 1024;

    fn read(text: &str) -> Head {
        let mut head = Head::default();
        head.parse(text.as_bytes(), &Limits::default()).unwrap();
        head
    }

    fn post(json: &str, body: &str) -> String {
        format!(
            "POST /v2/models/m/infer?x HTTP/1.1\r\nHost: h\r\ninference-Header-content-Length: {json}\r\n\
             Accept: */*\r\nContent-Length: {body} \r\nUser-Agent: a\r\n\r\n"
        )
    }

    /// Everything that a handler can read.
    fn told(head: &Head) -> String {
        let fields: Vec<_> = head.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        let line = (head.method_name(), head.path(), head.query(), head.version(), head.body_length());
        format!("{line:?} {fields:?} {} {} {:?}", head.keep_alive(), head.expects_continue(), head.json_length())
    }

    #[test]
    fn lengths_may_differ_and_everything_is_as_if_it_were_read() {
        let numbers = ["1", "0", "20", "999", "1000", "123456789"];
        for first in numbers {
            for second in numbers {
                let mut head = read(&post(first, second));
                head.set_mark(7);
                for (json, body) in numbers.iter().zip(numbers.iter().rev()).chain([(&"5", &"5")]) {
                    let text = post(json, body);
                    let input = format!("{text}behind");
                    assert_eq!(head.repeat(input.as_bytes(), LIMIT), Some(text.len()), "{text}");
                    assert_eq!(told(&head), told(&read(&text)));
                    assert_eq!(head.mark(), 7);
                    assert_eq!(head.repeat(input.as_bytes(), LIMIT), Some(text.len()), "and once more");
                }
            }
        }
    }

    #[test]
    fn what_differs_otherwise_is_read() {
        let mut head = read(&post("10", "20"));
        let before = told(&head);
        for other in [
            post("10", ""),
            post("", "20"),
            post("1a", "20"),
            post("-1", "20"),
            post("10", "1234567890"),
            post("10", "20").replace("/m/", "/n/"),
            post("10", "20").replace("Accept", "accept"),
            post("10", "20").replace("User-Agent: a\r\n\r\n", "User-Agent: a\r\nX: y\r\n\r\n"),
            post("10", "20").replace("User-Agent: a\r\n", ""),
            post("10", "20").replace("Host: h\r\n", "Host: h\n"),
            post("10", "20").replace("POST", "PUT"),
            post("10", "20").trim_end().to_owned(),
            String::new(),
        ] {
            assert_eq!(head.repeat(other.as_bytes(), LIMIT), None, "{other}");
            assert_eq!(told(&head), before);
        }
        let longer = post("100", "20");
        assert_eq!(head.repeat(longer.as_bytes(), longer.len() - 1), None, "too long");
        assert_eq!(head.repeat(longer.as_bytes(), longer.len()), Some(longer.len()));
    }

    #[test]
    fn a_mark_is_for_one_head_only() {
        let mut head = read(&post("10", "20"));
        assert_eq!(head.mark(), 0);
        head.set_mark(3);
        head.parse(post("10", "20").replace("/m/", "/n/").as_bytes(), &Limits::default()).unwrap();
        assert_eq!(head.mark(), 0);
    }

    #[test]
    fn heads_without_plain_lengths_are_recognised_whole_or_not_at_all() {
        for (text, known) in [
            ("GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n", true),
            ("POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", true),
            ("POST /x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", false),
            ("POST /x HTTP/1.1\r\nContent-Length: 1234567890\r\n\r\n", false),
            ("POST /x HTTP/1.1\r\nContent-Length: x\r\n\r\n", false),
            ("POST /x HTTP/1.1\r\nContent-Length: 5\r\nInference-Header-Content-Length: +3\r\n\r\n", false),
        ] {
            let mut head = read(text);
            assert_eq!(head.repeat(text.as_bytes(), LIMIT), known.then_some(text.len()), "{text}");
        }
        assert_eq!(Head::default().repeat(b"GET / HTTP/1.1\r\n\r\n", LIMIT), None);
        let mut refused = read("GET / HTTP/1.1\r\n\r\n");
        let twice = "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
        assert!(refused.parse(twice.as_bytes(), &Limits::default()).is_err());
        assert_eq!(refused.repeat(twice.as_bytes(), LIMIT), None, "what was refused once is refused again");
    }
}
