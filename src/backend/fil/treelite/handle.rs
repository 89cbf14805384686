//! A forest as treelite has read it, whose trees are not validated yet: its fields can be read and set.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use super::library::{Frame, Library, Model, TreeliteError};

/// Owns a model of treelite.
pub struct Handle {
    library: &'static Library,
    model: Owned,
}

/// Frees a model at its end.
pub(super) struct Owned {
    free: unsafe extern "C" fn(Model) -> c_int,
    pub model: Model,
    /// The model's own, if they were set.
    base_scores: Option<Box<[f64]>>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the model came from this library and is freed only here.
        unsafe { (self.free)(self.model) };
    }
}

/// Types of a field's items.
pub trait Element: sealed::Plain {}

mod sealed {
    /// Every pattern of bytes is a value.
    pub trait Plain: Copy {}
}

macro_rules! elements {
    ($($element:ty)*) => {$(
        impl sealed::Plain for $element {}
        impl Element for $element {}
    )*};
}

elements!(i8 u8 i32 u32 u64 f32 f64);

const EMPTY: Frame = Frame { buffer: null_mut(), format: null_mut(), item_size: 0, item_count: 0 };

impl Handle {
    pub(super) fn new(library: &'static Library, model: Model) -> Handle {
        Handle { library, model: Handle::from_raw(library.free_model, model) }
    }

    pub(super) fn from_raw(free: unsafe extern "C" fn(Model) -> c_int, model: Model) -> Owned {
        Owned { free, model, base_scores: None }
    }

    pub(super) fn into_parts(self) -> (&'static Library, Owned) {
        (self.library, self.model)
    }

    pub fn feature_count(&self) -> Result<i32, TreeliteError> {
        let mut count = 0;
        // SAFETY: the model lives, and the count is written during the call.
        self.library.check(unsafe { (self.library.feature_count)(self.model.model, &raw mut count) })?;
        Ok(count)
    }

    pub fn tree_count(&self) -> Result<usize, TreeliteError> {
        let mut count = 0;
        // SAFETY: `count` has the type size_t that the function writes.
        self.library.check(unsafe { (self.library.tree_count)(self.model.model, &raw mut count) })?;
        Ok(count)
    }

    /// A field of the model's header.
    pub fn header<T: Element>(&self, name: &'static CStr) -> Result<&[T], TreeliteError> {
        let mut frame = EMPTY;
        // SAFETY: the name ends with a zero byte; the frame is written before it is read.
        let result = unsafe { (self.library.header_field)(self.model.model, name.as_ptr(), &raw mut frame) };
        self.library.check(result)?;
        self.items(name, frame)
    }

    /// A field of one tree.
    pub fn tree<T: Element>(&self, tree: usize, name: &'static CStr) -> Result<&[T], TreeliteError> {
        let mut frame = EMPTY;
        // SAFETY: treelite refuses a number that no tree has; the frame is the only thing that is written.
        let result = unsafe { (self.library.tree_field)(self.model.model, tree as u64, name.as_ptr(), &raw mut frame) };
        self.library.check(result)?;
        self.items(name, frame)
    }

    /// The items of a field, which belong to the model.
    fn items<T: Element>(&self, name: &CStr, frame: Frame) -> Result<&[T], TreeliteError> {
        if frame.item_count == 0 {
            return Ok(&[]);
        }
        let at = frame.buffer.cast::<T>();
        if frame.item_size != size_of::<T>() || at.is_null() || !at.is_aligned() {
            let (name, found) = (name.to_string_lossy(), frame.item_size);
            let text = format!("field {name} of the model has items of {found} bytes instead of {}", size_of::<T>());
            return Err(TreeliteError(text));
        }
        // SAFETY: the frame describes an array of the model with items of this size, for which every pattern of bytes
        // is a value; it is changed only through `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(at, frame.item_count) })
    }

    /// The function that turns sums of leaves into results.
    pub fn set_postprocessor(&mut self, name: &str) -> Result<(), TreeliteError> {
        let frame = Frame {
            buffer: name.as_ptr().cast::<c_void>().cast_mut(),
            format: c"=c".as_ptr().cast_mut(),
            item_size: 1,
            item_count: name.len(),
        };
        // SAFETY: the function copies this field's text and does not write to it.
        let result = unsafe { (self.library.set_header_field)(self.model.model, c"postprocessor".as_ptr(), frame) };
        self.library.check(result)
    }

    /// What each class's sum begins with.
    pub fn set_base_scores(&mut self, scores: Vec<f64>) -> Result<(), TreeliteError> {
        let scores = self.model.base_scores.insert(scores.into_boxed_slice());
        let frame = Frame {
            buffer: scores.as_mut_ptr().cast(),
            format: c"=d".as_ptr().cast_mut(),
            item_size: size_of::<f64>(),
            item_count: scores.len(),
        };
        // SAFETY: the model uses the array in place from now on; it is kept with the model and freed after it.
        let result = unsafe { (self.library.set_header_field)(self.model.model, c"base_scores".as_ptr(), frame) };
        self.library.check(result)
    }
}
