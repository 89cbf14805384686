//! An engine as plain data: its tensors, and the bounds of its profiles.

use std::ffi::CString;
use std::ops::Range;

use nereid_request::{DataType, Shape};

use super::api::{Dims, Engine, Selector};

/// The most tensors and profiles of an engine: a library that reports more is not believed.
const TENSORS_MAX: i32 = 65_536;
const PROFILES_MAX: i32 = 4_096;
/// The most values of a shape tensor: the dimensions of a tensor, and a few more.
const SHAPE_VALUES_MAX: usize = 64;

/// The three shapes of a profile, or the values of a shape tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    pub min: Vec<i64>,
    pub opt: Vec<i64>,
    pub max: Vec<i64>,
}

impl Bounds {
    /// The sizes that dimension number `at` may have.
    pub fn range(&self, at: usize) -> Option<(i64, i64)> {
        Some((*self.min.get(at)?, *self.max.get(at)?))
    }

    /// The first of the positions `at` where `values` leave the bounds.
    pub fn violation(&self, values: &[i64], at: Range<usize>) -> Option<Violation> {
        let mut at = at;
        at.find_map(|at| {
            let ((least, most), found) = (self.range(at)?, *values.get(at)?);
            (!(least..=most).contains(&found)).then_some(Violation { at, least, most, found })
        })
    }

    /// How far `values` are from what the profile was tuned for.
    pub fn distance(&self, values: &[i64]) -> u64 {
        self.opt.iter().zip(values).fold(0, |sum, (opt, value)| sum.saturating_add(opt.abs_diff(*value)))
    }
}

/// A size or value outside of a profile's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    pub at: usize,
    pub least: i64,
    pub most: i64,
    pub found: i64,
}

impl Violation {
    /// The end of Triton's messages.
    pub fn details(&self) -> String {
        let Violation { at, least, most, found } = self;
        format!(
            "Error details: model expected the shape of dimension {at} to be between {least} and {most} but received \
             {found}"
        )
    }
}

/// A tensor of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// For the library.
    pub c_name: CString,
    /// `None`: a type that no client can send.
    pub datatype: Option<DataType>,
    /// -1 where it is open.
    pub shape: Shape,
    /// Its values determine shapes: it lies on the host.
    pub is_shape_tensor: bool,
    pub is_on_host: bool,
    /// The elements lie in the order of the shape.
    pub is_linear: bool,
    /// By profile; inputs alone have them.
    pub shapes: Vec<Bounds>,
    /// By profile; input shape tensors alone have them.
    pub values: Vec<Bounds>,
}

impl Tensor {
    /// The bounds of a profile: of the values of a shape tensor, of the shape otherwise.
    pub fn bounds(&self, profile: usize) -> Option<&Bounds> {
        if self.is_shape_tensor { self.values.get(profile) } else { self.shapes.get(profile) }
    }
}

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    pub profiles: usize,
}

impl Described {
    /// The error is a sentence about the engine.
    pub fn of(engine: &Engine) -> Result<Described, String> {
        let (count, profiles) = (engine.tensor_count(), engine.profile_count());
        if !(0..=TENSORS_MAX).contains(&count) || !(0..=PROFILES_MAX).contains(&profiles) {
            return Err(format!("the engine reports {count} tensors and {profiles} optimization profiles"));
        }
        let mut described = Described { profiles: usize::try_from(profiles).unwrap_or(0), ..Described::default() };
        for index in 0..count {
            let c_name =
                engine.tensor_name(index).ok_or_else(|| format!("tensor {index} of the engine has no name"))?;
            let is_input = match engine.io_mode(&c_name) {
                1 => true,
                2 => false,
                mode => return Err(format!("tensor '{}' has the mode {mode}", c_name.to_string_lossy())),
            };
            let tensor = tensor(engine, c_name, is_input, profiles)?;
            if is_input { described.inputs.push(tensor) } else { described.outputs.push(tensor) }
        }
        Ok(described)
    }

