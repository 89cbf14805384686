//! Hashes of contents, the rules of histories, and kept files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::repository::poll::Polled;
use crate::repository::version::Directory;
use nereid_wire::inference::ModelConfig;

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-generations-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> &Folder {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn polled(name: &str, versions: &[i64]) -> Polled {
    let config = ModelConfig { name: name.to_owned(), ..ModelConfig::default() };
    Polled { config, versions: versions.to_vec(), has_config: true, written: None }
}

fn content_of(path: &Path, polled: &Polled) -> Content {
    read(path, polled, &|| false)
}

#[test]
fn equal_content_has_an_equal_hash_and_other_content_another() {
    let (one, two) = (Folder::new(), Folder::new());
    for folder in [&one, &two] {
        folder.write("1/model", "weights").write("labels.txt", "a\nb").write("config.pbtxt", "# as read");
    }
    let base = polled("m", &[1]);
    let first = content_of(&one.0, &base);
    assert_eq!(first, content_of(&two.0, &base), "times and places do not count");
    assert_eq!(first.to_string().len(), 12);
    two.write("config.pbtxt", "# another comment").write("configs/fast.pbtxt", "x").write("2/model", "not chosen");
    assert_eq!(first, content_of(&two.0, &base), "configurations count as they were read");
    assert_ne!(first, content_of(&two.0, &polled("m", &[1, 2])), "a further version");
    assert_ne!(first, content_of(&one.0, &polled("n", &[1])), "another configuration");
    two.write("1/model", "Weights");
    assert_ne!(first, content_of(&two.0, &base), "one byte");
    two.write("1/model", "weights").write("1/more", "");
    assert_ne!(first, content_of(&two.0, &base), "an empty file");
    fs::remove_file(two.0.join("1/more")).unwrap();
    two.write("label", "s.txt").write("labels.txt", "a\nb");
    assert_ne!(first, content_of(&two.0, &base), "names and contents are apart");
}

#[test]
fn large_files_count_by_pieces_and_odd_entries_do_no_harm() {
    let folder = Folder::new();
    let mut bytes = vec![7_u8; 5 << 20];
    let hash = |bytes: &[u8]| content_of(&folder.write("1/model", bytes).0, &polled("m", &[1]));
    let first = hash(&bytes);
    for at in [0, (5 << 20) - 1] {
        bytes[at] = 8;
        assert_ne!(hash(&bytes), first, "byte {at}");
        bytes[at] = 7;
    }
    bytes.iter_mut().skip(1 << 20).for_each(|byte| *byte = 9);
    assert_ne!(hash(&bytes), first, "most of it");
    bytes.fill(7);
    assert_ne!(hash(&bytes[1..]), first, "its length");
    assert_eq!(hash(&bytes), first);
    std::os::unix::fs::symlink("..", folder.0.join("1/circle")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.0.join("1/broken")).unwrap();
    let path = std::ffi::CString::new(folder.0.join("1/pipe").to_str().unwrap()).unwrap();
    let _ = rustix::fs::mknodat(
        rustix::fs::CWD,
        path.as_c_str(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        rustix::fs::makedev(0, 0),
    );
    // It returns, and knows that there is more.
    assert_ne!(hash(&bytes), first);
    assert_eq!(read(&folder.0, &polled("m", &[1]), &|| true), read(&folder.0, &polled("m", &[1]), &|| true));
    assert_eq!(content_of(Path::new("/nowhere"), &polled("m", &[1])).to_string().len(), 12);
}

fn contents(count: i64) -> Vec<Content> {
    (0..count).map(|version| content_of(Path::new("/nowhere"), &polled("m", &[version]))).collect()
}

fn load(history: &mut History<&'static str>, content: &Content, kept_max: usize) -> Arc<str> {
    let id = history.next_id(content);
    let kept = (kept_max > 0).then_some(("files", 5));
    history.loaded(&id, Loaded { content: *content, versions: vec![1], at_ms: 9, kept }, kept_max);
    id
}

fn ids(history: &History<&'static str>) -> Vec<Arc<str>> {
    history.shown(true, 0).entries.into_iter().map(|entry| entry.id).collect()
}

#[test]
fn a_history_keeps_the_last_generations_and_each_content_once() {
    let [a, b, c] = contents(3).try_into().unwrap();
    let mut history = History::default();
    let first = load(&mut history, &a, 1);
    assert_eq!(*first, format!("{a}-1"));
    assert_eq!(history.unchanged(&a), Some(Arc::clone(&first)));
    assert_eq!(history.unchanged(&b), None);
    let second = load(&mut history, &b, 1);
    assert_eq!(ids(&history), [Arc::clone(&second), Arc::clone(&first)]);
    // The same content again has the same hash and another number.
    let third = load(&mut history, &a, 1);
    assert_eq!(*third, format!("{a}-3"));
    assert_eq!(ids(&history), [Arc::clone(&third), Arc::clone(&second)]);
    let fourth = load(&mut history, &c, 1);
    assert_eq!(ids(&history), [Arc::clone(&fourth), Arc::clone(&third)]);
    assert!(history.find(&second).is_none() && history.find("").is_none() && history.find("x-1").is_none());
    assert_eq!(history.find(&third).map(|found| found.kept), Some(Some("files")));
    assert_eq!(history.find(&a.to_string()).map(|found| &found.id), Some(&third), "the hash alone");
    let shown = history.shown(true, 1);
    assert_eq!(shown.present().map(|present| &present.id), Some(&fourth));
    assert_eq!(shown.known(), format!("{fourth}, {third}"));
    assert_eq!(history.shown(false, 1).present(), None);
    assert_eq!(shown.entries[0].kept_bytes, Some(5));
    // Without the flag only the present one is known, and nothing is kept.
    let mut plain = History::default();
    load(&mut plain, &a, 0);
    let only = load(&mut plain, &b, 0);
    assert_eq!(ids(&plain), [only]);
    assert_eq!(plain.shown(true, 0).entries[0].kept_bytes, None);
}

#[test]
fn a_roll_back_holds_until_the_repository_changes() {
    let [a, b, c] = contents(3).try_into().unwrap();
    let mut history = History::default();
    let (first, second) = (load(&mut history, &a, 2), load(&mut history, &b, 2));
    history.repository = Some(b);
    assert!(!history.holds_against(&b), "nothing was rolled back");
    history.restored(&first);
    assert_eq!(ids(&history), [Arc::clone(&first), Arc::clone(&second)], "it has its id again");
    assert!(history.is_rolled_back() && history.holds_against(&b) && !history.holds_against(&c));
    history.restored("unknown");
    assert_eq!(ids(&history)[0], first);
    let third = load(&mut history, &c, 2);
    assert_eq!(ids(&history), [third, first, second]);
    assert!(!history.is_rolled_back());
    let id = ids(&history)[2].clone();
    history.restored(&id);
    history.unloaded();
    assert!(!history.is_rolled_back() && !history.holds_against(&b));
}

#[test]
fn kept_files_stay_as_they_were_and_go_with_their_last_holder() {
    let folder = Folder::new();
    folder.write("m/1/model", "old").write("m/config.pbtxt", "text").write("m/warmup/in", "x");
    let keeper = Keeper::default();
    let directory = Directory { path: folder.0.join("m"), keep: Arc::new(()), agents: None };
    let kept = keeper.keep("m", &directory, false, &|| false).unwrap();
    assert_eq!(kept.bytes, 8);
    // Programs that deploy write into the file.
    fs::write(folder.0.join("m/1/model"), "new").unwrap();
    let path = kept.directory.path.clone();
    assert!(path.ends_with("m"));
    assert_eq!(fs::read_to_string(path.join("1/model")).unwrap(), "old");
    assert_eq!(fs::read_to_string(path.join("warmup/in")).unwrap(), "x");
    let second = keeper.keep("m", &directory, false, &|| false).unwrap();
    drop(kept);
    assert!(!path.exists());
    let place = second.directory.path.clone();
    drop((keeper, second));
    assert!(!place.exists() && !place.ancestors().nth(2).unwrap().exists(), "the directory goes too");
}

#[test]
fn what_cannot_be_kept_says_why() {
    let folder = Folder::new();
    folder.write("m/1/model", "old");
    let keeper = Keeper::default();
    let directory = Directory { path: folder.0.join("m"), keep: Arc::new(()), agents: None };
    let error = keeper.keep("m", &directory, false, &|| true).unwrap_err();
    assert_eq!(error, "its directory is too large, or cannot be read");
    let gone = Directory { path: folder.0.join("gone"), ..directory.clone() };
    assert!(keeper.keep("m", &gone, false, &|| false).is_err());
    // A file that is larger than all that may be kept, without a byte on the disk.
    fs::File::create(folder.0.join("m/1/huge")).unwrap().set_len(65 << 30).unwrap();
    let error = keeper.keep("m", &directory, false, &|| false).unwrap_err();
    assert!(error.ends_with("kept generations exceed the bound of 68719476736 bytes"), "{error}");
    fs::remove_file(folder.0.join("m/1/huge")).unwrap();
    // A copy of the server's own is held, not copied.
    let held = keeper.keep("m", &directory, true, &|| false).unwrap();
    assert_eq!((held.directory.path.clone(), held.bytes), (directory.path, 3));
}
