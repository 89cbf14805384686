//! What is written of a report, and which answers get it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;

use super::*;
use nereid_memory::Slice;
use nereid_observe::load::{CacheUse, ModelReading, Reading};
use nereid_protocol::http1::{
    BodyPlan, Connection, ExchangeId, Handler, Limits, PlainResponse, Response, ResponseHead,
};
use nereid_wire::xds::data::orca::v3::OrcaLoadReport;

fn report() -> Report {
    Report {
        application_utilization: 1.5,
        cpu_utilization: 0.25,
        memory_utilization: 0.5,
        requests_per_second: 12.5,
        errors_per_second: 0.125,
        queue_depth: 3,
        cache: Some(CacheUse { utilization: 0.75, tokens_max: 512 }),
    }
}

#[test]
fn a_report_is_written_in_three_formats() {
    let json = concat!(
        r#"JSON {"application_utilization":1.5,"cpu_utilization":0.25,"mem_utilization":0.5,"rps_fractional":12.5,"#,
        r#""eps":0.125,"named_metrics":{"queue_depth":3,"kv_cache_utilization":0.75,"max_token_capacity":512}}"#
    );
    assert_eq!(LoadFormat::Json.write(&report()), json);
    let text = "TEXT application_utilization=1.500000, cpu_utilization=0.250000, mem_utilization=0.500000, \
                rps_fractional=12.500000, eps=0.125000, named_metrics.queue_depth=3, \
                named_metrics.kv_cache_utilization=0.750000, named_metrics.max_token_capacity=512";
    assert_eq!(LoadFormat::Text.write(&report()), text);
    let bin = LoadFormat::Bin.write(&report());
    let bytes = STANDARD.decode(bin.strip_prefix("BIN ").unwrap()).unwrap();
    let read = OrcaLoadReport::decode(&*bytes).unwrap();
    assert_eq!(read, message(&report()));
    assert_eq!((read.application_utilization, read.rps_fractional, read.eps), (1.5, 12.5, 0.125));
    assert_eq!((read.cpu_utilization, read.mem_utilization), (0.25, 0.5));
    let named: Vec<_> = read.named_metrics.into_iter().collect();
    let expected = [("kv_cache_utilization", 0.75), ("max_token_capacity", 512.0), ("queue_depth", 3.0)];
    assert_eq!(named, expected.map(|(name, value)| (name.to_owned(), value)));
    assert!(!LoadFormat::Json.write(&Report::default()).contains("kv_cache"), "no cache, no sample of it");
}

fn reports(orca: Orca) -> LoadReports {
    let model = ModelReading { pending: 7, ..ModelReading::default() };
    let reading = Reading { models: vec![model], ..Reading::default() };
    LoadReports::new(orca, Some(Arc::new(Monitor::new(Box::new(move || reading.clone())))))
}

/// Runs `with` on the head of a request with these fields.
fn head(fields: &str, with: impl FnMut(&http1::Head)) {
    struct Heads<F>(F);

    impl<F: FnMut(&http1::Head)> Handler for Heads<F> {
        fn head(&mut self, _exchange: ExchangeId, _head: &http1::Head) -> BodyPlan {
            BodyPlan::Store { align_at: 0 }
        }

        fn request(&mut self, _exchange: ExchangeId, head: &http1::Head, _body: Slice) {
            (self.0)(head);
        }
    }

    let mut connection = Connection::new(Limits::default(), Pool::new(1 << 20));
    connection.receive(format!("POST /v2 HTTP/1.1\r\n{fields}\r\n").as_bytes(), &mut Heads(with));
}

/// The report in the answer to a call, as the field carries it.
fn field(replies: &mut Replies) -> Option<String> {
    let all: Vec<_> = replies.drain().collect();
    let mut found = all.iter().filter_map(|(_, reply)| match reply {
        Reply::Http(HttpReply::Answer(response)) => Some(&response.head.headers),
        Reply::Http(HttpReply::Head(head)) => Some(&head.headers),
        _ => None,
    });
    let field = found.next()?.iter().find(|(name, _)| name == FIELD)?;
    match &field.1 {
        FieldValue::Text(text) => Some(text.to_string()),
        FieldValue::Number(_) => None,
    }
}

