//! Classification extension: an output turned into its best classes, labelled (contract/http.md section 5).
//!
//! Sorting a million elements takes milliseconds, so that a [`Classifier`] works in steps: it sorts pieces of an item,
//! and merges what it has sorted as it writes the classes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use smallvec::smallvec;

use super::contiguous::contiguous;
use nereid_memory::{Charge, Exhausted, Pool, Slice};
use nereid_model_config::labels::Labels;
use nereid_request::{DataType, OutputTensor, Shape, Status, element_count};

/// Elements of one batch item beyond which Triton refuses to sort.
const ITEM_ELEMENTS_MAX: usize = 1_000_000;
/// Bytes of most encoded classes.
const LIKELY_BYTES: usize = 24;
/// Elements that one step sorts.
const STEP_ELEMENTS: usize = 8192;
/// As many elements are sorted in the time that it takes to write one class.
const ELEMENTS_PER_CLASS: usize = 8;

/// Replaces an output by a BYTES tensor of `"<value>:<index>[:<label>]"`, the greatest values of each batch item in
/// descending order.
pub struct Classifier {
    data: Slice,
    datatype: DataType,
    labels: Option<Arc<Labels>>,
    batched: bool,
    batch: usize,
    /// Elements of a batch item, and classes that are requested of each.
    item: usize,
    best: usize,
    row: usize,
    /// Elements of this row that are in one of the runs.
    sorted: usize,
    /// Elements of this row, the greatest first, in pieces of it.
    runs: Vec<Vec<u32>>,
    /// The greatest element that each run has left: its value, itself, the run, and where in the run.
    heads: BinaryHeap<(u64, Reverse<u32>, usize, usize)>,
    /// Classes of this row that are written.
    written: usize,
    encoded: Encoded,
}

impl Classifier {
    /// `count`: classes that are requested of each batch item.
    pub fn new(
        output: &OutputTensor,
        count: usize,
        batching: bool,
        labels: Option<&Arc<Labels>>,
        pool: &Pool,
    ) -> Result<Classifier, Status> {
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
        check_type(output.datatype)?;
        Ok(Classifier {
            data,
            datatype: output.datatype,
            labels: labels.cloned(),
            batched,
            batch: if best == 0 { 0 } else { batch },
            item,
            best,
            row: 0,
            sorted: 0,
            runs: Vec::new(),
            heads: BinaryHeap::new(),
            written: 0,
            encoded,
        })
    }

    /// Whether one step is enough.
    pub fn is_short(&self) -> bool {
        let elements = self.item.saturating_add(self.best.saturating_mul(ELEMENTS_PER_CLASS));
        self.batch.saturating_mul(elements) <= STEP_ELEMENTS
    }

    /// Works for a bounded time; true when all is done.
    pub fn step(&mut self, pool: &Pool) -> Result<bool, Status> {
        let mut left = STEP_ELEMENTS;
        while self.row < self.batch {
            if left == 0 {
                return Ok(false);
            }
            if self.sorted < self.item {
                left -= self.sort(left)?;
            } else if self.written < self.best {
                self.write(pool)?;
                left = left.saturating_sub(ELEMENTS_PER_CLASS);
            } else {
                (self.row, self.sorted, self.written) = (self.row + 1, 0, 0);
                self.runs.clear();
                self.heads.clear();
            }
        }
        Ok(true)
    }

    /// Sorts the next elements of the row, no more than `most`, and returns how many they are.
    fn sort(&mut self, most: usize) -> Result<usize, Status> {
        let count = most.min(self.item - self.sorted);
        let mut run: Vec<u32> = Vec::new();
        run.try_reserve_exact(count).map_err(|_| Exhausted::of_system(count * size_of::<u32>()))?;
        // An item has no more elements than fit.
        run.extend((self.sorted..self.sorted + count).map(|at| at as u32));
        // Equal ones keep their order. Those that are not requested need no order at all.
        let order = |at: &u32| (Reverse(self.rank(*at)), *at);
        if self.best < count {
            run.select_nth_unstable_by_key(self.best, order);
            run.truncate(self.best);
        }
        run.sort_unstable_by_key(order);
        if let Some(&first) = run.first() {
            self.heads.push((self.rank(first), Reverse(first), self.runs.len(), 0));
        }
        self.runs.push(run);
        self.sorted += count;
        Ok(count)
    }

