/* Objects that a program makes and deletes without a server: errors, messages, buffer attributes. With
 * NEREID_CHECK_HANDLES=1 also what happens to those that were deleted. */

#include "check.h"

static int is_checked(void) {
  const char* asked = getenv("NEREID_CHECK_HANDLES");
  return asked != NULL && strcmp(asked, "1") == 0;
}

static void errors(void) {
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "lost");
  holds(TRITONSERVER_ErrorNew, error != NULL);
  holds(TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_NOT_FOUND);
  holds(TRITONSERVER_ErrorCodeString, strcmp(TRITONSERVER_ErrorCodeString(error), "Not found") == 0);
  holds(TRITONSERVER_ErrorMessage, strcmp(TRITONSERVER_ErrorMessage(error), "lost") == 0);
  TRITONSERVER_ErrorDelete(error);
  if (is_checked()) {
    expect(TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_UNKNOWN);
    expect(strcmp(TRITONSERVER_ErrorMessage(error), "") == 0);
    TRITONSERVER_ErrorDelete(error);
  }
  refuses(TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCode(NULL) == TRITONSERVER_ERROR_UNKNOWN);
  refuses(TRITONSERVER_ErrorMessage, strcmp(TRITONSERVER_ErrorMessage(NULL), "") == 0);
  TRITONSERVER_ErrorDelete(NULL);
}

static void messages(void) {
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_MessageNewFromSerializedJson(&message, "{\"a\":1}", 7));
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  expect(size == 7 && memcmp(base, "{\"a\":1}", 7) == 0);
  fails(TRITONSERVER_MessageSerializeToJson(message, NULL, &size), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONSERVER_MessageDelete(message));
  if (is_checked()) {
    fails(
        TRITONSERVER_MessageSerializeToJson(message, &base, &size), TRITONSERVER_ERROR_INVALID_ARG,
        "TRITONSERVER_MessageSerializeToJson: message is a TRITONSERVER_Message that was given up in "
        "TRITONSERVER_MessageDelete");
    fails(
        TRITONSERVER_MessageDelete(message), TRITONSERVER_ERROR_INVALID_ARG,
        "TRITONSERVER_MessageDelete: message is a TRITONSERVER_Message that was given up in TRITONSERVER_MessageDelete");
  }
  fails(TRITONSERVER_MessageNewFromSerializedJson(&message, "{", 1), TRITONSERVER_ERROR_INVALID_ARG, NULL);
}

static void attributes(void) {
  TRITONSERVER_BufferAttributes* made = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_BufferAttributesNew(&made));
  succeeds(TRITONSERVER_BufferAttributesSetByteSize(made, 3));
  succeeds(TRITONSERVER_BufferAttributesByteSize(made, &size));
  expect(size == 3);
  fails(TRITONSERVER_BufferAttributesByteSize(made, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  if (is_checked()) {
    fails(
        TRITONSERVER_MessageDelete((TRITONSERVER_Message*)made), TRITONSERVER_ERROR_INVALID_ARG,
        "TRITONSERVER_MessageDelete: message is a TRITONSERVER_BufferAttributes, not a TRITONSERVER_Message");
  }
  succeeds(TRITONSERVER_BufferAttributesDelete(made));
}

int main(void) {
  for (int round = 0; round < 1000; ++round) {
    errors();
    messages();
    attributes();
  }
  return 0;
}
