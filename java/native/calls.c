/* The functions that follow no rule: those with callbacks, with memory of Java, or with several results. */

#include "border.h"

/* In border.c. */
jobject exception_of(JNIEnv* env, TRITONSERVER_Error* error);
jint calls_loaded(JNIEnv* env);

#define METHODS(X) \
  X(allocate, "(Lnereid/tritonserver/Call;[BJIJ)Lnereid/tritonserver/Allocation;") \
  X(allocationError, "(Lnereid/tritonserver/Call;)[B") \
  X(released, "(Lnereid/tritonserver/Allocation;)V") \
  X(started, "(Lnereid/tritonserver/Call;)V") \
  X(responded, "(Lnereid/tritonserver/Call;JI)Z") \
  X(returned, "(Lnereid/tritonserver/Call;I)Z") \
  X(traced, "(JJIJ)V") \
  X(traceReturned, "(JJ)V") \
  X(logged, "(I[BIJ[B)V") \
  X(model, "([BJ)Lnereid/tritonserver/ResponseModel;") \
  X(parameter, "([BI[BJD)Lnereid/tritonserver/Parameter;") \
  X(output, "([BI[JJIJLnereid/tritonserver/Allocation;)Lnereid/tritonserver/Output;")

#define DECLARE(name, signature) static jmethodID name##_method;
METHODS(DECLARE)

static jfieldID address_field;

jint calls_loaded(JNIEnv* env) {
#define FIND(name, signature) \
  name##_method = (*env)->GetStaticMethodID(env, callbacks, #name, signature); \
  if (name##_method == NULL) return JNI_ERR;
  METHODS(FIND)
  jclass allocation = (*env)->FindClass(env, "nereid/tritonserver/Allocation");
  if (allocation == NULL) return JNI_ERR;
  address_field = (*env)->GetFieldID(env, allocation, "address", "J");
  return address_field == NULL ? JNI_ERR : JNI_VERSION_10;
}

#define EXPORT(result, name, ...) \
  JNIEXPORT result JNICALL Java_nereid_tritonserver_Callbacks_##name(JNIEnv* env, jclass type, ##__VA_ARGS__)

/* Numbers and parameters. ------------------------------------------------------------------------------------------ */

EXPORT(jlong, address, jobject buffer) {
  (void)type;
  return (jlong)(intptr_t)(*env)->GetDirectBufferAddress(env, buffer);
}

EXPORT(jintArray, apiVersion) {
  (void)type;
  uint32_t numbers[2] = {0, 0};
  if (!succeeded(env, TRITONSERVER_ApiVersion(&numbers[0], &numbers[1]))) return NULL;
  jintArray result = (*env)->NewIntArray(env, 2);
  if (result != NULL) (*env)->SetIntArrayRegion(env, result, 0, 2, (const jint*)numbers);
  return result;
}

EXPORT(jlong, parameterNew, jbyteArray name, jint kind, jbyteArray text, jlong bits, jdouble number) {
  (void)type;
  struct text texts[2] = {{.from = name}, {.from = text}};
  if (!texts_in(env, texts, 2)) return 0;
  int64_t whole = bits;
  bool truth = bits != 0;
  const void* value = texts[1].at;
  if (kind == TRITONSERVER_PARAMETER_INT) value = &whole;
  if (kind == TRITONSERVER_PARAMETER_BOOL) value = &truth;
  if (kind == TRITONSERVER_PARAMETER_DOUBLE) value = &number;
  TRITONSERVER_Parameter* parameter = NULL;
  if (texts[0].at != NULL && value != NULL) {
    parameter = TRITONSERVER_ParameterNew(texts[0].at, (TRITONSERVER_ParameterType)kind, value);
  }
  texts_free(texts, 2);
  return (jlong)(intptr_t)parameter;
}

/* The first of some bytes of a direct buffer. */
static const char* first(JNIEnv* env, jobject buffer, jint position) {
  const char* base = (*env)->GetDirectBufferAddress(env, buffer);
  return base == NULL ? NULL : base + position;
}

EXPORT(jlong, parameterBytesNew, jbyteArray name, jobject bytes, jint position, jint size) {
  (void)type;
  struct text texts[1] = {{.from = name}};
  if (!texts_in(env, texts, 1)) return 0;
  TRITONSERVER_Parameter* parameter = NULL;
  if (texts[0].at != NULL) {
    parameter = TRITONSERVER_ParameterBytesNew(texts[0].at, first(env, bytes, position), (uint64_t)size);
  }
  texts_free(texts, 1);
  return (jlong)(intptr_t)parameter;
}

EXPORT(jlong, messageNew, jbyteArray json) {
  (void)type;
  TRITONSERVER_Message* message = NULL;
  jsize size = (*env)->GetArrayLength(env, json);
  jbyte* bytes = (*env)->GetByteArrayElements(env, json, NULL);
  if (bytes == NULL) return 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageNewFromSerializedJson(&message, (const char*)bytes, (size_t)size);
  (*env)->ReleaseByteArrayElements(env, json, bytes, JNI_ABORT);
  return succeeded(env, error) ? (jlong)(intptr_t)message : 0;
}

EXPORT(void, appendInputData, jlong request, jbyteArray name, jobject bytes, jint position, jint size, jint kind,
       jlong id, jbyteArray policy, jlong attributes) {
  (void)type;
  struct text texts[2] = {{.from = name}, {.from = policy}};
  if (!texts_in(env, texts, 2)) return;
  TRITONSERVER_InferenceRequest* of = (TRITONSERVER_InferenceRequest*)(intptr_t)request;
  const char* base = first(env, bytes, position);
  TRITONSERVER_Error* error = NULL;
  if (attributes != 0) {
    TRITONSERVER_BufferAttributes* given = (TRITONSERVER_BufferAttributes*)(intptr_t)attributes;
    size_t stated = 0;
    error = TRITONSERVER_BufferAttributesByteSize(given, &stated);
    if (error == NULL && stated > (size_t)size) {
      error = TRITONSERVER_ErrorNew(
          TRITONSERVER_ERROR_INVALID_ARG, "the attributes state more bytes than the buffer has");
    }
    if (error == NULL) {
      error = TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(of, texts[0].at, base, given);
    }
  } else if (policy != NULL) {
    error = TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        of, texts[0].at, base, (size_t)size, (TRITONSERVER_MemoryType)kind, id, texts[1].at);
  } else {
    error = TRITONSERVER_InferenceRequestAppendInputData(
        of, texts[0].at, base, (size_t)size, (TRITONSERVER_MemoryType)kind, id);
  }
  texts_free(texts, 2);
  (void)succeeded(env, error);
}

