//! From tokens to a message, guided by its descriptor.

mod recovery;

use std::collections::BTreeMap;

use prost_reflect::bytes::Bytes;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind as Type, MapKey, MessageDescriptor, ReflectMessage as _,
    Value,
};

use super::lexer::{Kind, Lexer, Stray, Token};
use super::{
    Document, FieldPosition, MAX_DEPTH, MAX_FILE_BYTES, MAX_VALUES, ParseError, Position, Positions, entry_path,
    escape, number, suggestion,
};

/// Errors of one text that are reported.
const MAX_ERRORS: usize = 50;

/// Longest excerpt of the input in a message, in characters.
const LONGEST_EXCERPT: usize = 64;

type Result<T> = std::result::Result<T, Stray>;

/// Parses a text: its message, or all its errors in their order.
pub(super) fn parse(
    file: &str,
    input: &[u8],
    descriptor: &MessageDescriptor,
) -> std::result::Result<Document, Vec<ParseError>> {
    let located = |stray: Stray| ParseError {
        file: file.to_owned(),
        line: stray.at.line,
        column: stray.at.column,
        message: stray.message,
    };
    let start = Position { line: 1, column: 1 };
    if input.len() > MAX_FILE_BYTES {
        let message = format!("file of {} bytes exceeds the maximum of {MAX_FILE_BYTES} bytes", input.len());
        return Err(vec![located(Stray { at: start, message })]);
    }
    let mut parser = Parser::new(input).map_err(|stray| vec![located(stray)])?;
    let outcome = parser.message(descriptor, None, 0);
    let mut errors = std::mem::take(&mut parser.errors);
    let message = match outcome {
        Ok(message) if errors.is_empty() => message,
        Ok(_) => return Err(errors.into_iter().map(located).collect()),
        Err(last) => {
            errors.push(last);
            return Err(errors.into_iter().map(located).collect());
        }
    };
    let mut places = BTreeMap::new();
    for (path, place, keep) in parser.places {
        match keep {
            Keep::First => {
                places.entry(path).or_insert(place);
            }
            Keep::Last => {
                places.insert(path, place);
            }
        }
    }
    Ok(Document { message, positions: Positions { file: file.to_owned(), places } })
}

/// Which of two positions with the same path counts: a repeated field's bare name means its first occurrence, an entry
/// of a map its last one, which is the one whose value counts.
#[derive(Clone, Copy)]
enum Keep {
    First,
    Last,
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token.
    token: Token<'a>,
    /// The path of the message being read, without a trailing dot.
    path: String,
    places: Vec<(String, FieldPosition, Keep)>,
    /// The errors so far; a text with errors gives no message.
    errors: Vec<Stray>,
}

impl<'a> Parser<'a> {
    fn new(input: &'a [u8]) -> Result<Parser<'a>> {
        let mut lexer = Lexer::new(input);
        let token = lexer.token()?;
        Ok(Parser { lexer, token, path: String::new(), places: Vec::new(), errors: Vec::new() })
    }

    fn take(&mut self) -> Result<Token<'a>> {
        let next = self.lexer.token()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn is_at(&self, symbol: u8) -> bool {
        self.token.kind == Kind::Symbol(symbol)
    }

    fn accept(&mut self, symbol: u8) -> Result<bool> {
        let accepted = self.is_at(symbol);
        if accepted {
            self.take()?;
        }
        Ok(accepted)
    }

    fn expected<T>(&self, what: impl AsRef<str>) -> Result<T> {
        Err(Stray { at: self.token.at, message: format!("expected {}, got {}", what.as_ref(), excerpt(&self.token)) })
    }

    fn place(&mut self, path: String, place: FieldPosition, keep: Keep) -> Result<()> {
        if self.places.len() >= MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values");
            return Err(Stray { at: place.field, message });
        }
        self.places.push((path, place, keep));
        Ok(())
    }

