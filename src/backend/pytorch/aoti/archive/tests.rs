//! Archives as torch writes them, and archives that are none of them.

use std::path::PathBuf;

use super::*;
use nereid_backend::scratch::Scratch;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const AT: &str = "m/data/aotinductor/model";

fn stored() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(CompressionMethod::Stored)
}

fn archive(members: &[(String, &[u8])], options: SimpleFileOptions) -> Vec<u8> {
    let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
    for (name, contents) in members {
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(contents).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// The file of an archive, and its folder, which is removed with the value.
struct Rig {
    _scratch: Scratch,
    path: PathBuf,
}

impl Rig {
    fn new(name: &str, bytes: &[u8]) -> Rig {
        let scratch = Scratch::new(&format!("aoti-archive-{name}"));
        let path = scratch.write("model.pt2", bytes);
        Rig { _scratch: scratch, path }
    }

    fn open(&self) -> Result<Package, PackageError> {
        Package::open(&self.path)
    }
}

fn opened(name: &str, members: &[(&str, &[u8])]) -> Result<Package, PackageError> {
    let members: Vec<(String, &[u8])> = members.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
    Rig::new(name, &archive(&members, stored())).open()
}

fn refused(name: &str, members: &[(&str, &[u8])]) -> String {
    match opened(name, members) {
        Ok(_) => panic!("{name} was accepted"),
        Err(error) => error.to_string(),
    }
}

fn library_of(package: &mut Package) -> Result<Vec<u8>, PackageError> {
    let mut library = Vec::new();
    package.copy_library(&mut library).map(|()| library)
}

fn whole() -> Vec<(String, &'static [u8])> {
    [
        ("abc.wrapper.cpp", &b"source"[..]),
        ("abc.wrapper_metadata.json", b"{}"),
        ("def.kernel_metadata.json", b"kernel"),
        ("abc.wrapper_weights.blob", b"weights"),
        ("abc.wrapper.so", b"library"),
        ("abc.wrapper.json", br#"{"nodes": []}"#),
    ]
    .map(|(file, contents)| (format!("{AT}/{file}"), contents))
    .to_vec()
}

#[test]
fn the_files_of_the_model_are_found_stored_and_compressed() {
    for (name, method) in [("stored", CompressionMethod::Stored), ("deflated", CompressionMethod::Deflated)] {
        let rig = Rig::new(name, &archive(&whole(), stored().compression_method(method)));
        let mut package = rig.open().unwrap();
        assert_eq!(library_of(&mut package).unwrap(), b"library");
        assert_eq!(package.metadata().unwrap().as_deref(), Some(&b"{}"[..]));
        assert_eq!(package.weights().unwrap().as_deref(), Some(&b"weights"[..]));
    }
    let mut old = opened("old", &[(&format!("{AT}/abc.so"), b"library")]).unwrap();
    assert_eq!(library_of(&mut old).unwrap(), b"library");
    assert!(old.metadata().unwrap().is_none() && old.weights().unwrap().is_none());
}

#[test]
fn what_is_no_package_is_told_apart() {
    let library = format!("{AT}/abc.wrapper.so");
    let compile = "torch._inductor.aoti_compile_and_package";
    for (name, members, text) in [
        ("exported", &[("m/models/model.json", &b"{}"[..])][..], "an exported program that was not compiled"),
        ("exported-old", &[("serialized_exported_program.json", b"{}")], "an exported program that was not compiled"),
        ("script", &[("m/constants.pkl", b""), ("m/data.pkl", b"")], "a TorchScript module"),
        ("other", &[("m/readme", b"")], "contains no AOTInductor model"),
        ("named", &[("m/data/aotinductor/net/a.wrapper.so", b"")], "no model named \"model\" but \"net\""),
        ("empty", &[(&format!("{AT}/abc.wrapper_metadata.json"), b"{}")], "contains no AOTInductor model"),
        ("sources", &[(&format!("{AT}/abc.wrapper.cpp"), b"")], "only the sources of its model"),
        ("two", &[(&library, b""), (&format!("{AT}/d.wrapper.so"), b"")], "more than one library"),
        ("pickled", &[(&library, b""), (&format!("{AT}/weights_config.json"), b"{}")], "its weights are pickled"),
        (
            "nodes",
            &[(&library, b""), (&format!("{AT}/abc.wrapper.json"), br#"{"nodes": [{}]}"#)],
            "calls operators that torch has no C functions for",
        ),
        ("nodes-broken", &[(&library, b""), (&format!("{AT}/abc.wrapper.json"), b"{")], "is damaged"),
    ] {
        let found = refused(name, members);
        assert!(found.contains(text), "{name}: {found}");
    }
    assert!(refused("exported-again", &[("m/models/model.json", b"{}")]).ends_with(compile));
}

/// A file of a deeper or a hostile path is not one of the model.
#[test]
fn names_with_other_paths_are_not_used() {
    for name in [
        "../data/aotinductor/model/../abc.wrapper.so",
        "/m/data/aotinductor/model/abc.wrapper.so",
        "m/x/data/aotinductor/model/abc.wrapper.so",
        "m/data/aotinductor/model/deeper/abc.wrapper.so",
        "m\\data\\aotinductor\\model\\abc.wrapper.so",
    ] {
        assert!(refused("paths", &[(name, b"library")]).contains("contains no AOTInductor model"), "{name}");
    }
    // The folder's name may be anything: it is never a path on the disk.
    let mut package = opened("dots", &[("../data/aotinductor/model/abc.wrapper.so", b"library")]).unwrap();
    assert_eq!(library_of(&mut package).unwrap(), b"library");
}

#[test]
fn a_damaged_archive_is_an_error() {
    let bytes = archive(&whole(), stored());
    let refusal = |name: &str, bytes: &[u8]| match Rig::new(name, bytes).open() {
        Ok(mut package) => library_of(&mut package).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(refusal("text", b"no archive").contains("not a zip archive"));
    assert!(refusal("nothing", b"").contains("not a zip archive"));
    assert!(refusal("cut", &bytes[..bytes.len() / 2]).contains("not a zip archive"));
    let at = memchr::memmem::find(&bytes, b"library").unwrap();
    let mut wrong = bytes.clone();
    wrong[at] ^= 1;
    assert_eq!(refusal("sum", &wrong), format!("its member '{AT}/abc.wrapper.so' is damaged"));
    assert!(matches!(Package::open(Path::new("/nowhere/model.pt2")), Err(PackageError::Io(_))));
    assert!(Package::open(&std::env::temp_dir()).is_err(), "a directory");
}

/// Each byte of a small archive changed: an error or the same library, never a panic.
#[test]
fn any_changed_byte_is_an_error_or_does_not_matter() {
    let bytes = archive(&[(format!("{AT}/a.wrapper.so"), &b"library"[..])], stored());
    let rig = Rig::new("bytes", &bytes);
    let (mut refused, mut accepted) = (0, 0);
    for at in 0..bytes.len() {
        for value in [0x00, 0x7f, 0xff] {
            let mut broken = bytes.clone();
            broken[at] = value;
            std::fs::write(&rig.path, &broken).unwrap();
            match rig.open().and_then(|mut package| library_of(&mut package)) {
                Ok(library) => {
                    assert_eq!(library, b"library", "byte {at} is {value:#x}");
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 0 && accepted > 0, "{refused} {accepted}");
}

#[test]
fn a_member_that_unpacks_to_too_much_is_refused() {
    let bomb = vec![0; usize::try_from(TEXT_BYTES_MAX).unwrap() + 1];
    let members =
        [(format!("{AT}/a.wrapper.so"), &b"library"[..]), (format!("{AT}/a.wrapper_metadata.json"), &bomb[..])];
    let rig = Rig::new("bomb", &archive(&members, stored().compression_method(CompressionMethod::Deflated)));
    let error = rig.open().unwrap().metadata().unwrap_err();
    assert_eq!(error.to_string(), format!("its member '{AT}/a.wrapper_metadata.json' is too large"));
}
