//! The core's checks of a request against its model (contract/http.md section 6), shared by every way in.
//!
//! In the specification's order, because clients see which check fails first. A request that passes is normalised:
//! outputs filled in, batch size counted, shapes in the model's form.

use smallvec::SmallVec;

use super::next_step::{self, unexpected_input, unexpected_output};
use nereid_memory::Slice;
use nereid_model_config::{ModelSpec, TensorSpec, tensors_max};
use nereid_request::{
    CorrelationId, DataType, InputTensor, Request, RequestedOutput, Shape, Status, Text, element_count, format_shape,
};

/// Appended to a shape error of a batching model.
const BATCHING_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to \
                             be prepended to each input shape. If you want to specify the full shape including the \
                             batch dim in your input dims config, try setting max_batch_size to zero. See the model \
                             configuration docs for more info on max_batch_size.";

/// Checks and completes `request` for the model of `spec`.
pub fn validate(request: &mut Request, spec: &ModelSpec) -> Result<(), Status> {
    check(request, spec, true)
}

/// The same except for the strings of its inputs, which a [`StringsWalk`] checks.
pub fn validate_but_strings(request: &mut Request, spec: &ModelSpec) -> Result<(), Status> {
    check(request, spec, false)
}

fn check(request: &mut Request, spec: &ModelSpec, walks: bool) -> Result<(), Status> {
    outputs(request, spec)?;
    input_count(request, spec)?;
    batch_size(request, spec)?;
    for at in 0..request.inputs.len() {
        let shape = input_shape(request, at, spec)?;
        let input = &mut request.inputs[at];
        input.model_shape = shape;
        if walks || input.datatype != DataType::Bytes {
            check_contents(request, at, spec)?;
        }
    }
    correlation_id(request, spec)
}

/// A model with an input for the id of its sequences takes numbers or texts, not both.
fn correlation_id(request: &Request, spec: &ModelSpec) -> Result<(), Status> {
    let Some((name, expected)) = &spec.correlation_id_control else { return Ok(()) };
    let given = match &request.correlation_id {
        id if !id.is_in_sequence() => return Ok(()),
        CorrelationId::Text(_) => DataType::Bytes,
        _ => DataType::Uint64,
    };
    if (given == DataType::Bytes) == (*expected == DataType::Bytes.name()) {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "{}sequence batching control '{name}' data-type is '{given}', but model '{}' expects '{expected}'",
        request.log_id(),
        spec.name
    )))
}

/// The number of names not in the model, the first ones, that are compared with each other, so that a request gets the
/// same texts as from Triton. A request with more of them is refused before any two are compared.
const SURPLUS_MAX: usize = 16;

/// The inputs or outputs that a request has named so far: a bit for each that its model has.
#[derive(Debug, Default)]
pub struct NamedTensors {
    bits: SmallVec<[u64; 2]>,
    /// Names that the model does not have.
    surplus: SmallVec<[usize; 4]>,
}

impl NamedTensors {
    /// Records that the request's tensor `at` has this index in the model, if any. An error: it was named before.
    /// `is_same`: whether the request's tensor of that number has the same name.
    fn add(&mut self, at: usize, index: Option<usize>, is_same: impl Fn(usize) -> bool) -> Result<(), DuplicateName> {
        let Some(index) = index else {
            if self.surplus.iter().any(|&other| is_same(other)) {
                return Err(DuplicateName);
            }
            self.surplus.push(at);
            return Ok(());
        };
        let (word, bit) = (index / 64, 1u64 << (index % 64));
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        match self.bits.get_mut(word) {
            Some(word) if *word & bit != 0 => return Err(DuplicateName),
            Some(word) => *word |= bit,
            None => {}
        }
        Ok(())
    }

    fn has(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// More names that the model does not have than are compared.
    fn is_full(&self) -> bool {
        self.surplus.len() >= SURPLUS_MAX
    }
}

/// Error: a name was given before.
struct DuplicateName;

/// The number of inputs, or outputs, of one request that are read: no model of this process takes a request with more.
pub fn tensors_looked_at_max() -> usize {
    tensors_max().saturating_add(SURPLUS_MAX + 1)
}

/// Refuses a request that declares `count` inputs, many more than its model has, before any of them is read.
pub fn check_input_count(count: usize, request: &Request, spec: &ModelSpec) -> Result<(), Status> {
    if count <= spec.inputs.len().saturating_add(SURPLUS_MAX) {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "{}{} but got {count} inputs for model '{}'. Please give each of its inputs once.",
        request.log_id(),
        expected_inputs(spec),
        spec.name
    )))
}

