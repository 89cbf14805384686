//! Checks that a package was compiled for this host, before its library is opened: an instruction that the CPU does not
//! have would end the process.
//!
//! The package states the instruction sets of its vector code. Its compiler may use more of them (`-march=native`), so
//! a package belongs on the kind of CPU that it was compiled on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use serde_json::Value;

/// More of /proc/cpuinfo is not read; the first CPU comes first.
const CPUINFO_BYTES_MAX: u64 = 1 << 16;

/// The CPU features that code for an instruction set needs, as /proc/cpuinfo names them.
const INSTRUCTION_SETS: [(&str, &[&str]); 6] = [
    ("AVX2", &["avx2", "fma", "f16c"]),
    ("AVX512", &["avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"]),
    ("AVX512_VNNI", &["avx512_vnni"]),
    ("AMX_TILE", &["amx_tile", "amx_bf16", "amx_int8"]),
    ("ASIMD", &["asimd"]),
    // Code without vectors.
    ("INVALID_VEC_ISA", &[]),
];

/// What the package states of the host that it was compiled for. Older packages state less.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub device: Option<String>,
    platform: Option<String>,
    machine: Option<String>,
    instruction_sets: Option<String>,
}

/// Why a package cannot run here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    #[error("its metadata is not JSON")]
    Metadata,
    #[error("it was compiled for the device \"{0}\" and only packages for \"cpu\" can run")]
    Device(String),
    #[error("it was compiled for {field} \"{wanted}\" and this host is \"{host}\"")]
    Host { field: &'static str, wanted: String, host: &'static str },
    #[error("it was compiled for \"{wanted}\" and the CPU of this host lacks {}", .missing.join(", "))]
    Features { wanted: String, missing: Vec<String> },
}

impl Target {
    /// Reads `wrapper_metadata.json`.
    pub fn parse(metadata: &[u8]) -> Result<Target, Unsuitable> {
        let value: Value = serde_json::from_slice(metadata).map_err(|_| Unsuitable::Metadata)?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Target {
            device: text("AOTI_DEVICE_KEY"),
            platform: text("AOTI_PLATFORM"),
            machine: text("AOTI_MACHINE"),
            instruction_sets: text("AOTI_CPU_ISA"),
        })
    }

    /// `features` are those of the host's CPU.
    pub fn check(&self, features: &BTreeSet<String>) -> Result<(), Unsuitable> {
        if let Some(device) = self.device.as_ref().filter(|device| *device != "cpu") {
            return Err(Unsuitable::Device(device.clone()));
        }
        let host = [
            ("the platform", &self.platform, std::env::consts::OS),
            ("the machine", &self.machine, std::env::consts::ARCH),
        ];
        for (field, wanted, host) in host {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != host) {
                return Err(Unsuitable::Host { field, wanted: wanted.clone(), host });
            }
        }
        let Some(wanted) = &self.instruction_sets else { return Ok(()) };
        let mut missing = Vec::new();
        for set in wanted.split_ascii_whitespace() {
            match INSTRUCTION_SETS.iter().find(|(known, _)| *known == set) {
                Some((_, needed)) => {
                    missing.extend(needed.iter().filter(|one| !features.contains(**one)).map(|one| (*one).to_owned()));
                }
                // Code for an unknown set might end the process.
                None => missing.push(set.to_owned()),
            }
        }
        missing.dedup();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Unsuitable::Features { wanted: wanted.clone(), missing }),
        }
    }
}

/// The features of this host's CPU; none where the host does not tell.
pub fn cpu_features() -> BTreeSet<String> {
    let mut text = Vec::new();
    let read = File::open("/proc/cpuinfo").and_then(|file| file.take(CPUINFO_BYTES_MAX).read_to_end(&mut text));
    read.map(|_| features_of(&String::from_utf8_lossy(&text))).unwrap_or_default()
}

/// The features of the first CPU of /proc/cpuinfo: `flags` on x86, `Features` on Arm.
fn features_of(cpuinfo: &str) -> BTreeSet<String> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let features =
        fields.filter(|(name, _)| matches!(name.trim(), "flags" | "Features")).map(|(_, value)| value).next();
    features.unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn target(sets: &str) -> Target {
        Target { instruction_sets: Some(sets.to_owned()), ..Target::default() }
    }

    #[test]
    fn the_metadata_of_a_package_is_read() {
        let text = br#"{"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "linux", "AOTI_MACHINE": "x86_64",
            "AOTI_CPU_ISA": "AVX512 AVX512_VNNI", "AOTI_COMPUTE_CAPABILITY": ""}"#;
        let target = Target::parse(text).unwrap();
        assert_eq!(target.device.as_deref(), Some("cpu"));
        assert_eq!(target.instruction_sets.as_deref(), Some("AVX512 AVX512_VNNI"));
        assert_eq!(Target::parse(b"{}"), Ok(Target::default()));
        assert_eq!(Target::parse(b"[]"), Ok(Target::default()));
        assert_eq!(Target::parse(b"{"), Err(Unsuitable::Metadata));
        assert_eq!(Target::default().check(&BTreeSet::new()), Ok(()), "an old package states nothing");
    }

    #[test]
    fn features_that_the_host_lacks_are_named() {
        let host = features(&["avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512vl", "avx512bw"]);
        assert_eq!(target("AVX2").check(&host), Ok(()));
        assert_eq!(target("AVX512").check(&host), Ok(()));
        assert_eq!(target("INVALID_VEC_ISA").check(&BTreeSet::new()), Ok(()));
        for (wanted, missing) in [
            ("AVX512 AVX512_VNNI", "avx512_vnni"),
            ("AVX512 AVX512_VNNI AMX_TILE", "avx512_vnni, amx_tile, amx_bf16, amx_int8"),
            ("AVX1024", "AVX1024"),
        ] {
            let text = target(wanted).check(&host).unwrap_err().to_string();
            assert_eq!(text, format!("it was compiled for \"{wanted}\" and the CPU of this host lacks {missing}"));
        }
    }

    #[test]
    fn another_device_or_host_is_refused() {
        let refused = |target: Target| target.check(&cpu_features()).unwrap_err().to_string();
        let cuda = Target { device: Some("cuda".to_owned()), ..Target::default() };
        assert_eq!(refused(cuda), "it was compiled for the device \"cuda\" and only packages for \"cpu\" can run");
        let windows = Target { platform: Some("win32".to_owned()), ..Target::default() };
        assert_eq!(refused(windows), "it was compiled for the platform \"win32\" and this host is \"linux\"");
        let machine = Target { machine: Some("pdp11".to_owned()), ..Target::default() };
        assert!(refused(machine).starts_with("it was compiled for the machine \"pdp11\" and this host is "));
    }

    #[test]
    fn the_features_of_the_first_cpu_are_read() {
        let x86 = "processor\t: 0\nflags\t\t: fpu avx2\nbugs\t: flags\n\nprocessor\t: 1\nflags\t\t: fpu sse\n";
        assert_eq!(features_of(x86), features(&["avx2", "fpu"]));
        assert_eq!(features_of("Features\t: fp asimd\n"), features(&["asimd", "fp"]));
        assert_eq!(features_of("no features"), BTreeSet::new());
        assert!(!cpu_features().is_empty());
    }
}