    /// Reads the fields of a message up to `close`, or up to the end of the file where there is none.
    fn message(&mut self, descriptor: &MessageDescriptor, close: Option<u8>, depth: usize) -> Result<DynamicMessage> {
        if depth > MAX_DEPTH {
            return Err(Stray {
                at: self.token.at,
                message: format!("messages are nested deeper than {MAX_DEPTH} levels"),
            });
        }
        let mut fields = Fields { message: DynamicMessage::new(descriptor.clone()), seen: BTreeMap::new() };
        loop {
            match (self.token.kind, close) {
                (Kind::End, None) => return Ok(fields.message),
                (Kind::Symbol(symbol), Some(close)) if symbol == close => {
                    self.take()?;
                    return Ok(fields.message);
                }
                (Kind::Identifier, _) => {
                    let (behind_name, outer) = (self.lexer, self.path.len());
                    if let Err(stray) = self.field(&mut fields, depth) {
                        self.path.truncate(outer);
                        self.recover(stray, Some(behind_name))?;
                    }
                }
                (found, close) => {
                    let wanted = match (found, close) {
                        (Kind::Symbol(b'['), _) => "a field name (extensions and Any are not supported)".to_owned(),
                        (_, None) => "a field name".to_owned(),
                        (_, Some(close)) => format!("a field name or '{}'", char::from(close)),
                    };
                    let Err(stray) = self.expected::<()>(wanted) else { continue };
                    self.recover(stray, None)?;
                }
            }
        }
    }

    fn field(&mut self, fields: &mut Fields, depth: usize) -> Result<()> {
        let name = self.take()?;
        let descriptor = fields.message.descriptor();
        let field = find_field(&descriptor, &name)?;
        let colon = self.accept(b':')?;
        if !colon && !matches!(field.kind(), Type::Message(_)) {
            return self.expected(format!("':' after {}", field.name()));
        }
        let outer = self.path.len();
        if outer > 0 {
            self.path.push('.');
        }
        self.path.push_str(field.name());
        if field.is_list() || field.is_map() {
            let place = FieldPosition { field: name.at, value: self.token.at };
            self.place(self.path.clone(), place, Keep::First)?;
            self.repeated(fields, &field, name.at, depth)?;
        } else {
            fields.claim(&field, name.at)?;
            if self.is_at(b'[') {
                return self.expected(format!("one value, because {} is not repeated", field.name()));
            }
            self.place(self.path.clone(), FieldPosition { field: name.at, value: self.token.at }, Keep::Last)?;
            let at = self.token.at;
            let value = self.value(&field, depth)?;
            fields.set(&field, value, at)?;
        }
        self.path.truncate(outer);
        if !self.accept(b';')? {
            self.accept(b',')?;
        }
        Ok(())
    }

    fn repeated(&mut self, fields: &mut Fields, field: &FieldDescriptor, name: Position, depth: usize) -> Result<()> {
        if !self.accept(b'[')? {
            return self.element(fields, field, Some(name), depth);
        }
        if self.accept(b']')? {
            return Ok(());
        }
        loop {
            self.element(fields, field, None, depth)?;
            if self.accept(b']')? {
                return Ok(());
            }
            if !self.accept(b',')? {
                return self.expected("',' or ']'");
            }
        }
    }

    /// One element of a list or one entry of a map; `name` is the place of the field's name where it was written for
    /// this element alone.
    fn element(
        &mut self,
        fields: &mut Fields,
        field: &FieldDescriptor,
        name: Option<Position>,
        depth: usize,
    ) -> Result<()> {
        let at = self.token.at;
        let place = FieldPosition { field: name.unwrap_or(at), value: at };
        let outer = self.path.len();
        if field.is_map() {
            let first = self.places.len();
            self.path.push_str("[]");
            let value = self.value(field, depth)?;
            let pending = self.path.clone();
            self.path.truncate(outer);
            let (key, value) = entry(field, value, at)?;
            let path = entry_path(&self.path, &key);
            for (inner, _, _) in self.places.iter_mut().skip(first) {
                rename(inner, &pending, &path);
            }
            self.place(path, place, Keep::Last)?;
            if let Value::Map(entries) = fields.message.get_field_mut(field) {
                entries.insert(key, value);
            }
            return Ok(());
        }
        let index = match fields.message.get_field_mut(field) {
            Value::List(values) => values.len(),
            _ => 0,
        };
        self.path.push_str(&format!("[{index}]"));
        self.place(self.path.clone(), place, Keep::Last)?;
        let value = self.value(field, depth)?;
        self.path.truncate(outer);
        if let Value::List(values) = fields.message.get_field_mut(field) {
            values.push(value);
        }
        Ok(())
    }

    /// One value of the field's kind, whatever its cardinality.
    fn value(&mut self, field: &FieldDescriptor, depth: usize) -> Result<Value> {
        match field.kind() {
            Type::Message(descriptor) => {
                let close = match self.token.kind {
                    Kind::Symbol(b'{') => b'}',
                    Kind::Symbol(b'<') => b'>',
                    _ => return self.expected(format!("'{{' to begin {}", field.name())),
                };
                self.take()?;
                Ok(Value::Message(self.message(&descriptor, Some(close), depth + 1)?))
            }
            Type::String => {
                let at = self.token.at;
                let text = String::from_utf8(self.string(field)?);
                let not_utf8 = |_| Stray { at, message: format!("the value of {} is not valid UTF-8", field.name()) };
                Ok(Value::String(text.map_err(not_utf8)?))
            }
            Type::Bytes => Ok(Value::Bytes(Bytes::from(self.string(field)?))),
            Type::Bool => self.boolean(field),
            Type::Enum(descriptor) => self.enumerator(field, &descriptor),
            kind => self.number(field, &kind),
        }
    }

