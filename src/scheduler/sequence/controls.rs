//! Control inputs: they pass the place of a request in its sequence to the model (contract/schedulers.md section 3,
//! "Controls").
//!
//! No client sends these inputs. Their values are made once; a request gets windows on them, and only the id of its
//! sequence is written for it.

use smallvec::smallvec;

use nereid_memory::Slice;
use nereid_model_config::ModelSpec;
use nereid_request::{CorrelationId, DataType, InputTensor, Request, SEQUENCE_END, SEQUENCE_START, Shape, Text};
use nereid_wire::inference::ModelSequenceBatching;
use nereid_wire::inference::model_sequence_batching::Control as ControlConfig;
use nereid_wire::inference::model_sequence_batching::control::Kind;

pub(super) struct Controls {
    list: Vec<Control>,
    shape: Shape,
}

struct Control {
    name: Text,
    /// Its index, after the model's own inputs.
    index: usize,
    datatype: DataType,
    content: Content,
}

enum Content {
    /// Set to one of these: false, true.
    Flag(Kind, [Slice; 2]),
    Id,
}

impl Controls {
    pub fn new(spec: &ModelSpec, config: &ModelSequenceBatching) -> Controls {
        let list = config.control_input.iter().enumerate().filter_map(|(at, input)| {
            let control = input.control.first()?;
            let (datatype, content) = content(control)?;
            let index = spec.inputs.len() + at;
            Some(Control { name: Text::from(input.name.as_str()), index, datatype, content })
        });
        let shape = if spec.is_batching() { Shape::from_slice(&[1, 1]) } else { Shape::from_slice(&[1]) };
        Controls { list: list.collect(), shape }
    }

    /// Adds the control inputs of a request: its flags, its id. `is_ready` is false for one that fills a slot.
    pub fn add(&self, request: &mut Request, is_ready: bool) {
        for control in &self.list {
            let data = match &control.content {
                Content::Id => id_bytes(&request.correlation_id, control.datatype),
                Content::Flag(kind, [no, yes]) => {
                    let holds = match kind {
                        Kind::ControlSequenceStart => request.flags & SEQUENCE_START != 0,
                        Kind::ControlSequenceEnd => request.flags & SEQUENCE_END != 0,
                        _ => is_ready,
                    };
                    if holds { yes.clone() } else { no.clone() }
                }
            };
            request.inputs.push(InputTensor {
                model_shape: self.shape.clone(),
                data: smallvec![data],
                index: control.index,
                ..InputTensor::new(control.name.clone(), control.datatype, self.shape.clone())
            });
        }
    }
}

/// `None` for a control that the configuration's checks refuse.
fn content(control: &ControlConfig) -> Option<(DataType, Content)> {
    let kind = control.kind();
    if kind == Kind::ControlSequenceCorrid {
        let datatype = u32::try_from(i32::from(control.data_type())).ok().and_then(DataType::from_number)?;
        return Some((datatype, Content::Id));
    }
    let flag = |datatype, no: &[u8], yes: &[u8]| {
        Some((datatype, Content::Flag(kind, [Slice::copy_of(no), Slice::copy_of(yes)])))
    };
    if let [no, yes] = control.int32_false_true[..] {
        flag(DataType::Int32, &no.to_le_bytes(), &yes.to_le_bytes())
    } else if let [no, yes] = control.fp32_false_true[..] {
        flag(DataType::Fp32, &no.to_le_bytes(), &yes.to_le_bytes())
    } else if let [no, yes] = control.bool_false_true[..] {
        flag(DataType::Bool, &[u8::from(no)], &[u8::from(yes)])
    } else {
        None
    }
}

