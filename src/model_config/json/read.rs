//! JSON as a message, guided by its descriptor.

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value,
};
use serde_json::Number;

use super::super::text::suggestion;
use super::ReadError;
use super::lenient::{Json, parse};

type Result<T> = std::result::Result<T, ReadError>;

pub(super) fn read(text: &[u8], descriptor: &MessageDescriptor) -> Result<DynamicMessage> {
    // The parser bounds the nesting, and with it the recursion below.
    let json = parse(text).map_err(|message| ReadError { path: String::new(), message })?;
    Reader { path: String::new() }.message(&json, descriptor)
}

struct Reader {
    path: String,
}

impl Reader {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(ReadError { path: self.path.clone(), message: message.into() })
    }

    fn expected<T>(&self, what: &str, json: &Json) -> Result<T> {
        let got = match json {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        };
        self.fail(format!("expected {what}, got {got}"))
    }

    /// Runs `read` one step further down the path.
    fn within<T>(&mut self, step: &str, read: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let outer = self.path.len();
        if outer > 0 && !step.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(step);
        let result = read(self);
        self.path.truncate(outer);
        result
    }

    fn message(&mut self, json: &Json, descriptor: &MessageDescriptor) -> Result<DynamicMessage> {
        let mut message = DynamicMessage::new(descriptor.clone());
        self.merge(json, &mut message)?;
        Ok(message)
    }

    /// Adds the members of an object to a message. A repeated member is merged, added to a list, or replaces the
    /// earlier one.
    fn merge(&mut self, json: &Json, message: &mut DynamicMessage) -> Result<()> {
        let Json::Object(members) = json else {
            return self.expected("an object", json);
        };
        let descriptor = message.descriptor();
        let mut chosen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, value) in members {
            let Some(field) = descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name))
            else {
                let fields: Vec<FieldDescriptor> = descriptor.fields().collect();
                let near = suggestion(name, fields.iter().map(FieldDescriptor::name));
                return self.fail(format!("unknown field \"{name}\" in {}{near}", descriptor.name()));
            };
            if *value == Json::Null {
                continue;
            }
            if let Some(oneof) = field.containing_oneof()
                && let Some(other) = chosen.insert(oneof.full_name().to_owned(), name)
            {
                return self.fail(format!("\"{name}\" excludes \"{other}\": only one of them is allowed"));
            }
            self.within(field.name(), |reader| reader.field(value, &field, message))?;
        }
        Ok(())
    }

    fn field(&mut self, json: &Json, field: &FieldDescriptor, message: &mut DynamicMessage) -> Result<()> {
        if field.is_map() {
            let Json::Object(members) = json else {
                return self.expected("an object", json);
            };
            return match message.get_field_mut(field) {
                Value::Map(entries) => self.entries(members, field, entries),
                _ => self.fail("not a map"),
            };
        }
        if field.is_list() {
            return match message.get_field_mut(field) {
                Value::List(values) => self.elements(json, field, values),
                _ => self.fail("not a list"),
            };
        }
        if let (Kind::Message(_), Value::Message(inner)) = (field.kind(), message.get_field_mut(field)) {
            return self.merge(json, inner);
        }
        let value = self.value(json, &field.kind())?;
        match message.try_set_field(field, value) {
            Ok(()) => Ok(()),
            Err(_) => self.fail(format!("the value does not fit {}", field.name())),
        }
    }

    /// Adds to a list: the elements of an array, those of arrays in it, or one value that stands for a list of one.
    fn elements(&mut self, json: &Json, field: &FieldDescriptor, values: &mut Vec<Value>) -> Result<()> {
        match json {
            Json::Array(elements) => elements.iter().try_for_each(|element| self.elements(element, field, values)),
            Json::Null => Ok(()),
            element => {
                let step = format!("[{}]", values.len());
                values.push(self.within(&step, |reader| reader.value(element, &field.kind()))?);
                Ok(())
            }
        }
    }

    fn entries(
        &mut self,
        members: &[(String, Json)],
        field: &FieldDescriptor,
        entries: &mut HashMap<MapKey, Value>,
    ) -> Result<()> {
        let Kind::Message(entry) = field.kind() else {
            return self.fail("not a map");
        };
        let (key_kind, value_field) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field());
        for (name, member) in members {
            let (key, value) = self.within(&format!("[{name:?}]"), |reader| {
                let key = match &key_kind {
                    Kind::String => MapKey::String(name.clone()),
                    Kind::Bool => MapKey::Bool(match name.as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return reader.fail("expected \"true\" or \"false\" as key"),
                    }),
                    kind => match reader.integer(&Json::String(name.clone()), kind)?.into_map_key() {
                        Some(key) => key,
                        None => return reader.fail("not a key"),
                    },
                };
                let value = match member {
                    Json::Null => Value::default_value_for_field(&value_field),
                    member => reader.value(member, &value_field.kind())?,
                };
                if entries.contains_key(&key) {
                    return reader.fail(format!("Repeated map key: '{name}' is already set."));
                }
                Ok((key, value))
            })?;
            entries.insert(key, value);
        }
        Ok(())
    }

    fn value(&mut self, json: &Json, kind: &Kind) -> Result<Value> {
        match kind {
            Kind::Message(descriptor) => Ok(Value::Message(self.message(json, descriptor)?)),
            Kind::String => match json {
                Json::String(text) => Ok(Value::String(text.clone())),
                _ => self.expected("a string", json),
            },
            Kind::Bool => match json {
                Json::Bool(value) => Ok(Value::Bool(*value)),
                Json::String(text) if text == "true" => Ok(Value::Bool(true)),
                Json::String(text) if text == "false" => Ok(Value::Bool(false)),
                _ => self.expected("a boolean", json),
            },
            Kind::Enum(descriptor) => self.enumerator(json, descriptor),
            Kind::Double => Ok(Value::F64(self.double(json)?)),
            Kind::Float => {
                let value = self.double(json)?;
                let narrow = value as f32;
                if value.is_finite() && narrow.is_infinite() {
                    return self.fail(format!("{value:e} is out of range"));
                }
                Ok(Value::F32(narrow))
            }
            Kind::Bytes => self.fail("bytes are not supported"),
            kind => self.integer(json, kind),
        }
    }

    fn enumerator(&self, json: &Json, descriptor: &EnumDescriptor) -> Result<Value> {
        let numbered = |number: &Number| {
            number.as_i64().and_then(|number| i32::try_from(number).ok()).and_then(|n| descriptor.get_value(n))
        };
        let found = match json {
            Json::String(name) => {
                let plain = name.replace('-', "_");
                let named = descriptor.values().find(|value| value.name().eq_ignore_ascii_case(&plain));
                named.or_else(|| numbered(&number_in(name)?))
            }
            Json::Number(number) => numbered(number),
            _ => return self.expected(&format!("a value of {}", descriptor.name()), json),
        };
        if let Some(value) = found {
            return Ok(Value::EnumNumber(value.number()));
        }
        let values: Vec<_> = descriptor.values().collect();
        let near = match json {
            Json::String(name) => suggestion(name, values.iter().map(|value| value.name())),
            _ => String::new(),
        };
        self.fail(format!("{json} is not a value of {}{near}", descriptor.name()))
    }

    fn double(&self, json: &Json) -> Result<f64> {
        let text = match json {
            Json::Number(number) => match number.as_f64() {
                Some(value) => return Ok(value),
                None => return self.expected("a number", json),
            },
            Json::String(text) => text,
            _ => return self.expected("a number", json),
        };
        match text.as_str() {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            // Only a JSON number may stand in the string: Rust itself would also read "inf" or "+1".
            text => match number_in(text).and_then(|number| number.as_f64()) {
                Some(value) => Ok(value),
                None => self.fail(format!("\"{text}\" is not a number")),
            },
        }
    }

    /// A number or a string that holds one; with a fraction or an exponent too, if the value is whole.
    fn integer(&self, json: &Json, kind: &Kind) -> Result<Value> {
        let whole = match json {
            Json::Number(number) => whole(number),
            Json::String(text) => number_in(text).as_ref().and_then(whole),
            _ => return self.expected("an integer", json),
        };
        let Some(whole) = whole else {
            return self.fail(format!("{json} is not an integer"));
        };
        let value = match kind {
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => i32::try_from(whole).ok().map(Value::I32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => i64::try_from(whole).ok().map(Value::I64),
            Kind::Uint32 | Kind::Fixed32 => u32::try_from(whole).ok().map(Value::U32),
            Kind::Uint64 | Kind::Fixed64 => u64::try_from(whole).ok().map(Value::U64),
            _ => return self.expected("another kind of value", json),
        };
        match value {
            Some(value) => Ok(value),
            None => self.fail(format!("{whole} is out of range")),
        }
    }
}

/// The JSON number that a string holds, without blanks around it.
fn number_in(text: &str) -> Option<Number> {
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// The value of a number without a fraction.
fn whole(number: &Number) -> Option<i128> {
    if let Some(value) = number.as_i64() {
        return Some(value.into());
    }
    if let Some(value) = number.as_u64() {
        return Some(value.into());
    }
    // Beyond 2^64 no integer kind fits; below, the conversion is exact because the value is whole.
    number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 2e19).map(|value| value as i128)
}
