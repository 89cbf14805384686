//! The runners of a model: one container with a runner for each instance, so that the instances share the weights and
//! run side by side.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_request::Status;

use super::archive::{Package, PackageError};
use super::bindings::{Api, Container, LibraryFault, ModelLibrary};
use super::call_spec::{SpecError, input_names, output_names};
use super::host::{Target, Unsuitable, cpu_features};
use super::names::TensorNames;

/// A container and the names of its tensors.
#[derive(Debug)]
pub struct Runners {
    pub container: Container,
    pub inputs: TensorNames,
    pub outputs: TensorNames,
    /// Runners that no instance has.
    free: AtomicUsize,
}

/// One runner of a container, which one instance has.
#[derive(Debug)]
pub struct Runner(Arc<Runners>);

impl Runner {
    pub fn of(&self) -> &Runners {
        &self.0
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::AcqRel);
    }
}

/// The container that the instances of a model share.
#[derive(Debug, Default)]
pub struct SharedRunners(Mutex<Option<Arc<Runners>>>);

impl SharedRunners {
    /// A free runner; if there is none, one of a container that `open` makes.
    pub fn take(&self, open: impl FnOnce() -> Result<Runners, Status>) -> Result<Runner, Status> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runner) = shared.as_ref().and_then(Runners::take) {
            return Ok(runner);
        }
        let runners = Arc::new(open()?);
        let runner = Runners::take(&runners).ok_or_else(|| Status::internal("a new container has no runner"));
        *shared = Some(runners);
        runner
    }
}

impl Runners {
    fn take(self: &Arc<Runners>) -> Option<Runner> {
        let less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok().map(|_| Runner(Arc::clone(self)))
    }

    /// A container of the package at `path` with `count` runners.
    pub fn open(api: &'static Api, model: &str, path: &Path, count: usize) -> Result<Runners, Status> {
        if !path.is_file() {
            return Err(unreachable(path));
        }
        let of_package = |fault: Fault| match fault {
            Fault::Package(PackageError::Io(error))
                if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied) =>
            {
                unreachable(path)
            }
            fault => Status::internal(format!("\"{}\" cannot be loaded: {fault}", path.display())),
        };
        let container = container(api, path, count).map_err(of_package)?;
        let (inputs, outputs) = container.call_spec().map_err(|text| of_package(Fault::Container(text)))?;
        let inputs = named(model, "input", input_names(&inputs), container.inputs())?;
        let outputs = named(model, "output", output_names(&outputs), container.outputs())?;
        let free = AtomicUsize::new(count.max(1));
        Ok(Runners {
            container,
            inputs: TensorNames::of_inputs(&inputs),
            outputs: TensorNames::of_outputs(&outputs),
            free,
        })
    }
}

/// The text for a file that is not there.
pub fn unreachable(path: &Path) -> Status {
    let path = path.display();
    Status::unavailable(format!("PyTorch inductor model file \"{path}\" is unreachable or inaccessible."))
}

/// Why a package was not opened.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Package(#[from] PackageError),
    #[error("{0}; compile it on this kind of host")]
    Unsuitable(#[from] Unsuitable),
    #[error("{0}")]
    Library(#[from] LibraryFault),
    #[error("{0}")]
    Container(String),
}

fn container(api: &'static Api, path: &Path, count: usize) -> Result<Container, Fault> {
    let mut package = Package::open(path)?;
    match package.metadata()? {
        Some(metadata) => Target::parse(&metadata)?.check(&cpu_features())?,
        None => tracing::warn!("{}: the package does not state which CPU it was compiled for", path.display()),
    }
    let library = ModelLibrary::open(|file| package.copy_library(file).map_err(Fault::from))?;
    let weights = package.weights()?;
    Container::new(api, library, count, weights).map_err(Fault::Container)
}

/// The names of the `count` tensors that the library takes or returns.
fn named(
    model: &str,
    direction: &str,
    names: Result<Vec<String>, SpecError>,
    count: usize,
) -> Result<Vec<String>, Status> {
    let text = match names {
        Ok(names) if names.len() == count => return Ok(names),
        Ok(names) => format!(
            "The {direction} call specification for model \"{model}\" has {} values, but the model has {count} \
             {direction} tensors; all values must be tensors.",
            names.len()
        ),
        Err(SpecError::NotTuple(kind)) => format!(
            "Unexpected {direction} call specification type \"{kind}\" for model \"{model}\". Expected type is \
             \"builtins_tuple\"."
        ),
        Err(SpecError::Structure) => {
            format!("Unexpected {direction} call specification structure for model \"{model}\".")
        }
        Err(error @ SpecError::Key(_)) => format!(
            "Unexpected {direction} call specification structure for model \"{model}\": {error}; rename it and compile \
             the model again."
        ),
        Err(SpecError::Unreadable(reason)) => {
            tracing::error!("{direction} call specification of model '{model}': {reason}");
            format!("Failed to parse {direction} call specification for model \"{model}\".")
        }
    };
    Err(Status::internal(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_wrong_specifications_are_triton_s() {
        let text = |direction, error| named("m", direction, Err(error), 0).unwrap_err().message.to_string();
        assert_eq!(
            text("input", SpecError::NotTuple("builtins.list".to_owned())),
            "Unexpected input call specification type \"builtins.list\" for model \"m\". Expected type is \
             \"builtins_tuple\"."
        );
        assert_eq!(
            text("input", SpecError::Structure),
            "Unexpected input call specification structure for model \"m\"."
        );
        for direction in ["input", "output"] {
            assert_eq!(
                text(direction, SpecError::Unreadable("it is odd".to_owned())),
                format!("Failed to parse {direction} call specification for model \"m\".")
            );
        }
        let key = text("output", SpecError::Key("a b".to_owned()));
        assert!(key.contains("the dictionary key \"a b\" has a quote"), "{key}");
        assert_eq!(named("m", "input", Ok(vec!["ARGS[0]".to_owned()]), 1).unwrap(), ["ARGS[0]"]);
        let count = named("m", "input", Ok(vec!["ARGS[0]".to_owned()]), 0).unwrap_err().message.to_string();
        assert!(count.contains("has 1 values, but the model has 0 input tensors"), "{count}");
    }
}