/* Memory of outputs. ----------------------------------------------------------------------------------------------- */
/* The user's pointer of a request is a global reference to its Call, that of a buffer one to its Allocation. */

static TRITONSERVER_Error* no_memory(JNIEnv* env, jobject call) {
  no_exception(env);
  jbyteArray text = (*env)->CallStaticObjectMethod(env, callbacks, allocationError_method, call);
  TRITONSERVER_Error* error = NULL;
  if (!(*env)->ExceptionCheck(env) && text != NULL) {
    jbyte* bytes = (*env)->GetByteArrayElements(env, text, NULL);
    if (bytes != NULL) {
      error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, (const char*)bytes);
      (*env)->ReleaseByteArrayElements(env, text, bytes, JNI_ABORT);
    }
    (*env)->DeleteLocalRef(env, text);
  }
  no_exception(env);
  if (error == NULL) error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the JVM has no memory");
  return error;
}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType kind,
    int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id) {
  (void)allocator;
  *buffer = NULL;
  *buffer_userp = NULL;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  if (byte_size == 0) return NULL;
  JNIEnv* env = attached();
  if (env == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the JVM takes no more threads");
  jbyteArray text = bytes_out(env, name, name == NULL ? 0 : strlen(name));
  if ((*env)->ExceptionCheck(env)) return no_memory(env, userp);
  jobject allocation = (*env)->CallStaticObjectMethod(
      env, callbacks, allocate_method, (jobject)userp, text, (jlong)byte_size, (jint)kind, (jlong)id);
  bool is_lost = (*env)->ExceptionCheck(env);
  if (text != NULL) (*env)->DeleteLocalRef(env, text);
  if (is_lost || allocation == NULL) return no_memory(env, userp);
  *buffer = (void*)(intptr_t)(*env)->GetLongField(env, allocation, address_field);
  *buffer_userp = (*env)->NewGlobalRef(env, allocation);
  (*env)->DeleteLocalRef(env, allocation);
  return *buffer_userp == NULL ? no_memory(env, userp) : NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType kind, int64_t id) {
  (void)allocator, (void)buffer, (void)byte_size, (void)kind, (void)id;
  JNIEnv* env = buffer_userp == NULL ? NULL : attached();
  if (env == NULL) return NULL;
  (*env)->CallStaticVoidMethod(env, callbacks, released_method, (jobject)buffer_userp);
  no_exception(env);
  (*env)->DeleteGlobalRef(env, buffer_userp);
  return NULL;
}

static TRITONSERVER_Error* start(TRITONSERVER_ResponseAllocator* allocator, void* userp) {
  (void)allocator;
  JNIEnv* env = attached();
  if (env == NULL) return NULL;
  (*env)->CallStaticVoidMethod(env, callbacks, started_method, (jobject)userp);
  no_exception(env);
  return NULL;
}

EXPORT(jlong, allocatorNew, jboolean has_start) {
  (void)type;
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  TRITONSERVER_Error* error =
      TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, has_start ? start : NULL);
  return succeeded(env, error) ? (jlong)(intptr_t)allocator : 0;
}

