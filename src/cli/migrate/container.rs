//! The command line of a container: which of this host's directories and ports it uses.

use std::collections::BTreeMap;

/// Options of `docker run` without a value; every other option has one.
const SWITCHES: [&str; 19] = [
    "--detach",
    "--disable-content-trust",
    "--help",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--no-hosts",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--replace",
    "--rm",
    "--rmi",
    "--rootfs",
    "--sig-proxy",
    "--tls-verify",
    "--tty",
];
/// The same as letters.
const SWITCH_LETTERS: [char; 5] = ['d', 'i', 't', 'P', 'q'];
/// Most ports of one range.
const PORTS_MAX: u16 = 1024;
/// The directory in which commands of Triton's images start.
const WORKING_DIRECTORY: &str = "/opt/tritonserver";

/// A container, as its command line describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    pub image: String,
    pub mounts: Vec<Mount>,
    pub ports: Vec<Port>,
    /// Its ports are those of this host.
    pub has_host_network: bool,
    /// The directory that relative paths begin at.
    pub working_directory: String,
    /// Options whose files are not read here.
    pub unread: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// None: a volume that the container's runtime keeps.
    pub host: Option<String>,
    pub inside: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// None: all addresses.
    pub address: Option<String>,
    /// None: any free one.
    pub host: Option<u16>,
    pub inside: u16,
}

/// A command line of a container, read up to the command that runs inside.
#[derive(Debug, Default)]
pub struct Run {
    pub container: Container,
    pub environment: BTreeMap<String, String>,
    /// The entry point, if it is given, and the words behind the image.
    pub command: Vec<String>,
}

impl Run {
    /// `words` are those behind `docker`. `variables` looks up those that are passed on by name.
    pub fn read(words: &[String], variables: &dyn Fn(&str) -> Option<String>) -> Result<Run, String> {
        let mut words = words.iter().map(String::as_str).peekable();
        if words.peek() == Some(&"container") {
            words.next();
        }
        match words.next() {
            Some("run" | "create") => {}
            other => {
                return Err(format!("only `docker run` and `docker create` are read, not '{}'", other.unwrap_or("")));
            }
        }
        let mut run = Run::default();
        run.container.working_directory = WORKING_DIRECTORY.to_owned();
        let mut entry_point = None;
        while let Some(word) = words.next() {
            if !word.starts_with('-') || word == "-" {
                run.container.image = word.to_owned();
                break;
            }
            let (name, mut value) = split(word);
            if SWITCHES.contains(&name.as_str()) {
                continue;
            }
            if value.is_none() {
                value = Some(words.next().ok_or_else(|| format!("docker's option '{word}' has no value"))?);
            }
            let value = value.unwrap_or_default();
            match name.as_str() {
                "--entrypoint" => entry_point = Some(value.to_owned()),
                name => run.option(name, value, variables)?,
            }
        }
        if run.container.image.is_empty() {
            return Err("the container's command line names no image".to_owned());
        }
        run.command = entry_point.into_iter().chain(words.map(str::to_owned)).collect();
        Ok(run)
    }

    fn option(&mut self, name: &str, value: &str, variables: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
        let container = &mut self.container;
        match name {
            "--volume" | "-v" => container.mounts.push(volume(value)?),
            "--mount" => container.mounts.extend(mount(value)),
            "--publish" | "-p" => container.ports.extend(ports(value)?),
            "--network" | "--net" => container.has_host_network = value == "host",
            "--workdir" | "-w" => container.working_directory = value.to_owned(),
            "--env-file" => container.unread.push(format!("{name}={value}")),
            "--env" | "-e" => match value.split_once('=') {
                Some((name, value)) => drop(self.environment.insert(name.to_owned(), value.to_owned())),
                None => self.environment.extend(variables(value).map(|given| (value.to_owned(), given))),
            },
            // Devices, memory and names: a program of this host has these without an option.
            _ => {}
        }
        Ok(())
    }
}