    /// Writes the greatest element that is left.
    fn write(&mut self, pool: &Pool) -> Result<(), Status> {
        self.written += 1;
        let Some((_, Reverse(class), run, at)) = self.heads.pop() else { return Ok(()) };
        if let Some(&next) = self.runs.get(run).and_then(|run| run.get(at + 1)) {
            self.heads.push((self.rank(next), Reverse(next), run, at + 1));
        }
        let mut text = self.element(class).map_or_else(String::new, Element::text);
        text.push_str(&format!(":{class}"));
        let label = self.labels.as_ref().and_then(|labels| labels.get(class as usize)).unwrap_or_default();
        let len = text.len() + label.len() + usize::from(!label.is_empty());
        self.encoded.make_room(4 + len, pool)?;
        let bytes = &mut self.encoded.bytes;
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        if !label.is_empty() {
            bytes.push(b':');
            bytes.extend_from_slice(label);
        }
        Ok(())
    }

    /// An element of this row; `None` where the output is shorter than its shape.
    fn element(&self, at: u32) -> Option<Element> {
        let width = self.datatype.byte_size();
        let at = (self.row * self.item + at as usize) * width;
        Element::read(self.datatype, self.data.get(at..at + width)?)
    }

    fn rank(&self, at: u32) -> u64 {
        self.element(at).map_or(0, Element::rank)
    }

    /// The output that takes the place of `output`, when all is done.
    pub fn finish(self, output: &OutputTensor, pool: &Pool) -> Result<OutputTensor, Status> {
        let mut block = pool.get(self.encoded.bytes.len())?;
        block.copy_from_slice(&self.encoded.bytes);
        let rows = if self.best == 0 { output.shape.first().copied().unwrap_or(0) } else { self.batch as i64 };
        let shape: Shape = if self.batched { smallvec![rows, self.best as i64] } else { smallvec![self.best as i64] };
        Ok(OutputTensor {
            name: output.name.clone(),
            datatype: DataType::Bytes,
            shape,
            data: smallvec![block.freeze()],
            index: output.index,
            on_device: None,
        })
    }
}

/// The strings so far: how many bytes they come to is known at the end.
struct Encoded {
    bytes: Vec<u8>,
    held: Option<Charge>,
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

fn check_type(datatype: DataType) -> Result<(), Status> {
    match datatype {
        DataType::Bool | DataType::Fp16 | DataType::Bytes | DataType::Bf16 => {
            Err(Status::invalid(format!("class result not available for output due to unsupported type '{datatype}'")))
        }
        _ => Ok(()),
    }
}

/// An element in the widest type of its kind.
#[derive(Clone, Copy)]
enum Element {
    Signed(i64),
    Unsigned(u64),
    Real(f64),
}

impl Element {
    /// `None` if the bytes are not those of one element.
    fn read(datatype: DataType, bytes: &[u8]) -> Option<Element> {
        macro_rules! read {
            ($kind:ident, $from:ty as $to:ty) => {
                Element::$kind(<$from>::from_le_bytes(bytes.try_into().ok()?) as $to)
            };
        }
        Some(match datatype {
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
            DataType::Bool | DataType::Fp16 | DataType::Bytes | DataType::Bf16 => return None,
        })
    }

    /// A number that is greater for greater elements of one type. NaN counts as the least value, so that it never hides
    /// a real one.
    fn rank(self) -> u64 {
        const SIGN: u64 = 1 << 63;
        match self {
            Element::Signed(value) => value as u64 ^ SIGN,
            Element::Unsigned(value) => value,
            Element::Real(value) if value.is_nan() => 0,
            // Both zeros are one value.
            Element::Real(0.0) => SIGN,
            Element::Real(value) if value.is_sign_negative() => !value.to_bits(),
            Element::Real(value) => value.to_bits() | SIGN,
        }
    }

