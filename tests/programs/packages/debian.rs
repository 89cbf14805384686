//! The package of Debian: what it holds, how it comes and goes, and the service as its user.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::server::Server;
use nereid_test_support::skip::{skip, skip_for_want_of};
use nereid_test_support::variant::{each, usual};

use super::{Package, REQUEST, can_mount, dist, models, only_file, output};

/// The host's files with a layer over them that is gone with the process: `$1` is an empty folder, `$2` the package,
/// and the words behind are what runs in that root.
const OVERLAY: &str = r#"set -e
work=$1 deb=$2
shift 2
mount --make-rprivate /
mount -t tmpfs -o size=1g tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
mount -t proc proc "$work/root/proc"
mount --bind /dev "$work/root/dev"
mount -t tmpfs tmpfs "$work/root/run"
mkdir "$work/root/run/package" "$work/root/run/models"
cp "$deb" "$work/root/run/package/nereid.deb"
[ -z "$MODELS" ] || mount --bind "$MODELS" "$work/root/run/models"
unset MODELS
exec chroot "$work/root" "$@"
"#;

/// The command line that runs `script` in that root; `models` is at /run/models there.
fn in_overlay(package: &Package, name: &str, models: &Path, script: &str) -> Vec<String> {
    let work = package.folder.join(name);
    std::fs::create_dir_all(&work).expect("a folder");
    let (work, deb) = (work.display().to_string(), package.deb.canonicalize().expect("the package"));
    let models = format!("MODELS={}", models.display());
    let words = ["env", &*models, "unshare", "--mount", "sh", "-c", OVERLAY, "sh", &*work, &*deb.display().to_string()];
    let words = words.into_iter().chain(["sh", "-ec", script, "sh"]);
    words.map(str::to_owned).collect()
}

/// False, after a visible skip, where the kernel or the host has no such root.
fn can_install() -> bool {
    if !can_mount() {
        return false;
    }
    if !Command::new("dpkg").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skip("no dpkg");
        return false;
    }
    // A container's own root may be one already, over which the kernel puts no other.
    const PROBE: &str = r#"mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/root &&
        mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root"#;
    let probe = Command::new("unshare").args(["--mount", "sh", "-c", PROBE]).output();
    let is_possible = probe.is_ok_and(|output| output.status.success());
    if !is_possible {
        skip_for_want_of("overlays over its root");
    }
    is_possible
}

/// The paths of the files in the package, from its root.
fn files(package: &Package) -> BTreeSet<String> {
    let listed = output(Command::new("dpkg-deb").arg("--contents").arg(&package.deb));
    let name = |line: &str| {
        let path = line.split_whitespace().nth(5).expect("a path").trim_start_matches("./").to_owned();
        (!path.ends_with('/') && !path.is_empty()).then_some(path)
    };
    listed.lines().filter_map(name).collect()
}

#[test]
fn the_package_holds_what_the_program_installs() {
    let Some(package) = Package::get() else { return };
    let files = files(&package);
    let prefix = package.folder.join("prefix");
    let mut install = Command::new(env!("CARGO_BIN_EXE_nereid"));
    output(install.arg("install").arg(format!("--prefix={}", prefix.display())));
    let found = output(Command::new("find").arg(&prefix).args(["!", "-type", "d", "-printf", "%P\n"]));
    // The text about the prefix is README.Debian here.
    let expected: BTreeSet<String> =
        found.lines().filter(|name| *name != "README.md").map(|name| format!("opt/nereid/{name}")).collect();
    let below = files.iter().filter(|name| name.starts_with("opt/")).cloned().collect();
    assert_eq!(expected, below);
    for name in [
        "usr/lib/systemd/system/nereid.service",
        "usr/lib/sysusers.d/nereid.conf",
        "usr/share/bash-completion/completions/nereid",
        "usr/share/zsh/vendor-completions/_nereid",
        "usr/share/fish/vendor_completions.d/nereid.fish",
        "usr/share/man/man1/nereid.1.gz",
        "usr/share/man/man1/nereid-perf.1.gz",
        "usr/share/doc/nereid/copyright",
        "etc/default/nereid",
    ] {
        assert!(files.contains(name), "{name} is not in {files:?}");
    }
    let fields = output(Command::new("dpkg-deb").arg("--field").arg(&package.deb));
    // The oldest glibc is that of the symbols, as the linker's own tool lists them.
    let program = Path::new(env!("CARGO_BIN_EXE_nereid"));
    let symbols =
        output(Command::new("objdump").arg("-T").args([program, &program.with_file_name("deps/libtritonserver.so")]));
    let minors = symbols.split("GLIBC_2.").skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let newest = minors.max().expect("symbols of glibc");
    if dist().is_none() {
        assert!(fields.contains(&format!("Depends: libc6 (>= 2.{newest}), ")), "{fields}");
    }
    assert!(fields.contains(&format!("Architecture: {}\n", super::architecture())), "{fields}");
}

