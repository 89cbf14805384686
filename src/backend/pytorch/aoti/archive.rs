//! Finds the files of a model in a `.pt2` archive and reads them into memory: no file is unpacked to a path, so a name
//! in the archive cannot lead anywhere.
//!
//! The format is zip, as torch writes it: all names are in one folder, those of the model `model` in
//! `data/aotinductor/model/`, and nothing is compressed. An archive that another program compressed again is read too.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;

use nereid_memory::{BlockMut, Slice};
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

/// The most bytes of the list of members: some 100,000 names.
const LIST_BYTES_MAX: u64 = 1 << 24;
/// The most bytes of a JSON file in the archive.
const TEXT_BYTES_MAX: u64 = 1 << 24;
/// The most bytes of a compressed member; one that is stored is at most as long as the archive.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

const FOLDER: [&str; 2] = ["data", "aotinductor"];
/// The name that torch gives to the only model of a package.
const MODEL: &str = "model";

const COMPILE: &str = "torch._inductor.aoti_compile_and_package";

/// Why a file is no package that can be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is not a zip archive ({0}); create it with {COMPILE}")]
    NotZip(String),
    #[error("its member '{0}' is damaged")]
    Damaged(String),
    #[error("its member '{0}' is too large")]
    TooLarge(String),
    #[error("its member '{0}' is encrypted or compressed in an uncommon way")]
    Unfit(String),
    #[error("it is an exported program that was not compiled; compile it with {COMPILE}")]
    Exported,
    #[error("it is a TorchScript module; set platform \"pytorch_libtorch\" to serve it")]
    TorchScript,
    #[error("it contains no model named \"{MODEL}\" but {0}; package the model alone, or name it \"{MODEL}\"")]
    Name(String),
    #[error("it contains no AOTInductor model; create it with {COMPILE}")]
    NoModel,
    #[error("it contains only the sources of its model; compile it without \"aot_inductor.package_cpp_only\"")]
    Sources,
    #[error("it contains more than one library of its model")]
    Libraries,
    #[error(
        "its weights are pickled, which only Python can read; compile it with \
         \"aot_inductor.package_constants_in_so\", or with \"binary_blob\" as \
         \"aot_inductor.package_constants_on_disk_format\""
    )]
    Pickled,
    #[error(
        "it calls operators that torch has no C functions for, through an executor that this server does not have; \
         compile it without custom operators"
    )]
    Executor,
    #[error("memory for its weights is exhausted")]
    Memory,
}

/// One file in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    index: usize,
    name: String,
    size: u64,
}

/// An archive with one model.
pub struct Package {
    archive: ZipArchive<Bounded>,
    length: u64,
    library: Member,
    metadata: Option<Member>,
    weights: Option<Member>,
}

impl Package {
    pub fn open(path: &Path) -> Result<Package, PackageError> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let left = Rc::new(Cell::new(LIST_BYTES_MAX));
        let input = Bounded { inner: BufReader::new(file), left: left.clone() };
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut archive = ZipArchive::with_config(config, input).map_err(of_list)?;
        left.set(u64::MAX);
        let members = members(&mut archive)?;
        let found = Found::among(&members)?;
        let mut package =
            Package { archive, length, library: found.library, metadata: found.metadata, weights: found.weights };
        if let Some(nodes) = found.nodes
            && package.has_nodes(&nodes)?
        {
            return Err(PackageError::Executor);
        }
        Ok(package)
    }

    /// What the package states of its target; `None` if it states nothing.
    pub fn metadata(&mut self) -> Result<Option<Vec<u8>>, PackageError> {
        self.metadata.clone().map(|member| self.text(&member)).transpose()
    }

    /// Writes the model's library to `to`.
    pub fn copy_library(&mut self, to: &mut impl Write) -> Result<(), PackageError> {
        let member = self.library.clone();
        let mut contents = self.contents(&member, u64::MAX)?;
        let copied = io::copy(&mut contents, to).map_err(|error| of_contents(error, &member))?;
        if copied == member.size { Ok(()) } else { Err(PackageError::Damaged(member.name.clone())) }
    }

    /// The weights that lie beside the library.
    pub fn weights(&mut self) -> Result<Option<Slice>, PackageError> {
        let Some(member) = self.weights.clone() else { return Ok(None) };
        let size = usize::try_from(member.size).map_err(|_| PackageError::TooLarge(member.name.clone()))?;
        let mut contents = self.contents(&member, u64::MAX)?;
        let mut block = BlockMut::try_unpooled(size).map_err(|_| PackageError::Memory)?;
        contents.read_exact(&mut block).map_err(|error| of_contents(error, &member))?;
        // The library compares the checksum at the end.
        match contents.read(&mut [0]).map_err(|error| of_contents(error, &member))? {
            0 => Ok(Some(block.freeze())),
            _ => Err(PackageError::Damaged(member.name.clone())),
        }
    }

    /// True if the model calls operators that the list `nodes` describes.
    fn has_nodes(&mut self, nodes: &Member) -> Result<bool, PackageError> {
        let text = self.text(nodes)?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| PackageError::Damaged(nodes.name.clone()))?;
        Ok(value.get("nodes").and_then(|nodes| nodes.as_array()).is_none_or(|nodes| !nodes.is_empty()))
    }

    fn text(&mut self, member: &Member) -> Result<Vec<u8>, PackageError> {
        let mut text = Vec::new();
        self.contents(member, TEXT_BYTES_MAX)?.read_to_end(&mut text).map_err(|error| of_contents(error, member))?;
        Ok(text)
    }

    /// At most one byte more than the member has, so that the archive's reader gets to the checksum.
    fn contents(&mut self, member: &Member, bytes_max: u64) -> Result<impl Read, PackageError> {
        let file = self.archive.by_index(member.index).map_err(|error| of_member(error, member))?;
        let is_stored = match file.compression() {
            CompressionMethod::Stored => true,
            CompressionMethod::Deflated => false,
            _ => return Err(PackageError::Unfit(member.name.clone())),
        };
        let limit = if is_stored { self.length } else { UNPACKED_BYTES_MAX };
        if member.size > limit.min(bytes_max) {
            return Err(PackageError::TooLarge(member.name.clone()));
        }
        Ok(file.take(member.size.saturating_add(1)))
    }
}

