//! An input or output of a model, as the library describes it.

use std::ptr::{self, NonNull};
use std::slice;

use nereid_request::{DataType, Shape};

use super::functions::{OvDimension, OvPartialShape, OvPort};
use super::{OpenVinoError, Runtime};

/// The most dimensions of a tensor here; the library's plug-ins take fewer.
const RANK_MAX: i64 = 64;

/// A dimension, or the limits of one that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimension {
    min: i64,
    /// `None`: without a limit.
    max: Option<i64>,
}

impl Dimension {
    pub const OPEN: Dimension = Dimension { min: 0, max: None };

    pub fn of(size: i64) -> Dimension {
        Dimension { min: size, max: Some(size) }
    }

    /// -1 is open.
    pub fn of_config(dim: i64) -> Dimension {
        if dim == -1 { Dimension::OPEN } else { Dimension::of(dim) }
    }

    /// The size; `None` if it is open.
    pub fn fixed(self) -> Option<i64> {
        self.max.filter(|max| *max == self.min)
    }

    /// As configurations and messages have it: -1 for an open one.
    pub fn as_config(self) -> i64 {
        self.fixed().unwrap_or(-1)
    }

    pub fn admits(self, size: i64) -> bool {
        size >= self.min && self.max.is_none_or(|max| size <= max)
    }

    pub(super) fn raw(self) -> OvDimension {
        match self.max {
            Some(max) => OvDimension { min: self.min, max },
            None if self.min == 0 => OvDimension { min: -1, max: -1 },
            None => OvDimension { min: self.min, max: -1 },
        }
    }

    fn of_raw(raw: OvDimension) -> Dimension {
        Dimension { min: raw.min.max(0), max: Some(raw.max).filter(|max| *max >= 0 && *max < i64::MAX) }
    }
}

/// An input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// One of its names: the library may know more.
    pub name: String,
    /// `None`: a type that the backend does not support.
    pub datatype: Option<DataType>,
    /// `None`: even the number of dimensions is open.
    pub dims: Option<Vec<Dimension>>,
}

impl Port {
    /// As messages have it.
    pub fn shape(&self) -> Option<Shape> {
        Some(self.dims.as_ref()?.iter().map(|dim| dim.as_config()).collect())
    }

    pub fn is_static(&self) -> bool {
        self.dims.as_ref().is_some_and(|dims| dims.iter().all(|dim| dim.fixed().is_some()))
    }

    /// Describes a port and frees it. `step`: for errors.
    pub(super) fn take(runtime: &Runtime, port: NonNull<OvPort>, step: &str) -> Result<Port, OpenVinoError> {
        let described = Port::describe(runtime, port, step);
        // SAFETY: every port that the library returns is its caller's to free, and this function owns it.
        unsafe { (runtime.functions.ov_output_const_port_free)(port.as_ptr()) };
        described
    }

    fn describe(runtime: &Runtime, port: NonNull<OvPort>, step: &str) -> Result<Port, OpenVinoError> {
        let functions = &runtime.functions;
        let (mut name, mut number) = (ptr::null_mut(), 0);
        // SAFETY: the port is alive; a text that is ours to free is written to the given place.
        runtime.check(unsafe { (functions.ov_port_get_any_name)(port.as_ptr(), &mut name) }, step)?;
        let name = runtime.take_string(name);
        // SAFETY: the port is alive; a number is written to the given place.
        runtime.check(unsafe { (functions.ov_port_get_element_type)(port.as_ptr(), &mut number) }, step)?;
        let none = OvDimension { min: 0, max: 0 };
        let mut shape = OvPartialShape { rank: none, dims: ptr::null_mut() };
        // SAFETY: the port is alive; rank and a list of dimensions are written to the given structure.
        runtime.check(unsafe { (functions.ov_port_get_partial_shape)(port.as_ptr(), &mut shape) }, step)?;
        let rank = shape.rank;
        let is_known = rank.min == rank.max && (0..=RANK_MAX).contains(&rank.max);
        let dims = is_known.then(|| match (usize::try_from(rank.max), shape.dims.is_null()) {
            (Ok(rank @ 1..), false) => {
                // SAFETY: the library has filled as many dimensions as the rank says; they are alive until freed below.
                let raw = unsafe { slice::from_raw_parts(shape.dims, rank) };
                raw.iter().copied().map(Dimension::of_raw).collect()
            }
            _ => Vec::new(),
        });
        // SAFETY: filled by the library, and freed once.
        unsafe { (functions.ov_partial_shape_free)(&mut shape) };
        Ok(Port { name, datatype: runtime.elements.datatype(number), dims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_fixed_open_or_limited() {
        let limited = Dimension::of_raw(OvDimension { min: 2, max: 8 });
        let open = Dimension::of_raw(OvDimension { min: 0, max: -1 });
        assert_eq!((limited.fixed(), limited.as_config()), (None, -1));
        assert!(!limited.admits(1) && limited.admits(2) && limited.admits(8) && !limited.admits(9));
        assert_eq!((open, open.as_config()), (Dimension::OPEN, -1));
        assert!(open.admits(0) && open.admits(i64::MAX) && !open.admits(-1));
        assert_eq!((Dimension::of(16).fixed(), Dimension::of_config(-1)), (Some(16), Dimension::OPEN));
        let raw = Dimension::OPEN.raw();
        assert_eq!((raw.min, raw.max), (-1, -1));
    }
}