/// Refuses a request for `count` outputs, many more than its model has, before any of them is read.
pub fn check_output_count(count: usize, request: &Request, spec: &ModelSpec) -> Result<(), Status> {
    let most = spec.outputs.len();
    if count <= most.saturating_add(SURPLUS_MAX) {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "{}request asks for {count} outputs, but model '{}' has {most}. Please name each of its outputs once.",
        request.log_id(),
        spec.name
    )))
}

/// Longer names are looked up only where a tensor of the model has a name of that length.
const HASHED_BYTES_MAX: usize = 4096;

/// Most parameters of one request: far more than any model uses.
pub const PARAMETERS_MAX: usize = 4096;

/// Refuses a request with too many parameters before any of them is read.
pub fn check_parameter_count(count: usize) -> Result<(), Status> {
    if count <= PARAMETERS_MAX {
        return Ok(());
    }
    let text = format!("request has {count} parameters, but at most {PARAMETERS_MAX} are taken. Please send fewer.");
    Err(Status::invalid(text))
}

fn expected_inputs(spec: &ModelSpec) -> String {
    let (required, most) = (spec.required_inputs(), spec.inputs.len());
    match required == most {
        true => format!("expected {most} inputs"),
        false => format!("expected number of inputs between {required} and {most}"),
    }
}

/// Adds an input; a name given twice is an error at once. Takes the same time however many were added before.
pub fn add_named_input<'a>(
    request: &'a mut Request,
    input: InputTensor,
    spec: &ModelSpec,
    named: &mut NamedTensors,
) -> Result<&'a mut InputTensor, Status> {
    let at = request.inputs.len();
    let index = position(&spec.inputs, at, &input.name, |name| spec.input_index(name));
    if index.is_none() && named.is_full() {
        return Err(unexpected_input(&input.name, spec));
    }
    let is_same = |other: usize| request.inputs.get(other).is_some_and(|other| other.name == input.name);
    if named.add(at, index, is_same).is_err() {
        return Err(Status::invalid(format!("{}input '{}' already exists in request", request.log_id(), input.name)));
    }
    request.inputs.push(input);
    Ok(&mut request.inputs[at])
}

/// Adds a requested output as [`add_named_input`] adds an input.
pub fn add_named_output(
    request: &mut Request,
    name: Text,
    spec: &ModelSpec,
    named: &mut NamedTensors,
) -> Result<(), Status> {
    let at = request.outputs.len();
    let index = position(&spec.outputs, at, &name, |name| spec.output_index(name));
    if index.is_none() && named.is_full() {
        return Err(unexpected_output(&name, spec));
    }
    let is_same = |other: usize| request.outputs.get(other).is_some_and(|other| other.name == name);
    if named.add(at, index, is_same).is_err() {
        return Err(Status::invalid(format!("{}output '{name}' already exists in request", request.log_id())));
    }
    request.outputs.push(RequestedOutput { name, index: 0 });
    Ok(())
}

/// Adds an input of a request that comes from inside the process; a name given twice is an error at once.
pub fn add_input(request: &mut Request, input: InputTensor) -> Result<&mut InputTensor, Status> {
    if request.inputs.iter().any(|other| other.name == input.name) {
        return Err(Status::invalid(format!("{}input '{}' already exists in request", request.log_id(), input.name)));
    }
    request.inputs.push(input);
    let last = request.inputs.len() - 1;
    Ok(&mut request.inputs[last])
}

/// Adds a requested output of such a request; a name given twice is an error at once.
pub fn add_output(request: &mut Request, name: Text) -> Result<(), Status> {
    if request.outputs.iter().any(|other| other.name == name) {
        return Err(Status::invalid(format!("{}output '{name}' already exists in request", request.log_id())));
    }
    request.outputs.push(RequestedOutput { name, index: 0 });
    Ok(())
}

/// Type and shape that the model implies for the one input of a raw request.
pub struct RawInput {
    pub datatype: DataType,
    pub shape: Shape,
    /// Of BYTES: the bytes are one element, and its length has to precede them.
    pub length: Option<u32>,
}