/// The option's name, and its value if it stands in the same word.
fn split(word: &str) -> (String, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value)),
            None => (word.to_owned(), None),
        };
    }
    // Letters may stand together, and the last one may have its value behind it: -itp8000:8000.
    for (at, letter) in word.char_indices().skip(1) {
        if !SWITCH_LETTERS.contains(&letter) {
            let value = word.get(at + letter.len_utf8()..).unwrap_or_default();
            let value = value.strip_prefix('=').unwrap_or(value);
            return (format!("-{letter}"), Some(value).filter(|value| !value.is_empty()));
        }
    }
    ("--tty".to_owned(), None)
}

/// `[<host directory or volume>:]<directory inside>[:<options>]`.
fn volume(value: &str) -> Result<Mount, String> {
    let mut parts = value.split(':');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let inside = second.unwrap_or(first);
    if !inside.starts_with('/') {
        return Err(format!("docker's volume '{value}' names no directory inside the container"));
    }
    let is_path = second.is_some() && first.starts_with(['/', '.', '~']);
    Ok(Mount { host: is_path.then(|| first.to_owned()), inside: inside.to_owned() })
}

/// `type=bind,source=<host directory>,target=<directory inside>`.
fn mount(value: &str) -> Option<Mount> {
    let fields: Vec<(&str, &str)> = value.split(',').filter_map(|field| field.split_once('=')).collect();
    let field = |names: &[&str]| fields.iter().find(|(name, _)| names.contains(name)).map(|(_, value)| *value);
    let inside = field(&["target", "dst", "destination"])?.to_owned();
    let is_bind = field(&["type"]) == Some("bind");
    Some(Mount { host: field(&["source", "src"]).filter(|_| is_bind).map(str::to_owned), inside })
}

