//! The properties of the simulated devices, and their format in the environment.

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub devices: usize,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of memory of each device.
    pub memory_bytes: u64,
    /// The seed of every choice: which operation is next, and how late it is.
    pub seed: u64,
    /// The longest delay of an operation's effect, in microseconds; 0: no delay.
    pub delay_us_max: u64,
    pub fault: Option<Fault>,
    /// Devices access each other's memory.
    pub has_peers: bool,
    /// By device; the last value stands for all further devices. Empty: the host does not report nodes.
    pub numa_nodes: Vec<usize>,
}

/// A launch that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// `CUresult`. One that breaks the device comes when the launch runs, any other from the call itself.
    pub code: i32,
    /// Which launch of a kernel or a graph, of all devices together; the first is 1.
    pub launch: u64,
}

/// More than hosts have.
const DEVICES_MAX: usize = 64;
const DELAY_US_MAX: u64 = 10_000_000;

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            devices: 1,
            capability: (8, 0),
            memory_bytes: 1 << 30,
            seed: 1,
            delay_us_max: 50,
            fault: None,
            has_peers: true,
            numa_nodes: Vec::new(),
        }
    }
}

impl Spec {
    /// A specification of `devices` devices whose operations have no delay.
    pub fn prompt(devices: usize, seed: u64) -> Spec {
        Spec { devices, seed, delay_us_max: 0, ..Spec::default() }
    }

    /// See [`ENVIRONMENT`](super::ENVIRONMENT) for the format.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let mut parts = text.split(';').map(str::trim);
        let count = parts.next().unwrap_or_default();
        let devices = match count.parse() {
            Ok(devices) if devices <= DEVICES_MAX => devices,
            _ => return Err(format!("'{count}' is no number of devices (0 to {DEVICES_MAX})")),
        };
        let mut spec = Spec { devices, ..Spec::default() };
        let mut seen = Vec::new();
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is not of the form key=value"));
            };
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(format!("'{key}' is set twice"));
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        Ok(spec)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |what: &str| format!("{key}: '{value}' is no {what}");
        match key {
            "capability" => self.capability = capability(value).ok_or_else(|| wrong("compute capability like 8.0"))?,
            "memory" => self.memory_bytes = value.parse().map_err(|_| wrong("number of bytes"))?,
            "seed" => self.seed = value.parse().map_err(|_| wrong("number"))?,
            "delay-us" => {
                let delay_us = value.parse().ok().filter(|delay_us| *delay_us <= DELAY_US_MAX);
                self.delay_us_max = delay_us.ok_or_else(|| wrong("number of microseconds up to ten seconds"))?;
            }
            "fail" => self.fault = Some(fault(value).ok_or_else(|| wrong("code@launch like 700@50"))?),
            "peers" => {
                self.has_peers = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("peers: '{value}' is neither 'yes' nor 'no'")),
                }
            }
            "numa" => {
                let nodes: Result<Vec<usize>, _> = value.split(',').map(|node| node.trim().parse()).collect();
                self.numa_nodes = nodes.map_err(|_| wrong("list of NUMA nodes like 0,1"))?;
            }
            _ => {
                let keys = "capability, memory, seed, delay-us, fail, peers, numa";
                return Err(format!("there is no setting '{key}' (there are: {keys})"));
            }
        }
        Ok(())
    }

    pub(super) fn numa_node(&self, device: usize) -> Option<usize> {
        self.numa_nodes.get(device).or(self.numa_nodes.last()).copied()
    }
}

fn capability(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor) = (major.parse::<u8>().ok()?, minor.parse::<u8>().ok().filter(|minor| *minor <= 9)?);
    Some((major.into(), minor.into()))
}

fn fault(text: &str) -> Option<Fault> {
    let (code, launch) = text.split_once('@')?;
    let code = code.parse().ok().filter(|code| *code > 0)?;
    Some(Fault { code, launch: launch.parse().ok().filter(|launch| *launch > 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read() {
        let text = "3; capability=7.5 ;memory=1000;seed=9;delay-us=0;fail=719@50;peers=no;numa=0,1";
        let expected = Spec {
            devices: 3,
            capability: (7, 5),
            memory_bytes: 1000,
            seed: 9,
            delay_us_max: 0,
            fault: Some(Fault { code: 719, launch: 50 }),
            has_peers: false,
            numa_nodes: vec![0, 1],
        };
        assert_eq!(Spec::parse(text), Ok(expected.clone()));
        assert_eq!([0, 1, 2].map(|device| expected.numa_node(device)), [Some(0), Some(1), Some(1)]);
        assert_eq!(Spec::parse("1"), Ok(Spec::default()));
        assert_eq!(Spec::default().numa_node(0), None);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let keys = "(there are: capability, memory, seed, delay-us, fail, peers, numa)";
        for (text, expected) in [
            ("", "'' is no number of devices (0 to 64)".to_owned()),
            ("two", "'two' is no number of devices (0 to 64)".to_owned()),
            ("-1", "'-1' is no number of devices (0 to 64)".to_owned()),
            ("65", "'65' is no number of devices (0 to 64)".to_owned()),
            ("1;", "'' is not of the form key=value".to_owned()),
            ("1;seed", "'seed' is not of the form key=value".to_owned()),
            ("1;seed=1;seed=1", "'seed' is set twice".to_owned()),
            ("1;capability=8", "capability: '8' is no compute capability like 8.0".to_owned()),
            ("1;capability=8.10", "capability: '8.10' is no compute capability like 8.0".to_owned()),
            ("1;memory=1G", "memory: '1G' is no number of bytes".to_owned()),
            ("1;seed=-1", "seed: '-1' is no number".to_owned()),
            ("1;delay-us=10000001", "delay-us: '10000001' is no number of microseconds up to ten seconds".to_owned()),
            ("1;fail=700", "fail: '700' is no code@launch like 700@50".to_owned()),
            ("1;fail=0@1", "fail: '0@1' is no code@launch like 700@50".to_owned()),
            ("1;fail=700@0", "fail: '700@0' is no code@launch like 700@50".to_owned()),
            ("1;peers=maybe", "peers: 'maybe' is neither 'yes' nor 'no'".to_owned()),
            ("1;numa=a", "numa: 'a' is no list of NUMA nodes like 0,1".to_owned()),
            ("1;color=red", format!("there is no setting 'color' {keys}")),
        ] {
            assert_eq!(Spec::parse(text), Err(expected), "{text}");
        }
    }
}