/// The id in the type of the model's input: low bytes of the number, or the text with its length in front.
fn id_bytes(id: &CorrelationId, datatype: DataType) -> Slice {
    if datatype == DataType::Bytes {
        let text = if id.is_in_sequence() { id.to_string().into_bytes() } else { Vec::new() };
        // Texts keep their bytes.
        let bytes = if let CorrelationId::Text(text) = id { text.as_bytes() } else { &text };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let bytes = bytes.get(..length as usize).unwrap_or(bytes);
        return Slice::copy_of(&[&length.to_le_bytes(), bytes].concat());
    }
    let number = if let CorrelationId::Number(number) = id { *number } else { 0 };
    let bytes = number.to_le_bytes();
    Slice::copy_of(bytes.get(..datatype.byte_size()).unwrap_or(&bytes))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{model, request};
    use super::*;

    fn added(batching: u32, control: &str, change: impl FnOnce(&mut Request), is_ready: bool) -> InputTensor {
        let (spec, config) = model(&format!(
            "max_batch_size: {batching} sequence_batching {{ control_input {{ name: \"C\" control {{ {control} }} }} }}"
        ));
        let mut request = request(1);
        request.inputs.clear();
        change(&mut request);
        Controls::new(&spec, &config).add(&mut request, is_ready);
        assert_eq!(request.inputs[0].index, spec.inputs.len(), "behind the model's own");
        request.inputs.remove(0)
    }

    #[test]
    fn flags_in_every_type() {
        let start = |request: &mut Request| request.flags = SEQUENCE_START;
        let end = |request: &mut Request| request.flags = SEQUENCE_END;
        let both = |request: &mut Request| request.flags = SEQUENCE_START | SEQUENCE_END;
        let none = |_: &mut Request| {};
        type Change = fn(&mut Request);
        let cases: [(&str, Change, bool, DataType, &[u8]); 9] = [
            (
                "kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, -4 ]",
                start,
                true,
                DataType::Int32,
                &[252, 255, 255, 255],
            ),
            ("kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, -4 ]", end, true, DataType::Int32, &[3, 0, 0, 0]),
            ("kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ]", both, true, DataType::Fp32, &[0, 0, 128, 63]),
            ("kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ]", both, true, DataType::Fp32, &[0, 0, 128, 63]),
            ("kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ]", end, true, DataType::Bool, &[1]),
            ("kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ]", start, true, DataType::Bool, &[0]),
            ("kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ]", none, true, DataType::Bool, &[1]),
            ("kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ]", none, true, DataType::Bool, &[0]),
            ("kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ]", start, false, DataType::Int32, &[0, 0, 0, 0]),
        ];
        for (control, change, is_ready, datatype, bytes) in cases {
            let tensor = added(0, control, change, is_ready);
            assert_eq!((tensor.datatype, &tensor.shape[..]), (datatype, &[1][..]), "{control}");
            assert_eq!(&tensor.data[0][..], bytes, "{control}");
        }
        let batched = added(4, "kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ]", none, true);
        assert_eq!((&batched.shape[..], &batched.model_shape[..]), (&[1, 1][..], &[1, 1][..]));
    }

    #[test]
    fn ids_in_every_type() {
        let number = 0x0102_0304_0506_0708u64;
        let low = [8, 7, 6, 5];
        for (config, datatype, bytes) in [
            ("TYPE_UINT64", DataType::Uint64, &number.to_le_bytes()[..]),
            ("TYPE_INT64", DataType::Int64, &number.to_le_bytes()[..]),
            ("TYPE_UINT32", DataType::Uint32, &low[..]),
            ("TYPE_INT32", DataType::Int32, &low[..]),
        ] {
            let control = format!("kind: CONTROL_SEQUENCE_CORRID data_type: {config}");
            let tensor = added(0, &control, |request| request.correlation_id = CorrelationId::Number(number), true);
            assert_eq!((tensor.datatype, &tensor.data[0][..]), (datatype, bytes), "{config}");
        }
        let text = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING";
        let of = |id: CorrelationId| added(0, text, |request| request.correlation_id = id, true).data[0].to_vec();
        assert_eq!(of(CorrelationId::Text(Text::new(b"\xff!"))), b"\x02\0\0\0\xff!");
        assert_eq!(of(CorrelationId::None), [0; 4], "as for a slot without a request");
        assert_eq!(of(CorrelationId::Number(12)), b"\x02\0\0\x0012", "of a generated id");
    }
}