/// Deduces type and shape of a raw input of `byte_size` bytes (contract/http.md section 5, "Raw-binary mode";
/// contract/c_api.md, "Request inputs"). `id` is the prefix of messages.
pub fn raw_input(spec: &ModelSpec, id: &str, byte_size: usize) -> Result<RawInput, Status> {
    let [config] = &spec.inputs[..] else {
        return Err(Status::invalid(format!(
            "{id}Raw request must only have 1 input (found 1) to be deduced but got {} inputs in '{}' model \
             configuration",
            spec.inputs.len(),
            spec.name
        )));
    };
    let name = &config.name;
    let Some(datatype) = DataType::from_name(config.datatype.as_bytes()) else {
        return Err(Status::internal(format!("input '{name}' of model '{}' has no data type", spec.name)));
    };
    let batch = (spec.max_batch_size > 0).then_some(1);
    let mut shape: Shape = batch.into_iter().chain(config.dims.iter().copied()).collect();
    if datatype == DataType::Bytes {
        if config.dims != [1] {
            let text = format!("{id}For BYTE datatype raw input '{name}', the model must have input shape [1]");
            return Err(Status::invalid(text));
        }
        shape.iter_mut().for_each(|dim| *dim = 1);
        let length = u32::try_from(byte_size).map_err(|_| Status::invalid("raw input is too long for one string"))?;
        return Ok(RawInput { datatype, shape, length: Some(length) });
    }
    let mut open = shape.iter_mut().filter(|dim| **dim == -1);
    let (first, second) = (open.next(), open.next());
    if second.is_some() {
        return Err(Status::invalid(format!(
            "{id}The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized \
             dimension"
        )));
    }
    if let Some(open) = first {
        *open = 1;
        let fixed = shape.iter().try_fold(datatype.byte_size() as i64, |size, &dim| size.checked_mul(dim)).unwrap_or(0);
        let dim = if fixed > 0 { i64::try_from(byte_size).unwrap_or(i64::MAX) / fixed } else { 0 };
        let at = config.dims.iter().position(|&dim| dim == -1).unwrap_or(0) + usize::from(spec.max_batch_size > 0);
        if let Some(deduced) = shape.get_mut(at) {
            *deduced = dim;
        }
    }
    Ok(RawInput { datatype, shape, length: None })
}

fn outputs(request: &mut Request, spec: &ModelSpec) -> Result<(), Status> {
    if request.outputs.is_empty() {
        let all = spec.outputs.iter().enumerate();
        request.outputs.extend(all.map(|(index, output)| RequestedOutput { name: (&*output.name).into(), index }));
        return Ok(());
    }
    for (at, output) in request.outputs.iter_mut().enumerate() {
        output.index = position(&spec.outputs, at, &output.name, |name| spec.output_index(name))
            .ok_or_else(|| unexpected_output(&output.name, spec))?;
    }
    Ok(())
}

fn input_count(request: &mut Request, spec: &ModelSpec) -> Result<(), Status> {
    let required = spec.required_inputs();
    let (got, most) = (request.inputs.len(), spec.inputs.len());
    if got < required || got > most {
        let given: Vec<String> = request.inputs.iter().map(|input| format!("'{}'", input.name)).collect();
        let given = format!("[{}]", given.join(","));
        let mut named = NamedTensors::default();
        for (at, input) in request.inputs.iter().enumerate() {
            if let Some(index) = position(&spec.inputs, at, &input.name, |name| spec.input_index(name)) {
                // Here a duplicate does not matter.
                let _ = named.add(at, Some(index), |_| false);
            }
        }
        let absent = |(index, input): &(usize, &TensorSpec)| !input.optional && !named.has(*index);
        let missing = spec.inputs.iter().enumerate().filter(absent);
        let missing: Vec<String> = missing.map(|(_, input)| format!("'{}'", input.name)).collect();
        let missing = if missing.is_empty() { "]".to_owned() } else { format!("[{}]", missing.join(",")) };
        let expected = expected_inputs(spec);
        return Err(Status::invalid(format!(
            "{}{expected} but got {got} inputs for model '{}'. Got input(s) {given}, but missing required input(s) \
             {missing}. Please provide all required input(s).",
            request.log_id(),
            spec.name
        )));
    }
    for (at, input) in request.inputs.iter_mut().enumerate() {
        input.index = position(&spec.inputs, at, &input.name, |name| spec.input_index(name))
            .ok_or_else(|| unexpected_input(&input.name, spec))?;
    }
    Ok(())
}