    /// Adjacent literals are one string.
    fn string(&mut self, field: &FieldDescriptor) -> Result<Vec<u8>> {
        if self.token.kind != Kind::String {
            return self.expected(format!("a quoted string for {}", field.name()));
        }
        let mut out = Vec::new();
        while self.token.kind == Kind::String {
            let token = self.take()?;
            escape::unescape(token.text, &mut out).map_err(|message| Stray { at: token.at, message })?;
        }
        Ok(out)
    }

    fn boolean(&mut self, field: &FieldDescriptor) -> Result<Value> {
        let value = match (self.token.kind, self.token.text) {
            (Kind::Identifier, b"true" | b"True" | b"t") => true,
            (Kind::Identifier, b"false" | b"False" | b"f") => false,
            (Kind::Integer, text) => match number::magnitude(text) {
                Ok(0) => false,
                Ok(1) => true,
                _ => return self.expected(format!("true or false for {}", field.name())),
            },
            _ => return self.expected(format!("true or false for {}", field.name())),
        };
        self.take()?;
        Ok(Value::Bool(value))
    }

    /// A name or a number. A number without a name is refused: it has no meaning here, and protobuf would pass it on as
    /// an unknown value.
    fn enumerator(&mut self, field: &FieldDescriptor, descriptor: &EnumDescriptor) -> Result<Value> {
        let at = self.token.at;
        if self.token.kind == Kind::Identifier {
            let token = self.take()?;
            let name = String::from_utf8_lossy(token.text);
            return match descriptor.get_value_by_name(&name) {
                Some(value) => Ok(Value::EnumNumber(value.number())),
                None => {
                    let values: Vec<_> = descriptor.values().collect();
                    let near = suggestion(&name, values.iter().map(|value| value.name()));
                    let message = format!("{} is not a value of {}{near}", excerpt(&token), descriptor.name());
                    Err(Stray { at, message })
                }
            };
        }
        let negative = self.accept(b'-')?;
        if self.token.kind != Kind::Integer {
            return self.expected(format!("a value of {} for {}", descriptor.name(), field.name()));
        }
        let token = self.take()?;
        let number = number::signed(token.text, negative, 32)
            .ok()
            .and_then(|number| i32::try_from(number).ok())
            .filter(|number| descriptor.get_value(*number).is_some());
        match number {
            Some(number) => Ok(Value::EnumNumber(number)),
            None => {
                let sign = if negative { "-" } else { "" };
                let text = String::from_utf8_lossy(token.text);
                Err(Stray { at, message: format!("{sign}{text} is not a value of {}", descriptor.name()) })
            }
        }
    }

    fn number(&mut self, field: &FieldDescriptor, kind: &Type) -> Result<Value> {
        let at = self.token.at;
        let is_unsigned = matches!(kind, Type::Uint32 | Type::Fixed32 | Type::Uint64 | Type::Fixed64);
        if is_unsigned && self.is_at(b'-') {
            return Err(Stray { at, message: format!("Expected integer, got: - (for {})", field.name()) });
        }
        let negative = self.accept(b'-')?;
        let token = self.token;
        let failed = |message: String| Stray { at, message: format!("{}: {message}", field.name()) };
        let value = match (kind, token.kind) {
            (Type::Int32 | Type::Sint32 | Type::Sfixed32, Kind::Integer) => {
                let value = number::signed(token.text, negative, 32).map_err(failed)?;
                Value::I32(i32::try_from(value).unwrap_or_default())
            }
            (Type::Int64 | Type::Sint64 | Type::Sfixed64, Kind::Integer) => {
                Value::I64(number::signed(token.text, negative, 64).map_err(failed)?)
            }
            (Type::Uint32 | Type::Fixed32, Kind::Integer) => {
                let value = number::unsigned(token.text, negative, u32::MAX.into()).map_err(failed)?;
                Value::U32(u32::try_from(value).unwrap_or_default())
            }
            (Type::Uint64 | Type::Fixed64, Kind::Integer) => {
                Value::U64(number::unsigned(token.text, negative, u64::MAX).map_err(failed)?)
            }
            (Type::Float, Kind::Integer | Kind::Float) => {
                let value = number::float32(token.kind, token.text).map_err(failed)?;
                Value::F32(if negative { -value } else { value })
            }
            (Type::Double, Kind::Integer | Kind::Float) => {
                let value = number::float(token.kind, token.text).map_err(failed)?;
                Value::F64(if negative { -value } else { value })
            }
            (Type::Float | Type::Double, Kind::Identifier) => match number::float_word(token.text) {
                Some(value) => {
                    let value = if negative { -value } else { value };
                    if matches!(kind, Type::Float) { Value::F32(value as f32) } else { Value::F64(value) }
                }
                None => return self.expected(format!("a number for {}", field.name())),
            },
            (Type::Float | Type::Double, _) => return self.expected(format!("a number for {}", field.name())),
            // Protobuf's own text, which scripts search for.
            _ => {
                let message = format!("Expected integer, got: {} (for {})", self.token_as_written(), field.name());
                return Err(Stray { at: self.token.at, message });
            }
        };
        self.take()?;
        Ok(value)
    }
}

