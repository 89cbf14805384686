//! The examples of RFC 7541 appendix C, and blocks that must be refused.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Error> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    decoder.decode(block, &mut |field: Field<'_>| fields.push((text(field.name), text(field.value))))?;
    Ok(fields)
}

#[track_caller]
fn check(decoder: &mut Decoder, block: &str, fields: &[(&str, &str)], table_size: usize) {
    let decoded = decode(decoder, &hex(block)).unwrap();
    let decoded: Vec<(&str, &str)> = decoded.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    assert_eq!(decoded, fields);
    assert_eq!(decoder.table.size(), table_size);
}

/// Appendix C.2: one representation each.
#[test]
fn single_representations() {
    let literal = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    check(&mut Decoder::new(), literal, &[("custom-key", "custom-header")], 55);
    check(&mut Decoder::new(), "040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], 0);
    check(&mut Decoder::new(), "1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], 0);
    check(&mut Decoder::new(), "82", &[(":method", "GET")], 0);
}

const REQUEST: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "http"), (":path", "/")];

/// Appendices C.3 (plain) and C.4 (Huffman): three requests on one connection.
#[test]
fn requests() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        let authority = (":authority", "www.example.com");
        let first = [REQUEST[0], REQUEST[1], REQUEST[2], authority];
        check(&mut decoder, blocks[0], &first, 57);
        let second = [REQUEST[0], REQUEST[1], REQUEST[2], authority, ("cache-control", "no-cache")];
        check(&mut decoder, blocks[1], &second, 110);
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            authority,
            ("custom-key", "custom-value"),
        ];
        check(&mut decoder, blocks[2], &third, 164);
    }
}

/// Appendices C.5 (plain) and C.6 (Huffman): three responses, with a table of 256 bytes that evicts.
#[test]
fn responses_with_eviction() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32
         3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970
         7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61
         6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad
         1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2
         e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let location = ("location", "https://www.example.com");
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let cookie = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        decoder.set_limit(256);
        decoder.resize(256).unwrap();
        let private = ("cache-control", "private");
        check(&mut decoder, blocks[0], &[(":status", "302"), private, date, location], 222);
        check(&mut decoder, blocks[1], &[(":status", "307"), private, date, location], 222);
        let date = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
        let third = [(":status", "200"), private, date, location, ("content-encoding", "gzip"), cookie];
        check(&mut decoder, blocks[2], &third, 215);
    }
}

#[test]
fn unknown_indices_are_refused() {
    for block in ["80", "be", "c0", "ff ff ff 00", "7f 00 00", "0f 2f 01 61"] {
        assert_eq!(decode(&mut Decoder::new(), &hex(block)), Err(Error::UnknownIndex), "{block}");
    }
    assert_eq!(decode(&mut Decoder::new(), &hex("ff ff ff ff ff 01")), Err(Error::IntegerOverflow));
}

#[test]
fn every_truncation_of_a_literal_is_refused() {
    let block = hex("4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
    for cut in 1..block.len() {
        assert_eq!(decode(&mut Decoder::new(), &block[..cut]), Err(Error::Truncated), "{cut}");
    }
    assert_eq!(decode(&mut Decoder::new(), &[]), Ok(vec![]));
}

#[test]
fn size_updates_keep_to_their_limit_and_place() {
    let mut decoder = Decoder::new();
    assert_eq!(decode(&mut decoder, &hex("3fe2 1f")), Err(Error::TableSize), "4097");
    assert_eq!(decode(&mut Decoder::new(), &hex("82 20")), Err(Error::TableSizePlace));
    let mut decoder = Decoder::new();
    assert_eq!(decode(&mut decoder, &hex("20 3fe1 1f 82")).unwrap().len(), 1, "two updates, then a field");
    assert_eq!(decoder.generation(), 2);
    decoder.set_limit(100);
    assert_eq!(decode(&mut decoder, &hex("82")), Err(Error::TableSizePlace), "the reduction must be confirmed");
    assert_eq!(decode(&mut decoder, &hex("3f45 82")).unwrap().len(), 1);
    assert_eq!(decode(&mut decoder, &hex("82")).unwrap().len(), 1);
}

#[test]
fn an_entry_may_evict_the_one_that_names_it() {
    let mut decoder = Decoder::new();
    decode(&mut decoder, &hex("3f 21 40 03 61 62 63 03 31 32 33")).unwrap();
    let fields = decode(&mut decoder, &hex("7e 03 34 35 36 be")).unwrap();
    assert_eq!(fields, [("abc".into(), "456".into()), ("abc".into(), "456".into())]);
}

#[test]
fn legality_is_found_once_and_kept() {
    let legal = |block: &str| {
        let (mut all, mut decoder) = (Vec::new(), Decoder::new());
        decoder.decode(&hex(block), &mut |field: Field<'_>| all.push(field.legal)).unwrap();
        all
    };
    assert_eq!(legal("40 01 61 01 62 be"), [true, true]);
    assert_eq!(legal("40 01 41 01 62 be"), [false, false], "upper case");
    assert_eq!(legal("40 01 61 02 62 0d be"), [false, false], "carriage return");
    for value in ["01 00", "01 0a", "03 61 0d 62"] {
        assert_eq!(legal(&format!("00 01 61 {value}")), [false], "{value}");
    }
    for value in ["00", "03 61 20 62", "01 ff", "03 61 09 62", "02 20 61", "02 61 20", "02 09 61", "01 20"] {
        assert_eq!(legal(&format!("00 01 61 {value}")), [true], "{value}");
    }
    for name in ["00", "01 3a", "01 20", "02 3a 41", "02 61 3a", "01 7f", "01 80", "01 28", "01 22"] {
        assert_eq!(legal(&format!("00 {name} 00")), [false], "{name}");
    }
}

#[test]
fn scratch_memory_is_given_back() {
    let mut decoder = Decoder::new();
    let mut block = vec![0x00, 1, b'a', 0x7f, 0xa1, 0x8c, 0x06];
    block.extend([b'v'; 100_000]);
    assert_eq!(decode(&mut decoder, &block).unwrap()[0].1.len(), 100_000);
    decoder.shrink();
    assert!(decoder.value.capacity() <= 4096);
}
