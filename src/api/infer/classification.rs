//! Classification extension: an output turned into its best classes, labelled (contract/http.md section 5).

use smallvec::smallvec;

use super::contiguous;
use crate::memory::{Exhausted, Held, Pool};
use crate::model_config::labels::Labels;
use crate::request::{DataType, OutputTensor, Shape, Status, element_count};

/// Elements of one batch item beyond which Triton refuses to sort.
const ITEM_ELEMENTS_MAX: usize = 1_000_000;
/// Bytes of most encoded classes.
const LIKELY_BYTES: usize = 24;

/// Replaces `output` by a BYTES tensor of `"<value>:<index>[:<label>]"`, the `count` greatest values of each batch
/// item in descending order.
pub fn classify(
    output: &OutputTensor,
    count: usize,
    batching: bool,
    labels: Option<&Labels>,
    pool: &Pool,
) -> Result<OutputTensor, Status> {
    let batched = batching && !output.shape.is_empty();
    let batch = if batched { usize::try_from(output.shape[0]).unwrap_or(0) } else { 1 };
    let item = element_count(&output.shape[usize::from(batched)..]).and_then(|count| usize::try_from(count).ok());
    let item = item.unwrap_or(0);
    if item > ITEM_ELEMENTS_MAX {
        return Err(Status::invalid("classification output tensor too large"));
    }
    let best = count.min(item);
    let data = contiguous(output, pool)?;
    let mut encoded = Encoded { bytes: Vec::new(), held: None };
    encoded.make_room(batch.saturating_mul(best).saturating_mul(LIKELY_BYTES), pool)?;
    let width = Values::width(output.datatype)?;
    let mut order: Vec<usize> = Vec::new();
    for row in 0..batch {
        // An item is no longer than what is sorted, so its copy in the widest type is bounded too.
        let values = data.get(row * item * width..(row + 1) * item * width).unwrap_or_default();
        let values = Values::of(output.datatype, values)?;
        order.clear();
        order.extend(0..item);
        // Equal ones keep their order. Those that are not asked for need no order at all.
        let by_value = |a: &usize, b: &usize| values.compare(*b, *a).then(a.cmp(b));
        if best < item {
            order.select_nth_unstable_by(best, by_value);
            order.truncate(best);
        }
        order.sort_unstable_by(by_value);
        for &class in &order {
            let mut text = values.format(class);
            text.push_str(&format!(":{class}"));
            let mut text = text.into_bytes();
            if let Some(label) = labels.and_then(|labels| labels.get(class)).filter(|label| !label.is_empty()) {
                text.push(b':');
                text.extend_from_slice(label);
            }
            encoded.make_room(4 + text.len(), pool)?;
            encoded.bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            encoded.bytes.extend_from_slice(&text);
        }
    }
    let mut block = pool.get(encoded.bytes.len())?;
    block.copy_from_slice(&encoded.bytes);
    let shape: Shape = if batched { smallvec![batch as i64, best as i64] } else { smallvec![best as i64] };
    let name = output.name.clone();
    Ok(OutputTensor {
        name,
        datatype: DataType::Bytes,
        shape,
        data: smallvec![block.freeze()],
        index: output.index,
        on_device: None,
    })
}

/// The strings so far: how many bytes they come to is known at the end.
struct Encoded {
    bytes: Vec<u8>,
    held: Option<Held>,
}

impl Encoded {
    fn make_room(&mut self, more: usize, pool: &Pool) -> Result<(), Exhausted> {
        if self.bytes.capacity() - self.bytes.len() < more {
            let wanted = self.bytes.len().saturating_add(more.max(self.bytes.len()));
            self.held = Some(pool.hold(wanted)?);
            let more = wanted - self.bytes.len();
            self.bytes.try_reserve_exact(more).map_err(|_| Exhausted::of_system(more))?;
        }
        Ok(())
    }
}

fn unsupported(datatype: DataType) -> Status {
    Status::invalid(format!("class result not available for output due to unsupported type '{datatype}'"))
}

/// The elements of a batch item in the widest type of their kind.
enum Values {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Real(Vec<f64>),
}

impl Values {
    /// Bytes of an element.
    fn width(datatype: DataType) -> Result<usize, Status> {
        match datatype {
            DataType::Bool | DataType::Fp16 | DataType::Bytes | DataType::Bf16 => Err(unsupported(datatype)),
            datatype => Ok(datatype.byte_size()),
        }
    }

