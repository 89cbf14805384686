//! Tests of memory that processes share.

use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use super::*;

fn parts(handle: &[u8; 64]) -> (u32, u32) {
    let number = |at: usize| u32::from_le_bytes(handle[at..at + 4].try_into().unwrap());
    (number(8), number(12))
}

#[test]
fn another_process_writes_what_is_lent_to_it() {
    let rig = Rig::new(1);
    let at = rig.memory();
    rig.fill(rig.one, at, b'.').unwrap();
    rig.finish(rig.one).unwrap();
    let handle = rig.driver.ipc_export(0, at).unwrap();
    let (pid, fd) = parts(&handle);
    assert_eq!(pid, std::process::id());
    let path = format!("/proc/{pid}/fd/{fd}");
    let script = "printf hello | dd of=\"$0\" bs=1 seek=10 conv=notrunc";
    let status = Command::new("sh").args(["-c", script, &path]).stderr(Stdio::null()).status().expect("a shell");
    assert!(status.success());
    let read = rig.read(at);
    assert_eq!((&read[9..16], read[999]), (&b".hello."[..], b'.'));
    rig.assert_correct();
    assert_eq!(rig.driver.ipc_export(0, at.offset(1)).unwrap_err().code, 1, "only from the beginning");
    assert_eq!(rig.driver.ipc_export(1, at).unwrap_err().code, 1, "of this device");
}

#[test]
fn memory_of_another_process_is_opened_counted_and_closed() {
    let file = tempfile();
    let writer = std::fs::File::from(file.try_clone().unwrap());
    writer.set_len(8192 + 100).unwrap();
    // SAFETY: the flag of one descriptor, which the child inherits so.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
    let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
    let (pid, fd) = (child.id(), file.as_raw_fd() as u32);
    drop((file, writer));
    let named = |offset: u64, len: u64| {
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(b"nereid-1");
        handle[8..12].copy_from_slice(&pid.to_le_bytes());
        handle[12..16].copy_from_slice(&fd.to_le_bytes());
        handle[16..24].copy_from_slice(&offset.to_le_bytes());
        handle[24..32].copy_from_slice(&len.to_le_bytes());
        handle
    };
    let rig = Rig::new(1);
    let open = |offset, len| rig.driver.ipc_open(0, &named(offset, len));
    let at = open(4196, 4096).unwrap();
    assert_eq!(rig.driver.allocation_of(0, at.offset(4000)), Ok((at, 4096)));
    assert_eq!(open(4196, 4096), Ok(at), "the same memory is the same address");
    assert_ne!(open(0, 4096), Ok(at));
    rig.fill(rig.one, at, 5).unwrap();
    rig.finish(rig.one).unwrap();
    let whole = open(0, 8192).unwrap();
    assert_eq!(rig.read(whole.offset(4196)), [5; LEN], "both are the same bytes");
    // SAFETY: nothing uses it.
    unsafe {
        rig.driver.ipc_close(0, at).unwrap();
        rig.fill(rig.one, at, 6).expect("it is open once more");
        rig.finish(rig.one).unwrap();
        rig.driver.ipc_close(0, at).unwrap();
    }
    assert_eq!(rig.driver.allocation_of(0, at).unwrap_err().code, 1);
    let (at_end, free) = (open(8192, 100), rig.driver.memory(0).unwrap());
    assert!(at_end.is_ok());
    assert_eq!(free, (1 << 30, 1 << 30), "it is not this device's");
    for (offset, len) in [(0, 0), (0, 8293), (8192, 101), (u64::MAX, 1), (1, u64::MAX), (9000, 1)] {
        assert_eq!(open(offset, len).unwrap_err().code, 1, "{offset} {len}");
    }
    rig.assert_correct();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(open(0, 100).unwrap_err().code, 1, "its process is gone");
}

#[test]
fn what_is_no_handle_is_refused() {
    let rig = Rig::new(1);
    let own = rig.driver.ipc_export(0, rig.memory()).unwrap();
    assert!(rig.driver.ipc_open(0, &own).is_ok());
    let mut handles = vec![[0; 64], [0xFF; 64]];
    for (at, byte) in [(0, b'N'), (8, 0xFF), (12, 0xFF), (40, 1)] {
        let mut other = own;
        other[at..at + 4].fill(byte);
        handles.push(other);
    }
    // A file that has a name is not for clients, as long as it may be.
    let place = std::env::temp_dir().join(format!("nereid-lent-{}", std::process::id()));
    std::fs::write(&place, vec![1; 8192]).unwrap();
    let named = std::fs::File::options().read(true).write(true).open(&place).unwrap();
    let mut file = own;
    file[12..16].copy_from_slice(&(named.as_raw_fd() as u32).to_le_bytes());
    handles.push(file);
    for handle in handles {
        assert_eq!(rig.driver.ipc_open(0, &handle).unwrap_err().code, 1, "{handle:?}");
    }
    std::fs::remove_file(&place).unwrap();
    rig.assert_correct();
}

/// A file without a name.
fn tempfile() -> std::os::fd::OwnedFd {
    rustix::fs::memfd_create(c"lent", rustix::fs::MemfdFlags::CLOEXEC).expect("memory")
}
