/* Requests on their way: many at a time, with many answers, in sequences and ensembles, called back, and too late.
 *
 * Arguments: a repository, a directory for backends. */

#include "client.h"

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static const int32_t numbers[5] = {10, 20, 30, 40, 50};

static void sends(TRITONSERVER_InferenceRequest* request) {
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
}

/* Responses come in their order; their end comes by itself. */
static void answers_many_times(void) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "repeat", allocator, &client);
  const uint32_t zeros[5] = {0};
  const int64_t five = 5, one = 1;
  client_input(request, "IN", numbers, 5, false);
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "DELAY", TRITONSERVER_TYPE_UINT32, &five, 1));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "DELAY", zeros, 20, TRITONSERVER_MEMORY_CPU, 0));
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "WAIT", TRITONSERVER_TYPE_UINT32, &one, 1));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "WAIT", zeros, 4, TRITONSERVER_MEMORY_CPU, 0));
  for (int round = 0; round < 3; ++round) {
    sends(request);
    client_finish(&client);
    expect(client.count == 5 && client.nulls == 1 && client.finals == 1);
    expect(client.starts == 5 && client.allocations == 10 && client.frees == 0);
    for (int i = 0; i < 5; ++i) {
      expect(*client_values(client.responses[i], 0, "OUT", 1) == numbers[i]);
      expect(*client_values(client.responses[i], 1, "IDX", 1) == i);
    }
    client_clear(&client);
  }
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

enum { THREADS = 4, ROUNDS = 40, AT_ONCE = 3 };

static void* asks_and_asks(void* of) {
  const int32_t own = (int32_t)(intptr_t)of;
  Client clients[AT_ONCE];
  TRITONSERVER_InferenceRequest* requests[AT_ONCE];
  int32_t values[AT_ONCE];
  for (int i = 0; i < AT_ONCE; ++i) {
    client_init(&clients[i]);
    requests[i] = client_request(server, "batched", allocator, &clients[i]);
    client_input(requests[i], "INPUT0", &values[i], 1, true);
  }
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < AT_ONCE; ++i) {
      values[i] = own * 10000 + round * 10 + i;
      sends(requests[i]);
    }
    for (int i = 0; i < AT_ONCE; ++i) {
      client_finish(&clients[i]);
      expect(clients[i].count == 1);
      expect(*client_values(clients[i].responses[0], 0, "OUTPUT0", 1) == values[i]);
      client_clear(&clients[i]);
    }
  }
  for (int i = 0; i < AT_ONCE; ++i) succeeds(TRITONSERVER_InferenceRequestDelete(requests[i]));
  return NULL;
}

static void many_are_in_flight(void) {
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; ++i) expect(pthread_create(&threads[i], NULL, asks_and_asks, (void*)i) == 0);
  for (int i = 0; i < THREADS; ++i) expect(pthread_join(threads[i], NULL) == 0);
}

/* The next request is sent from the response callback of the one before it. */
typedef struct Chain {
  Client client;
  int left;
} Chain;

static void chain_complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  Chain* chain = userp;
  expect(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL && response != NULL);
  succeeds(TRITONSERVER_InferenceResponseDelete(response));
  if (--chain->left > 0) {
    TRITONSERVER_InferenceRequest* request = client_request(server, "fixed", allocator, &chain->client);
    succeeds(TRITONSERVER_InferenceRequestSetResponseCallback(
        request, allocator, &chain->client, chain_complete, chain));
    client_input(request, "INPUT0", numbers, 4, false);
    sends(request);
  } else {
    client_changed(&chain->client, &chain->client.finals);
  }
}

static void callbacks_may_ask_again(void) {
  Chain chain;
  client_init(&chain.client);
  chain.client.deletes = true;
  chain.left = 20;
  TRITONSERVER_InferenceRequest* request = client_request(server, "fixed", allocator, &chain.client);
  succeeds(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &chain.client, chain_complete, &chain));
  client_input(request, "INPUT0", numbers, 4, false);
  sends(request);
  client_wait(&chain.client, &chain.client.finals, 1);
  client_wait(&chain.client, &chain.client.releases, 20);
  expect(chain.client.allocations == 20 && chain.client.frees == 20);
}