/* Requests and responses. ------------------------------------------------------------------------------------------ */

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  JNIEnv* env = attached();
  if (env == NULL) {
    /* Nothing of Java can receive it any more. */
    if (response != NULL) TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceResponseDelete(response));
    return;
  }
  jboolean is_done = (*env)->CallStaticBooleanMethod(
      env, callbacks, responded_method, (jobject)userp, (jlong)(intptr_t)response, (jint)flags);
  no_exception(env);
  if (is_done) (*env)->DeleteGlobalRef(env, userp);
}

static void on_return(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)request;
  JNIEnv* env = attached();
  if (env == NULL) return;
  jboolean is_done =
      (*env)->CallStaticBooleanMethod(env, callbacks, returned_method, (jobject)userp, (jint)flags);
  no_exception(env);
  if (is_done) (*env)->DeleteGlobalRef(env, userp);
}

EXPORT(void, inferAsync, jlong server, jlong request, jlong trace, jobject call, jboolean has_release,
       jlong allocator) {
  (void)type;
  TRITONSERVER_InferenceRequest* of = (TRITONSERVER_InferenceRequest*)(intptr_t)request;
  TRITONSERVER_Error* error = NULL;
  jobject held = (*env)->NewGlobalRef(env, call);
  if (held == NULL) {
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the JVM has no memory for a request");
  }
  if (error == NULL && has_release) error = TRITONSERVER_InferenceRequestSetReleaseCallback(of, on_return, held);
  if (error == NULL && allocator != 0) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(
        of, (TRITONSERVER_ResponseAllocator*)(intptr_t)allocator, held, on_response, held);
  }
  if (error == NULL) {
    /* From here on the callbacks may have ended the reference. */
    error = TRITONSERVER_ServerInferAsync(
        (TRITONSERVER_Server*)(intptr_t)server, of, (TRITONSERVER_InferenceTrace*)(intptr_t)trace);
  }
  if (error != NULL) {
    if (held != NULL) (*env)->DeleteGlobalRef(env, held);
    (void)succeeded(env, error);
  }
}

EXPORT(jobject, responseError, jlong response) {
  (void)type;
  TRITONSERVER_Error* error =
      TRITONSERVER_InferenceResponseError((TRITONSERVER_InferenceResponse*)(intptr_t)response);
  if (error == NULL) return NULL;
  jobject exception = exception_of(env, error);
  TRITONSERVER_ErrorDelete(error);
  return exception;
}

EXPORT(jobject, responseModel, jlong response) {
  (void)type;
  const char* name = NULL;
  int64_t version = 0;
  if (!succeeded(env, TRITONSERVER_InferenceResponseModel(
                          (TRITONSERVER_InferenceResponse*)(intptr_t)response, &name, &version))) {
    return NULL;
  }
  jbyteArray text = bytes_out(env, name, name == NULL ? 0 : strlen(name));
  if ((*env)->ExceptionCheck(env)) return NULL;
  return (*env)->CallStaticObjectMethod(env, callbacks, model_method, text, (jlong)version);
}

EXPORT(jobject, responseParameter, jlong response, jint index) {
  (void)type;
  const char* name = NULL;
  TRITONSERVER_ParameterType kind = TRITONSERVER_PARAMETER_STRING;
  const void* value = NULL;
  if (!succeeded(env, TRITONSERVER_InferenceResponseParameter((TRITONSERVER_InferenceResponse*)(intptr_t)response,
                                                              (uint32_t)index, &name, &kind, &value))) {
    return NULL;
  }
  jlong bits = 0;
  jdouble number = 0;
  const char* text = NULL;
  switch (kind) {
    case TRITONSERVER_PARAMETER_INT: bits = *(const int64_t*)value; break;
    case TRITONSERVER_PARAMETER_BOOL: bits = *(const bool*)value; break;
    case TRITONSERVER_PARAMETER_DOUBLE: number = *(const double*)value; break;
    case TRITONSERVER_PARAMETER_STRING: text = value; break;
    default: break; /* Bytes have no end that could be found. */
  }
  jbyteArray its_name = bytes_out(env, name, name == NULL ? 0 : strlen(name));
  if ((*env)->ExceptionCheck(env)) return NULL;
  jbyteArray its_text = bytes_out(env, text, text == NULL ? 0 : strlen(text));
  if ((*env)->ExceptionCheck(env)) return NULL;
  return (*env)->CallStaticObjectMethod(
      env, callbacks, parameter_method, its_name, (jint)kind, its_text, bits, number);
}

