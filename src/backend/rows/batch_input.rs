//! Tensors that describe the batch to its model (contract/model_config.md section 7, "batch_input kinds").

use smallvec::SmallVec;

use super::{Batch, model_shape};
use nereid_memory::{Pool, Slice};
use nereid_request::{DataType, Shape, Status, element_count, format_shape};
use nereid_wire::inference::BatchInput;
use nereid_wire::inference::batch_input::Kind;

/// One `batch_input` of the configuration.
#[derive(Debug, Clone)]
pub struct BatchInputTensor {
    /// The inputs of the model that get the tensor.
    pub targets: Vec<String>,
    /// The same, for messages.
    pub label: String,
    /// INT32 or FP32.
    pub datatype: DataType,
    /// Position of the input that it describes.
    pub source: usize,
    kind: Kind,
}

impl BatchInputTensor {
    pub fn new(given: &BatchInput, source: usize) -> BatchInputTensor {
        let number = u32::try_from(given.data_type).ok();
        let datatype = match number.and_then(DataType::from_number) {
            Some(DataType::Fp32) => DataType::Fp32,
            // Validation accepts INT32 and FP32 only.
            _ => DataType::Int32,
        };
        let targets = given.target_name.clone();
        BatchInputTensor { label: targets.join(", "), targets, datatype, source, kind: given.kind() }
    }

    /// The tensor for the requests of a batch.
    pub fn make_for(&self, batch: &Batch<'_>) -> Result<(Shape, Slice), Status> {
        let sources = batch.inputs(self.source).map(|source| source.map(model_shape));
        let sources: Option<SmallVec<[&[i64]; 4]>> = sources.collect();
        let missing = || Status::internal(format!("some request has no input that '{}' could describe", self.label));
        self.make(&sources.ok_or_else(missing)?, batch.batching, batch.pool)
    }

    /// The tensor for a batch of requests whose sources have these full shapes.
    pub fn make(&self, sources: &[&[i64]], batching: bool, pool: &Pool) -> Result<(Shape, Slice), Status> {
        let mut numbers = Vec::new();
        let counts = || sources.iter().map(|shape| count_of(shape));
        let shape = match self.kind {
            Kind::BatchElementCount => {
                counts().try_for_each(|count| count.map(|count| numbers.push(count)))?;
                one(numbers.len())
            }
            Kind::BatchAccumulatedElementCount | Kind::BatchAccumulatedElementCountWithZero => {
                let mut sum = 0i64;
                if self.kind == Kind::BatchAccumulatedElementCountWithZero {
                    numbers.push(0);
                }
                for count in counts() {
                    sum = sum.saturating_add(count?);
                    numbers.push(sum);
                }
                one(numbers.len())
            }
            Kind::BatchMaxElementCountAsShape => {
                let most = counts().try_fold(0, |most, count| count.map(|count| most.max(count)))?;
                return self.blank(most, pool);
            }
            Kind::BatchItemShape | Kind::BatchItemShapeFlatten => self.item_shapes(sources, batching, &mut numbers)?,
        };
        Ok((shape, self.encode(&numbers, pool)?))
    }

    /// A tensor of unspecified content: only its shape matters.
    fn blank(&self, count: i64, pool: &Pool) -> Result<(Shape, Slice), Status> {
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(4));
        let too_large = || Status::internal(format!("batch input '{}' is too large", self.label));
        let mut block = pool.get(len.ok_or_else(too_large)?)?;
        block.fill(0);
        Ok((Shape::from_slice(&[count]), block.freeze()))
    }

    /// One row for each item of the batch.
    fn item_shapes(&self, sources: &[&[i64]], batching: bool, numbers: &mut Vec<i64>) -> Result<Shape, Status> {
        let (mut items, mut rank) = (0usize, None);
        for shape in sources {
            let (rows, item) = match shape.split_first() {
                Some((rows, item)) if batching => (usize::try_from(*rows).unwrap_or(0), item),
                _ => (1, *shape),
            };
            if *rank.get_or_insert(item.len()) != item.len() {
                let text = format!("requests of a batch differ in the rank of what '{}' tells of", self.label);
                return Err(Status::internal(text));
            }
            // Bounded by the largest batch of the model.
            (0..rows).for_each(|_| numbers.extend_from_slice(item));
            items += rows;
        }
        Ok(match self.kind {
            Kind::BatchItemShape => Shape::from_slice(&[items as i64, rank.unwrap_or(0) as i64]),
            _ => one(numbers.len()),
        })
    }

    fn encode(&self, numbers: &[i64], pool: &Pool) -> Result<Slice, Status> {
        let mut block = pool.get(numbers.len() * 4)?;
        for (to, &number) in block.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *to = match self.datatype {
                DataType::Fp32 => (number as f32).to_le_bytes(),
                _ => i32::try_from(number)
                    .map_err(|_| Status::internal(format!("{number} is too large for batch input '{}'", self.label)))?
                    .to_le_bytes(),
            };
        }
        Ok(block.freeze())
    }
}