/// `[[<address>:][<port of this host>]:]<port inside>[/tcp]`, each port a number or a range.
fn ports(value: &str) -> Result<Vec<Port>, String> {
    let wrong = || format!("docker's port '{value}' is not understood");
    let text = match value.split_once('/') {
        Some((text, "tcp")) => text,
        Some(_) => return Ok(Vec::new()),
        None => value,
    };
    let (text, inside) = text.rsplit_once(':').map_or((None, text), |(rest, inside)| (Some(rest), inside));
    let (address, host) = match text.map(|text| text.rsplit_once(':').map_or((None, text), |(a, h)| (Some(a), h))) {
        Some((address, host)) => (address, host),
        None => (None, ""),
    };
    let address = address.map(|address| address.trim_matches(['[', ']'])).filter(|address| !address.is_empty());
    let address = address.filter(|address| !["0.0.0.0", "::"].contains(address)).map(str::to_owned);
    let (first, last) = range(inside).ok_or_else(wrong)?;
    let (host, host_last) = match host {
        "" => (None, None),
        host => range(host).map(|(first, last)| (Some(first), Some(last))).ok_or_else(wrong)?,
    };
    let length = last.checked_sub(first).filter(|length| *length < PORTS_MAX).ok_or_else(wrong)?;
    if host_last.is_some_and(|last| host.is_some_and(|host| last.checked_sub(host) != Some(length))) {
        return Err(wrong());
    }
    let port = |offset: u16| Port {
        address: address.clone(),
        host: host.map(|host| host.saturating_add(offset)),
        inside: first.saturating_add(offset),
    };
    Ok((0..=length).map(port).collect())
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

impl Container {
    /// The path on this host of a path inside, if a mount has it.
    pub fn host_path(&self, inside: &str) -> Option<String> {
        let inside = self.absolute(inside);
        // The longest mount hides the others; of two with one target the last one counts.
        let mut best: Option<(&Mount, &str)> = None;
        for mount in &self.mounts {
            let target = mount.inside.trim_end_matches('/');
            let behind = inside.strip_prefix(target).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            if let Some(behind) = behind
                && best.is_none_or(|(other, _)| other.inside.trim_end_matches('/').len() <= target.len())
            {
                best = Some((mount, behind));
            }
        }
        let (mount, behind) = best?;
        Some(format!("{}{behind}", mount.host.as_deref()?.trim_end_matches('/')))
    }

    fn absolute(&self, path: &str) -> String {
        match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{}/{path}", self.working_directory.trim_end_matches('/')),
        }
    }

    /// The release of one of NVIDIA's images: year and month.
    pub fn release(&self) -> Option<(u32, u32)> {
        let (name, tag) = self.image.rsplit_once(':')?;
        if !name.ends_with("/tritonserver") {
            return None;
        }
        let (year, rest) = tag.split_once('.')?;
        let month = rest.split('-').next()?;
        Some((year.parse().ok()?, month.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Run, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Run::read(&words, &|name| (name == "GIVEN").then(|| "x".to_owned()))
    }

    #[test]
    fn options_of_docker_are_told_from_the_image() {
        let run = read(
            "run --rm -it --gpus all -p8000:8000 -p 127.0.0.1:9001:8001/tcp -dp 8002 --shm-size=1g --ulimit memlock=-1 \
             -v/data:/models:ro --mount type=bind,src=/b,dst=/opt/b -e A=1 -e GIVEN -e NONE --env-file f \
             nvcr.io/nvidia/tritonserver:24.10-py3 tritonserver --model-repository=/models",
        )
        .unwrap();
        let container = &run.container;
        assert_eq!(container.image, "nvcr.io/nvidia/tritonserver:24.10-py3");
        assert_eq!(container.release(), Some((24, 10)));
        assert_eq!(run.command, ["tritonserver", "--model-repository=/models"]);
        let port = |address: Option<&str>, host, inside| Port { address: address.map(str::to_owned), host, inside };
        let expected =
            [port(None, Some(8000), 8000), port(Some("127.0.0.1"), Some(9001), 8001), port(None, None, 8002)];
        assert_eq!(container.ports, expected);
        assert_eq!(container.host_path("/models/a").as_deref(), Some("/data/a"));
        assert_eq!(container.host_path("/models").as_deref(), Some("/data"));
        assert_eq!(container.host_path("/modelsx"), None);
        assert_eq!(container.host_path("/opt/b/c").as_deref(), Some("/b/c"));
        let environment: Vec<_> = run.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(environment, ["A=1", "GIVEN=x"]);
        assert_eq!(container.unread, ["--env-file=f"]);
    }

    #[test]
    fn mounts_hide_each_other_and_volumes_have_no_path() {
        let run = read("container run -v /a:/m -v /b:/m/inner -v kept:/v -w /m --entrypoint sh image -c x").unwrap();
        assert_eq!(run.container.host_path("/m/inner/x").as_deref(), Some("/b/x"));
        assert_eq!(run.container.host_path("/m/other").as_deref(), Some("/a/other"));
        assert_eq!(run.container.host_path("relative").as_deref(), Some("/a/relative"));
        assert_eq!(run.container.host_path("/v/x"), None);
        assert_eq!(run.command, ["sh", "-c", "x"]);
        assert_eq!(run.container.release(), None);
        let run = read("run --net=host -v /all:/ image").unwrap();
        assert!(run.container.has_host_network);
        assert_eq!(run.container.host_path("/x").as_deref(), Some("/all/x"));
    }

    #[test]
    fn ports_may_be_ranges() {
        let found = ports("[::1]:18000-18002:8000-8002").unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[2], Port { address: Some("::1".to_owned()), host: Some(18002), inside: 8002 });
        assert_eq!(ports("8000:8000/udp"), Ok(vec![]));
        for wrong in ["x", "1:x", "8002-8000", "1-2:1-3", "1-60000", "99999:1"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn incomplete_command_lines_are_named() {
        for (line, part) in [
            ("ps", "only `docker run`"),
            ("", "only `docker run`"),
            ("run --rm", "names no image"),
            ("run -v", "has no value"),
            ("run -v x image", "names no directory inside"),
            ("run -p x image", "docker's port 'x'"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