static void ensembles_answer(void) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "chain", allocator, &client);
  client_input(request, "INPUT0", numbers, 4, false);
  for (int round = 0; round < 5; ++round) {
    sends(request);
    client_finish(&client);
    expect(client.count == 1 && client.nulls == 0 && client.starts == 1);
    const char* name = NULL;
    int64_t version = 0;
    succeeds(TRITONSERVER_InferenceResponseModel(client.responses[0], &name, &version));
    expect(strcmp(name, "chain") == 0 && version == 1);
    expect(memcmp(client_values(client.responses[0], 0, "OUTPUT0", 4), numbers, 16) == 0);
    client_clear(&client);
  }
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

/* The second answer is the first one's, from the cache. */
static void answers_may_be_kept(void) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "cached", allocator, &client);
  client_input(request, "INPUT0", numbers, 4, false);
  for (int round = 0; round < 3; ++round) {
    sends(request);
    client_finish(&client);
    expect(client.starts == 1 && client.allocations == 1);
    expect(memcmp(client_values(client.responses[0], 0, "OUTPUT0", 4), numbers, 16) == 0);
    client_clear(&client);
  }
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static TRITONSERVER_InferenceRequest* slow_request(Client* client) {
  TRITONSERVER_InferenceRequest* request = client_request(server, "slow", allocator, client);
  client_input(request, "INPUT0", numbers, 1, true);
  return request;
}

/* What waits can be called back, and is answered while the model is still busy. */
static void what_waits_can_be_called_back(void) {
  Client first, second;
  client_init(&first);
  client_init(&second);
  TRITONSERVER_InferenceRequest* busy = slow_request(&first);
  TRITONSERVER_InferenceRequest* waiting = slow_request(&second);
  check_within(CLIENT_SLOW_MS);
  sends(busy);
  sends(waiting);
  succeeds(TRITONSERVER_InferenceRequestCancel(waiting));
  succeeds(TRITONSERVER_InferenceRequestCancel(waiting));
  bool is = false;
  succeeds(TRITONSERVER_InferenceRequestIsCancelled(waiting, &is));
  expect(is);
  client_wait(&second, &second.finals, 1);
  expect(first.finals == 0);
  client_failed(&second, TRITONSERVER_ERROR_CANCELLED, NULL);
  check_at_leisure();
  client_finish(&first);
  client_finish(&second);
  client_clear(&first);
  client_clear(&second);
  /* A new send is a new matter. */
  sends(waiting);
  succeeds(TRITONSERVER_InferenceRequestIsCancelled(waiting, &is));
  expect(!is);
  client_finish(&second);
  expect(*client_values(second.responses[0], 0, "OUTPUT0", 1) == 10);
  client_clear(&second);
  succeeds(TRITONSERVER_InferenceRequestDelete(busy));
  succeeds(TRITONSERVER_InferenceRequestDelete(waiting));
}

