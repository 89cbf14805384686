/* The C client of the shared-memory ring with a clock, a poll and an allocator of the test: when it gives up, and what it
 * does when there is no memory. */
#define _GNU_SOURCE
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static uint64_t clock_ns;
static int polls, allocations_left = -1;

/* Each poll takes 400 ms and ends with a bell that has no cause. */
static int test_poll(struct pollfd *waits, unsigned long count, int timeout_ms) {
    (void)waits, (void)count;
    uint64_t took = 400;
    if (timeout_ms >= 0 && (uint64_t)timeout_ms < took) took = (uint64_t)timeout_ms;
    clock_ns += took * 1000000;
    polls++;
    return took == 400;
}

static int test_clock(int clock, struct timespec *now) {
    (void)clock;
    now->tv_sec = (time_t)(clock_ns / 1000000000), now->tv_nsec = (long)(clock_ns % 1000000000);
    return 0;
}

static void *test_malloc(size_t len) {
    if (allocations_left == 0) return NULL;
    if (allocations_left > 0) allocations_left--;
    return malloc(len);
}

#define poll test_poll
#define clock_gettime test_clock
#define malloc test_malloc
#include "nereid_ipc.c"
#undef malloc
#undef poll
#undef clock_gettime

enum { RING = 65536 };

#define CHECK(condition) \
    if (!(condition)) return fprintf(stderr, "line %d: %s\n", __LINE__, #condition), 1

static nereid_ipc *client_of_test(int *other) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0) exit(2);
    *other = ends[1];
    nereid_ipc *client = calloc(1, sizeof *client);
    client->size = HEADER_BYTES + 2 * RING;
    client->memory = mmap(NULL, client->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    client->socket = ends[0];
    client->requests_at = HEADER_BYTES, client->requests_len = RING;
    client->responses_at = HEADER_BYTES + RING, client->responses_len = RING;
    client->routes_max = 64;
    return client;
}

/* What the server does: a frame with bytes of a message. */
static void put(nereid_ipc *client, uint32_t call, uint32_t flags, const void *bytes, size_t len) {
    uint64_t head = atomic_load(word(client, RESPONSE_HEAD));
    uint8_t *to = client->memory + client->responses_at + head % RING;
    put32(to, (uint32_t)(DATA_HEAD + len)), put32(to + 4, FROM_DATA), put32(to + 8, call), put32(to + 12, flags);
    memcpy(to + 16, bytes, len);
    atomic_store(word(client, RESPONSE_HEAD), head + frame_len(DATA_HEAD + len));
}

static int bells_without_a_cause_do_not_prolong_a_wait(void) {
    int other;
    nereid_ipc *client = client_of_test(&other);
    nereid_ipc_event event;
    uint64_t began = clock_ns;
    polls = 0;
    CHECK(nereid_ipc_next(client, 1000, &event) == -ETIMEDOUT);
    CHECK(polls == 3 && clock_ns - began == UINT64_C(1000000000));
    CHECK(nereid_ipc_next(client, 0, &event) == -ETIMEDOUT && polls == 3);
    /* Nor do parts of a message. */
    put(client, 1, 0, "\0\0\0\0\11ab", 7);
    CHECK(nereid_ipc_next(client, 0, &event) == -ETIMEDOUT);
    nereid_ipc_close(client), close(other);
    return 0;
}

static int an_error_is_not_followed_by_a_message_with_a_hole(void) {
    int other;
    nereid_ipc *client = client_of_test(&other);
    nereid_ipc_event event;
    uint32_t call;
    put(client, 1, 0, "\0\0\0\0\2ab", 7);
    put(client, 2, 0, "\0\0\0\0\2cd", 7);
    put(client, 2, END, "\0\0\0\0\2ef", 7);
    /* Only the first message has memory. */
    allocations_left = 1;
    CHECK(nereid_ipc_next(client, 0, &event) == 0 && event.call == 1 && event.len == 2 && !memcmp(event.bytes, "ab", 2));
    allocations_left = -1;
    for (int i = 0; i < 3; i++) CHECK(nereid_ipc_next(client, 0, &event) == -ENOMEM);
    CHECK(nereid_ipc_begin(client, 0, "x", 1, NEREID_IPC_ENDS, 0, &call) == -ENOMEM);
    nereid_ipc_close(client), close(other);
    return 0;
}

int main(void) {
    int outcome = bells_without_a_cause_do_not_prolong_a_wait();
    return outcome | an_error_is_not_followed_by_a_message_with_a_hole();
}
