/* A backend that answers what it was asked: each requested output OUTPUT<x> is a copy of the input INPUT<x>.
 *
 * What it shows: the life of backend, model and instance; batches, whose requests are answered one by one; inputs that
 * lie in several pieces; outputs that nobody asked for; errors that concern one request, and errors at load. */

#include "../backend.h"

/* Of a model version; what its instances share is not written after it was made. */
typedef struct {
  int64_t max_batch_size;
} Model;

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  const char* name;
  TRY(TRITONBACKEND_BackendName(backend, &name));
  return check_version(name);
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  /* Models whose configuration names no instances get one on the CPU. */
  TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0));
  /* Instances keep to themselves while they are made. */
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  Model* made = calloc(1, sizeof *made);
  if (made == NULL) return no_memory();
  TRITONSERVER_Error* error = max_batch_size_of(model, &made->max_batch_size);
  if (error == NULL) error = TRITONBACKEND_ModelSetState(model, made);
  /* Nobody else knows of it: where a model that failed is finalised all the same, its state is NULL. */
  if (error != NULL) free(made);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  free(state);
  return NULL;
}

/* Copies one input to the output of the same number. */
static TRITONSERVER_Error* copy(Turn* turn, const char* output) {
  const char* prefix = "OUTPUT";
  if (strncmp(output, prefix, strlen(prefix)) != 0) {
    return failure(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' does not follow the pattern OUTPUT<x>", output);
  }
  char name[256];
  if (snprintf(name, sizeof name, "INPUT%s", output + strlen(prefix)) >= (int)sizeof name) {
    return failure(TRITONSERVER_ERROR_INVALID_ARG, "the name of output '%s' is too long", output);
  }
  Tensor input;
  TRY(input_of(turn->request, name, &input));
  void* buffer;
  TRY(new_output(turn->response, output, input.datatype, input.shape, input.rank, input.bytes, &buffer));
  return read_input(&input, buffer, input.bytes);
}

static TRITONSERVER_Error* run(const Model* model, Turn* turn) {
  uint32_t outputs;
  TRY(count_rows(turn, model->max_batch_size));
  TRY(TRITONBACKEND_RequestOutputCount(turn->request, &outputs));
  for (uint32_t index = 0; index < outputs; index++) {
    const char* name;
    TRY(TRITONBACKEND_RequestOutputName(turn->request, index, &name));
    TRY(copy(turn, name));
  }
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  /* Until here an error means that no request was taken: the server answers them all with it. */
  TRITONBACKEND_Model* model;
  void* state;
  Times times = {.exec_start_ns = now_ns()};
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  Turn* turns = turns_of(requests, count);
  if (turns == NULL) return no_memory();
  /* From here the requests are ours, and each is answered and given back. */
  times.compute_start_ns = now_ns();
  for (uint32_t index = 0; index < count; index++) {
    if (turns[index].error == NULL) turns[index].error = run(state, &turns[index]);
  }
  times.compute_end_ns = now_ns();
  finish(instance, turns, count, &times);
  return NULL;
}