EXPORT(jobject, responseOutput, jlong response, jint index) {
  (void)type;
  const char* name = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = NULL;
  uint64_t dim_count = 0;
  const void* base = NULL;
  size_t byte_size = 0;
  TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  void* allocation = NULL;
  if (!succeeded(env, TRITONSERVER_InferenceResponseOutput(
                          (TRITONSERVER_InferenceResponse*)(intptr_t)response, (uint32_t)index, &name, &datatype,
                          &shape, &dim_count, &base, &byte_size, &kind, &id, &allocation))) {
    return NULL;
  }
  jbyteArray text = bytes_out(env, name, name == NULL ? 0 : strlen(name));
  if ((*env)->ExceptionCheck(env)) return NULL;
  jlongArray dims = (*env)->NewLongArray(env, (jsize)dim_count);
  if (dims == NULL) return NULL;
  (*env)->SetLongArrayRegion(env, dims, 0, (jsize)dim_count, (const jlong*)shape);
  return (*env)->CallStaticObjectMethod(
      env, callbacks, output_method, text, (jint)datatype, dims, (jlong)byte_size, (jint)kind, (jlong)id,
      (jobject)allocation);
}

/* Traces and the log. ---------------------------------------------------------------------------------------------- */
/* The user's pointer of a trace is a number, which stands for the functions of Java. */

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t timestamp_ns,
    void* userp) {
  JNIEnv* env = attached();
  if (env == NULL) return;
  (*env)->CallStaticVoidMethod(
      env, callbacks, traced_method, (jlong)(intptr_t)userp, (jlong)(intptr_t)trace, (jint)activity,
      (jlong)timestamp_ns);
  no_exception(env);
}

static void on_trace_return(TRITONSERVER_InferenceTrace* trace, void* userp) {
  JNIEnv* env = attached();
  if (env == NULL) return;
  (*env)->CallStaticVoidMethod(
      env, callbacks, traceReturned_method, (jlong)(intptr_t)userp, (jlong)(intptr_t)trace);
  no_exception(env);
}

EXPORT(jlong, traceNew, jint level, jlong parent_id, jlong number) {
  (void)type;
  TRITONSERVER_InferenceTrace* trace = NULL;
  TRITONSERVER_Error* error = TRITONSERVER_InferenceTraceNew(
      &trace, (TRITONSERVER_InferenceTraceLevel)level, (uint64_t)parent_id, on_activity, on_trace_return,
      (void*)(intptr_t)number);
  return succeeded(env, error) ? (jlong)(intptr_t)trace : 0;
}

static void on_log(
    TRITONSERVER_LogLevel level, const char* file, int line, uint64_t timestamp_us, const char* message, void* userp) {
  (void)userp;
  JNIEnv* env = attached();
  /* A thread may log while an exception is on its way; Java cannot be called then. */
  if (env == NULL || (*env)->ExceptionCheck(env)) return;
  jbyteArray its_file = bytes_out(env, file, file == NULL ? 0 : strlen(file));
  jbyteArray text = NULL;
  if (!(*env)->ExceptionCheck(env)) text = bytes_out(env, message, message == NULL ? 0 : strlen(message));
  if (!(*env)->ExceptionCheck(env)) {
    (*env)->CallStaticVoidMethod(
        env, callbacks, logged_method, (jint)level, its_file, (jint)line, (jlong)timestamp_us, text);
  }
  no_exception(env);
  if (text != NULL) (*env)->DeleteLocalRef(env, text);
  if (its_file != NULL) (*env)->DeleteLocalRef(env, its_file);
}

EXPORT(void, setLogCallback, jlong options, jboolean is_set) {
  (void)type;
  (void)succeeded(env, TRITONSERVER_ServerOptionsSetLogCallback(
                           (TRITONSERVER_ServerOptions*)(intptr_t)options, is_set ? on_log : NULL, NULL));
}
