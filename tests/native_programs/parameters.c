/* Parameters: each type, and what is none. */

#include "check.h"

int main(void) {
  int64_t number = -7;
  bool flag = true;
  double real = 0.5;
  TRITONSERVER_Parameter* parameters[] = {
      TRITONSERVER_ParameterNew("text", TRITONSERVER_PARAMETER_STRING, "value"),
      TRITONSERVER_ParameterNew("number", TRITONSERVER_PARAMETER_INT, &number),
      TRITONSERVER_ParameterNew("flag", TRITONSERVER_PARAMETER_BOOL, &flag),
      TRITONSERVER_ParameterNew("real", TRITONSERVER_PARAMETER_DOUBLE, &real),
      TRITONSERVER_ParameterBytesNew("bytes", "\0\1", 2),
      TRITONSERVER_ParameterBytesNew("nothing", NULL, 0),
  };
  for (size_t at = 0; at < sizeof(parameters) / sizeof(*parameters); ++at) expect(parameters[at] != NULL);
  holds(TRITONSERVER_ParameterNew, parameters[0] != NULL);
  holds(TRITONSERVER_ParameterBytesNew, parameters[4] != NULL);

  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew(NULL, TRITONSERVER_PARAMETER_STRING, "value") == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("text", TRITONSERVER_PARAMETER_STRING, NULL) == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("bytes", TRITONSERVER_PARAMETER_BYTES, "value") == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("text", (TRITONSERVER_ParameterType)5, "value") == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew(NULL, "value", 5) == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew("bytes", NULL, 5) == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew("bytes", "value", UINT64_MAX) == NULL);

  for (size_t at = 0; at < sizeof(parameters) / sizeof(*parameters); ++at) TRITONSERVER_ParameterDelete(parameters[at]);
  holds(TRITONSERVER_ParameterDelete, true);
  TRITONSERVER_ParameterDelete(NULL);
  refuses(TRITONSERVER_ParameterDelete, true);
  return 0;
}
