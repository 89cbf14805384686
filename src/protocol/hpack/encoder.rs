//! Fields → header blocks.
//!
//! What repeats on every gRPC exchange (content type, status, path, user agent) goes into the table once and costs one
//! byte afterwards. What may be a secret is marked so that no hop ever puts it into a table, and everything else is
//! written out plainly: a table that churns is of no use, and plain strings are the cheapest for both ends.

use super::table::{Found, Table};
use super::{DEFAULT_TABLE_SIZE, huffman, integer, static_table};

/// Longer values are not worth a place in the table.
const INDEXED_VALUE_MAX: usize = 256;

/// What a field counts beyond its octets.
const FIELD_OVERHEAD: usize = 32;

/// The state that our header blocks share. Blocks must reach the peer in the order in which they were encoded.
pub struct Encoder {
    table: Table,
    /// The smallest table size since the last block, if the peer changed its limit: it must be sent (RFC 7541 section
    /// 4.2).
    smallest_since_block: Option<usize>,
    /// Changes whenever the table does.
    generation: u64,
}

/// Fields that are sent again and again, with the block that stands for them while the table stays as it is.
#[derive(Debug, Clone)]
pub struct CachedFields {
    fields: &'static [(&'static [u8], &'static [u8])],
    block: Vec<u8>,
    /// Of the table under which the block was made; 0: there is none.
    generation: u64,
    size: usize,
}

impl CachedFields {
    pub fn new(fields: &'static [(&'static [u8], &'static [u8])]) -> CachedFields {
        let size = fields.iter().map(|(name, value)| name.len() + value.len() + FIELD_OVERHEAD).sum();
        CachedFields { fields, block: Vec::new(), generation: 0, size }
    }

    /// Bytes of the list by RFC 9113 section 10.5.1.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    pub fn new() -> Encoder {
        Encoder { table: Table::new(DEFAULT_TABLE_SIZE), smallest_since_block: None, generation: 1 }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. Larger tables than the default are not used: a response has few fields.
    pub fn set_peer_limit(&mut self, limit: usize) {
        let size = limit.min(DEFAULT_TABLE_SIZE);
        if size == self.table.max_size() {
            return;
        }
        let smallest = self.smallest_since_block.unwrap_or(size).min(size);
        self.smallest_since_block = Some(smallest);
        self.generation += 1;
        self.table.resize(size);
    }

    /// Begins a block with the table sizes that changed. Every block starts with this, those of
    /// [`Encoder::encode_stateless`] at the moment when they are put on the wire.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(smallest) = self.smallest_since_block.take() else { return };
        if smallest < self.table.max_size() {
            integer::write(smallest, 5, 0x20, out);
        }
        integer::write(self.table.max_size(), 5, 0x20, out);
    }

    /// Appends a whole block, which must be sent before any that is encoded later.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
        self.begin(out);
        for (name, value) in fields {
            self.field(name, value, out);
        }
    }

    /// The block that [`Encoder::encode_cached`] would append, if it is cached.
    pub fn cached_block<'k>(&self, cached: &'k CachedFields) -> Option<&'k [u8]> {
        let is_current = cached.generation == self.generation && self.smallest_since_block.is_none();
        is_current.then_some(&cached.block)
    }

    /// Appends a whole block, as [`Encoder::encode`] does, from memory where it would come out the same.
    pub fn encode_cached(&mut self, cached: &mut CachedFields, out: &mut Vec<u8>) {
        if let Some(block) = self.cached_block(cached) {
            return out.extend_from_slice(block);
        }
        let (generation, at) = (self.generation, out.len());
        let is_plain = self.smallest_since_block.is_none();
        self.encode(cached.fields.iter().copied(), out);
        cached.generation = 0;
        if is_plain && generation == self.generation {
            cached.generation = generation;
            cached.block.clear();
            cached.block.extend_from_slice(out.get(at..).unwrap_or_default());
        }
    }

    /// Appends fields that neither use nor change the table, so that they may wait while other blocks overtake them.
    pub fn encode_stateless<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
        for (name, value) in fields {
            let name_index = static_table::index_of_name(name);
            match name_index.and_then(|index| static_table::index_of_field(index, value)) {
                Some(index) => integer::write(index, 7, 0x80, out),
                None => literal(name_index, name, value, out),
            }
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let name_index = static_table::index_of_name(name);
        if let Some(index) = name_index.and_then(|index| static_table::index_of_field(index, value)) {
            return integer::write(index, 7, 0x80, out);
        }
        let fits = name.len() + value.len() + 32 <= self.table.max_size();
        if !repeats(name) || value.len() > INDEXED_VALUE_MAX || !fits {
            return literal(name_index, name, value, out);
        }
        let first_dynamic = static_table::ENTRIES.len() + 1;
        let name_index = match self.table.find(name, value) {
            Found::Field(age) => return integer::write(first_dynamic + age, 7, 0x80, out),
            Found::Name(age) => name_index.or(Some(first_dynamic + age)),
            Found::Nothing => name_index,
        };
        integer::write(name_index.unwrap_or(0), 6, 0x40, out);
        if name_index.is_none() {
            string(name, out);
        }
        string(value, out);
        self.table.insert(name, value, true);
        self.generation += 1;
    }
}

