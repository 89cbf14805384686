/* A backend with a memory: OUTPUT is the sum of all values of INPUT in this sequence so far (INT32).
 *
 * What it shows: sequences. The server leads all requests of a sequence to one instance and tells by control inputs
 * where it begins and ends (START, END), whose turn it is (CORRID), and which places of a batch are in use (READY). The
 * sums are kept here, by correlation id, or by the server, if the configuration names a state: then every request has
 * an input INPUT_STATE, and leaves OUTPUT_STATE for the next one. */

#include "../backend.h"

/* A sequence may end without a word (its client dies, and the server forgets it). Then the oldest sum makes room: this
 * many are kept per instance, which must be more than the sequences that an instance has at a time. */
#define SUMS_MAX 1024

typedef struct {
  uint64_t correlation_id;
  /* When it was used last, counted in requests; 0: the place is free. */
  uint64_t used;
  int32_t sum;
} Sum;

/* Of an instance. It needs no lock: the server runs an instance on one thread at a time. */
typedef struct {
  uint64_t requests;
  Sum sums[SUMS_MAX];
} Instance;

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  const char* name;
  TRY(TRITONBACKEND_BackendName(backend, &name));
  return check_version(name);
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  char* config = NULL;
  TRY(config_of(model, &config));
  bool has_sequences = strstr(config, "\"sequence_batching\":") != NULL;
  free(config);
  if (has_sequences) return NULL;
  const char* name;
  TRY(TRITONBACKEND_ModelName(model, &name));
  return failure(TRITONSERVER_ERROR_INVALID_ARG, "model '%s' must be configured with sequence_batching", name);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  Instance* made = calloc(1, sizeof *made);
  if (made == NULL) return no_memory();
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceSetState(instance, made);
  if (error != NULL) free(made);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  void* state;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
  free(state);
  return NULL;
}

/* What the server says of a request: the control inputs have one element for every item of a batch, and a request of
 * a sequence is one item. */
typedef struct {
  int32_t start, end, ready;
  uint64_t correlation_id;
} Control;

static TRITONSERVER_Error* read_control(TRITONBACKEND_Request* request, Control* control) {
  Tensor tensor;
  TRY(input_of(request, "START", &tensor));
  TRY(read_input(&tensor, &control->start, sizeof control->start));
  TRY(input_of(request, "END", &tensor));
  TRY(read_input(&tensor, &control->end, sizeof control->end));
  TRY(input_of(request, "READY", &tensor));
  TRY(read_input(&tensor, &control->ready, sizeof control->ready));
  TRY(input_of(request, "CORRID", &tensor));
  return read_input(&tensor, &control->correlation_id, sizeof control->correlation_id);
}

/* The place of a sequence; a new one where it starts: a free place, or the one that was used longest ago. */
static TRITONSERVER_Error* place_of(Instance* instance, const Control* control, Sum** place) {
  Sum *found = NULL, *oldest = &instance->sums[0];
  for (size_t at = 0; at < SUMS_MAX; at++) {
    Sum* sum = &instance->sums[at];
    if (sum->used > 0 && sum->correlation_id == control->correlation_id) found = sum;
    if (sum->used < oldest->used) oldest = sum;
  }
  if (found == NULL && !control->start) {
    return failure(TRITONSERVER_ERROR_INVALID_ARG, "sequence %" PRIu64 " has not been started here",
        control->correlation_id);
  }
  if (found == NULL) found = oldest;
  if (control->start) *found = (Sum){.correlation_id = control->correlation_id};
  found->used = ++instance->requests;
  *place = found;
  return NULL;
}

/* Sums may overflow, and then begin again from below. */
static int32_t add(int32_t left, int32_t right) { return (int32_t)((uint32_t)left + (uint32_t)right); }

/* The sum as the server keeps it. */
static TRITONSERVER_Error* add_to_state(
    Turn* turn, const Control* control, const Tensor* state, int32_t value, int32_t* sum) {
  int32_t before = 0;
  if (!control->start) TRY(read_input(state, &before, sizeof before));
  *sum = add(before, value);
  TRITONBACKEND_State* next;
  TRY(TRITONBACKEND_StateNew(&next, turn->request, "OUTPUT_STATE", state->datatype, state->shape, state->rank));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_StateBuffer(next, &buffer, sizeof *sum, &type, &id));
  if (!is_host_memory(type)) return failure(TRITONSERVER_ERROR_UNSUPPORTED, "the state must be in memory of the host");
  memcpy(buffer, sum, sizeof *sum);
  return TRITONBACKEND_StateUpdate(next);
}

/* The sum as this instance keeps it. */
static TRITONSERVER_Error* add_here(Instance* instance, const Control* control, int32_t value, int32_t* sum) {
  Sum* place = NULL;
  TRY(place_of(instance, control, &place));
  place->sum = add(place->sum, value);
  *sum = place->sum;
  if (control->end) place->used = 0;
  return NULL;
}

static TRITONSERVER_Error* run(Instance* instance, Turn* turn) {
  Control control;
  Tensor input, state;
  int32_t value, sum = 0;
  TRY(read_control(turn->request, &control));
  TRY(input_of(turn->request, "INPUT", &input));
  if (input.datatype != TRITONSERVER_TYPE_INT32) {
    return failure(TRITONSERVER_ERROR_INVALID_ARG, "input 'INPUT' is %s and must be INT32",
        TRITONSERVER_DataTypeString(input.datatype));
  }
  TRY(read_input(&input, &value, sizeof value));
  /* A place of the batch that has no request now: nothing is added, and nobody reads the answer. */
  if (control.ready) {
    TRITONSERVER_Error* without = input_of(turn->request, "INPUT_STATE", &state);
    if (without == NULL) {
      TRY(add_to_state(turn, &control, &state, value, &sum));
    } else {
      TRITONSERVER_ErrorDelete(without);
      TRY(add_here(instance, &control, value, &sum));
    }
  }
  void* buffer;
  TRY(new_output(turn->response, "OUTPUT", input.datatype, input.shape, input.rank, sizeof sum, &buffer));
  memcpy(buffer, &sum, sizeof sum);
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  void* state;
  Times times = {.exec_start_ns = now_ns()};
  TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
  Turn* turns = turns_of(requests, count);
  if (turns == NULL) return no_memory();
  times.compute_start_ns = now_ns();
  for (uint32_t index = 0; index < count; index++) {
    if (turns[index].error == NULL) turns[index].error = run(state, &turns[index]);
  }
  times.compute_end_ns = now_ns();
  finish(instance, turns, count, &times);
  return NULL;
}
