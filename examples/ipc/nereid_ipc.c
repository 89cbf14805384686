/* See nereid_ipc.h; docs/ipc.md is the contract that this file implements. */
#define _GNU_SOURCE
#include "nereid_ipc.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "NRDIPC01"
enum { VERSION = 1, HELLO_BYTES = 24, HEADER_BYTES = 4096, NAME_AT = 80 };
enum { REQUEST_HEAD = 512, REQUEST_TAIL = 640, RESPONSE_HEAD = 768, RESPONSE_TAIL = 896, SERVER_BELL = 1024, CLIENT_BELL = 1152, EMPTIED = 1280 };
enum { FRAMES = 1, ROOM = 2 };
enum { ROUTE = 1, CALL = 2, DATA = 3, CANCEL = 4 };
enum { FROM_DATA = 1, FROM_STATUS = 2, FROM_LEAVE = 3 };
enum { FRAME_HEAD = 8, CALL_HEAD = 16, DATA_HEAD = 8, PREFIX = 5, END = 1 };
#define SKIP UINT32_MAX

/* Lists of open calls: a call's is that of its number modulo their count. */
enum { LISTS = 256 };

/* A call for which something may still come: where its first frame ends in the ring, and bytes of a message that is not
 * complete. */
typedef struct open_call {
    struct open_call *next;
    uint32_t call;
    uint64_t begun_at;
    uint8_t *bytes;
    size_t len, capacity;
} open_call;

typedef struct event {
    struct event *next;
    nereid_ipc_event is;
    uint8_t bytes[];
} event;

struct nereid_ipc {
    int socket;
    uint8_t *memory;
    size_t size, requests_at, requests_len, responses_at, responses_len, arena_at, arena_len;
    uint64_t head, tail, spin_ns;
    uint32_t last_call, routes, routes_max;
    int is_closed, is_leaving;
    /* A negative errno value after which nothing that the server wrote can be used. */
    int broken;
    /* A frame, copied out of the ring before it is looked at. */
    uint8_t *frame;
    open_call *open[LISTS];
    event *first, *last, *given;
    char name[257], farewell[1024];
};

static _Atomic uint64_t *word(nereid_ipc *client, size_t at) { return (_Atomic uint64_t *)(client->memory + at); }
static void put32(uint8_t *to, uint32_t value) { memcpy(to, &value, 4); }
static void put64(uint8_t *to, uint64_t value) { memcpy(to, &value, 8); }
static uint32_t get32(const uint8_t *from) { uint32_t value; memcpy(&value, from, 4); return value; }
static uint64_t get64(const uint8_t *from) { uint64_t value; memcpy(&value, from, 8); return value; }
static size_t frame_len(size_t payload) { return (FRAME_HEAD + payload + 7) & ~(size_t)7; }

static int fail(char *error, size_t len, int code, const char *text) {
    if (error && len) snprintf(error, len, "%s", text);
    return code;
}

static int read_all(int socket, uint8_t *to, size_t len) {
    while (len) {
        ssize_t n = read(socket, to, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -ECONNRESET;
        to += n, len -= (size_t)n;
    }
    return 0;
}

/* The greeting, and the descriptor of the object that comes with it. */
static int greeting(int socket, uint8_t *hello, int *object) {
    union { struct cmsghdr head; char space[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part = {hello, HELLO_BYTES};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    do n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC); while (n < 0 && errno == EINTR);
    if (n <= 0) return n < 0 ? -errno : -ECONNRESET;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at))
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS) memcpy(object, CMSG_DATA(at), sizeof(int));
    return read_all(socket, hello + n, HELLO_BYTES - (size_t)n);
}

static int is_inside(nereid_ipc *client, size_t at, size_t len) { return at <= client->size && len <= client->size - at; }

static int map(nereid_ipc *client, int object, char *error, size_t error_len) {
    client->memory = mmap(NULL, client->size, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0);
    if (client->memory == MAP_FAILED) {
        client->memory = NULL;
        return fail(error, error_len, -errno, "cannot map the object");
    }
    const uint8_t *head = client->memory;
    if (client->size < HEADER_BYTES || memcmp(head, MAGIC, 8) || get32(head + 8) != VERSION)
        return fail(error, error_len, -EPROTO, "the object is none of this version");
    client->requests_at = get64(head + 24), client->requests_len = get64(head + 32);
    client->responses_at = get64(head + 40), client->responses_len = get64(head + 48);
    client->arena_at = get64(head + 56), client->arena_len = get64(head + 64);
    client->routes_max = get32(head + 76);
    uint32_t name_len = get32(head + 72);
    if (!is_inside(client, client->requests_at, client->requests_len) || client->requests_len < 64 ||
        !is_inside(client, client->responses_at, client->responses_len) || client->responses_len < 64 ||
        !is_inside(client, client->arena_at, client->arena_len) || name_len >= sizeof client->name)
        return fail(error, error_len, -EPROTO, "parts of the object do not lie in it");
    memcpy(client->name, head + NAME_AT, name_len);
    client->frame = malloc(client->responses_len / 2);
    return client->frame ? 0 : fail(error, error_len, -ENOMEM, "no memory");
}