impl Parser<'_> {
    /// The next token, with its quotes if it has any.
    fn token_as_written(&self) -> String {
        match self.token.kind {
            Kind::End => "the end of the file".to_owned(),
            _ => excerpt_text(self.token.text),
        }
    }
}

/// A message being filled, and the positions of its singular fields: protobuf's own "has" is false for a scalar that
/// was set to its default.
struct Fields {
    message: DynamicMessage,
    seen: BTreeMap<u32, (String, Position)>,
}

impl Fields {
    /// Refuses a singular field's second occurrence, and a second member of a oneof.
    fn claim(&mut self, field: &FieldDescriptor, at: Position) -> Result<()> {
        if let Some((_, first)) = self.seen.get(&field.number()) {
            let message = format!("{} is already given at line {} and cannot be repeated", field.name(), first.line);
            return Err(Stray { at, message });
        }
        if let Some(oneof) = field.containing_oneof()
            && let Some((other, first)) = oneof.fields().find_map(|member| self.seen.get(&member.number()))
        {
            let message = format!(
                "{} excludes {other}, given at line {}: only one member of {} is allowed",
                field.name(),
                first.line,
                oneof.name()
            );
            return Err(Stray { at, message });
        }
        self.seen.insert(field.number(), (field.name().to_owned(), at));
        Ok(())
    }

    fn set(&mut self, field: &FieldDescriptor, value: Value, at: Position) -> Result<()> {
        self.message
            .try_set_field(field, value)
            .map_err(|_| Stray { at, message: format!("the value does not fit {}", field.name()) })
    }
}

fn find_field(descriptor: &MessageDescriptor, name: &Token<'_>) -> Result<FieldDescriptor> {
    let text = String::from_utf8_lossy(name.text);
    descriptor.get_field_by_name(&text).ok_or_else(|| {
        let fields: Vec<FieldDescriptor> = descriptor.fields().collect();
        let near = suggestion(&text, fields.iter().map(FieldDescriptor::name));
        let shown = excerpt_text(name.text);
        Stray { at: name.at, message: format!("unknown field \"{shown}\" in {}{near}", descriptor.name()) }
    })
}

/// Key and value of a map's entry message, each with its default where the entry leaves it out.
fn entry(field: &FieldDescriptor, entry: Value, at: Position) -> Result<(MapKey, Value)> {
    let misfit = || Stray { at, message: format!("the entry does not fit {}", field.name()) };
    let (Type::Message(descriptor), Value::Message(message)) = (field.kind(), entry) else {
        return Err(misfit());
    };
    let key = message.get_field(&descriptor.map_entry_key_field()).into_owned();
    let value = message.get_field(&descriptor.map_entry_value_field()).into_owned();
    Ok((key.into_map_key().ok_or_else(misfit)?, value))
}

/// Moves a path from under `pending` (an entry whose key was not known yet) to under `path`: the entry's value takes
/// the place of the entry itself.
fn rename(inner: &mut String, pending: &str, path: &str) {
    if let Some(rest) = inner.strip_prefix(pending) {
        *inner = format!("{path}{}", rest.strip_prefix(".value").unwrap_or(rest));
    }
}

fn excerpt(token: &Token<'_>) -> String {
    match token.kind {
        Kind::End => "the end of the file".to_owned(),
        Kind::Symbol(symbol) => format!("'{}'", char::from(symbol)),
        Kind::String => excerpt_text(token.text),
        _ => format!("\"{}\"", excerpt_text(token.text)),
    }
}

fn excerpt_text(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut shown: String = text.chars().take(LONGEST_EXCERPT).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
