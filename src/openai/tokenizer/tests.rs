//! Tokenizers that these tests train on a text of their own.

use std::path::PathBuf;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::{BertNormalizer, Prepend};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::whitespace::Whitespace;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PostProcessorWrapper};

use super::Tokenizer;

const CACHE_BYTES: usize = 1 << 20;

const TEXT: &str = "A server answers requests. Several requests share a long system message, and the server shall not \
    encode it again. Ein Satz mit Umlauten: äöü, Straße. 你好, 世界! fn main() { println!(\"{}\", 1 + 1); } 12345 \
    \n\n\tindented  twice   thrice <|almost|> special";

fn specials() -> Vec<AddedToken> {
    vec![
        AddedToken::from("<|start|>", true),
        AddedToken::from("<|end|>", true),
        // The longer one is found first.
        AddedToken::from("<|end|>\n", true),
        AddedToken::from("<pad>", true).lstrip(true),
        AddedToken::from("<mask>", true).rstrip(true),
        AddedToken::from("server", false),
        AddedToken::from("<mask>server", false).rstrip(true),
        AddedToken::from("once", false).lstrip(true),
    ]
}

fn bpe() -> tokenizers::Tokenizer {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let alphabet = ByteLevel::alphabet();
    let trainer =
        BpeTrainer::builder().vocab_size(400).show_progress(false).initial_alphabet(alphabet.into_iter().collect());
    let mut trainer: tokenizers::models::TrainerWrapper = trainer.build().into();
    tokenizer.train(&mut trainer, std::iter::repeat_n(TEXT, 3)).unwrap();
    tokenizer.add_special_tokens(specials()).unwrap();
    tokenizer
}

fn word_piece() -> tokenizers::Tokenizer {
    let mut tokenizer = tokenizers::Tokenizer::new(WordPiece::default());
    tokenizer.with_normalizer(Some(BertNormalizer::default())).unwrap();
    tokenizer.with_pre_tokenizer(Some(Whitespace {}));
    let trainer = WordPieceTrainer::builder().vocab_size(300).show_progress(false);
    let trainer = trainer.special_tokens(vec![AddedToken::from("[UNK]", true)]);
    let mut trainer: tokenizers::models::TrainerWrapper = trainer.build().into();
    tokenizer.train(&mut trainer, std::iter::repeat_n(TEXT, 3)).unwrap();
    tokenizer.add_special_tokens(specials()).unwrap();
    tokenizer.add_special_tokens([AddedToken::from("[CLS]", true), AddedToken::from("[SEP]", true)]).unwrap();
    let ids = ["[CLS]", "[SEP]"].map(|token| (token.to_owned(), tokenizer.token_to_id(token).unwrap()));
    let around = TemplateProcessing::builder()
        .try_single("[CLS] $A [SEP]")
        .unwrap()
        .try_pair("[CLS] $A [SEP] $B [SEP]")
        .unwrap()
        .special_tokens(ids.to_vec())
        .build()
        .unwrap();
    tokenizer.with_post_processor(Some(PostProcessorWrapper::Template(around)));
    tokenizer
}