/// The files of the archive, without its folders.
fn members(archive: &mut ZipArchive<Bounded>) -> Result<Vec<Member>, PackageError> {
    let mut members = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(of_list)?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        if name.ends_with('/') {
            continue;
        }
        members.push(Member { index, name, size: entry.size() });
    }
    Ok(members)
}

/// The files of the model among all.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    library: Member,
    metadata: Option<Member>,
    weights: Option<Member>,
    /// The list of operators that an executor calls.
    nodes: Option<Member>,
}

impl Found {
    fn among(members: &[Member]) -> Result<Found, PackageError> {
        let of_model: Vec<&Member> = members.iter().filter(|member| model_of(&member.name) == Some(MODEL)).collect();
        if of_model.is_empty() {
            return Err(without_model(members));
        }
        let ending = |end: &str| of_model.iter().filter(|member| member.name.ends_with(end)).collect::<Vec<_>>();
        let mut libraries = ending(".wrapper.so");
        if libraries.is_empty() {
            // Older versions of torch.
            libraries = ending(".so");
        }
        let library = match libraries[..] {
            [library] => (*library).clone(),
            [] if ending(".cpp").is_empty() => return Err(PackageError::NoModel),
            [] => return Err(PackageError::Sources),
            _ => return Err(PackageError::Libraries),
        };
        let stem = library.name.strip_suffix(".so").unwrap_or_default();
        let beside = |end: &str| {
            let named = |member: &&&Member| member.name.strip_prefix(stem) == Some(end);
            of_model.iter().find(named).map(|member| (*member).clone())
        };
        let is_pickled = |member: &&&Member| file_name(&member.name) == "weights_config.json";
        if of_model.iter().any(|member| is_pickled(&member)) {
            return Err(PackageError::Pickled);
        }
        let metadata = beside("_metadata.json");
        let (weights, nodes) = (beside("_weights.blob"), beside(".json"));
        Ok(Found { metadata, weights, nodes, library })
    }
}

/// The model that a file belongs to: `<archive>/data/aotinductor/<model>/<file>`.
fn model_of(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [_, data, folder, model, _] if [data, folder] == FOLDER => Some(model),
        _ => None,
    }
}

fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// What an archive is that has no model of the right name.
fn without_model(members: &[Member]) -> PackageError {
    let mut others: Vec<String> =
        members.iter().filter_map(|member| Some(format!("\"{}\"", model_of(&member.name)?))).collect();
    others.sort();
    others.dedup();
    if !others.is_empty() {
        others.truncate(8);
        return PackageError::Name(others.join(", "));
    }
    let has = |is: fn(&str) -> bool| members.iter().any(|member| is(&member.name));
    let is_exported = |name: &str| {
        let parts: Vec<&str> = name.split('/').collect();
        matches!(parts[..], [_, "models", file] if file.ends_with(".json"))
            || file_name(name) == "serialized_exported_program.json"
    };
    match (has(is_exported), has(|name| file_name(name) == "constants.pkl")) {
        (true, _) => PackageError::Exported,
        (false, true) => PackageError::TorchScript,
        (false, false) => PackageError::NoModel,
    }
}

fn of_list(error: ZipError) -> PackageError {
    match error {
        ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => error.into(),
        other => PackageError::NotZip(other.to_string()),
    }
}

fn of_member(error: ZipError, member: &Member) -> PackageError {
    match error {
        ZipError::Io(error) => of_contents(error, member),
        ZipError::UnsupportedArchive(_) | ZipError::InvalidPassword => PackageError::Unfit(member.name.clone()),
        _ => PackageError::Damaged(member.name.clone()),
    }
}

/// Other kinds are errors of the file system, also of the file that a member is written to.
fn of_contents(error: io::Error, member: &Member) -> PackageError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            PackageError::Damaged(member.name.clone())
        }
        _ => error.into(),
    }
}

/// A file of which at most so many bytes can be read: the reader of archives keeps the list of members in memory.
struct Bounded {
    inner: BufReader<File>,
    left: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&mut self.inner).take(self.left.get()).read(buffer)?;
        self.left.set(self.left.get().saturating_sub(count as u64));
        Ok(count)
    }
}

impl Seek for Bounded {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}

#[cfg(test)]
mod tests;
