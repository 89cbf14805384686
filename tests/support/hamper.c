/* Preloaded into a server: makes system calls fail and sets the wall clock back while the server runs, as the test asks
 * in a file that both map. No process can be given a seccomp filter or another clock from outside once it runs; what
 * this library answers in place of the kernel is what such a filter, or a kernel without memory, would answer.
 *
 *   LD_PRELOAD=hamper.so NEREID_HAMPER=<file of 64 bytes>
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The numbers at the beginning of the file, in the order of hamper.rs. */
struct control {
    /* Seconds that are added to the wall clock. */
    _Atomic int64_t clock_offset_s;
    /* How many calls of io_uring_enter fail from now on, and with what. */
    _Atomic int64_t enters_to_fail;
    _Atomic int64_t enter_error;
    /* With what io_uring_setup fails; 0: it works. */
    _Atomic int64_t setup_error;
    /* What happened: calls that failed, and readings of a clock that was off. */
    _Atomic int64_t enters_failed;
    _Atomic int64_t clock_readings;
};

static struct control nothing;
static struct control *control = &nothing;
static long (*real_syscall)(long, ...);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *restrict, void *restrict);

__attribute__((constructor)) static void begin(void) {
    *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
    *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    *(void **)&real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    const char *path = getenv("NEREID_HAMPER");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        control = mapped;
}

static int takes_a_failure(void) {
    int64_t left = atomic_load(&control->enters_to_fail);
    while (left > 0)
        if (atomic_compare_exchange_weak(&control->enters_to_fail, &left, left - 1))
            return 1;
    return 0;
}

long syscall(long number, ...) {
    va_list words;
    va_start(words, number);
    long a = va_arg(words, long), b = va_arg(words, long), c = va_arg(words, long);
    long d = va_arg(words, long), e = va_arg(words, long), f = va_arg(words, long);
    va_end(words);
    if (number == SYS_io_uring_enter && takes_a_failure()) {
        atomic_fetch_add(&control->enters_failed, 1);
        errno = (int)atomic_load(&control->enter_error);
        return -1;
    }
    if (number == SYS_io_uring_setup && atomic_load(&control->setup_error) != 0) {
        errno = (int)atomic_load(&control->setup_error);
        return -1;
    }
    if (real_syscall == NULL)
        *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
    return real_syscall(number, a, b, c, d, e, f);
}

static int64_t offset_s(void) {
    int64_t offset = atomic_load(&control->clock_offset_s);
    if (offset != 0)
        atomic_fetch_add(&control->clock_readings, 1);
    return offset;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (real_clock_gettime == NULL)
        *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += offset_s();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    if (real_gettimeofday == NULL)
        *(void **)&real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real_gettimeofday(time, zone);
    if (result == 0)
        time->tv_sec += offset_s();
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}