int nereid_ipc_connect(const char *path, nereid_ipc **made, char *error, size_t error_len) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return fail(error, error_len, -ENAMETOOLONG, "the path is too long");
    strcpy(address.sun_path, path);
    nereid_ipc *client = calloc(1, sizeof *client);
    if (!client) return fail(error, error_len, -ENOMEM, "no memory");
    client->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int object = -1, outcome = 0;
    uint8_t hello[HELLO_BYTES];
    if (client->socket < 0 || connect(client->socket, (struct sockaddr *)&address, sizeof address) < 0)
        outcome = fail(error, error_len, -errno, strerror(errno));
    else if ((outcome = greeting(client->socket, hello, &object)) < 0)
        fail(error, error_len, 0, strerror(-outcome));
    else if (memcmp(hello, MAGIC, 8) || get32(hello + 8) != VERSION)
        outcome = fail(error, error_len, -EPROTO, "the server does not speak version 1 of the shared-memory ring");
    else if (get32(hello + 12) != 0 || object < 0) {
        uint8_t text[512] = {0};
        uint64_t len = get64(hello + 16);
        read_all(client->socket, text, len < sizeof text - 1 ? len : sizeof text - 1);
        outcome = fail(error, error_len, -ECONNREFUSED, (const char *)text);
    } else {
        client->size = get64(hello + 16);
        outcome = map(client, object, error, error_len);
    }
    if (object >= 0) close(object);
    if (outcome < 0) {
        nereid_ipc_close(client);
        return outcome;
    }
    *made = client;
    return 0;
}

void nereid_ipc_close(nereid_ipc *client) {
    if (!client) return;
    if (client->socket >= 0) close(client->socket);
    if (client->memory) munmap(client->memory, client->size);
    for (size_t i = 0; i < LISTS; i++)
        for (open_call *at = client->open[i]; at;) { open_call *next = at->next; free(at->bytes); free(at); at = next; }
    for (event *at = client->first; at;) { event *next = at->next; free(at); at = next; }
    free(client->given);
    free(client->frame);
    free(client);
}

void nereid_ipc_spin(nereid_ipc *client, uint64_t spin_ns) { client->spin_ns = spin_ns; }
const char *nereid_ipc_arena_name(nereid_ipc *client) { return client->name; }
const char *nereid_ipc_farewell(nereid_ipc *client) { return client->farewell; }

void *nereid_ipc_arena(nereid_ipc *client, size_t *len) {
    *len = client->arena_len;
    return client->memory + client->arena_at;
}

int nereid_ipc_is_emptied(nereid_ipc *client) {
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(word(client, EMPTIED), memory_order_relaxed) != 0;
}

/* Bells. */

static void ring(nereid_ipc *client) {
    ssize_t n;
    do n = send(client->socket, "\1", 1, MSG_NOSIGNAL); while (n < 0 && errno == EINTR);
    if (n < 0) client->is_closed = 1;
}

static void ring_if_wanted(nereid_ipc *client, uint64_t event) {
    atomic_thread_fence(memory_order_seq_cst);
    _Atomic uint64_t *bell = word(client, SERVER_BELL);
    if (atomic_load_explicit(bell, memory_order_relaxed) & event && atomic_exchange(bell, 0)) ring(client);
}

static int has_frames(nereid_ipc *client) {
    return atomic_load_explicit(word(client, RESPONSE_HEAD), memory_order_acquire) != client->tail;
}

