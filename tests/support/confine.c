/* Runs a program under a limit that a container or an operator may set: a seccomp filter that refuses system calls by
 * name with an error; one that allows only these system calls, by number, and kills the process for any other (KILL)
 * or refuses it (EPERM); a limit on memory that may be locked. What a test starts through it is the real server, confined
 * by the real kernel.
 *
 *   confine refuse EPERM io_uring_setup,io_uring_enter -- program argument ...
 *   confine allow KILL 0,1,56&2114060288,435=38 -- program argument ...
 *   confine memlock 65536 -- program argument ...
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no filter for this architecture"
#endif

#define MOST_CALLS 8
/* Instructions of a list of allowed calls. */
#define MOST_INSTRUCTIONS 4096

static int fail(const char *what) {
    fprintf(stderr, "confine: %s\n", what);
    return 127;
}

static long number_of(const char *name) {
    static const struct {
        const char *name;
        long number;
    } known[] = {
        {"io_uring_setup", SYS_io_uring_setup},
        {"io_uring_enter", SYS_io_uring_enter},
        {"io_uring_register", SYS_io_uring_register},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].number;
    return -1;
}

static int refuse(const char *error, char *calls) {
    unsigned answer = SECCOMP_RET_ERRNO | (strcmp(error, "ENOSYS") == 0 ? ENOSYS : EPERM);
    struct sock_filter filter[4 + 2 * MOST_CALLS];
    unsigned short length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    int count = 0;
    for (char *name = strtok(calls, ","); name != NULL; name = strtok(NULL, ",")) {
        long number = number_of(name);
        if (number < 0 || ++count == MOST_CALLS)
            return fail("a system call that it does not know, or too many");
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = length, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return fail("the kernel takes no filter");
    return 0;
}

/* Each element: a number; a number, & and the bits that its first argument must not have; a number, = and its error. */
static int allow(const char *otherwise, char *calls) {
    static struct sock_filter filter[MOST_INSTRUCTIONS];
    unsigned others = strcmp(otherwise, "KILL") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    unsigned short length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *call = strtok(calls, ","); call != NULL; call = strtok(NULL, ",")) {
        char *end;
        unsigned number = (unsigned)strtoul(call, &end, 10);
        unsigned value = *end == 0 ? 0 : (unsigned)strtoul(end + 1, NULL, 10);
        if (length + 8 > MOST_INSTRUCTIONS)
            return fail("too many system calls");
        if (*end == '&') {
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 5);
            filter[length++] =
                (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
            filter[length++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, value);
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
            filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
            continue;
        }
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        unsigned answer = *end == '=' ? SECCOMP_RET_ERRNO | value : SECCOMP_RET_ALLOW;
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
    struct sock_fprog program = {.len = length, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return fail("the kernel takes no filter");
    return 0;
}

static int lock_at_most(const char *bytes) {
    struct rlimit limit = {.rlim_cur = strtoul(bytes, NULL, 10), .rlim_max = strtoul(bytes, NULL, 10)};
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? 0 : fail("the limit on locked memory cannot be set");
}

int main(int count, char **words) {
    int program = 0;
    for (int i = 1; i < count && program == 0; i++)
        if (strcmp(words[i], "--") == 0)
            program = i + 1;
    if (program < 3 || program >= count)
        return fail("usage: confine refuse|allow <other> <calls> -- program ... | confine memlock <bytes> -- program ...");
    int failed;
    if (strcmp(words[1], "refuse") == 0 && program == 5)
        failed = refuse(words[2], words[3]);
    else if (strcmp(words[1], "allow") == 0 && program == 5)
        failed = allow(words[2], words[3]);
    else if (strcmp(words[1], "memlock") == 0 && program == 4)
        failed = lock_at_most(words[2]);
    else
        failed = fail("what to confine is not understood");
    if (failed != 0)
        return failed;
    execvp(words[program], words + program);
    return fail("the program does not start");
}