#[test]
fn answers_get_the_report_that_was_asked_for() {
    let pool = Pool::new(1 << 16);
    let asks = |format: &str| format!("{ASKS}: {format}\r\n");
    for (orca, fields, prefix) in [
        (Orca::Off, asks("json"), None),
        (Orca::OnRequest, String::new(), None),
        (Orca::OnRequest, asks("json"), Some("JSON {")),
        (Orca::OnRequest, asks("text"), Some("TEXT a")),
        (Orca::OnRequest, asks("bin"), Some("BIN ")),
        (Orca::OnRequest, asks("xml"), None),
        (Orca::OnRequest, asks("JSON"), None),
        (Orca::OnRequest, asks("text") + &asks("json"), Some("TEXT a")),
        (Orca::Always, String::new(), Some("JSON {")),
        (Orca::Always, asks("text"), Some("TEXT a")),
        (Orca::Always, asks("xml"), Some("JSON {")),
    ] {
        let plain = || PlainResponse { tail: Default::default(), json: Slice::empty(), is_binary: false };
        let forms: [fn(PlainResponse) -> HttpReply; 3] = [
            HttpReply::Plain,
            |_| HttpReply::Answer(Response::empty(404)),
            |_| HttpReply::Head(ResponseHead::new(200)),
        ];
        for form in forms {
            let mut reports = reports(orca);
            let (before, call) = (CallKey(1), CallKey(2));
            head(&fields, |head| reports.expect(call, head));
            let mut replies = Replies::default();
            replies.push(before, HttpReply::Answer(Response::empty(200)));
            let mark = replies.mark();
            replies.push(call, form(plain()));
            reports.settle(&mut replies, mark, &pool);
            let mut answer = Replies::default();
            let last = replies.drain().next_back().unwrap();
            if let Reply::Http(reply) = last.1 {
                answer.push(call, reply);
            }
            let found = field(&mut answer);
            assert_eq!(found.is_some(), prefix.is_some(), "{orca:?} {fields}");
            assert!(found.unwrap_or_default().starts_with(prefix.unwrap_or_default()), "{orca:?} {fields}");
            assert!(reports.is_idle() && reports.tokens.is_empty());
        }
    }
}

/// A call whose client leaves, and one whose answer panics, leave nothing behind.
#[test]
fn calls_without_an_answer_are_forgotten() {
    let pool = Pool::new(1 << 16);
    let mut reports = reports(Orca::Always);
    for (call, token) in [(1, Some(11)), (2, Some(12)), (3, None)] {
        reports.expect_unasked(CallKey(call));
        token.into_iter().for_each(|token| reports.began(CallKey(call), Token(token)));
    }
    reports.cancelled(Token(11));
    reports.cancelled(Token(99));
    let mut replies = Replies::default();
    replies.push_panicked(Panicked::Work(Token(12)));
    replies.push_panicked(Panicked::Call(CallKey(3)));
    reports.settle(&mut replies, (0, 0), &pool);
    assert!(reports.is_idle() && reports.tokens.is_empty());
}

#[test]
fn the_metadata_is_the_message_in_base64() {
    let (name, value) = reports(Orca::Always).trailer().unwrap();
    assert_eq!(&*name, b"endpoint-load-metrics-bin");
    let read = OrcaLoadReport::decode(&*STANDARD.decode(&value).unwrap()).unwrap();
    assert_eq!(read.named_metrics.get("queue_depth"), Some(&7.0));
}

#[test]
fn generate_has_reports_of_its_own_unless_all_answers_have_one() {
    for (orca, format, own, other) in [
        (Orca::Off, "json", false, false),
        (Orca::OnRequest, "json", true, false),
        (Orca::OnRequest, "text", true, false),
        (Orca::OnRequest, "bin", false, true),
        (Orca::OnRequest, "xml", false, false),
        (Orca::Always, "json", false, true),
    ] {
        let mut reports = reports(orca);
        head(&format!("{ASKS}: {format}\r\n"), |head| {
            assert_eq!(reports.of_generate(head).is_some(), own, "{orca:?} {format}");
            reports.expect_of_generate(CallKey(1), head);
        });
        assert_eq!(!reports.is_idle(), other, "{orca:?} {format}");
    }
}