    /// Whether some tensor has an open dimension: then instances do not share the engine.
    pub fn is_dynamic(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).any(|tensor| tensor.shape.contains(&-1))
    }

    pub fn input(&self, name: &str) -> Option<&Tensor> {
        self.inputs.iter().find(|tensor| tensor.name == name)
    }

    pub fn output(&self, name: &str) -> Option<&Tensor> {
        self.outputs.iter().find(|tensor| tensor.name == name)
    }

    /// The most rows of a batch in a profile; 0 if the engine's first dimensions are fixed.
    pub fn batch_size_max(&self, profile: usize) -> i64 {
        let is_open = |tensor: &Tensor| tensor.is_shape_tensor || tensor.shape.first() == Some(&-1);
        let has_batch = self.inputs.iter().any(|tensor| !tensor.is_shape_tensor);
        if !has_batch || !self.inputs.iter().all(is_open) {
            return 0;
        }
        let most = |tensor: &Tensor| tensor.bounds(profile).and_then(|bounds| bounds.max.first().copied()).unwrap_or(0);
        self.inputs.iter().map(most).min().unwrap_or(0).max(0)
    }
}

fn tensor(engine: &Engine, c_name: CString, is_input: bool, profiles: i32) -> Result<Tensor, String> {
    let name = c_name.to_string_lossy().into_owned();
    let rank_unknown = || format!("tensor '{name}' has no known number of dimensions");
    let shape = shape_of(&engine.shape(&c_name)).ok_or_else(rank_unknown)?;
    let is_shape_tensor = engine.is_shape_tensor(&c_name);
    let (mut shapes, mut values) = (Vec::new(), Vec::new());
    let selectors = [Selector::Min, Selector::Opt, Selector::Max];
    for profile in (0..profiles).filter(|_| is_input) {
        let [min, opt, max] = selectors.map(|selector| shape_of(&engine.profile_shape(&c_name, profile, selector)));
        // A fixed tensor may have no bounds.
        let of =
            |found: Option<Shape>| found.filter(|found| found.len() == shape.len()).unwrap_or_else(|| shape.clone());
        shapes.push(Bounds { min: of(min).to_vec(), opt: of(opt).to_vec(), max: of(max).to_vec() });
        if is_shape_tensor {
            let count =
                nereid_backend::rows::elements(&shape).filter(|count| shape.len() <= 1 && *count <= SHAPE_VALUES_MAX);
            let count =
                count.ok_or_else(|| format!("shape tensor '{name}' has neither a value nor a row of values"))?;
            let [min, opt, max] = selectors.map(|selector| engine.profile_values(&c_name, profile, selector, count));
            let missing = || format!("shape tensor '{name}' has no values in profile {profile}");
            let [min, opt, max] = [min, opt, max].map(|values| values.ok_or_else(missing));
            values.push(Bounds { min: min?, opt: opt?, max: max? });
        }
    }
    let formats = 0..profiles.max(1);
    Ok(Tensor {
        datatype: datatype_of(engine.datatype(&c_name)),
        is_on_host: engine.location(&c_name) == 1,
        is_linear: formats.into_iter().all(|profile| engine.format(&c_name, profile) == 0),
        name,
        c_name,
        shape,
        is_shape_tensor,
        shapes,
        values,
    })
}

/// `nvinfer1::DataType`; FP8, INT4 and others have no counterpart.
fn datatype_of(number: i32) -> Option<DataType> {
    Some(match number {
        0 => DataType::Fp32,
        1 => DataType::Fp16,
        2 => DataType::Int8,
        3 => DataType::Int32,
        4 => DataType::Bool,
        5 => DataType::Uint8,
        7 => DataType::Bf16,
        8 => DataType::Int64,
        _ => return None,
    })
}

/// `None`: the number of dimensions is not known.
pub fn shape_of(dims: &Dims) -> Option<Shape> {
    let rank = usize::try_from(dims.rank).ok()?;
    dims.sizes.get(..rank).map(Shape::from_slice)
}

/// `None`: more dimensions than a tensor can have.
pub fn dims_of(shape: &[i64]) -> Option<Dims> {
    let mut dims = Dims { rank: i32::try_from(shape.len()).ok()?, sizes: [0; super::api::DIMS_MAX] };
    dims.sizes.get_mut(..shape.len())?.copy_from_slice(shape);
    Some(dims)
}
