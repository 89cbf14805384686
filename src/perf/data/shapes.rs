//! The shape of an input: the user's, else the model's, checked against each other.

use super::{DataError, DataPlan};
use crate::{ModelInfo, TensorFacts};
use nereid_request::element_count;

/// The model's shape, without the batch dimension.
pub fn declared<'a>(facts: &'a TensorFacts, model_info: &ModelInfo) -> &'a [i64] {
    match model_info.max_batch_size > 0 && !facts.is_shape_tensor {
        true => facts.shape.get(1..).unwrap_or_default(),
        false => &facts.shape,
    }
}

/// The whole shape, without the batch dimension.
pub fn of(facts: &TensorFacts, plan: &DataPlan, model_info: &ModelInfo) -> Result<Vec<i64>, DataError> {
    let declared = declared(facts, model_info);
    match plan.shapes.get(&facts.name) {
        Some(shape) => fitting(facts, declared, shape),
        None if declared.iter().any(|&dim| dim < 0) => {
            let sizes = vec!["<size>"; declared.len()].join(",");
            let reason = format!("its shape is {declared:?} to the model; say it with --shape {}:{sizes}", facts.name);
            Err(DataError::input(&facts.name, reason))
        }
        None => Ok(declared.to_vec()),
    }
}

/// `shape`, if the model takes it.
pub fn fitting(facts: &TensorFacts, declared: &[i64], shape: &[i64]) -> Result<Vec<i64>, DataError> {
    let fits = |(&dim, &size): (&i64, &i64)| size >= 0 && (dim < 0 || dim == size);
    match declared.len() == shape.len() && declared.iter().zip(shape).all(fits) {
        true => Ok(shape.to_vec()),
        false => {
            let reason = format!("shape {shape:?} does not fit the model's {declared:?} (without the batch dimension)");
            Err(DataError::input(&facts.name, reason))
        }
    }
}

/// The shape of `count` elements: as given, or with its one open dimension filled in.
pub fn of_count(
    facts: &TensorFacts,
    plan: &DataPlan,
    model_info: &ModelInfo,
    elements: usize,
) -> Result<Vec<i64>, DataError> {
    let declared = declared(facts, model_info);
    let open: Vec<usize> = declared.iter().enumerate().filter(|(_, dim)| **dim < 0).map(|(at, _)| at).collect();
    let shape = match (open.as_slice(), plan.shapes.contains_key(&facts.name)) {
        (&[at], false) => {
            let known: Vec<i64> = declared.iter().copied().filter(|&dim| dim >= 0).collect();
            let known = count(&facts.name, &known)?;
            let mut shape = declared.to_vec();
            if let Some(dim) = shape.get_mut(at) {
                *dim = elements.checked_div(known).and_then(|size| i64::try_from(size).ok()).unwrap_or(0);
            }
            shape
        }
        _ => of(facts, plan, model_info)?,
    };
    match count(&facts.name, &shape)? {
        expected if expected == elements => Ok(shape),
        expected => {
            let reason = format!("shape {shape:?} has {expected} elements, the data has {elements}");
            Err(DataError::input(&facts.name, reason))
        }
    }
}

/// How many elements a shape has.
pub fn count(input: &str, shape: &[i64]) -> Result<usize, DataError> {
    let count = element_count(shape).and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| DataError::input(input, format!("shape {shape:?} has more elements than can be counted")))
}
