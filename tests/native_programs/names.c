/* Versions and the names of numbers. */

#include "check.h"

static bool is(const char* found, const char* expected) {
  return strcmp(found, expected) == 0;
}

int main(void) {
  uint32_t major = 0, minor = 0;
  succeeds(TRITONSERVER_ApiVersion(&major, &minor));
  expect(major == TRITONSERVER_API_VERSION_MAJOR && minor == TRITONSERVER_API_VERSION_MINOR);
  fails(TRITONSERVER_ApiVersion(NULL, &minor), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONBACKEND_ApiVersion(&major, &minor));
  expect(major == TRITONBACKEND_API_VERSION_MAJOR && minor == TRITONBACKEND_API_VERSION_MINOR);
  fails(TRITONBACKEND_ApiVersion(&major, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);

  holds(TRITONSERVER_DataTypeString, strcmp(TRITONSERVER_DataTypeString(TRITONSERVER_TYPE_FP32), "FP32") == 0);
  refuses(TRITONSERVER_DataTypeString, is(TRITONSERVER_DataTypeString((TRITONSERVER_DataType)99), "<invalid>"));
  holds(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("BF16") == TRITONSERVER_TYPE_BF16);
  refuses(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("FLOAT") == TRITONSERVER_TYPE_INVALID);
  holds(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize(TRITONSERVER_TYPE_FP64) == 8);
  refuses(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize((TRITONSERVER_DataType)99) == 0);

  static const char* const memories[] = {"CPU", "CPU_PINNED", "GPU", "<invalid>"};
  static const char* const parameters[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES", "<invalid>"};
  static const char* const kinds[] = {"AUTO", "CPU", "GPU", "MODEL", "<invalid>"};
  for (int at = 0; at < 4; ++at)
    expect(is(TRITONSERVER_MemoryTypeString((TRITONSERVER_MemoryType)at), memories[at]));
  for (int at = 0; at < 6; ++at)
    expect(is(TRITONSERVER_ParameterTypeString((TRITONSERVER_ParameterType)at), parameters[at]));
  for (int at = 0; at < 5; ++at)
    expect(is(TRITONSERVER_InstanceGroupKindString((TRITONSERVER_InstanceGroupKind)at), kinds[at]));
  holds(TRITONSERVER_MemoryTypeString, is(TRITONSERVER_MemoryTypeString(TRITONSERVER_MEMORY_GPU), "GPU"));
  refuses(TRITONSERVER_MemoryTypeString, is(TRITONSERVER_MemoryTypeString((TRITONSERVER_MemoryType)-1), "<invalid>"));
  holds(TRITONSERVER_ParameterTypeString, is(TRITONSERVER_ParameterTypeString(TRITONSERVER_PARAMETER_BYTES), "BYTES"));
  refuses(TRITONSERVER_ParameterTypeString,
          is(TRITONSERVER_ParameterTypeString((TRITONSERVER_ParameterType)-1), "<invalid>"));
  holds(TRITONSERVER_InstanceGroupKindString,
        is(TRITONSERVER_InstanceGroupKindString(TRITONSERVER_INSTANCEGROUPKIND_MODEL), "MODEL"));
  refuses(TRITONSERVER_InstanceGroupKindString,
          is(TRITONSERVER_InstanceGroupKindString((TRITONSERVER_InstanceGroupKind)-1), "<invalid>"));

  holds(TRITONSERVER_InferenceTraceLevelString,
        is(TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS), "TIMESTAMPS"));
  refuses(TRITONSERVER_InferenceTraceLevelString,
          is(TRITONSERVER_InferenceTraceLevelString((TRITONSERVER_InferenceTraceLevel)16), "<unknown>"));
  holds(TRITONSERVER_InferenceTraceActivityString,
        is(TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_TRACE_CUSTOM_ACTIVITY), "CUSTOM_ACTIVITY"));
  refuses(TRITONSERVER_InferenceTraceActivityString,
          is(TRITONSERVER_InferenceTraceActivityString((TRITONSERVER_InferenceTraceActivity)11), "<unknown>"));
  return 0;
}
