//! Server-sent events: which requests accept them, and how one is framed (docs/streaming.md; WHATWG HTML, section 9.2).

use nereid_memory::{Gather, Pool};
use nereid_protocol::http1;

/// The media type with which clients accept events.
const MEDIA_TYPE: &[u8] = b"text/event-stream";
/// `Content-Type` of an answer made of events (contract/http.md section 7).
pub const CONTENT_TYPE: &str = "text/event-stream; charset=utf-8";

/// True if the client takes events and does not like plain JSON better (RFC 9110, section 12.5.1). Ranges such as `*/*`
/// do not count: every client sends them.
pub fn wanted(head: &http1::Head) -> bool {
    let mut events = 0;
    let mut json = 0;
    for field in head.headers_named("Accept") {
        for range in field.split(|&byte| byte == b',') {
            let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let best = match parts.next() {
                Some(name) if name.eq_ignore_ascii_case(MEDIA_TYPE) => &mut events,
                Some(name) if name.eq_ignore_ascii_case(b"application/json") => &mut json,
                _ => continue,
            };
            *best = (*best).max(quality(parts));
        }
    }
    events > 0 && events >= json
}

/// The weight of a media range in thousandths. One that is no weight makes its range count for nothing.
pub(super) fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> u32 {
    let weight = parameters.find_map(|parameter| match parameter.split_first_chunk::<2>() {
        Some(([b'q' | b'Q', b'='], value)) => Some(value),
        _ => None,
    });
    let Some(weight) = weight else { return 1000 };
    let (whole, fraction) = match weight {
        [whole] | [whole, b'.'] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 && fraction.iter().all(u8::is_ascii_digit) => {
            (whole, fraction)
        }
        _ => return 0,
    };
    let digit = |at: usize| fraction.get(at).map_or(0, |digit| u32::from(digit - b'0'));
    match whole {
        b'0' => digit(0) * 100 + digit(1) * 10 + digit(2),
        b'1' => 1000,
        _ => 0,
    }
}

/// `data: <json>` and an empty line. JSON as we write it has no line breaks.
pub fn framed(mut json: Gather, pool: &Pool) -> Gather {
    let mut event = Gather::new();
    event.put(pool, b"data: ");
    event.append(&mut json);
    event.put(pool, b"\n\n");
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::Slice;
    use nereid_protocol::http1::{BodyPlan, Connection, ExchangeId, Handler, Head, Limits};

    #[derive(Default)]
    struct Asked(Vec<bool>);

    impl Handler for Asked {
        fn head(&mut self, _exchange: ExchangeId, _head: &Head) -> BodyPlan {
            BodyPlan::Store { align_at: 0 }
        }

        fn request(&mut self, _exchange: ExchangeId, head: &Head, _body: Slice) {
            self.0.push(wanted(head));
        }
    }

    #[test]
    fn events_are_for_who_asks_for_them() {
        let table: &[(&[&str], bool)] = &[
            (&[], false),
            (&["*/*"], false),
            (&["text/*"], false),
            (&["application/json"], false),
            (&["text/event-stream"], true),
            (&["TEXT/Event-Stream"], true),
            (&["text/event-stream; charset=utf-8"], true),
            (&["text/event-stream;q=0"], false),
            (&["text/event-stream;q=0.000"], false),
            (&["text/event-stream;Q=0.001"], true),
            (&["text/event-stream;q=1.5"], true),
            (&["text/event-stream;q=2"], false),
            (&["text/event-stream;q=0.1234"], false),
            (&["text/event-stream;q="], false),
            (&["application/json, text/event-stream"], true),
            (&["application/json;q=0.9,text/event-stream;q=0.8"], false),
            (&["application/json;q=0.8 , text/event-stream;level=1;q=0.9"], true),
            (&["application/json", "text/event-stream"], true),
            (&["application/json", "text/event-stream;q=0.5"], false),
            (&["text/event-stream2"], false),
            (&[",,;q=1,"], false),
        ];
        for (fields, expected) in table {
            let fields: String = fields.iter().map(|value| format!("aCCept: {value}\r\n")).collect();
            let mut connection = Connection::new(Limits::default(), Pool::new(1 << 20));
            let mut asked = Asked::default();
            connection.receive(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes(), &mut asked);
            assert_eq!(asked.0, [*expected], "{fields}");
        }
    }

    #[test]
    fn an_event_is_a_line_of_data_and_an_empty_line() {
        let pool = Pool::new(1 << 20);
        let mut json = Gather::new();
        json.put(&pool, br#"{"a":1}"#);
        assert_eq!(framed(json, &pool).to_vec(), b"data: {\"a\":1}\n\n");
    }
}