/// The configuration's index of the tensor that a request names at `at`: most requests follow its order.
fn position(tensors: &[TensorSpec], at: usize, name: &Text, find: impl FnOnce(&str) -> Option<usize>) -> Option<usize> {
    let name = name.as_bytes();
    if tensors.get(at).is_some_and(|tensor| tensor.name.as_bytes() == name) {
        return Some(at);
    }
    // A name that no tensor can have is not hashed: it may have megabytes.
    if name.len() > HASHED_BYTES_MAX && !tensors.iter().any(|tensor| tensor.name.len() == name.len()) {
        return None;
    }
    std::str::from_utf8(name).ok().and_then(find)
}

fn batch_size(request: &mut Request, spec: &ModelSpec) -> Result<(), Status> {
    request.batch_size = 1;
    if spec.max_batch_size == 0 {
        return Ok(());
    }
    let mut batch = None;
    for input in &request.inputs {
        let Some(&rows) = input.shape.first() else {
            return Err(Status::invalid(format!(
                "{}input '{}' has no shape but model requires batch dimension for '{}'",
                request.log_id(),
                input.name,
                spec.name
            )));
        };
        if *batch.get_or_insert(rows) != rows {
            return Err(Status::invalid(format!(
                "{}input '{}' batch size does not match other inputs for '{}'",
                request.log_id(),
                input.name,
                spec.name
            )));
        }
    }
    // A negative first dimension is left to the shape check, which reports it.
    request.batch_size = u64::try_from(batch.unwrap_or(1)).unwrap_or(0);
    if request.batch_size > u64::from(spec.max_batch_size) {
        let (id, most) = (request.log_id(), spec.max_batch_size);
        return Err(Status::invalid(format!("{id}inference request batch-size must be <= {most} for '{}'", spec.name)));
    }
    Ok(())
}

/// The shape that the model sees, or why the request's shape does not fit.
fn input_shape(request: &Request, at: usize, spec: &ModelSpec) -> Result<Shape, Status> {
    let input = &request.inputs[at];
    let config = &spec.inputs[input.index];
    if config.datatype != input.datatype.name() {
        let expected = config.datatype;
        return Err(Status::invalid(format!(
            "{}inference input '{}' data-type is '{}', but model '{}' expects '{expected}'",
            request.log_id(),
            input.name,
            input.datatype,
            spec.name
        )));
    }
    let batching = spec.max_batch_size > 0;
    let rows = &input.shape[usize::from(batching).min(input.shape.len())..];
    let mut wildcards = Shape::new();
    let mut fits = rows.len() == config.dims.len();
    for (&dim, &expected) in rows.iter().zip(&config.dims) {
        match expected {
            // An open size is reported as such wherever it stands, any other negative size only where a size may be
            // any.
            _ if dim == -1 => return Err(unspecified(request, input, spec)),
            -1 if dim < 0 => return Err(unspecified(request, input, spec)),
            -1 => wildcards.push(dim),
            _ if expected != dim => {
                fits = false;
                break;
            }
            _ => {}
        }
    }
    if !fits {
        return Err(unexpected_shape(request, input, config, spec));
    }
    let batch = batching.then(|| input.shape[0]);
    if batch.is_some_and(|rows| rows < 0) {
        return Err(unspecified(request, input, spec));
    }
    let Some(reshape) = &config.reshape else { return Ok(input.shape.clone()) };
    let mut wildcards = wildcards.into_iter();
    let reshaped = reshape.iter().map(|&dim| if dim == -1 { wildcards.next().unwrap_or(dim) } else { dim });
    Ok(batch.into_iter().chain(reshaped).collect())
}

fn unspecified(request: &Request, input: &InputTensor, spec: &ModelSpec) -> Status {
    Status::invalid(format!(
        "{}All input dimensions should be specified for input '{}' for model '{}', got {}",
        request.log_id(),
        input.name,
        spec.name,
        format_shape(&input.shape)
    ))
}

