//! The elements of a string tensor that the server makes.
//!
//! The library does not release the strings of a tensor over foreign memory, so this memory does it, when the last
//! reference to the tensor is gone: a variable of the model may keep it beyond the run.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use super::functions::StringElement;
use super::library::Runtime;
use super::status::TensorFlowError;

/// The alignment of tensors, which the library demands.
const ALIGNMENT: usize = 64;

/// Initialised elements.
pub struct StringElements {
    runtime: &'static Runtime,
    at: NonNull<StringElement>,
    count: usize,
    layout: Layout,
}

// SAFETY: the elements belong to this object alone, and strings are not tied to a thread.
unsafe impl Send for StringElements {}

impl StringElements {
    pub fn copy_of<'a>(
        runtime: &'static Runtime,
        strings: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<StringElements, TensorFlowError> {
        let count = strings.len();
        let too_many = || TensorFlowError(format!("there is no memory for {count} strings"));
        let layout = Layout::array::<StringElement>(count).and_then(|layout| layout.align_to(ALIGNMENT));
        let layout = layout.map_err(|_| too_many())?;
        let mut elements = StringElements { runtime, at: NonNull::dangling(), count: 0, layout };
        if layout.size() > 0 {
            // SAFETY: the layout is not empty.
            elements.at = NonNull::new(unsafe { alloc(layout) }.cast()).ok_or_else(too_many)?;
        }
        for string in strings.take(count) {
            // SAFETY: fewer elements than the memory has were made so far. The library initialises the element, then
            // copies the bytes into it.
            unsafe {
                let element = elements.at.as_ptr().add(elements.count);
                (runtime.functions.TF_StringInit)(element);
                (runtime.functions.TF_StringCopy)(element, string.as_ptr().cast(), string.len());
            }
            elements.count += 1;
        }
        Ok(elements)
    }

    pub fn as_ptr(&self) -> *mut StringElement {
        self.at.as_ptr()
    }

    pub fn byte_size(&self) -> usize {
        self.count * size_of::<StringElement>()
    }
}

impl Drop for StringElements {
    fn drop(&mut self) {
        for index in 0..self.count {
            // SAFETY: the first `count` elements are initialised, and each is released once.
            unsafe { (self.runtime.functions.TF_StringDealloc)(self.at.as_ptr().add(index)) };
        }
        let has_memory = self.layout.size() > 0 && self.at != NonNull::dangling();
        if has_memory {
            // SAFETY: allocated with this layout in `copy_of`; the elements in it are gone.
            unsafe { dealloc(self.at.as_ptr().cast(), self.layout) };
        }
    }
}
