//! Binding a thread's memory to a NUMA node.

use std::io;

/// `MPOL_PREFERRED` of the kernel: pages come from this node while it has some.
const MPOL_PREFERRED: libc::c_int = 1;
/// `MPOL_BIND` of the kernel: pages come from these nodes or not at all.
const MPOL_BIND: libc::c_int = 2;
const BITS: usize = libc::c_ulong::BITS as usize;

/// From now on, what the calling thread touches first lies on that node. Threads that it starts inherit it.
pub fn bind_this_thread(node: usize) -> io::Result<()> {
    set_policy(MPOL_BIND, node)
}

/// The same, as long as the node has memory left.
pub fn draw_this_thread(node: usize) -> io::Result<()> {
    set_policy(MPOL_PREFERRED, node)
}

fn set_policy(policy: libc::c_int, node: usize) -> io::Result<()> {
    let mut mask = vec![0 as libc::c_ulong; node / BITS + 1];
    mask[node / BITS] = 1 << (node % BITS);
    // One more than the mask has bits: that is how the kernel counts.
    let bits = mask.len() * BITS + 1;
    // SAFETY: the kernel reads at most `bits - 1` bits from the mask, which has as many.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), bits) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_missing_is_refused() {
        for set in [bind_this_thread, draw_this_thread] {
            let outcome = std::thread::spawn(move || set(1000)).join().unwrap();
            assert!(outcome.is_err());
        }
    }
}