/* It expires on time, although the only instance is busy; what would be one too many is refused at once. */
static void what_waits_too_long_expires(void) {
  enum { MOST = 16 };
  Client clients[MOST];
  TRITONSERVER_InferenceRequest* requests[MOST];
  for (int i = 0; i < MOST; ++i) {
    client_init(&clients[i]);
    requests[i] = slow_request(&clients[i]);
  }
  check_within(CLIENT_SLOW_MS);
  sends(requests[0]);
  succeeds(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(requests[1], 1000));
  sends(requests[1]);
  client_wait(&clients[1], &clients[1].finals, 1);
  client_failed(&clients[1], TRITONSERVER_ERROR_UNAVAILABLE, "Request timeout expired");
  expect(clients[0].finals == 0);
  /* Two may wait; which of the following does not fit depends on how far the first one is. */
  int beyond = 2;
  TRITONSERVER_Error* refused = NULL;
  for (long long sent_ms; beyond < MOST; ++beyond) {
    sent_ms = check_now_ms();
    refused = TRITONSERVER_ServerInferAsync(server, requests[beyond], NULL);
    if (refused != NULL) break;
    /* The last one that is taken is there for as long at least. */
    check_opened_ms = sent_ms;
  }
  expect(beyond > 2 && beyond < MOST && TRITONSERVER_ErrorCode(refused) == TRITONSERVER_ERROR_UNAVAILABLE);
  expect(strcmp(TRITONSERVER_ErrorMessage(refused), "[request id: <id_unknown>] Exceeds maximum queue size") == 0);
  TRITONSERVER_ErrorDelete(refused);
  expect(clients[beyond].finals == 0 && clients[beyond].releases == 0);
  TRITONSERVER_InferenceRequest* waiting = requests[beyond - 1];
  fails(TRITONSERVER_InferenceRequestSetId(waiting, "now"), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] the request is in flight: it cannot be changed or deleted before it is released");
  fails(TRITONSERVER_InferenceRequestDelete(waiting), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  /* On a machine that stands still meanwhile it may have its turn. */
  refused = TRITONSERVER_ServerInferAsync(server, waiting, NULL);
  expect(refused != NULL && TRITONSERVER_ErrorCode(refused) == TRITONSERVER_ERROR_INTERNAL);
  const char* transition = "[request id: <id_unknown>] Invalid request state transition from %s to INITIALIZED";
  char pending[128], executing[128];
  snprintf(pending, sizeof(pending), transition, "PENDING");
  snprintf(executing, sizeof(executing), transition, "EXECUTING");
  const char* said = TRITONSERVER_ErrorMessage(refused);
  expect(strcmp(said, pending) == 0 || strcmp(said, executing) == 0);
  TRITONSERVER_ErrorDelete(refused);
  check_at_leisure();
  for (int i = 0; i < beyond; ++i) {
    client_finish(&clients[i]);
    if (i != 1) expect(*client_values(clients[i].responses[0], 0, "OUTPUT0", 1) == 10);
    client_clear(&clients[i]);
  }
  /* What was refused is still the caller's. */
  sends(requests[beyond]);
  client_finish(&clients[beyond]);
  client_clear(&clients[beyond]);
  for (int i = 0; i < MOST; ++i) succeeds(TRITONSERVER_InferenceRequestDelete(requests[i]));
}

static void sequences_are_followed(void) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "sequence", allocator, &client);
  client_input(request, "INPUT0", numbers, 1, true);
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "inference request to model 'sequence' must specify a non-zero or non-empty correlation ID");
  succeeds(TRITONSERVER_InferenceRequestSetCorrelationId(request, 5));
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "inference request for sequence 5 to model 'sequence' must specify the START flag on the first request of the "
        "sequence");
  const uint32_t flags[3] = {TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, 0, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END};
  for (int text = 0; text < 2; ++text) {
    for (int i = 0; i < 3; ++i) {
      if (text) succeeds(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "six"));
      succeeds(TRITONSERVER_InferenceRequestSetFlags(request, flags[i]));
      sends(request);
      client_finish(&client);
      expect(*client_values(client.responses[0], 0, "OUTPUT0", 1) == 10);
      client_clear(&client);
    }
  }
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

/* Answers leave in the order of their requests, also when two instances take turns. */
static void order_is_kept(void) {
  enum { COUNT = 12 };
  Client clients[COUNT];
  TRITONSERVER_InferenceRequest* requests[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    client_init(&clients[i]);
    requests[i] = client_request(server, "ordered", allocator, &clients[i]);
    client_input(requests[i], "INPUT0", numbers, 1, true);
    sends(requests[i]);
  }
  for (int i = COUNT - 1; i >= 0; --i) {
    client_wait(&clients[i], &clients[i].finals, 1);
    for (int before = 0; before < i; ++before) client_wait(&clients[before], &clients[before].finals, 1);
  }
  for (int i = 0; i < COUNT; ++i) {
    client_finish(&clients[i]);
    client_clear(&clients[i]);
    succeeds(TRITONSERVER_InferenceRequestDelete(requests[i]));
  }
}

