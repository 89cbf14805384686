//! Archives as packers make them, and malicious ones.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use ::zip::write::SimpleFileOptions;
use ::zip::{CompressionMethod, ZipWriter};

use super::*;
use crate::python::fixtures::TestDirectory;
use nereid_test_support::skip::skip;

/// One member: kind, name, target, contents.
type Member<'a> = (u8, &'a [u8], &'a [u8], &'a [u8]);

fn header(kind: u8, name: &[u8], target: &[u8], size: usize) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    block[100..107].copy_from_slice(b"0000755");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"14000000000");
    block[156] = kind;
    block[157..157 + target.len().min(100)].copy_from_slice(&target[..target.len().min(100)]);
    block[257..263].copy_from_slice(b"ustar\0");
    sign(&mut block);
    block
}

fn sign(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn tar_of(members: &[Member<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, target, contents) in members {
        bytes.extend(header(*kind, name, target, contents.len()));
        bytes.extend(*contents);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn unpacked(place: &TestDirectory, bytes: &[u8]) -> Result<PathBuf, String> {
    let archive = place.file("archive", bytes);
    let into = place.path().join("into");
    let _ = fs::remove_dir_all(&into);
    fs::create_dir(&into).unwrap();
    unpack(&archive, &into).map(|()| into).map_err(|error| error.to_string())
}

fn command(place: &TestDirectory, words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    let done = command.args(&words[1..]).current_dir(place.path()).output();
    done.is_ok_and(|output| output.status.success())
}

/// A directory with all kinds of members of environments; some names are too long for a header's fields.
fn environment(place: &TestDirectory) -> String {
    let long = format!("{}/{}", "long".repeat(30), "name".repeat(20));
    place.program("env/bin/python3", "#!/bin/sh\n");
    place.file("env/lib/module.py", "x = 1\n");
    place.file(&format!("env/lib/{long}"), "long");
    place.file("env/lib/empty", "");
    place.file("env/lib/large", vec![7; 1_000_000]);
    fs::hard_link(place.path().join("env/lib/module.py"), place.path().join("env/lib/same.py")).unwrap();
    for (link, target) in [("env/bin/python", "python3"), ("env/lib64", "lib"), ("env/bin/system", "/usr/bin/python3")]
    {
        std::os::unix::fs::symlink(target, place.path().join(link)).unwrap();
    }
    let module = fs::File::options().append(true).open(place.path().join("env/lib/module.py")).unwrap();
    module.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_001)).unwrap();
    long
}

fn expect_environment(into: &Path, long: &str, times: bool) {
    assert_eq!(fs::read(into.join("lib/module.py")).unwrap(), b"x = 1\n");
    assert_eq!(fs::read(into.join("lib/same.py")).unwrap(), b"x = 1\n");
    assert_eq!(fs::read(into.join("lib").join(long)).unwrap(), b"long");
    assert_eq!(fs::read(into.join("lib/empty")).unwrap(), b"");
    assert_eq!(fs::read(into.join("lib/large")).unwrap(), vec![7; 1_000_000]);
    assert_eq!(fs::metadata(into.join("bin/python3")).unwrap().permissions().mode() & 0o777, 0o755);
    for (link, target) in [("bin/python", "python3"), ("lib64", "lib"), ("bin/system", "/usr/bin/python3")] {
        assert_eq!(fs::read_link(into.join(link)).unwrap(), Path::new(target), "{link}");
    }
    if times {
        assert_eq!(fs::metadata(into.join("lib/module.py")).unwrap().mtime(), 1_600_000_001);
    }
}

#[test]
fn what_tar_packs_comes_out_the_same() {
    let place = TestDirectory::new();
    let long = environment(&place);
    let forms = [
        ("--format=gnu -cf", ""),
        ("--format=pax -cf", ""),
        ("--format=gnu -czf", "gzip"),
        ("--format=gnu -cjf", "bzip2"),
        ("--format=pax -cJf", "xz"),
        ("--format=gnu --zstd -cf", "zstd"),
    ];
    for (form, program) in forms {
        if !program.is_empty() && !command(&place, &[program, "--version"]) {
            skip(&format!("archives of {program}: it is not here"));
            continue;
        }
        let words: Vec<&str> = ["tar"].into_iter().chain(form.split(' ')).chain(["packed", "-C", "env", "."]).collect();
        if !command(&place, &words) {
            skip("archives of tar: it is not here, or not GNU's");
            return;
        }
        let packed = fs::read(place.path().join("packed")).unwrap();
        let into = unpacked(&place, &packed).unwrap_or_else(|error| panic!("{form}: {error}"));
        expect_environment(&into, &long, true);
        // Every truncation is reported.
        for part in [3, 2] {
            let error = unpacked(&place, &packed[..packed.len() / part]).unwrap_err();
            assert!(!error.is_empty(), "{form}");
        }
    }
}

#[test]
fn what_zip_packs_comes_out_the_same() {
    let place = TestDirectory::new();
    let long = environment(&place);
    const PACK: &str = r#"
import os, sys, zipfile
with zipfile.ZipFile("packed", "w", int(sys.argv[1])) as archive:
    for folder, folders, files in os.walk("env"):
        for name in files + [one for one in folders if os.path.islink(os.path.join(folder, one))]:
            path = os.path.join(folder, name)
            entry = zipfile.ZipInfo(os.path.relpath(path, "env"))
            entry.compress_type = int(sys.argv[1])
            entry.external_attr = os.lstat(path).st_mode << 16
            data = os.readlink(path).encode() if os.path.islink(path) else open(path, "rb").read()
            with archive.open(entry, "w", force_zip64=True) as member:
                member.write(data)
"#;
    for method in ["0", "8"] {
        if !command(&place, &["python3", "-c", PACK, method]) {
            skip("archives of zip: python3 does not make one");
            return;
        }
        let packed = fs::read(place.path().join("packed")).unwrap();
        let into = unpacked(&place, &packed).unwrap_or_else(|error| panic!("{method}: {error}"));
        expect_environment(&into, &long, false);
        assert_eq!(unpacked(&place, &packed[..packed.len() / 2]).unwrap_err(), "it is cut off");
        let mut wrong = packed.clone();
        let at = memchr::memmem::find(&wrong, b"x = 1").unwrap_or(60);
        wrong[at] ^= 1;
        assert!(unpacked(&place, &wrong).is_err(), "{method}");
        // Every byte of the list inverted once: no panic, no hang.
        let list = memchr::memmem::find(&packed, b"PK\x01\x02").unwrap();
        for at in list..packed.len().min(list + 200) {
            let mut wrong = packed.clone();
            wrong[at] = !wrong[at];
            let _ = unpacked(&place, &wrong);
        }
    }
}

#[test]
fn nothing_leaves_the_directory() {
    let place = TestDirectory::new();
    place.file("outside/file", "kept");
    let outside = |name: &str| {
        let reason = match name {
            "." => {
                return Err(format!("its member '{name}' would lie outside of the directory that it is unpacked into"));
            }
            "/tmp/x" => "Path is absolute",
            _ => "Path contains '..'",
        };
        let text = "archive_write_header() failed with error code = -25 error message is";
        Err(format!("{text} {reason} (member '{name}')"))
    };
    for name in ["../outside/file", "a/../../outside/file", "/tmp/x", "..", "."] {
        for kind in [b'0', b'1', b'2'] {
            let tar = tar_of(&[(kind, name.as_bytes(), b"a", b"")]);
            assert_eq!(unpacked(&place, &tar), outside(name), "{name} {}", char::from(kind));
        }
    }
    assert_eq!(unpacked(&place, &tar_of(&[(b'5', b"../d", b"", b"")])), outside("../d"));
    assert_eq!(unpacked(&place, &tar_of(&[(b'1', b"x", b"../outside/file", b"")])), outside("../outside/file"));
    // Through a link in the archive itself, in either order.
    let link: Member<'_> = (b'2', b"a", b"../outside", b"");
    let through: Member<'_> = (b'0', b"a/file", b"", b"written");
    let inner: Member<'_> = (b'2', b"a/link", b"x", b"");
    let second: Member<'_> = (b'1', b"h", b"a/file", b"");
    for members in [[link, through].to_vec(), [through, link].to_vec(), [link, inner].to_vec(), [inner, link].to_vec()]
    {
        let error = unpacked(&place, &tar_of(&members)).unwrap_err();
        assert!(error.contains("cannot be written: "), "{error}");
    }
    assert!(unpacked(&place, &tar_of(&[link, second])).unwrap_err().contains("No such file"));
    assert_eq!(fs::read(place.path().join("outside/file")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(place.path().join("outside")).unwrap().count(), 1);
}

/// An archive with one stored member, as made by a packer that accepts any name.
fn zip_of(name: &str, mode: u32, contents: &[u8]) -> Vec<u8> {
    let mut packer = ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    packer.start_file("n".repeat(name.len()), options.unix_permissions(0o644)).unwrap();
    packer.write_all(contents).unwrap();
    let mut bytes = packer.finish().unwrap().into_inner();
    let list = memchr::memmem::find(&bytes, b"PK\x01\x02").unwrap();
    for at in [30, list + 46] {
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    }
    bytes[list + 38..list + 42].copy_from_slice(&(mode << 16).to_le_bytes());
    bytes
}

#[test]
fn members_of_zip_archives_are_held_to_the_same() {
    let place = TestDirectory::new();
    let (file, link) = (0o100_644, 0o120_777);
    let text = "archive_write_header() failed with error code = -25 error message is";
    for name in ["../x", "a/../../x", "..", "../d/"] {
        let error = Err(format!("{text} Path contains '..' (member '{name}')"));
        for mode in [file, link] {
            assert_eq!(unpacked(&place, &zip_of(name, mode, b"x")), error);
        }
    }
    let error = Err(format!("{text} Path is absolute (member '/tmp/x')"));
    assert_eq!(unpacked(&place, &zip_of("/tmp/x", file, b"x")), error);
    let into = unpacked(&place, &zip_of("link", link, b"../outside")).unwrap();
    assert_eq!(fs::read_link(into.join("link")).unwrap(), Path::new("../outside"));
    let pipe =
        Err("its member 'x' is neither file nor directory nor link, which an environment cannot have".to_owned());
    assert_eq!(unpacked(&place, &zip_of("x", 0o010_644, b"x")), pipe);

    let whole = zip_of("x", file, b"contents");
    let into = unpacked(&place, &whole).unwrap();
    assert_eq!(fs::read(into.join("x")).unwrap(), b"contents");
    let list = memchr::memmem::find(&whole, b"PK\x01\x02").unwrap();
    let with = |at: usize, value: u8| {
        let mut wrong = whole.clone();
        wrong[list + at] = value;
        unpacked(&place, &wrong)
    };
    // More and fewer bytes than the member has, and a wrong checksum.
    let sum = Err("it is damaged: the sum of a member is wrong".to_owned());
    for (at, value) in [(24, 9), (24, 7), (24, 0), (20, 7), (16, !whole[list + 16])] {
        assert_eq!(with(at, value), sum, "{at} {value}");
    }
    assert_eq!(unpacked(&place, &zip_of("x", link, &[b'x'; 4097])), sum, "no path is as long");
    let encrypted = Err("its member 'x' is encrypted, which an environment cannot have".to_owned());
    assert_eq!(with(8, 1), encrypted);
    let uncommon = Err("its member 'x' is compressed in an uncommon way, which an environment cannot have".to_owned());
    assert_eq!(with(10, 12), uncommon);
    let list = Err("it is damaged: its list of members makes no sense".to_owned());
    for (at, value) in [(0, 0), (28, 255), (42, 1)] {
        assert_eq!(with(at, value), list, "{at} {value}");
    }
}

#[test]
fn members_are_what_they_say() {
    let place = TestDirectory::new();
    let into = unpacked(
        &place,
        &tar_of(&[
            (b'0', b"./twice", b"", b"first"),
            (b'2', b"link", b"twice", b""),
            (b'0', b"twice", b"", b"second"),
            (b'1', b"link2", b"link", b""),
            (b'0', b"replaced", b"", b"a file first"),
            (b'2', b"replaced", b"link", b""),
            (b'0', b"old/", b"", b""),
            (b'5', b"./", b"", b""),
            (b'7', b"deep/er/file", b"", b"x"),
            (b'V', b"a label", b"", b"skipped"),
        ]),
    )
    .unwrap();
    assert_eq!(fs::read(into.join("twice")).unwrap(), b"second");
    assert_eq!(fs::read_link(into.join("link2")).unwrap(), Path::new("twice"));
    assert_eq!(fs::read_link(into.join("replaced")).unwrap(), Path::new("link"));
    assert!(into.join("old").is_dir() && into.join("deep/er/file").is_file() && !into.join("a label").exists());
    let mode = fs::metadata(into.join("twice")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    for (kind, what) in [(b'3', "a device"), (b'4', "a device"), (b'6', "a pipe"), (b'S', "sparse")] {
        let expected = format!("its member 'x' is {what}, which an environment cannot have");
        assert_eq!(unpacked(&place, &tar_of(&[(kind, b"x", b"", b"")])), Err(expected));
    }
    // A member does not get the set-user-id bit.
    let mut tar = tar_of(&[(b'0', b"x", b"", b"")]);
    tar[100..107].copy_from_slice(b"0006755");
    let mut head: [u8; 512] = tar[..512].try_into().unwrap();
    sign(&mut head);
    tar[..512].copy_from_slice(&head);
    let into = unpacked(&place, &tar).unwrap();
    assert_eq!(fs::metadata(into.join("x")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn what_is_damaged_is_refused() {
    let place = TestDirectory::new();
    let unknown = Err("it is neither a tar archive (plain, gzip, bzip2, xz, zstd) nor a zip archive".to_owned());
    for bytes in [&b""[..], &[0; 1024], &[b'x'; 2048]] {
        assert_eq!(unpacked(&place, bytes), unknown);
    }
    assert_eq!(unpacked(&place, b"short"), Err("it is cut off".to_owned()));
    let whole = tar_of(&[(b'0', b"a", b"", &[1; 700]), (b'0', b"b", b"", b"x")]);
    for length in [600, 512 + 700, 512 + 1024 + 100, 512 + 1024 + 512] {
        assert_eq!(unpacked(&place, &whole[..length]), Err("it is cut off".to_owned()), "{length}");
    }
    let mut wrong = whole.clone();
    wrong[512 + 1024] ^= 1;
    assert_eq!(unpacked(&place, &wrong), Err("it is damaged: a header's sum is wrong".to_owned()));
    let mut endless = header(b'L', b"././@LongLink", b"", 0);
    endless[124..135].copy_from_slice(b"77777777777");
    sign(&mut endless);
    assert_eq!(unpacked(&place, &endless), Err("it is damaged: a name has no end".to_owned()));
    for record in
        [&b"no length"[..], b"9 a=b\n", b"6 ab\n\n", b"99999999999999999999999 a=b\n", b"6 a=b\n\xff", b"0 a=b\n"]
    {
        let error = unpacked(&place, &tar_of(&[(b'x', b"pax", b"", record)]));
        assert_eq!(error, Err("it is damaged: a pax record is no record".to_owned()), "{record:?}");
    }
    // gzip around a truncated archive, and with a wrong checksum.
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&whole).unwrap();
    let packed = packer.finish().unwrap();
    assert!(unpacked(&place, &packed).is_ok());
    assert!(unpacked(&place, &packed[..packed.len() - 12]).is_err());
    let mut wrong = packed.clone();
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    assert!(unpacked(&place, &wrong).is_err());
}
