//! The container image without a container engine: its layers are unpacked, and its entry point starts in them as the
//! image's user, on a root that is read-only.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use nereid_test_support::confine;
use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::prepared::step;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, run_to_end_under};
use nereid_test_support::skip::skip_for_want_of;
use nereid_test_support::variant::{Variant, each, usual};

use super::{Package, REQUEST, architecture, can_mount, dist, models, only_file, output};
use crate::process::SEVEN;

/// The most bytes of an image's files, without and with ONNX Runtime.
const PLAIN_BYTES_MAX: u64 = 120_000_000;
const ONNXRUNTIME_BYTES_MAX: u64 = 180_000_000;

/// As a container engine sets it up: `$1` is the root, `$2` the models, `$3` a program for /tmp or nothing; the words
/// behind are variables and the command that goes into the root.
const ENGINE: &str = r#"set -e
root=$1 models=$2 first=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$models" "$root/models"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=200m tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
[ -z "$first" ] || { cp "$first" "$root/tmp/first"; chmod 755 "$root/tmp/first"; }
exec setpriv --no-new-privs env -i "$@"
"#;

/// An image that was unpacked.
struct Image {
    config: Value,
    root: PathBuf,
    bytes: u64,
}

impl Image {
    fn unpack(archive: &Path, into: &Path) -> Image {
        let (layout, root) = (into.join("layout"), into.join("root"));
        for folder in [&layout, &root] {
            let _ = std::fs::remove_dir_all(folder);
            std::fs::create_dir_all(folder).expect("a folder");
        }
        output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout));
        let blob = |digest: &Value| {
            let digest = digest.as_str().expect("a digest").strip_prefix("sha256:").expect("of SHA-256");
            let path = layout.join("blobs/sha256").join(digest);
            let sum = output(Command::new("sha256sum").arg(&path));
            assert!(sum.starts_with(digest), "{} has another digest", path.display());
            path
        };
        let json = |path: PathBuf| -> Value {
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            serde_json::from_slice(&bytes).expect("JSON")
        };
        assert_eq!(json(layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
        let index = json(layout.join("index.json"));
        let manifest = json(blob(&index["manifests"][0]["digest"]));
        let config = json(blob(&manifest["config"]["digest"]));
        assert_eq!((&config["os"], &config["architecture"]), (&"linux".into(), &architecture().into()));
        let layers = manifest["layers"].as_array().expect("layers");
        let mut bytes = 0;
        for (layer, identifier) in layers.iter().zip(config["rootfs"]["diff_ids"].as_array().expect("identifiers")) {
            assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
            let path = blob(&layer["digest"]);
            assert_eq!(layer["size"], path.metadata().expect("a layer").len());
            let plain = into.join("layer.tar");
            let unzip = format!("gzip -dc '{}' >'{}'", path.display(), plain.display());
            output(Command::new("sh").args(["-c", &unzip]));
            let sum = output(Command::new("sha256sum").arg(&plain));
            assert!(format!("sha256:{sum}").starts_with(identifier.as_str().expect("an identifier")), "{sum}");
            output(Command::new("tar").args(["--numeric-owner", "-xf"]).arg(&plain).arg("-C").arg(&root));
            bytes += plain.metadata().expect("a layer").len();
        }
        let older = json(layout.join("manifest.json"));
        assert_eq!(older[0]["Layers"].as_array().map(Vec::len), Some(layers.len()), "{older}");
        Image { config: config["config"].clone(), root, bytes }
    }

    /// The command line up to the server's flags; `models` is at /models, `first` starts the entry point.
    fn command(&self, models: &Path, first: &[String], words: &[&str]) -> Vec<String> {
        let strings = |value: &Value| -> Vec<String> {
            value.as_array().expect("a list").iter().map(|one| one.as_str().expect("text").to_owned()).collect()
        };
        let user = self.config["User"].as_str().expect("a user");
        assert!(!user.starts_with('0') && !user.starts_with("root"), "{user}");
        let (program, first) = match first.split_first() {
            Some((program, rest)) => {
                let rest = rest.iter().take_while(|word| *word != "--").map(String::as_str);
                (program.as_str(), ["/tmp/first"].into_iter().chain(rest).chain(["--"]).collect())
            }
            None => ("", Vec::new()),
        };
        let (root, models) = (self.root.display().to_string(), models.display().to_string());
        let engine = ["unshare", "--mount", "sh", "-c", ENGINE, "sh", &*root, &*models, program];
        let mut line = engine.map(str::to_owned).to_vec();
        line.extend(strings(&self.config["Env"]));
        line.extend(["/usr/sbin/chroot", &*format!("--userspec={user}"), "--groups=", &*root].map(str::to_owned));
        line.extend(first.into_iter().map(str::to_owned));
        line.extend(strings(&self.config["Entrypoint"]));
        match words {
            [] => line.extend(strings(&self.config["Cmd"])),
            words => line.extend(words.iter().map(|word| (*word).to_owned())),
        }
        line
    }
}

