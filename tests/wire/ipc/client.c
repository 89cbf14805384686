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
    client->frame = malloc(RING / 2);
    return client;
}

/* A call whose number is the next. */
static uint32_t begun(nereid_ipc *client) {
    uint32_t call;
    if (nereid_ipc_begin(client, 0, "x", 1, NEREID_IPC_ENDS, 0, &call) < 0) exit(3);
    return call;
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
    begun(client);
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
    begun(client), begun(client);
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

/* Neither of what was read before, nor of what was under way: the middle of a tensor is no message. */
static int nothing_of_a_cancelled_call_is_kept_or_returned(void) {
    int other;
    nereid_ipc *client = client_of_test(&other);
    nereid_ipc_event event;
    static const uint8_t zeros[54];
    uint32_t cut = begun(client), queued = begun(client), whole = begun(client);
    put(client, cut, 0, "\0\0\0\0\140ab", 7);
    put(client, whole, 0, "\0\0\0\0\1c", 6);
    put(client, queued, END, "\0\0\0\0\1q", 6);
    CHECK(nereid_ipc_next(client, 0, &event) == 0 && event.call == whole && event.len == 1);
    CHECK(nereid_ipc_cancel(client, cut) == 0 && nereid_ipc_cancel(client, queued) == 0);
    put(client, cut, 0, zeros, 40);
    put(client, cut, 0, zeros, 54);
    CHECK(nereid_ipc_next(client, 0, &event) == -ETIMEDOUT && !find(client, cut) && !find(client, queued));
    /* An empty last frame, for which there is no memory. */
    put(client, whole, END, "", 0);
    CHECK(nereid_ipc_next(client, 0, &event) == 0 && event.call == whole && event.is_end && !find(client, whole));
    CHECK(nereid_ipc_next(client, 0, &event) == -ETIMEDOUT && !client->first && !client->last);
    nereid_ipc_close(client), close(other);
    return 0;
}

static int rings_that_the_server_has_emptied_are_the_end_and_no_frames(void) {
    int other;
    nereid_ipc *client = client_of_test(&other);
    nereid_ipc_event event;
    uint32_t call = begun(client), left = begun(client), next;
    put(client, call, 0, "\0\0\0\0\1a\0\0\0\0\1b", 12);
    CHECK(nereid_ipc_next(client, 0, &event) == 0 && *event.bytes == 'a' && !nereid_ipc_is_emptied(client));
    /* Two frames of zeros. */
    atomic_store(word(client, REQUEST_TAIL), find(client, call)->begun_at);
    atomic_store(word(client, RESPONSE_HEAD), client->tail + 16);
    atomic_store(word(client, EMPTIED), 1);
    CHECK(nereid_ipc_next(client, 0, &event) == 0 && *event.bytes == 'b');
    for (int i = 0; i < 2; i++) CHECK(nereid_ipc_next(client, -1, &event) == -ECONNRESET);
    CHECK(nereid_ipc_begin(client, 0, "x", 1, NEREID_IPC_ENDS, 0, &next) == -ECONNRESET);
    CHECK(nereid_ipc_is_emptied(client) && strstr(nereid_ipc_farewell(client), "taken its memory back"));
    CHECK(nereid_ipc_is_taken(client, call) && !nereid_ipc_is_taken(client, left) && nereid_ipc_is_taken(client, 99));
    nereid_ipc_close(client), close(other);
    return 0;
}

int main(void) {
    int outcome = bells_without_a_cause_do_not_prolong_a_wait();
    outcome |= an_error_is_not_followed_by_a_message_with_a_hole();
    outcome |= nothing_of_a_cancelled_call_is_kept_or_returned();
    return outcome | rings_that_the_server_has_emptied_are_the_end_and_no_frames();
}
