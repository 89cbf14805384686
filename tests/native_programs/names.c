/* Versions and the names of numbers. */

#include "check.h"

int main(void) {
  uint32_t major = 0, minor = 0;
  succeeds(TRITONSERVER_ApiVersion(&major, &minor));
  expect(major == TRITONSERVER_API_VERSION_MAJOR && minor == TRITONSERVER_API_VERSION_MINOR);
  fails(TRITONSERVER_ApiVersion(NULL, &minor), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONBACKEND_ApiVersion(&major, &minor));
  expect(major == TRITONBACKEND_API_VERSION_MAJOR && minor == TRITONBACKEND_API_VERSION_MINOR);
  fails(TRITONBACKEND_ApiVersion(&major, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);

  holds(TRITONSERVER_DataTypeString, strcmp(TRITONSERVER_DataTypeString(TRITONSERVER_TYPE_FP32), "FP32") == 0);
  refuses(TRITONSERVER_DataTypeString, strcmp(TRITONSERVER_DataTypeString((TRITONSERVER_DataType)99), "<invalid>") == 0);
  holds(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("BF16") == TRITONSERVER_TYPE_BF16);
  refuses(TRITONSERVER_StringToDataType, TRITONSERVER_StringToDataType("FLOAT") == TRITONSERVER_TYPE_INVALID);
  holds(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize(TRITONSERVER_TYPE_FP64) == 8);
  refuses(TRITONSERVER_DataTypeByteSize, TRITONSERVER_DataTypeByteSize((TRITONSERVER_DataType)99) == 0);
  return 0;
}
