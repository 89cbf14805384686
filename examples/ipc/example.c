/* Calls a model with one INT32 input named INPUT0 and one output over the shared-memory ring:
 *
 *   cc -O2 -o example example.c nereid_ipc.c && ./example /run/nereid/ipc identity 1 2 3
 *
 * The first call has its numbers in the message, the second in the arena, from which the model reads them and to which
 * it writes. */
#include "nereid_ipc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The little of protobuf that a ModelInferRequest needs. */
static size_t varint(uint8_t *to, uint64_t value) {
    size_t len = 0;
    for (; value > 0x7f; value >>= 7) to[len++] = (uint8_t)(value | 0x80);
    to[len++] = (uint8_t)value;
    return len;
}

static size_t field(uint8_t *to, int number, const void *bytes, size_t size) {
    size_t len = varint(to, (uint64_t)number << 3 | 2);
    len += varint(to + len, size);
    memcpy(to + len, bytes, size);
    return len + size;
}

static size_t text(uint8_t *to, int number, const char *value) { return field(to, number, value, strlen(value)); }

static size_t parameter(uint8_t *to, int number, const char *key, const char *string, int64_t integer) {
    uint8_t value[512], entry[600];
    size_t len = string ? text(value, 3, string) : 1 + varint((value[0] = 0x10, value + 1), (uint64_t)integer);
    size_t entry_len = text(entry, 1, key);
    entry_len += field(entry + entry_len, 2, value, len);
    return field(to, number, entry, entry_len);
}

static size_t place(uint8_t *to, int number, const char *arena, int64_t offset, int64_t size) {
    size_t len = parameter(to, number, "shared_memory_region", arena, 0);
    len += parameter(to + len, number, "shared_memory_offset", NULL, offset);
    return len + parameter(to + len, number, "shared_memory_byte_size", NULL, size);
}

/* Waits for the end of the only call; prints the text of its status if it failed. */
static int finish(nereid_ipc *client, size_t *response_len) {
    nereid_ipc_event event;
    for (int outcome;;) {
        if ((outcome = nereid_ipc_next(client, 60000, &event)) < 0) {
            fprintf(stderr, "the connection: %s %s\n", strerror(-outcome), nereid_ipc_farewell(client));
            return 1;
        }
        if (!event.is_end) {
            *response_len = event.len;
            continue;
        }
        if (event.code) fprintf(stderr, "status %u: %.*s\n", event.code, (int)event.len, (const char *)event.bytes);
        return event.code != 0;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s PATH MODEL NUMBER...\n", argv[0]);
        return 2;
    }
    char error[512];
    nereid_ipc *client;
    if (nereid_ipc_connect(argv[1], &client, error, sizeof error) < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], error);
        return 1;
    }
    size_t count = (size_t)argc - 3, size = 4 * count, arena_len, response_len = 0;
    int32_t *numbers = calloc(count, 4);
    if (!numbers || count > 1000) return 1;
    for (size_t i = 0; i < count; i++) numbers[i] = atoi(argv[i + 3]);
    int route = nereid_ipc_route(client, "/inference.GRPCInferenceService/ModelInfer", NULL, 0);

    uint8_t shape[10], input[2048], output[2048], message[16384];
    size_t shape_len = varint(shape, count);
    size_t input_len = text(input, 1, "INPUT0");
    input_len += text(input + input_len, 2, "INT32");
    input_len += field(input + input_len, 3, shape, shape_len);
    size_t len = text(message, 1, argv[2]);
    len += field(message + len, 5, input, input_len);
    len += field(message + len, 7, numbers, size);
    uint32_t call;
    if (nereid_ipc_begin(client, route, message, len, NEREID_IPC_ENDS, 0, &call) < 0 || finish(client, &response_len))
        return 1;
    printf("in the message: a response of %zu bytes\n", response_len);

    /* The same in the arena: the input at 0, the output at 64 KiB. */
    uint8_t *arena = nereid_ipc_arena(client, &arena_len);
    const int64_t output_at = 65536;
    if (arena_len < (size_t)output_at + size) return 1;
    memcpy(arena, numbers, size);
    input_len += place(input + input_len, 4, nereid_ipc_arena_name(client), 0, (int64_t)size);
    size_t output_len = text(output, 1, "OUTPUT0");
    output_len += place(output + output_len, 2, nereid_ipc_arena_name(client), output_at, (int64_t)size);
    len = text(message, 1, argv[2]);
    len += field(message + len, 5, input, input_len);
    len += field(message + len, 6, output, output_len);
    if (nereid_ipc_begin(client, route, message, len, NEREID_IPC_ENDS, 0, &call) < 0 || finish(client, &response_len))
        return 1;
    printf("in the arena:");
    for (size_t i = 0; i < count; i++) {
        int32_t number;
        memcpy(&number, arena + output_at + 4 * i, 4);
        printf(" %d", number);
    }
    printf("\n");
    free(numbers);
    nereid_ipc_close(client);
    return 0;
}