    fn of(datatype: DataType, bytes: &[u8]) -> Result<Values, Status> {
        macro_rules! read {
            ($kind:ident, $from:ty as $to:ty) => {
                Values::$kind(
                    bytes
                        .as_chunks::<{ size_of::<$from>() }>()
                        .0
                        .iter()
                        .map(|raw| <$from>::from_le_bytes(*raw) as $to)
                        .collect(),
                )
            };
        }
        Ok(match datatype {
            DataType::Uint8 => read!(Unsigned, u8 as u64),
            DataType::Uint16 => read!(Unsigned, u16 as u64),
            DataType::Uint32 => read!(Unsigned, u32 as u64),
            DataType::Uint64 => read!(Unsigned, u64 as u64),
            DataType::Int8 => read!(Signed, i8 as i64),
            DataType::Int16 => read!(Signed, i16 as i64),
            DataType::Int32 => read!(Signed, i32 as i64),
            DataType::Int64 => read!(Signed, i64 as i64),
            DataType::Fp32 => read!(Real, f32 as f64),
            DataType::Fp64 => read!(Real, f64 as f64),
            DataType::Bool | DataType::Fp16 | DataType::Bytes | DataType::Bf16 => return Err(unsupported(datatype)),
        })
    }

    /// NaN counts as the least value, so that it never hides a real one.
    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        match self {
            Values::Signed(values) => values.get(a).cmp(&values.get(b)),
            Values::Unsigned(values) => values.get(a).cmp(&values.get(b)),
            Values::Real(values) => {
                let rank = |at: usize| values.get(at).copied().filter(|value| !value.is_nan());
                rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal)
            }
        }
    }

    /// As C's `%f` and `%d` print it.
    fn format(&self, at: usize) -> String {
        match self {
            Values::Signed(values) => values.get(at).map_or_else(String::new, i64::to_string),
            Values::Unsigned(values) => values.get(at).map_or_else(String::new, u64::to_string),
            Values::Real(values) => match values.get(at) {
                Some(value) if value.is_nan() => (if value.is_sign_negative() { "-nan" } else { "nan" }).to_owned(),
                Some(value) => format!("{value:.6}"),
                None => String::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Slice;

    fn tensor(datatype: DataType, shape: &[i64], bytes: &[u8]) -> OutputTensor {
        let data = smallvec![Slice::copy_of(bytes)];
        OutputTensor { name: "p".into(), datatype, shape: Shape::from_slice(shape), data, index: 0, on_device: None }
    }

    fn strings(output: &OutputTensor) -> Vec<String> {
        let (mut bytes, mut all) = (output.data[0].to_vec(), Vec::new());
        while bytes.len() >= 4 {
            let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            all.push(String::from_utf8(bytes[4..4 + length].to_vec()).unwrap());
            bytes.drain(..4 + length);
        }
        all
    }

    #[test]
    fn the_best_classes_come_first_with_their_labels() {
        let values: Vec<u8> = [0.25f32, 0.5, f32::NAN, 1e3].iter().flat_map(|value| value.to_le_bytes()).collect();
        let labels = Labels::from_text(b"a\nb\n".to_vec());
        let pool = Pool::new(1 << 20);
        let flat = classify(&tensor(DataType::Fp32, &[4], &values), 9, false, Some(&labels), &pool).unwrap();
        assert_eq!(flat.shape.as_slice(), [4]);
        assert_eq!(strings(&flat), ["1000.000000:3", "0.500000:1:b", "0.250000:0:a", "nan:2"]);
        let rows = classify(&tensor(DataType::Fp32, &[2, 2], &values), 1, true, Some(&labels), &pool).unwrap();
        assert_eq!(rows.shape.as_slice(), [2, 1]);
        assert_eq!(strings(&rows), ["0.500000:1:b", "1000.000000:1:b"]);
    }

    #[test]
    fn integers_print_as_integers_and_other_types_are_refused() {
        let pool = Pool::new(1 << 20);
        let ints = tensor(DataType::Int8, &[3], &[1, 0xff, 5]);
        assert_eq!(strings(&classify(&ints, 2, false, None, &pool).unwrap()), ["5:2", "1:0"]);
        let error = classify(&tensor(DataType::Fp16, &[1], &[0, 0]), 1, false, None, &pool).unwrap_err();
        assert_eq!(error.message, "class result not available for output due to unsupported type 'FP16'");
    }
}