/// Names of functions, which the backtrace of a panic has, and no more; the rest is where the link points.
#[test]
fn the_programs_keep_the_names_of_their_functions() {
    let Some(package) = Package::get() else { return };
    let root = package.folder.join("unpacked");
    output(Command::new("dpkg-deb").arg("--extract").arg(&package.deb).arg(&root));
    for (name, function) in [("bin/nereid", "tritonserver::cli::"), ("lib/libtritonserver.so", "tritonserver::")] {
        let path = root.join("opt/nereid").join(name);
        let names = output(Command::new("nm").args(["--demangle", "--defined-only"]).arg(&path));
        assert!(names.contains(function), "{function} is not in {name}");
        let sections = output(Command::new("readelf").args(["--sections", "--wide"]).arg(&path));
        assert!(!sections.contains(".debug_info") && !sections.contains(".debug_line"), "{name}: {sections}");
        let link = output(Command::new("readelf").args(["--string-dump=.gnu_debuglink"]).arg(&path));
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(link.contains(&format!("{file}.debug")), "{name}: {link}");
    }
    let Some(dist) = dist() else { return };
    // The package with the rest turns the address of a function into its line.
    let debug = only_file(&dist, "nereid-dbg_", &format!("_{}.deb", super::architecture()));
    output(Command::new("dpkg-deb").arg("--extract").arg(debug).arg(&root));
    let program = root.join("opt/nereid/bin/nereid");
    let notes = output(Command::new("readelf").arg("--notes").arg(&program));
    let identifier = notes.split("Build ID: ").nth(1).and_then(|rest| rest.lines().next()).expect("a build identifier");
    let (begin, rest) = identifier.trim().split_at(2);
    let debug = root.join(format!("usr/lib/debug/.build-id/{begin}/{rest}.debug"));
    let names = output(Command::new("nm").args(["--demangle", "--defined-only"]).arg(&program));
    let main = names.lines().find(|line| line.ends_with("nereid::main")).expect("the function main");
    let address = main.split(' ').next().expect("an address");
    let line = output(Command::new("addr2line").arg("-e").arg(debug).arg(address));
    assert!(line.contains("src/main.rs:"), "{line}");
}