fn unexpected_shape(request: &Request, input: &InputTensor, config: &TensorSpec, spec: &ModelSpec) -> Status {
    let batching = spec.max_batch_size > 0;
    next_step::log(|| next_step::shape_example(config, spec));
    let expected: Shape = batching.then_some(-1).into_iter().chain(config.dims.iter().copied()).collect();
    Status::invalid(format!(
        "{}unexpected shape for input '{}' for model '{}'. Expected {}, got {}. {}",
        request.log_id(),
        input.name,
        spec.name,
        format_shape(&expected),
        format_shape(&input.shape),
        if batching { BATCHING_NOTE } else { "" }
    ))
}

/// Checks that input `at` has the bytes that its type and its shape require. Strings on a device are not read: the code
/// that copies them to the host calls this again.
pub fn check_contents(request: &Request, at: usize, spec: &ModelSpec) -> Result<(), Status> {
    let input = &request.inputs[at];
    let Some(count) = element_count(&input.shape) else { return Err(unspecified(request, input, spec)) };
    if input.datatype == DataType::Bytes {
        if input.on_device().is_some() {
            return Ok(());
        }
        let walked = StringCursor::default().walk(&input.data, count as u64, &mut { usize::MAX });
        return walked.map(drop).map_err(|fault| fault.of(request, input, spec));
    }
    let expected = (count as u64).checked_mul(input.datatype.byte_size() as u64);
    let got = input.byte_size() as u64;
    if expected != Some(got) {
        let expected = expected.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
        return Err(Status::invalid(format!(
            "{}input byte size mismatch for input '{}' for model '{}'. Expected {expected}, got {got}",
            request.log_id(),
            input.name,
            spec.name
        )));
    }
    Ok(())
}

enum StringFault {
    Length { left: usize },
    Data { length: u32, left: usize },
    TooMany { found: u64 },
    TooFew { found: u64 },
}

impl StringFault {
    fn of(&self, request: &Request, input: &InputTensor, spec: &ModelSpec) -> Status {
        let of = format!("inference input '{}' for model '{}'", input.name, spec.name);
        let count = element_count(&input.shape).unwrap_or(0);
        Status::invalid(format!("{}{}", request.log_id(), self.describe(&of, count)))
    }

    fn describe(&self, of: &str, expected: i64) -> String {
        match self {
            StringFault::Length { left } => format!(
                "incomplete string length indicator for {of}, expecting 4 bytes but only {left} bytes available. \
                 Please make sure the string length indicator is in one buffer."
            ),
            StringFault::Data { length, left } => format!(
                "incomplete string data for {of}, expecting string of length {length} bytes but only {left} bytes \
                 available."
            ),
            StringFault::TooMany { found } => {
                format!("unexpected number of string elements {found} for {of}, expecting {expected}")
            }
            StringFault::TooFew { found } => format!("expected {expected} string elements for {of}, got {found}"),
        }
    }
}

/// A walk over the strings of all inputs of a request that passed the other checks, in portions.
#[derive(Debug, Default)]
pub struct StringsWalk {
    input: usize,
    strings: StringCursor,
}

impl StringsWalk {
    /// Passes at most `strings_max` strings; true when there are no more.
    pub fn step(&mut self, request: &Request, spec: &ModelSpec, mut strings_max: usize) -> Result<bool, Status> {
        while let Some(input) = request.inputs.get(self.input) {
            // Strings on a device are checked by the code that copies them to the host.
            if input.datatype == DataType::Bytes && input.on_device().is_none() {
                let count = element_count(&input.shape).unwrap_or(0) as u64;
                let walked = self.strings.walk(&input.data, count, &mut strings_max);
                if !walked.map_err(|fault| fault.of(request, input, spec))? {
                    return Ok(false);
                }
            }
            self.input += 1;
            self.strings = StringCursor::default();
        }
        Ok(true)
    }
}

/// A walk over length-prefixed strings, which may be scattered over pieces but not within a length indicator.
#[derive(Debug, Default)]
struct StringCursor {
    piece: usize,
    /// Offset of the next bytes in the piece.
    at: usize,
    found: u64,
    /// Bytes of the last string that are still to come, and its length.
    open: usize,
    last_length: u32,
}