/// The image and its digest.
fn image(package: &Package, debs: &Path, name: &str) -> (PathBuf, String) {
    let out = package.folder.join(name);
    let mut build = super::strictly("packaging/image");
    build.arg("--deb").arg(&package.deb).arg("--debs").arg(debs).arg("--out").arg(&out);
    let said = step(&mut build).expect("the image is made");
    (out, said.lines().last().expect("a digest").to_owned())
}

fn assert_answers(server: &Server) {
    let answer = Peer::connect(server.http).post("/v2/models/plain/infer", &[], REQUEST.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"][0], 7);
}

/// The repository as the image sees it: every started server gets its flag behind those of the image.
fn serve(image: &Image, repository: &Repository, first: &[String], variant: Variant) -> String {
    let words = image.command(repository.path(), first, &[]);
    let at = words.iter().position(|word| word == "--model-repository=/models").expect("the image's repository");
    assert!(words[..at].iter().any(|word| word == "serve"), "{words:?}");
    // The root has no such path; /models holds the same.
    let beside = image.root.join(repository.path().strip_prefix("/").expect("a whole path"));
    std::fs::create_dir_all(&beside).expect("a folder in the root");
    let server = Server::start_under(&words, variant, repository.path(), &[], "/v2/health/ready");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("its status");
    for line in ["NoNewPrivs:\t1", "Uid:\t65532\t65532", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    assert_answers(&server);
    server.stop()
}

#[test]
fn the_image_serves_on_a_read_only_root() {
    let Some(package) = Package::get() else { return };
    if !can_mount() {
        return;
    }
    let debs = package.folder.join("debs");
    if let Err(reason) =
        step(Command::new(paths::root().join("packaging/root")).args(["debs", architecture()]).arg(&debs))
    {
        return skip_for_want_of(&format!("packages for the image's base: {reason}"));
    }
    let (archive, digest) = image(&package, &debs, "image.oci.tar");
    let image = Image::unpack(&archive, &package.folder.join("plain"));
    assert!(image.bytes < PLAIN_BYTES_MAX, "{} bytes", image.bytes);
    let owner = output(Command::new("stat").args(["-c", "%u:%g %a"]).arg(image.root.join("var/lib/nereid")));
    assert_eq!(owner.trim(), "65532:65532 755");
    assert!(!image.root.join("bin/sh").exists() && !image.root.join("usr/bin").exists(), "the image has a shell");
    let repository = models();
    each(&[usual()], |variant| {
        let log = serve(&image, &repository, &[], variant);
        assert!(!log.contains("error"), "{log}");
        // The default profiles of container engines refuse io_uring.
        let Some(first) = confine::refusing("EPERM", "io_uring_setup,io_uring_enter,io_uring_register") else { return };
        let log = serve(&image, &repository, &first, Variant { io_engine: "auto", ..variant });
        assert_eq!(log.matches("using the epoll engine").count(), 1, "said once: {log}");
    });
    // The models of quickstart are in the program; its only writable folder is /tmp.
    let words = image.command(repository.path(), &[], &["quickstart"]);
    each(&[usual()], |variant| {
        let server = Server::start_under(&words, variant, repository.path(), &[], "/v2/health/ready");
        let body = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[3],"data":[1,2,3]}]}"#;
        let answer = Peer::connect(server.http).post("/v2/models/identity/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.stop();
    });
    let (status, out, err) = run_to_end_under(&image.command(repository.path(), &[], &["--version"]), &[]);
    assert!(status.success() && out.starts_with("nereid "), "{status}: {out}{err}");
    // The same packages make the same image.
    let (again, same) = self::image(&package, &debs, "again.oci.tar");
    assert_eq!(digest, same);
    assert_eq!(std::fs::read(again).expect("the image"), std::fs::read(archive).expect("the image"));
}

/// ONNX models in the larger image of a release.
#[test]
fn the_image_with_onnx_runtime_classifies_a_digit() {
    let (Some(dist), Some(package)) = (dist(), Package::get()) else { return };
    if !can_mount() {
        return;
    }
    let end = format!("-{}.oci.tar", std::env::consts::ARCH);
    let image =
        Image::unpack(&only_file(&dist, "nereid-", &format!("-onnxruntime{end}")), &package.folder.join("large"));
    println!("{} bytes with ONNX Runtime", image.bytes);
    assert!(image.bytes < ONNXRUNTIME_BYTES_MAX, "{} bytes", image.bytes);
    let models = paths::root().join("model_repository");
    let words = image.command(&models, &[], &[]);
    std::fs::create_dir_all(image.root.join(models.strip_prefix("/").expect("a whole path"))).expect("a folder");
    let server = Server::start_under(&words, usual(), &models, &[], "/v2/health/ready");
    let answer = Peer::connect(server.http).post("/v2/models/digits/infer", &[], SEVEN.as_bytes());
    assert!(answer.text().contains(":7:seven"), "{}", answer.text());
    server.stop();
}