static int has_room(nereid_ipc *client, size_t frame) {
    size_t to_end = client->requests_len - client->head % client->requests_len;
    uint64_t used = client->head - atomic_load_explicit(word(client, REQUEST_TAIL), memory_order_acquire);
    return used + (frame > to_end ? to_end : 0) + frame <= client->requests_len;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Milliseconds of a poll that ends at a time, rounded up; UINT64_MAX: never. */
static int poll_ms(uint64_t until_ns) {
    if (until_ns == UINT64_MAX) return -1;
    uint64_t now = now_ns(), left = until_ns > now ? until_ns - now : 0;
    return left > INT32_MAX * UINT64_C(1000000) ? INT32_MAX : (int)((left + 999999) / 1000000);
}

/* Sleeps until the server rings, a signal comes, or the time is reached. `frame`: the sleeper waits for room for one of so
 * many bytes too. */
static void sleep_until(nereid_ipc *client, size_t frame, uint64_t until_ns) {
    _Atomic uint64_t *bell = word(client, CLIENT_BELL);
    atomic_store_explicit(bell, frame ? FRAMES | ROOM : FRAMES, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!has_frames(client) && !(frame && has_room(client, frame))) {
        struct pollfd waits = {client->socket, POLLIN, 0};
        if (poll(&waits, 1, poll_ms(until_ns)) > 0) {
            uint8_t bytes[64];
            ssize_t got = recv(client->socket, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno == ECONNRESET)) client->is_closed = 1;
        }
    }
    atomic_store_explicit(bell, 0, memory_order_relaxed);
}

/* Frames of the server. */

static int give(nereid_ipc *client, nereid_ipc_event is, const uint8_t *bytes, size_t len) {
    event *one = malloc(sizeof *one + len);
    if (!one) return -ENOMEM;
    one->next = NULL, one->is = is;
    if (len) memcpy(one->bytes, bytes, len);
    one->is.bytes = one->bytes, one->is.len = len;
    if (client->last) client->last->next = one; else client->first = one;
    client->last = one;
    return 0;
}

static open_call *find(nereid_ipc *client, uint32_t call) {
    open_call *at = client->open[call % LISTS];
    while (at && at->call != call) at = at->next;
    return at;
}

static open_call *open_new(nereid_ipc *client, uint32_t call) {
    open_call *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->call = call, made->begun_at = UINT64_MAX;
    made->next = client->open[call % LISTS], client->open[call % LISTS] = made;
    return made;
}

static void forget(nereid_ipc *client, uint32_t call) {
    for (open_call **at = &client->open[call % LISTS]; *at; at = &(*at)->next)
        if ((*at)->call == call) {
            open_call *gone = *at;
            *at = gone->next;
            free(gone->bytes), free(gone);
            return;
        }
}

/* Drops what was read of a call and not given. */
static void drop_events(nereid_ipc *client, uint32_t call) {
    event *last = NULL;
    for (event **at = &client->first; *at;)
        if ((*at)->is.call == call) {
            event *gone = *at;
            *at = gone->next;
            free(gone);
        } else {
            last = *at;
            at = &last->next;
        }
    client->last = last;
}

