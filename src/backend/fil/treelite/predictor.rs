//! Predictions of a validated forest, from any thread.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};

use super::handle::{Handle, Owned};
use super::library::{Configuration, Library, TreeliteError};
use nereid_memory::{Slice, Target};

/// A forest that predicts. Instances share it: a prediction changes nothing.
pub struct Predictor {
    library: &'static Library,
    model: Owned,
    configuration: OwnedConfiguration,
    features: usize,
    classes: usize,
}

struct OwnedConfiguration {
    free: unsafe extern "C" fn(Configuration) -> c_int,
    configuration: Configuration,
}

impl Drop for OwnedConfiguration {
    fn drop(&mut self) {
        // SAFETY: the configuration came from this library and is freed once.
        unsafe { (self.free)(self.configuration) };
    }
}

// SAFETY: treelite reads the model and the configuration during a prediction and keeps no other state of them; its last
// error is of the calling thread.
unsafe impl Send for Predictor {}
// SAFETY: the only function that is called through a shared reference is the prediction, which takes both as constants.
unsafe impl Sync for Predictor {}

impl Predictor {
    /// `handle` has been validated, and has this many features and classes. A prediction uses up to `threads` threads.
    pub fn new(handle: Handle, features: usize, classes: usize, threads: usize) -> Result<Predictor, TreeliteError> {
        let (library, model) = handle.into_parts();
        let text = format!("{{\"predict_type\":\"default\",\"nthread\":{threads}}}");
        let text = CString::new(text).map_err(|error| TreeliteError(error.to_string()))?;
        let mut configuration = null_mut();
        // SAFETY: the text ends with a zero byte; the configuration is written before the call returns.
        library.check(unsafe { (library.parse_configuration)(text.as_ptr(), &raw mut configuration) })?;
        let configuration = OwnedConfiguration { free: library.free_configuration, configuration };
        let predictor = Predictor { library, model, configuration, features, classes };
        let found = predictor.output_count()?;
        if found != classes {
            return Err(TreeliteError(format!("treelite computes {found} results a row instead of {classes}")));
        }
        Ok(predictor)
    }

    /// Results for one row.
    fn output_count(&self) -> Result<usize, TreeliteError> {
        let (mut at, mut rank) = (null(), 0);
        let (model, configuration) = (self.model.model, self.configuration.configuration);
        // SAFETY: model and configuration live; address and rank are written before the call returns.
        let result = unsafe { (self.library.output_shape)(model, 1, configuration, &raw mut at, &raw mut rank) };
        self.library.check(result)?;
        let rank = usize::try_from(rank).unwrap_or_default();
        if at.is_null() || rank > 8 {
            return Err(TreeliteError(format!("treelite computes results of {rank} dimensions")));
        }
        // SAFETY: the function returns an array of this thread with `rank` sizes, valid until its next call.
        let shape = unsafe { std::slice::from_raw_parts(at, rank) };
        let product = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        Ok(product.and_then(|product| usize::try_from(product).ok()).unwrap_or(usize::MAX))
    }

    /// Writes the results for `rows` rows, row by row, to `output`; `None` if one of both does not begin at a multiple
    /// of 4 bytes.
    pub fn predict_bytes(&self, rows: usize, input: &Slice, output: &mut Target) -> Option<Result<(), TreeliteError>> {
        let is_aligned = input.is_aligned_to(align_of::<f32>()) && output.is_aligned_to(align_of::<f32>());
        let (from, to) = ((input.as_ptr().cast(), input.len()), (output.as_mut_ptr().cast(), output.len()));
        // SAFETY: every pattern of bytes is a float, both begin where a float may, and both are borrowed meanwhile.
        is_aligned.then(|| unsafe { self.predict_at(rows, in_floats(from), in_floats(to)) })
    }

    /// The same for results that are floats.
    pub fn predict_from_bytes(
        &self,
        rows: usize,
        input: &Slice,
        output: &mut [f32],
    ) -> Option<Result<(), TreeliteError>> {
        let from = in_floats((input.as_ptr().cast(), input.len()));
        let to = (output.as_mut_ptr(), Some(output.len()));
        // SAFETY: every pattern of bytes is a float, the input begins where a float may, and both are borrowed
        // meanwhile.
        input.is_aligned_to(align_of::<f32>()).then(|| unsafe { self.predict_at(rows, from, to) })
    }

    /// The same for rows and results that are floats.
    pub fn predict(&self, rows: usize, input: &[f32], output: &mut [f32]) -> Result<(), TreeliteError> {
        let (from, to) = ((input.as_ptr(), Some(input.len())), (output.as_mut_ptr(), Some(output.len())));
        // SAFETY: both are borrowed meanwhile.
        unsafe { self.predict_at(rows, from, to) }
    }

    /// The same by addresses, each with the floats there: another process may write to these meanwhile.
    ///
    /// # Safety
    /// As many floats can be read and written there.
    unsafe fn predict_at(
        &self,
        rows: usize,
        (input, inputs): (*const f32, Option<usize>),
        (output, outputs): (*mut f32, Option<usize>),
    ) -> Result<(), TreeliteError> {
        let fits = |columns: usize, found: Option<usize>| found.is_some() && rows.checked_mul(columns) == found;
        if !fits(self.features, inputs) || !fits(self.classes, outputs) {
            let (found, made) = (inputs.unwrap_or_default(), outputs.unwrap_or_default());
            return Err(TreeliteError(format!("{rows} rows do not fit {found} inputs and {made} results")));
        }
        let (model, configuration) = (self.model.model, self.configuration.configuration);
        let (from, to) = (input.cast(), output.cast());
        // SAFETY: the input has `features` floats for each row and the output has room for `classes` of them, which is
        // what treelite reads and writes for a validated forest.
        let result =
            unsafe { (self.library.predict)(model, from, c"float32".as_ptr(), rows as u64, to, configuration) };
        self.library.check(result)
    }
}

/// The floats that so many bytes are; `None`: they end within one.
fn in_floats<P>((at, len): (P, usize)) -> (P, Option<usize>) {
    (at, len.is_multiple_of(size_of::<f32>()).then_some(len / size_of::<f32>()))
}
