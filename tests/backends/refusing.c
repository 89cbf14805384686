/* A repository agent that was made for another version of the interface, and says so. */

#include <stdio.h>

#include "triton/core/tritonrepoagent.h"

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
  (void)agent;
  uint32_t major = 0, minor = 0;
  TRITONSERVER_Error* error = TRITONREPOAGENT_ApiVersion(&major, &minor);
  if (error != NULL) return error;
  char text[128];
  snprintf(text, sizeof text, "agent needs version %u.%u of the interface, the server has %u.%u", major + 1, 0u, major,
           minor);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, text);
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent) {
  (void)agent;
  puts("~ refusing finalize");
  fflush(stdout);
  return NULL;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
  (void)agent;
  (void)model;
  (void)action;
  return NULL;
}
