//! Guesses a model's backend from its configuration and its files (rule 1).

use super::super::Error;
use super::super::layout::Entry;
use nereid_wire::inference::ModelConfig;

/// One way to be a backend's model.
struct Signature {
    backend: &'static str,
    /// Platforms that mean this signature; the first one is filled in.
    platforms: &'static [&'static str],
    /// File in the version directory that means it too.
    filename: &'static str,
    form: FileForm,
    /// Whether the name of the backend is enough, or only picks among its signatures.
    backend_suffices: bool,
}

/// The form that the file must have.
#[derive(Clone, Copy)]
enum FileForm {
    File,
    Directory,
    Either,
}

const fn signature(
    backend: &'static str,
    platforms: &'static [&'static str],
    filename: &'static str,
    form: FileForm,
    backend_suffices: bool,
) -> Signature {
    Signature { backend, platforms, filename, form, backend_suffices }
}

/// The first match wins.
const SIGNATURES: [Signature; 9] = [
    signature("tensorflow", &["tensorflow_graphdef"], "model.graphdef", FileForm::File, false),
    signature("tensorflow", &["tensorflow_savedmodel"], "model.savedmodel", FileForm::Directory, false),
    signature("tensorrt", &["tensorrt_plan"], "model.plan", FileForm::File, true),
    // A directory holds a model.onnx and its external data.
    signature("onnxruntime", &["onnxruntime_onnx"], "model.onnx", FileForm::Either, true),
    signature("openvino", &[], "model.xml", FileForm::File, true),
    signature("pytorch", &["pytorch_libtorch", "libtorch"], "model.pt", FileForm::File, false),
    signature("pytorch", &["torch_aoti"], "model.pt2", FileForm::File, false),
    // A PyTorch model without a known platform or file.
    signature("pytorch", &["pytorch_libtorch"], "model.pt", FileForm::File, true),
    signature("python", &[], "model.py", FileForm::File, true),
];

/// The file by which a backend recognizes its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFile {
    pub name: &'static str,
    pub backend: &'static str,
    /// The values of `platform` that go with it.
    pub platforms: &'static [&'static str],
}

/// The model files that this crate knows, of backends that are built in and of others.
pub fn model_files() -> impl Iterator<Item = ModelFile> {
    // The last signature of PyTorch repeats a file.
    let is_first = |(at, signature): &(usize, &Signature)| {
        SIGNATURES.iter().take(*at).all(|before| before.filename != signature.filename)
    };
    let file = |(_, signature): (usize, &Signature)| ModelFile {
        name: signature.filename,
        backend: signature.backend,
        platforms: signature.platforms,
    };
    SIGNATURES.iter().enumerate().filter(is_first).map(file)
}

impl Signature {
    fn matches(&self, config: &ModelConfig, files: &[Entry]) -> bool {
        if !config.backend.is_empty() && config.backend != self.backend {
            return false;
        }
        if self.platforms.contains(&config.platform.as_str()) {
            return true;
        }
        if config.backend == self.backend && self.backend_suffices {
            return true;
        }
        // A platform of another signature outweighs files where the platform picks the signature.
        if !config.platform.is_empty() && !self.backend_suffices {
            return false;
        }
        config.default_model_filename == self.filename
            || (config.platform.is_empty()
                && config.default_model_filename.is_empty()
                && files.iter().any(|entry| entry.name == self.filename && self.form.fits(entry)))
    }
}

impl FileForm {
    fn fits(self, entry: &Entry) -> bool {
        match self {
            FileForm::File => !entry.is_directory,
            FileForm::Directory => entry.is_directory,
            FileForm::Either => true,
        }
    }
}

/// Fills backend, platform and file name where they are empty.
///
/// `files` are those of the model's first sub-directory.
pub(super) fn infer(config: &mut ModelConfig, model: &str, files: Option<&[Entry]>) -> Result<(), Error> {
    let files = files.unwrap_or_default();
    if let Some(signature) = SIGNATURES.iter().find(|signature| signature.matches(config, files)) {
        let fill = |field: &mut String, value: &str| {
            if field.is_empty() {
                value.clone_into(field);
            }
        };
        fill(&mut config.backend, signature.backend);
        fill(&mut config.platform, signature.platforms.first().copied().unwrap_or_default());
        // The script of a Python-based PyTorch model searches its file itself (contract/model_config.md, M2).
        if !(signature.backend == "pytorch" && config.runtime == "model.py") {
            fill(&mut config.default_model_filename, signature.filename);
        }
        return Ok(());
    }
    // Only a model that configures none of the three is guessed from its name.
    if config.backend.is_empty() && config.platform.is_empty() && config.default_model_filename.is_empty() {
        let Some((_, backend)) = model.split_once('.') else {
            return Err(Error::invalid(format!(
                "Invalid model name: Could not determine backend for model '{model}' with no backend in model \
                 configuration. Expected model name of the form 'model.<backend_name>'."
            )));
        };
        backend.clone_into(&mut config.backend);
        config.default_model_filename = format!("model.{backend}");
    }
    Ok(())
}
