//! What a user may do with a path, by the mode bits of the path and of the directories above it.
//!
//! For the caller the kernel is asked, which respects ACLs and capabilities too; for another user the mode bits are
//! compared with its uid and groups. Root may do everything.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::Access;

/// The user that a server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The kernel decides for this process.
    is_caller: bool,
}

/// What is to be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Read,
    Write,
    /// To pass through a directory, or to execute a file.
    Execute,
}

impl Need {
    fn bit(self) -> u32 {
        match self {
            Need::Read => 4,
            Need::Write => 2,
            Need::Execute => 1,
        }
    }

    fn access(self) -> Access {
        match self {
            Need::Read => Access::READ_OK,
            Need::Write => Access::WRITE_OK,
            Need::Execute => Access::EXEC_OK,
        }
    }

    pub fn verb(self) -> &'static str {
        match self {
            Need::Read => "read",
            Need::Write => "write",
            Need::Execute => "enter",
        }
    }
}

/// The path, at or above the one that was wanted, that the user may not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub path: PathBuf,
    pub need: Need,
    /// `None`: the path cannot be examined by this process.
    pub mode: Option<(u32, u32, u32)>,
}

impl Refusal {
    /// As a sentence about the user.
    pub fn text(&self, user: &User) -> String {
        let (path, verb) = (self.path.display(), self.need.verb());
        match self.mode {
            Some((mode, uid, gid)) => {
                format!("{} may not {verb} {path} (mode {mode:o}, owner {uid}:{gid})", user.name)
            }
            None => format!("{path} cannot be examined by the caller; run this as root"),
        }
    }
}

impl User {
    pub fn of_process() -> User {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let groups = rustix::process::getgroups().unwrap_or_default();
        let name = id(&["-un"]).unwrap_or_else(|_| uid.to_string());
        User { name, uid, gid, groups: groups.iter().map(|group| group.as_raw()).collect(), is_caller: true }
    }

    /// By a name or a number, which the system resolves, or by `<uid>:<gid>` as it is.
    pub fn named(name: &str) -> Result<User, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        if let Some((uid, gid)) = name.split_once(':') {
            let (Some(uid), Some(gid)) = (number(uid), number(gid)) else {
                return Err("it is a name, a number, or <uid>:<gid>".to_owned());
            };
            return Ok(User { name: name.to_owned(), uid, gid, groups: vec![gid], is_caller: false }.or_caller());
        }
        // It becomes a word of a command line.
        if name.is_empty() || name.starts_with('-') {
            return Err("it is a name, a number, or <uid>:<gid>".to_owned());
        }
        let of = |what: &str| id(&[what, "--", name]);
        let one = |text: String| number(&text).ok_or_else(|| format!("id answers '{text}'"));
        let groups = of("-G")?.split_whitespace().filter_map(number).collect();
        let (uid, gid) = (one(of("-u")?)?, one(of("-g")?)?);
        Ok(User { name: name.to_owned(), uid, gid, groups, is_caller: false }.or_caller())
    }

    /// The kernel decides for the caller, under whatever name.
    fn or_caller(self) -> User {
        let caller = rustix::process::geteuid().as_raw();
        let is_caller = self.uid == caller && rustix::process::getegid().as_raw() == self.gid;
        User { is_caller, ..self }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn is_caller(&self) -> bool {
        self.is_caller
    }

    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// By the mode bits alone.
    fn has_bit(&self, metadata: &Metadata, need: Need) -> bool {
        let shift = match () {
            () if metadata.uid() == self.uid => 6,
            () if self.is_in(metadata.gid()) => 3,
            () => 0,
        };
        (metadata.mode() >> shift) & need.bit() != 0
    }

    /// Whether the user may do this with the path itself.
    pub fn may(&self, path: &Path, need: Need) -> Result<(), Refusal> {
        let refusal = |mode| Err(Refusal { path: path.to_owned(), need, mode });
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(_) => return refusal(None),
        };
        let is_allowed = match () {
            () if self.is_caller => rustix::fs::access(path, need.access()).is_ok(),
            // Root may execute a file only if somebody may.
            () if self.is_root() => true,
            () => self.has_bit(&metadata, need),
        };
        if is_allowed {
            return Ok(());
        }
        refusal(Some((metadata.mode() & 0o7777, metadata.uid(), metadata.gid())))
    }

    /// Whether the user reaches the path, through all directories above it, and may do this with it.
    pub fn reaches(&self, path: &Path, needs: &[Need]) -> Result<(), Refusal> {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut above: Vec<&Path> = whole.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        for directory in above {
            self.may(directory, Need::Execute)?;
        }
        needs.iter().try_for_each(|need| self.may(&whole, *need))
    }
}

/// What `id` answers; it knows users of every source that the host has.
fn id(words: &[&str]) -> Result<String, String> {
    let output = Command::new("id").args(words).output().map_err(|error| format!("cannot run id: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr).trim_start_matches("id: ").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn user(uid: u32, groups: &[u32]) -> User {
        User { name: "somebody".into(), uid, gid: 65_500, groups: groups.to_vec(), is_caller: false }
    }

    #[test]
    fn bits_of_owner_group_and_others_count_in_this_order() {
        let root = std::env::temp_dir().join(format!("nereid-doctor-access-{}", std::process::id()));
        fs::create_dir_all(root.join("inner")).unwrap();
        let file = root.join("inner/file");
        fs::write(&file, "x").unwrap();
        let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let metadata = file.metadata().unwrap();
        let (owner, group) = (metadata.uid(), metadata.gid());
        // The owner has less than its group here, and only its own bits count.
        mode(&file, 0o064);
        let may = |user: &User, need| user.may(&file, need).is_ok();
        if owner != 0 {
            assert!(!may(&user(owner, &[group]), Need::Read));
        }
        assert!(may(&user(65_501, &[group]), Need::Write) && !may(&user(65_501, &[group]), Need::Execute));
        assert!(may(&user(65_501, &[]), Need::Read) && !may(&user(65_501, &[]), Need::Write));
        assert!(may(&user(0, &[]), Need::Write));
        // A directory above that cannot be entered.
        mode(&root.join("inner"), 0o700);
        let refused = user(65_501, &[]).reaches(&file, &[Need::Read]).unwrap_err();
        let inner = root.canonicalize().unwrap().join("inner");
        assert_eq!((&refused.path, refused.need), (&inner, Need::Execute));
        assert!(refused.text(&user(65_501, &[])).contains("somebody may not enter"), "{refused:?}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn users_are_names_numbers_or_pairs() {
        let pair = User::named("12345:678").unwrap();
        assert_eq!((pair.uid, pair.gid, pair.is_in(678), pair.is_caller()), (12_345, 678, true, false));
        assert!(User::named("1:x").is_err() && User::named("--help").is_err() && User::named("").is_err());
        assert!(User::named("no-such-user-here").is_err_and(|error| error.contains("no such user")));
        assert_eq!(User::named("root").unwrap().uid, 0);
        assert!(User::of_process().is_caller());
    }
}