fn one(len: usize) -> Shape {
    Shape::from_slice(&[len as i64])
}

fn count_of(shape: &[i64]) -> Result<i64, Status> {
    element_count(shape).ok_or_else(|| Status::internal(format!("an input has the shape {}", format_shape(shape))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kind: Kind, datatype: DataType) -> BatchInputTensor {
        let mut given = BatchInput { target_name: vec!["T".into()], data_type: datatype as i32, ..Default::default() };
        given.set_kind(kind);
        BatchInputTensor::new(&given, 0)
    }

    fn made(kind: Kind, sources: &[&[i64]]) -> (Vec<i64>, Vec<i64>) {
        let pool = Pool::new(1 << 20);
        let (shape, bytes) = plan(kind, DataType::Int32).make(sources, true, &pool).unwrap();
        let numbers: Vec<i64> =
            bytes.as_chunks::<4>().0.iter().map(|four| i64::from(i32::from_le_bytes(*four))).collect();
        let (float_shape, floats) = plan(kind, DataType::Fp32).make(sources, true, &pool).unwrap();
        let floats: Vec<i64> = floats.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four) as i64).collect();
        assert_eq!((&shape, &numbers), (&float_shape, &floats), "INT32 and FP32 differ");
        (shape.to_vec(), numbers)
    }

    #[test]
    fn every_kind_of_the_table() {
        // A request of one row with 3 elements, one of two rows with 5 elements each.
        let sources: [&[i64]; 2] = [&[1, 3], &[2, 5]];
        for (kind, shape, numbers) in [
            (Kind::BatchElementCount, vec![2], vec![3, 10]),
            (Kind::BatchAccumulatedElementCount, vec![2], vec![3, 13]),
            (Kind::BatchAccumulatedElementCountWithZero, vec![3], vec![0, 3, 13]),
            (Kind::BatchMaxElementCountAsShape, vec![10], vec![0; 10]),
            (Kind::BatchItemShape, vec![3, 1], vec![3, 5, 5]),
            (Kind::BatchItemShapeFlatten, vec![3], vec![3, 5, 5]),
        ] {
            assert_eq!(made(kind, &sources), (shape, numbers), "{kind:?}");
        }
        let ranks: [&[i64]; 2] = [&[2, 4, 6], &[1, 1, 2]];
        assert_eq!(made(Kind::BatchItemShape, &ranks), (vec![3, 2], vec![4, 6, 4, 6, 1, 2]));
        assert_eq!(made(Kind::BatchItemShapeFlatten, &ranks), (vec![6], vec![4, 6, 4, 6, 1, 2]));
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        let pool = Pool::new(1 << 10);
        let make = |kind, sources: &[&[i64]]| plan(kind, DataType::Int32).make(sources, true, &pool).is_err();
        assert!(make(Kind::BatchItemShape, &[&[1, 2], &[1, 2, 3]]), "ranks differ");
        assert!(make(Kind::BatchElementCount, &[&[1 << 20, 1 << 20]]), "beyond INT32");
        assert!(make(Kind::BatchElementCount, &[&[-1]]));
        assert!(make(Kind::BatchMaxElementCountAsShape, &[&[i64::MAX]]), "beyond memory");
    }
}