fn unigram(scheme: PrependScheme) -> tokenizers::Tokenizer {
    let mut tokenizer = tokenizers::Tokenizer::new(Unigram::default());
    tokenizer.with_normalizer(Some(Prepend::new("_".into()))).unwrap();
    tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
    let mut builder = UnigramTrainer::builder();
    builder.vocab_size(200).show_progress(false).unk_token(Some("<unk>".into()));
    builder.special_tokens(vec![AddedToken::from("<unk>", true)]);
    let mut trainer: tokenizers::models::TrainerWrapper = builder.build().unwrap().into();
    tokenizer.train(&mut trainer, std::iter::repeat_n(TEXT, 3)).unwrap();
    tokenizer.add_special_tokens(specials()).unwrap();
    tokenizer
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn of(tokenizer: &tokenizers::Tokenizer, config: &str) -> Folder {
        let thread = std::thread::current();
        let name: String = thread.name().unwrap().replace("::", "-");
        let path = std::env::temp_dir().join(format!("nereid-tokenizer-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        tokenizer.save(path.join("tokenizer.json"), false).unwrap();
        std::fs::write(path.join("tokenizer_config.json"), config).unwrap();
        Folder(path)
    }

    fn load(&self, cache_bytes: usize) -> Tokenizer {
        Tokenizer::load(&self.0, cache_bytes).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(bound).unwrap()).unwrap()
    }

    /// Words, blanks and special tokens, whole and in part, that stand next to each other in any order.
    fn text(&mut self) -> String {
        let tokens = [
            "<|start|>",
            "<|end|>",
            "<|end|>\n",
            "<pad>",
            "<mask>",
            "<|end|",
            "|>",
            "<|",
            "[CLS]",
            "server",
            "_",
            "once",
        ];
        let blanks = [" ", "\n", "  ", "\t", "\u{a0}", "\n\n", ""];
        let words: Vec<_> = TEXT.split(' ').collect();
        let long = self.below(3) == 0;
        let mut text = String::new();
        for _ in 0..self.below(40) {
            match self.below(4) {
                0 => text.push_str(tokens[self.below(tokens.len())]),
                1 => text.push_str(blanks[self.below(blanks.len())]),
                _ => text.push_str(words[self.below(words.len())]),
            }
            if long && self.below(6) == 0 {
                text.push_str(TEXT);
            }
        }
        text
    }
}

/// Encodes random texts, in part again and with the ends of others, with a cache and without.
fn assert_same(tokenizer: &tokenizers::Tokenizer, cache_bytes: usize) -> Tokenizer {
    let folder = Folder::of(tokenizer, "{}");
    let (cached, plain) = (folder.load(cache_bytes), folder.load(0));
    assert!(plain.pieces.is_none());
    let mut numbers = Numbers(7);
    let mut earlier: Vec<String> = Vec::new();
    for round in 0..600 {
        let mut text = numbers.text();
        if round % 3 == 1 {
            text.insert_str(0, &earlier[numbers.below(earlier.len())]);
        }
        for add_special in [false, true] {
            let tokens = cached.encode(&text, add_special).unwrap();
            assert_eq!(tokens, plain.encode(&text, add_special).unwrap(), "{text:?}");
        }
        earlier.push(text);
    }
    cached
}

#[test]
fn tokens_with_blanks_at_their_ends_are_the_same() {
    let mut tokenizer = bpe();
    tokenizer.add_tokens([AddedToken::from(" blank", false), AddedToken::from("blank ", false)]).unwrap();
    let cached = assert_same(&tokenizer, CACHE_BYTES);
    assert_eq!(cached.pieces.unwrap().cuts.pieces(&"server".repeat(40)).len(), 1);
}

#[test]
fn cached_bpe_is_the_same() {
    let cached = assert_same(&bpe(), CACHE_BYTES);
    assert!(cached.pieces.unwrap().cache.bytes() > 0);
}

#[test]
fn cached_word_pieces_between_tokens_are_the_same() {
    let cached = assert_same(&word_piece(), CACHE_BYTES);
    let pieces = cached.pieces.unwrap();
    assert_eq!([pieces.before.len(), pieces.after.len()], [1, 1]);
}

#[test]
fn cached_unigrams_are_the_same_with_a_blank_before_each_piece() {
    assert!(assert_same(&unigram(PrependScheme::Always), CACHE_BYTES).pieces.is_some());
    assert!(assert_same(&unigram(PrependScheme::Never), CACHE_BYTES).pieces.is_some());
}

#[test]
fn a_cache_that_is_always_full_is_the_same() {
    let cached = assert_same(&bpe(), 4_000);
    let bytes = cached.pieces.unwrap().cache.bytes();
    assert!((1..=4_000).contains(&bytes), "{bytes}");
}

#[test]
fn nothing_is_cut_where_pieces_depend_on_each_other() {
    assert!(assert_same(&unigram(PrependScheme::First), CACHE_BYTES).pieces.is_none());
    let mut words = bpe();
    words.add_special_tokens([AddedToken::from("word", true).single_word(true)]).unwrap();
    assert!(assert_same(&words, CACHE_BYTES).pieces.is_none());
    let mut lots = bpe();
    let mut model = BPE::default();
    model.dropout = Some(0.5);
    lots.with_model(model);
    assert!(Folder::of(&lots, "{}").load(CACHE_BYTES).pieces.is_none());
}

#[test]
fn a_shared_beginning_is_encoded_once() {
    let folder = Folder::of(&bpe(), "{}");
    let tokenizer = folder.load(CACHE_BYTES);
    let pieces = tokenizer.pieces.as_ref().unwrap();
    // Without tokens inside it, which would cut it.
    let system = format!("<|start|>{}<|end|>", TEXT.replace("server", "host").repeat(20));
    tokenizer.encode(&format!("{system}<|start|>one"), false).unwrap();
    let bytes = pieces.cache.bytes();
    assert!(bytes > system.len());
    tokenizer.encode(&format!("{system}<|start|>two"), false).unwrap();
    // Only the new end was added.
    assert!(pieces.cache.bytes() < bytes + 400, "{bytes} {}", pieces.cache.bytes());
}

#[test]
fn pieces_are_the_text() {
    let folder = Folder::of(&bpe(), "{}");
    let tokenizer = folder.load(CACHE_BYTES);
    let cuts = &tokenizer.pieces.as_ref().unwrap().cuts;
    let mut numbers = Numbers(1);
    for _ in 0..300 {
        let text = numbers.text();
        assert_eq!(cuts.pieces(&text).concat(), text);
    }
    let long = "a".repeat(100);
    let text = format!("{long}<|end|>\n{long}<mask> {long}<pad>{long}");
    assert_eq!(cuts.pieces(&text), [format!("{long}<|end|>\n"), format!("{long}<mask> {long}<pad>"), long.clone()]);
    assert!(cuts.pieces("").is_empty());
    // A token that is normalised, where nothing is.
    assert_eq!(cuts.pieces(&format!("{long}server{long}")), [format!("{long}server"), long.clone()]);
    let words = Folder::of(&word_piece(), "{}").load(CACHE_BYTES);
    assert_eq!(words.pieces.unwrap().cuts.pieces(&format!("{long}server{long}")).len(), 1);
}

#[test]
fn tokens_become_text() {
    let folder = Folder::of(&bpe(), r#"{"model_max_length": 4096}"#);
    let tokenizer = folder.load(CACHE_BYTES);
    let text = "<|start|>Straße, 你好<|end|>";
    let tokens = tokenizer.encode(text, true).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "Straße, 你好");
    assert_eq!(tokenizer.token_text(tokens[0]).unwrap(), "<|start|>");
    assert_eq!(tokenizer.token_text(u32::MAX), None);
    assert_eq!(tokenizer.decode(&[u32::MAX], false).unwrap(), "");
    assert_eq!(tokenizer.model_max_length(), Some(4096));
}

#[test]
fn truncation_and_padding_of_the_file_do_not_apply() {
    let mut short = bpe();
    short.with_truncation(Some(tokenizers::TruncationParams { max_length: 2, ..Default::default() })).unwrap();
    short.with_padding(Some(tokenizers::PaddingParams {
        strategy: tokenizers::PaddingStrategy::Fixed(1000),
        ..Default::default()
    }));
    let tokens = Folder::of(&short, "{}").load(0).encode(TEXT, true).unwrap().len();
    assert!((3..1000).contains(&tokens), "{tokens}");
}

#[test]
fn lengths_that_no_text_reaches_are_none() {
    for config in [r#"{"model_max_length": 1000000000000000019884624838656}"#, "{}", r#"{"model_max_length": null}"#] {
        assert_eq!(Folder::of(&bpe(), config).load(0).model_max_length(), None, "{config}");
    }
    assert_eq!(Folder::of(&bpe(), r#"{"model_max_length": 2048.0}"#).load(0).model_max_length(), Some(2048));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = Folder::of(&bpe(), "{");
    let error = |folder: &Folder| Tokenizer::load(&folder.0, 0).err().unwrap().to_string();
    assert!(error(&folder).contains("tokenizer_config.json cannot be understood"));
    std::fs::write(folder.0.join("tokenizer.json"), "{}").unwrap();
    assert!(error(&folder).contains("tokenizer.json cannot be used"));
    std::fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
    assert!(error(&folder).contains("there is no "), "{}", error(&folder));
}

#[test]
fn threads_share_a_tokenizer() {
    let folder = Folder::of(&bpe(), "{}");
    let (cached, plain) = (folder.load(20_000), folder.load(0));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (cached, plain) = (&cached, &plain);
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                for _ in 0..100 {
                    let text = numbers.text();
                    assert_eq!(cached.encode(&text, false), plain.encode(&text, false));
                }
            });
        }
    });
}