impl StringCursor {
    /// Passes at most `left` strings; true at the end.
    fn walk(&mut self, pieces: &[Slice], expected: u64, left: &mut usize) -> Result<bool, StringFault> {
        while let Some(piece) = pieces.get(self.piece) {
            let mut rest: &[u8] = piece.get(self.at..).unwrap_or_default();
            while !rest.is_empty() {
                if self.open == 0 {
                    if *left == 0 {
                        self.at = piece.len() - rest.len();
                        return Ok(false);
                    }
                    *left -= 1;
                    let Some((length, tail)) = rest.split_first_chunk::<4>() else {
                        return Err(StringFault::Length { left: rest.len() });
                    };
                    self.found += 1;
                    if self.found > expected {
                        return Err(StringFault::TooMany { found: self.found });
                    }
                    self.last_length = u32::from_le_bytes(*length);
                    self.open = self.last_length as usize;
                    rest = tail;
                }
                let taken = self.open.min(rest.len());
                self.open -= taken;
                rest = &rest[taken..];
            }
            self.piece += 1;
            self.at = 0;
        }
        if self.open > 0 {
            return Err(StringFault::Data { length: self.last_length, left: self.last_length as usize - self.open });
        }
        if self.found < expected { Err(StringFault::TooFew { found: self.found }) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a walk says in the end, and how many portions it takes.
    fn walked(pieces: &[Slice], expected: u64, portion: usize) -> (Result<(), String>, usize) {
        let mut cursor = StringCursor::default();
        for portions in 1..100 {
            match cursor.walk(pieces, expected, &mut { portion }) {
                Ok(true) => return (Ok(()), portions),
                Ok(false) => {}
                Err(fault) => return (Err(fault.describe("it", expected as i64)), portions),
            }
        }
        panic!("no end in 100 portions");
    }

    #[test]
    fn strings_are_counted_in_any_pieces_and_portions() {
        let bytes = b"\x03\0\0\0abc\0\0\0\0\x02\0\0\0de";
        // Not within a length indicator.
        for cuts in [vec![], vec![4], vec![5], vec![7], vec![11], vec![15, 16], vec![6, 7, 16], vec![7, 7]] {
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let begins = [0].into_iter().chain(cuts.iter().copied());
            let pieces: Vec<Slice> = begins.zip(ends).map(|(from, to)| Slice::copy_of(&bytes[from..to])).collect();
            for (portion, portions) in [(1, 3), (2, 2), (3, 1), (usize::MAX, 1)] {
                assert_eq!(walked(&pieces, 3, portion), (Ok(()), portions), "{cuts:?} in portions of {portion}");
            }
            let (few, many) = (walked(&pieces, 4, 1).0.unwrap_err(), walked(&pieces, 2, 1).0.unwrap_err());
            assert_eq!(few, "expected 4 string elements for it, got 3");
            assert_eq!(many, "unexpected number of string elements 3 for it, expecting 2");
        }
        let short = [Slice::copy_of(&bytes[..9])];
        assert!(walked(&short, 2, 1).0.unwrap_err().contains("expecting 4 bytes but only 2 bytes available"));
        let short = [Slice::copy_of(&bytes[..4]), Slice::copy_of(&bytes[4..6])];
        let error = walked(&short, 1, 1).0.unwrap_err();
        assert!(error.contains("expecting string of length 3 bytes but only 2 bytes available"), "{error}");
        assert_eq!(walked(&[], 0, 1), (Ok(()), 1));
    }

    fn spec(max_batch_size: i32) -> ModelSpec {
        let text = format!(
            "name: \"m\" backend: \"identity\" max_batch_size: {max_batch_size}
             input {{ name: \"I\" data_type: TYPE_INT32 dims: [ 2, -1 ] }}
             output {{ name: \"O\" data_type: TYPE_INT32 dims: [ 2, -1 ] }}"
        );
        let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
        let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
        nereid_model_config::normalize::fill_defaults(&mut config);
        ModelSpec::new(config).unwrap()
    }

    #[test]
    fn a_raw_input_has_a_batch_of_one_where_the_model_batches() {
        for (max_batch_size, expected) in [(0, &[2, 3][..]), (1, &[1, 2, 3]), (8, &[1, 2, 3])] {
            let raw = raw_input(&spec(max_batch_size), "", 24).unwrap();
            assert_eq!(&raw.shape[..], expected, "max_batch_size {max_batch_size}");
        }
    }
}
