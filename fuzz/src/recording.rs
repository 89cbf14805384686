//! Files of recorded requests: whatever a file contains, its records are those that are there.
//!
//! What was read and is written again is read as the same, and a file that is cut anywhere gives the records in front
//! of that place. Bodies of records are read as requests and answers, which must not panic.

use nereid_recording::{
    FileHead, Infer, Protocol, ReadError, Reader, Record, RecordHead, Redaction, RequestFacts, Tensor, VERSION,
    write_head, write_record,
};

use crate::dice::SEED_BYTES;
use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "recording",
    run,
    runs: 30_000,
    words: &[
        "{\"at_ns\":1,\"took_ns\":2,\"protocol\":\"http\",\"model\":\"m\",\"request\":{\"byte_size\":3",
        ",\"body_byte_size\":2}}\n",
        ",\"answer\":{\"status\":200,\"byte_size\":0,\"body_byte_size\":18446744073709551615}",
        ",\"inputs\":[{\"name\":\"x\",\"datatype\":\"INT8\",\"shape\":[2],\"byte_size\":2}]",
        "\"password\":",
    ],
    seeds,
};

/// The records of a file, and whether it ended well.
fn records(file: &[u8]) -> Option<(Vec<Record>, bool)> {
    let mut reader = Reader::new(file).ok()?;
    let mut all = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => all.push(record),
            Ok(None) => return Some((all, !reader.is_cut_short())),
            Err(ReadError::Damaged { record, at, .. }) => {
                assert_eq!(record, all.len() as u64 + 1);
                assert!(at <= file.len() as u64);
                return Some((all, false));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn written(records: &[Record]) -> Vec<u8> {
    let mut file = Vec::new();
    write_head(&head(), &mut file).expect("a head");
    for record in records {
        // What was read fits.
        write_record(&mut record.clone(), u64::MAX, &mut file).expect("a record").expect("room");
    }
    file
}

fn run(data: &[u8]) -> bool {
    let (mut dice, file) = split(data);
    let Some((all, _)) = records(file) else { return false };
    let again = written(&all);
    let (same, is_whole) = records(&again).expect("a recording");
    assert!(is_whole && same == all, "what is written is read");
    let cut = dice.below(again.len() + 1);
    if let Some((some, _)) = records(&again[..cut]) {
        assert!(some[..] == all[..some.len()], "a cut changes what is before it");
    }
    let redaction = Redaction::new(["user".to_owned()]);
    for record in &all {
        let json_len = record.head.request.json_byte_size.and_then(|len| usize::try_from(len).ok());
        for body in [&record.request_body, &record.answer_body].into_iter().flatten() {
            requests(body, json_len, &redaction);
        }
    }
    !all.is_empty()
}

/// Reads a body in every way.
fn requests(body: &[u8], json_len: Option<usize>, redaction: &Redaction) {
    if let Ok(infer) = Infer::from_http(body, json_len)
        && let Ok((again, json_len)) = infer.to_http(true)
    {
        assert_eq!(Infer::from_http(&again, json_len).as_ref(), Ok(&infer));
    }
    if let Ok(infer) = Infer::from_grpc(body.to_vec().into())
        && let Ok(again) = infer.to_grpc()
    {
        assert_eq!(Infer::from_grpc(again.into()).as_ref().map(|again| &again.model), Ok(&infer.model));
    }
    let _ = Tensor::of_http_answer(body, json_len);
    let _ = Tensor::of_grpc_answer(body.to_vec().into());
    let _ = redaction.grpc_request(body.to_vec().into());
    if let Ok(Some(kept)) = redaction.json(body) {
        assert_eq!(redaction.json(&kept).map(|again| again.is_none_or(|again| again == kept)), Ok(true));
    }
}

fn head() -> FileHead {
    FileHead {
        format: "nereid-recording".to_owned(),
        version: VERSION,
        server: "nereid".to_owned(),
        started_unix_ms: 1,
        data: true,
        rate: 1,
        redacted: Vec::new(),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let record = |protocol, body: Option<&[u8]>| Record {
        head: RecordHead {
            at_ns: 1,
            took_ns: 2,
            protocol,
            model: "m".to_owned(),
            version: String::new(),
            request: RequestFacts { byte_size: 3, path: "/".to_owned(), ..RequestFacts::default() },
            answer: None,
        },
        request_body: body.map(<[u8]>::to_vec),
        answer_body: None,
    };
    let json = br#"{"parameters":{"user":1},"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]}"#;
    let message = Infer::from_http(json, None).and_then(|infer| infer.to_grpc()).expect("a message");
    let files = [
        vec![],
        vec![record(Protocol::Http, None), record(Protocol::Http, None)],
        vec![record(Protocol::Http, Some(json)), record(Protocol::Grpc, Some(&message))],
    ];
    // In front of the file, what decides about the cut.
    files.iter().map(|records| [&[0; SEED_BYTES][..], &written(records)].concat()).collect()
}