    /// As C's `%f` and `%d` print it.
    fn text(self) -> String {
        match self {
            Element::Signed(value) => value.to_string(),
            Element::Unsigned(value) => value.to_string(),
            Element::Real(value) if value.is_nan() => {
                (if value.is_sign_negative() { "-nan" } else { "nan" }).to_owned()
            }
            Element::Real(value) => format!("{value:.6}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::Slice;

    fn tensor(datatype: DataType, shape: &[i64], bytes: &[u8]) -> OutputTensor {
        let data = smallvec![Slice::copy_of(bytes)];
        OutputTensor { name: "p".into(), datatype, shape: Shape::from_slice(shape), data, index: 0, on_device: None }
    }

    fn classify(
        output: &OutputTensor,
        count: usize,
        batching: bool,
        labels: Option<Labels>,
        pool: &Pool,
    ) -> Result<(OutputTensor, usize), Status> {
        let mut classifier = Classifier::new(output, count, batching, labels.map(Arc::new).as_ref(), pool)?;
        let mut steps = 1;
        while !classifier.step(pool)? {
            steps += 1;
        }
        Ok((classifier.finish(output, pool)?, steps))
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
        let pool = Pool::new(1 << 20);
        let labels = || Some(Labels::from_text(b"a\nb\n".to_vec()));
        let (flat, _) = classify(&tensor(DataType::Fp32, &[4], &values), 9, false, labels(), &pool).unwrap();
        assert_eq!(flat.shape.as_slice(), [4]);
        assert_eq!(strings(&flat), ["1000.000000:3", "0.500000:1:b", "0.250000:0:a", "nan:2"]);
        let (rows, _) = classify(&tensor(DataType::Fp32, &[2, 2], &values), 1, true, labels(), &pool).unwrap();
        assert_eq!(rows.shape.as_slice(), [2, 1]);
        assert_eq!(strings(&rows), ["0.500000:1:b", "1000.000000:1:b"]);
    }

    #[test]
    fn integers_print_as_integers_and_other_types_are_refused() {
        let pool = Pool::new(1 << 20);
        let ints = tensor(DataType::Int8, &[3], &[1, 0xff, 5]);
        assert_eq!(strings(&classify(&ints, 2, false, None, &pool).unwrap().0), ["5:2", "1:0"]);
        let error = classify(&tensor(DataType::Fp16, &[1], &[0, 0]), 1, false, None, &pool).unwrap_err();
        assert_eq!(error.message, "class result not available for output due to unsupported type 'FP16'");
    }

    #[test]
    fn many_elements_are_classified_in_steps_and_as_a_plain_sort_does() {
        let pool = Pool::new(1 << 28);
        let numbers = |count: u32| (0..count).map(|at| f64::from(at.wrapping_mul(2_654_435_761) % 1000) - 500.0);
        for (rows, item, count) in [(1, 100_000, 5), (1, 30_000, 30_000), (3, 20_000, 9000), (5000, 7, 3)] {
            let values: Vec<f64> = numbers(rows * item).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let output = tensor(DataType::Fp64, &[i64::from(rows), i64::from(item)], &bytes);
            let (classes, steps) = classify(&output, count, true, None, &pool).unwrap();
            assert!(steps > 3, "{steps} steps");
            let mut expected = Vec::new();
            for row in values.chunks(item as usize) {
                let mut order: Vec<usize> = (0..row.len()).collect();
                // Stable: equal ones keep their order.
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                expected.extend(order[..count].iter().map(|&at| format!("{:.6}:{at}", row[at])));
            }
            assert_eq!(classes.shape.as_slice(), [i64::from(rows), count as i64]);
            assert_eq!(text_of(&classes), expected.join(" "));
        }
    }

    fn text_of(output: &OutputTensor) -> String {
        let (mut rest, mut all) = (&output.data[0][..], Vec::new());
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (text, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            all.push(std::str::from_utf8(text).unwrap());
            rest = behind;
        }
        all.join(" ")
    }

    #[test]
    fn the_least_and_the_greatest_values_have_their_places() {
        let pool = Pool::new(1 << 20);
        let values = [f32::NEG_INFINITY, -1.0, -0.0, 0.0, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, -f32::NAN];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (classes, _) = classify(&tensor(DataType::Fp32, &[8], &bytes), 8, false, None, &pool).unwrap();
        let order: Vec<String> =
            strings(&classes).iter().map(|text| text.split(':').next_back().unwrap().into()).collect();
        assert_eq!(order, ["5", "4", "2", "3", "1", "0", "6", "7"]);
        let ints: Vec<u8> = [i64::MIN, i64::MAX, -1, 0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let (classes, _) = classify(&tensor(DataType::Int64, &[4], &ints), 4, false, None, &pool).unwrap();
        assert_eq!(strings(&classes), ["9223372036854775807:1", "0:3", "-1:2", "-9223372036854775808:0"]);
    }
}