static int take_data(nereid_ipc *client, open_call *of, const uint8_t *bytes, size_t len) {
    if (!len) return 0;
    if (of->len + len > of->capacity) {
        size_t capacity = 2 * (of->len + len) + 64;
        uint8_t *more = realloc(of->bytes, capacity);
        if (!more) return -ENOMEM;
        of->bytes = more, of->capacity = capacity;
    }
    memcpy(of->bytes + of->len, bytes, len);
    of->len += len;
    size_t at = 0;
    while (of->len - at >= PREFIX) {
        const uint8_t *prefix = of->bytes + at;
        size_t size = (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
        if (of->len - at - PREFIX < size) break;
        int outcome = give(client, (nereid_ipc_event){.call = of->call}, prefix + PREFIX, size);
        if (outcome < 0) return outcome;
        at += PREFIX + size;
    }
    of->len -= at;
    if (of->len)
        memmove(of->bytes, of->bytes + at, of->len);
    else
        free(of->bytes), of->bytes = NULL, of->capacity = 0;
    return 0;
}

static int take_frame(nereid_ipc *client, uint32_t kind, const uint8_t *payload, size_t len) {
    if (len < DATA_HEAD) return -EPROTO;
    uint32_t call = get32(payload), second = get32(payload + 4);
    if (kind == FROM_LEAVE) client->is_leaving = 1;
    open_call *of = find(client, call);
    /* What was under way when its call was cancelled is nobody's. */
    if (kind == FROM_DATA && of) {
        int outcome = take_data(client, of, payload + DATA_HEAD, len - DATA_HEAD);
        if (outcome < 0 || !(second & END)) return outcome;
        forget(client, call);
        return give(client, (nereid_ipc_event){.call = call, .is_end = 1}, NULL, 0);
    }
    if (kind == FROM_STATUS && (of || call == 0)) {
        const uint8_t *text = len < 12 ? payload : payload + 12;
        size_t text_len = len < 12 ? 0 : get32(payload + 8);
        if (text_len && text_len > len - 12) return -EPROTO;
        if (call == 0) {
            snprintf(client->farewell, sizeof client->farewell, "%.*s", (int)text_len, (const char *)text);
            client->is_closed = 1;
            return 0;
        }
        forget(client, call);
        return give(client, (nereid_ipc_event){.call = call, .is_end = 1, .code = second}, text, text_len);
    }
    return 0;
}

static int read_frames(nereid_ipc *client) {
    const uint8_t *ring_at = client->memory + client->responses_at;
    size_t capacity = client->responses_len;
    int has_read = 0;
    /* A frame that could not be taken is a hole in a message: nothing behind it is read. */
    while (!client->broken && has_frames(client)) {
        uint64_t head = atomic_load_explicit(word(client, RESPONSE_HEAD), memory_order_acquire);
        size_t at = client->tail % capacity;
        uint32_t len = get32(ring_at + at), kind = len == SKIP ? 0 : get32(ring_at + at + 4);
        int is_frame = len != SKIP && len <= capacity / 2 - FRAME_HEAD && len <= capacity - at - FRAME_HEAD;
        if (is_frame && len) memcpy(client->frame, ring_at + at + FRAME_HEAD, len);
        /* Looked at behind the copy, or zeros could pass for a frame or for some of its bytes. */
        if (nereid_ipc_is_emptied(client)) {
            if (!*client->farewell)
                snprintf(client->farewell, sizeof client->farewell,
                         "the server has taken its memory back, with what was not read in it");
            client->is_closed = 1, client->broken = -ECONNRESET;
            break;
        }
        if (len == SKIP)
            client->tail += capacity - at;
        else if (!is_frame)
            client->broken = -EPROTO;
        else {
            client->broken = take_frame(client, kind, client->frame, len);
            client->tail += frame_len(len);
        }
        if (client->tail > head) client->broken = -EPROTO;
        if (client->broken) break;
        atomic_store_explicit(word(client, RESPONSE_TAIL), client->tail, memory_order_release);
        has_read = 1;
    }
    if (has_read && !client->is_closed) ring_if_wanted(client, ROOM);
    return client->broken;
}

/* Frames of the client. */

typedef struct { const void *bytes; size_t len; } part;

static int push(nereid_ipc *client, uint32_t kind, const part *parts, size_t count) {
    size_t len = 0, capacity = client->requests_len;
    for (size_t i = 0; i < count; i++) len += parts[i].len;
    if (len > capacity / 2 - FRAME_HEAD) return -EMSGSIZE;
    if (client->broken) return client->broken;
    size_t frame = frame_len(len);
    while (!has_room(client, frame)) {
        int outcome = read_frames(client);
        if (outcome < 0) return outcome;
        if (client->is_closed) return -ECONNRESET;
        sleep_until(client, frame, UINT64_MAX);
    }
    uint8_t *ring_at = client->memory + client->requests_at;
    size_t at = client->head % capacity;
    if (frame > capacity - at) {
        put32(ring_at + at, SKIP);
        client->head += capacity - at, at = 0;
    }
    put32(ring_at + at, (uint32_t)len), put32(ring_at + at + 4, kind);
    uint8_t *to = ring_at + at + FRAME_HEAD;
    for (size_t i = 0; i < count; to += parts[i].len, i++)
        if (parts[i].len) memcpy(to, parts[i].bytes, parts[i].len);
    client->head += frame;
    atomic_store_explicit(word(client, REQUEST_HEAD), client->head, memory_order_release);
    ring_if_wanted(client, FRAMES);
    return 0;
}

int nereid_ipc_route(nereid_ipc *client, const char *path, const char *const *metadata, size_t pairs) {
    if (client->routes >= client->routes_max || pairs > 32) return -E2BIG;
    uint32_t route = client->routes, lengths[65];
    part parts[1 + 2 * 65] = {{&route, 4}};
    size_t count = 1;
    for (size_t i = 0; i <= 2 * pairs; i++) {
        const char *text = i == 0 ? path : metadata[i - 1];
        lengths[i] = (uint32_t)strlen(text);
        parts[count++] = (part){&lengths[i], 4};
        parts[count++] = (part){text, lengths[i]};
    }
    int outcome = push(client, ROUTE, parts, count);
    if (outcome < 0) return outcome;
    return (int)client->routes++;
}

static void prefix_of(uint8_t *prefix, size_t len) {
    prefix[0] = 0, prefix[1] = (uint8_t)(len >> 24), prefix[2] = (uint8_t)(len >> 16);
    prefix[3] = (uint8_t)(len >> 8), prefix[4] = (uint8_t)len;
}

static int go_on(nereid_ipc *client, uint32_t call, const uint8_t *bytes, size_t len, int flags) {
    size_t most = client->requests_len / 2 - FRAME_HEAD - DATA_HEAD;
    while (len) {
        size_t now = len < most ? len : most;
        uint8_t head[DATA_HEAD];
        put32(head, call), put32(head + 4, flags & NEREID_IPC_ENDS && now == len ? END : 0);
        int outcome = push(client, DATA, (part[]){{head, sizeof head}, {bytes, now}}, 2);
        if (outcome < 0) return outcome;
        bytes += now, len -= now;
    }
    return 0;
}

int nereid_ipc_begin(nereid_ipc *client, int route, const void *message, size_t len, int flags, uint64_t timeout_ns,
                     uint32_t *call) {
    if (client->is_leaving) return -ESHUTDOWN;
    if (client->is_closed) return -ECONNRESET;
    if (len > INT32_MAX) return -EMSGSIZE;
    do client->last_call++; while (client->last_call == 0 || find(client, client->last_call));
    if (!open_new(client, client->last_call)) return -ENOMEM;
    size_t most = client->requests_len / 2 - FRAME_HEAD - CALL_HEAD - PREFIX, first = len < most ? len : most;
    uint8_t head[CALL_HEAD] = {0}, prefix[PREFIX];
    put32(head, client->last_call), head[4] = (uint8_t)route, head[5] = (uint8_t)(route >> 8);
    head[6] = flags & NEREID_IPC_ENDS && first == len;
    put64(head + 8, timeout_ns), prefix_of(prefix, len);
    int outcome = push(client, CALL, (part[]){{head, sizeof head}, {prefix, PREFIX}, {message, first}}, 3);
    if (outcome < 0) {
        forget(client, client->last_call);
        return outcome;
    }
    *call = client->last_call;
    open_call *of = find(client, *call);
    if (of) of->begun_at = client->head;
    return go_on(client, *call, (const uint8_t *)message + first, len - first, flags);
}

int nereid_ipc_send(nereid_ipc *client, uint32_t call, const void *message, size_t len, int flags) {
    if (len > INT32_MAX) return -EMSGSIZE;
    uint8_t head[DATA_HEAD], prefix[PREFIX];
    put32(head, call), put32(head + 4, flags & NEREID_IPC_ENDS && !len ? END : 0), prefix_of(prefix, len);
    int outcome = push(client, DATA, (part[]){{head, sizeof head}, {prefix, PREFIX}}, 2);
    return outcome < 0 ? outcome : go_on(client, call, message, len, flags);
}

int nereid_ipc_cancel(nereid_ipc *client, uint32_t call) {
    uint8_t head[DATA_HEAD];
    put32(head, call), put32(head + 4, 0);
    forget(client, call), drop_events(client, call);
    return push(client, CANCEL, &(part){head, sizeof head}, 1);
}

int nereid_ipc_is_taken(nereid_ipc *client, uint32_t call) {
    const open_call *of = find(client, call);
    return !of || atomic_load_explicit(word(client, REQUEST_TAIL), memory_order_acquire) >= of->begun_at;
}

int nereid_ipc_next(nereid_ipc *client, int timeout_ms, nereid_ipc_event *out) {
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ms * 1000000u;
    free(client->given);
    client->given = NULL;
    for (;;) {
        int outcome = read_frames(client);
        if (client->first) {
            client->given = client->first;
            client->first = client->first->next;
            if (!client->first) client->last = NULL;
            *out = client->given->is;
            return 0;
        }
        if (outcome < 0) return outcome;
        if (client->is_closed) return -ECONNRESET;
        /* Whatever else has come: bells without a cause, parts of a message, signals. */
        if (until != UINT64_MAX && now_ns() >= until) return -ETIMEDOUT;
        if (client->spin_ns) {
            uint64_t spin_until = now_ns() + client->spin_ns;
            if (spin_until > until) spin_until = until;
            while (!has_frames(client) && now_ns() < spin_until) {
            }
        }
        if (!has_frames(client)) sleep_until(client, 0, until);
    }
}