static const char refusal[] = "Server is stopping, scheduler for model has stopped accepting new inference requests";

/* What was accepted, be it under way or waiting, is answered before the stop returns; nothing is taken afterwards. */
static void a_server_that_stops_finishes_what_it_has(void) {
  enum { COUNT = 2 };
  Client clients[COUNT + 1];
  TRITONSERVER_InferenceRequest* requests[COUNT + 1];
  for (int i = 0; i <= COUNT; ++i) {
    client_init(&clients[i]);
    requests[i] = slow_request(&clients[i]);
  }
  check_within(CLIENT_SLOW_MS);
  for (int i = 0; i < COUNT; ++i) sends(requests[i]);
  expect(clients[1].finals == 0);
  check_at_leisure();
  succeeds(TRITONSERVER_ServerSetExitTimeout(server, 600));
  succeeds(TRITONSERVER_ServerStop(server));
  for (int i = 0; i < COUNT; ++i) {
    pthread_mutex_lock(&clients[i].lock);
    expect(clients[i].finals == 1 && clients[i].releases == 1);
    pthread_mutex_unlock(&clients[i].lock);
    expect(*client_values(clients[i].responses[0], 0, "OUTPUT0", 1) == 10);
  }
  char text[256];
  snprintf(text, sizeof(text), "[request id: <id_unknown>] %s", refusal);
  fails(TRITONSERVER_ServerInferAsync(server, requests[COUNT], NULL), TRITONSERVER_ERROR_UNAVAILABLE, text);
  expect(clients[COUNT].releases == 0 && clients[COUNT].finals == 0);
  for (int i = 0; i <= COUNT; ++i) succeeds(TRITONSERVER_InferenceRequestDelete(requests[i]));
  succeeds(TRITONSERVER_ServerDelete(server));
  /* Answers are their owner's, also when the server is gone. */
  for (int i = 0; i < COUNT; ++i) client_clear(&clients[i]);
}

/* Without the time to finish the stop fails, and says so; what was accepted is answered all the same. */
static void a_stop_without_time_loses_nothing(const char* repository, const char* backends) {
  Client client, late;
  client_init(&client);
  client_init(&late);
  server = client_server(repository, backends);
  TRITONSERVER_InferenceRequest *request = slow_request(&client), *refused = slow_request(&late);
  check_within(CLIENT_SLOW_MS);
  sends(request);
  succeeds(TRITONSERVER_ServerSetExitTimeout(server, 0));
  fails(TRITONSERVER_ServerStop(server), TRITONSERVER_ERROR_INTERNAL, "Exit timeout expired. Exiting immediately.");
  check_at_leisure();
  fails(TRITONSERVER_ServerInferAsync(server, refused, NULL), TRITONSERVER_ERROR_UNAVAILABLE, NULL);
  client_finish(&client);
  expect(*client_values(client.responses[0], 0, "OUTPUT0", 1) == 10);
  expect(late.finals == 0 && late.releases == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_InferenceRequestDelete(refused));
  succeeds(TRITONSERVER_ServerDelete(server));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  allocator = client_allocator();
  server = client_server(argv[1], argv[2]);
  answers_many_times();
  many_are_in_flight();
  callbacks_may_ask_again();
  ensembles_answer();
  answers_may_be_kept();
  what_waits_can_be_called_back();
  what_waits_too_long_expires();
  sequences_are_followed();
  order_is_kept();
  a_server_that_stops_finishes_what_it_has();
  a_stop_without_time_loses_nothing(argv[1], argv[2]);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}