#[test]
fn the_package_installs_upgrades_and_goes() {
    let Some(package) = Package::get() else { return };
    if !can_install() {
        return;
    }
    // A host where the package was never installed, with `getent` as the judge of its users.
    let script = r#"
dpkg() { command dpkg --no-triggers "$@" >/dev/null; }
dpkg --install /run/package/nereid.deb
command dpkg --verify nereid
echo "user $(getent passwd nereid | cut -d: -f6,7)"
stat -c '%n %U:%G %a' /etc/nereid /var/lib/nereid /var/lib/nereid/models /opt/nereid/bin/nereid
readlink -f /usr/bin/nereid
nereid --version
echo changed >>/etc/default/nereid
: >/var/lib/nereid/models/kept
mkdir -p /opt/nereid/lib/nereid/runtimes/mine
dpkg --install --force-confold /run/package/nereid.deb
tail -n 1 /etc/default/nereid
dpkg --remove nereid
ls -d /opt/nereid/bin /usr/bin/nereid /etc/default/nereid /var/lib/nereid/models/kept 2>/dev/null || true
dpkg --purge nereid
ls -d /etc/default/nereid /etc/nereid /var/lib/nereid/models/kept /opt/nereid/lib/nereid/runtimes/* 2>/dev/null || true
rm -r /var/lib/nereid/models/kept /opt/nereid
dpkg --install /run/package/nereid.deb
dpkg --purge nereid
ls -d /opt/nereid /var/lib/nereid /etc/nereid 2>/dev/null || echo nothing left
"#;
    let words = in_overlay(&package, "lifecycle", Path::new(""), script);
    let said = output(Command::new(&words[0]).args(&words[1..]));
    let version = output(Command::new(env!("CARGO_BIN_EXE_nereid")).arg("--version"));
    let expected = format!(
        "user /var/lib/nereid:/usr/sbin/nologin\n\
         /etc/nereid root:nereid 750\n\
         /var/lib/nereid nereid:nereid 755\n\
         /var/lib/nereid/models nereid:nereid 755\n\
         /opt/nereid/bin/nereid root:root 755\n\
         /opt/nereid/bin/nereid\n\
         {version}\
         changed\n\
         /etc/default/nereid\n/var/lib/nereid/models/kept\n\
         /opt/nereid/lib/nereid/runtimes/mine\n/var/lib/nereid/models/kept\n\
         nothing left\n"
    );
    assert_eq!(said, expected);
}

/// The command line of the installed unit, as its user, after the package's own scripts have made that user; what it
/// needs beyond the package is its repository.
#[test]
fn the_installed_service_serves_as_its_user() {
    let Some(package) = Package::get() else { return };
    if !can_install() {
        return;
    }
    let repository = models();
    let script = r#"
dpkg --no-triggers --install /run/package/nereid.deb >/dev/null
unit=/usr/lib/systemd/system/nereid.service
if command -v systemd-analyze >/dev/null; then systemd-analyze verify --man=no --recursive-errors=no "$unit"; fi
user=$(sed -n 's/^User=//p' "$unit")
command=$(sed -n 's/^ExecStart=//p' "$unit" | sed 's/ \$NEREID_FLAGS$//')
shift
cd /
as="setpriv --reuid=$user --regid=$user --init-groups --no-new-privs"
exec $as env -i $command --model-repository=/run/models "$@"
"#;
    each(&[usual()], |variant| {
        let words = in_overlay(&package, "service", repository.path(), script);
        // The script leaves out the first flag: the repository by its path on the host, which this root has not.
        let server = Server::start_under(&words, variant, repository.path(), &[], "/v2/health/ready");
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("its status");
        let uid = status.lines().find(|line| line.starts_with("Uid:")).expect("a user");
        assert!(!uid.contains("\t0"), "{uid}");
        let answer = Peer::connect(server.http).post("/v2/models/plain/infer", &[], REQUEST.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.stop();
    });
}

/// Debian's own judge of packages; it is slow, so it sees those of a release.
#[test]
fn a_release_has_a_package_without_faults() {
    let (Some(_), Some(package)) = (dist(), Package::get()) else { return };
    if Command::new("lintian").arg("--version").output().is_err() {
        return skip("no lintian");
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--profile=debian", "--fail-on=error,warning", "--no-tag-display-limit"]);
    // Who makes the release names its address (packaging/deb --maintainer).
    lintian.arg("--suppress-tags=bogus-mail-host,bogus-mail-host-in-debian-changelog").arg(&package.deb);
    output(&mut lintian);
    let bytes = package.deb.metadata().expect("the package").len();
    assert!(bytes < 60 << 20, "{bytes} bytes");
    output(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(paths::root().join(dist().expect("a folder"))),
    );
}