/// Names whose values come again on a connection and are no secrets.
fn repeats(name: &[u8]) -> bool {
    matches!(
        name,
        b":authority"
            | b":path"
            | b":status"
            | b"content-type"
            | b"content-encoding"
            | b"accept"
            | b"accept-encoding"
            | b"server"
            | b"te"
            | b"user-agent"
            | b"grpc-status"
            | b"grpc-encoding"
            | b"grpc-accept-encoding"
    )
}

/// Names whose values may be secrets (RFC 7541 section 7.1.3).
fn is_sensitive(name: &[u8]) -> bool {
    matches!(name, b"authorization" | b"proxy-authorization" | b"cookie" | b"set-cookie")
}

fn literal(name_index: Option<usize>, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let pattern = if is_sensitive(name) { 0x10 } else { 0 };
    integer::write(name_index.unwrap_or(0), 4, pattern, out);
    if name_index.is_none() {
        plain(name, out);
    }
    plain(value, out);
}

fn plain(text: &[u8], out: &mut Vec<u8>) {
    integer::write(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded >= text.len() {
        return plain(text, out);
    }
    integer::write(coded, 7, 0x80, out);
    huffman::encode(text, out);
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Fields {
        let mut fields = Fields::new();
        let mut sink = |field: super::super::Field<'_>| fields.push((field.name.to_vec(), field.value.to_vec()));
        decoder.decode(block, &mut sink).unwrap();
        fields
    }

    fn pairs(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
        fields.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    const HEAD: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];

    #[test]
    fn a_grpc_head_costs_two_bytes_from_the_second_time_on() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for turn in 0..3 {
            let mut block = Vec::new();
            encoder.encode(HEAD, &mut block);
            assert_eq!(decode(&mut decoder, &block).len(), 2);
            assert!(turn == 0 || block == [0x88, 0xbf], "{block:x?}");
            block.clear();
            encoder.encode([(&b"grpc-status"[..], &b"0"[..])], &mut block);
            assert!(turn == 0 || block == [0xbe], "{block:x?}");
            assert_eq!(decode(&mut decoder, &block), [(b"grpc-status".to_vec(), b"0".to_vec())]);
        }
    }

    #[test]
    fn a_known_block_is_what_encoding_would_give_whatever_the_table_does() {
        let (mut encoder, mut plain, mut decoder) = (Encoder::new(), Encoder::new(), Decoder::new());
        let mut cached = CachedFields::new(&HEAD);
        for round in 0..300u32 {
            if round % 31 == 30 {
                let limit = [64, 0, 4096][(round / 31 % 3) as usize];
                encoder.set_peer_limit(limit);
                plain.set_peer_limit(limit);
                decoder.set_limit(limit);
            }
            if round % 7 == 6 {
                let path = format!("/{round}");
                let fields = [(&b":path"[..], path.as_bytes())];
                let mut blocks = [Vec::new(), Vec::new()];
                encoder.encode(fields, &mut blocks[0]);
                plain.encode(fields, &mut blocks[1]);
                assert_eq!(blocks[0], blocks[1]);
                decode(&mut decoder, &blocks[0]);
            }
            let (mut block, mut expected) = (b"before".to_vec(), b"before".to_vec());
            encoder.encode_cached(&mut cached, &mut block);
            plain.encode(HEAD, &mut expected);
            assert_eq!(block, expected, "{round}");
            assert_eq!(decode(&mut decoder, &block[6..]).len(), 2);
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_whatever_the_table_does() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut seed = 7u32;
        for round in 0..2000u32 {
            if round % 97 == 0 {
                let limit = [4096, 0, 64, 100, 4096, 65_536][(round / 97 % 6) as usize];
                encoder.set_peer_limit(4000);
                encoder.set_peer_limit(limit);
                decoder.set_limit(limit.min(DEFAULT_TABLE_SIZE));
            }
            let mut fields = Fields::new();
            for _ in 0..5 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let names: [&[u8]; 6] =
                    [b":path", b"grpc-status", b"x-any", b"authorization", b"content-type", b"user-agent"];
                let name = names[(seed >> 16) as usize % 6].to_vec();
                fields.push((name, format!("value {}", seed >> 27).repeat(1 + (seed >> 9) as usize % 40).into_bytes()));
            }
            let mut block = Vec::new();
            encoder.encode(pairs(&fields), &mut block);
            assert_eq!(decode(&mut decoder, &block), fields);
        }
    }

    #[test]
    fn a_table_that_shrinks_and_grows_between_blocks_announces_both() {
        let mut encoder = Encoder::new();
        encoder.set_peer_limit(0);
        encoder.set_peer_limit(4096);
        let mut block = Vec::new();
        encoder.begin(&mut block);
        assert_eq!(block, [0x20, 0x3f, 0xe1, 0x1f]);
        block.clear();
        encoder.begin(&mut block);
        assert!(block.is_empty());
    }

    #[test]
    fn secrets_are_marked_and_stateless_blocks_leave_the_tables_alone() {
        let mut decoder = Decoder::new();
        let fields = vec![
            (b":status".to_vec(), b"404".to_vec()),
            (b"authorization".to_vec(), b"Bearer x".to_vec()),
            (b"grpc-status".to_vec(), b"5".to_vec()),
        ];
        let mut block = Vec::new();
        Encoder::encode_stateless(pairs(&fields), &mut block);
        let mut marked = Vec::new();
        decoder.decode(&block, &mut |field: super::super::Field<'_>| marked.push(field.never_indexed)).unwrap();
        assert_eq!(marked, [false, true, false]);
        assert_eq!((decoder.generation(), decode(&mut decoder, &block)), (0, fields));
    }
}
