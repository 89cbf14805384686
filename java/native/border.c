/* Threads, errors, texts and numbers at the border between Java and C. */

#include <pthread.h>

#include "border.h"

jclass callbacks;

static JavaVM* vm;
static pthread_key_t attachment;
static jmethodID error_of;

/* Runs when a thread ends that was attached here. Its value is not NULL. */
static void detach(void* value) {
  (void)value;
  (*vm)->DetachCurrentThread(vm);
}

jint calls_loaded(JNIEnv* env);

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* of, void* reserved) {
  (void)reserved;
  vm = of;
  JNIEnv* env = NULL;
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10) != JNI_OK) return JNI_ERR;
  if (pthread_key_create(&attachment, detach) != 0) return JNI_ERR;
  jclass found = (*env)->FindClass(env, "nereid/tritonserver/Callbacks");
  if (found == NULL) return JNI_ERR;
  callbacks = (*env)->NewGlobalRef(env, found);
  if (callbacks == NULL) return JNI_ERR;
  error_of = (*env)->GetStaticMethodID(env, found, "error", "(I[B)Lnereid/TritonException;");
  if (error_of == NULL) return JNI_ERR;
  return calls_loaded(env);
}

JNIEnv* attached(void) {
  JNIEnv* env = NULL;
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10) == JNI_OK) return env;
  JavaVMAttachArgs arguments = {JNI_VERSION_10, "nereid", NULL};
  if ((*vm)->AttachCurrentThreadAsDaemon(vm, (void**)&env, &arguments) != JNI_OK) return NULL;
  /* Without the value the thread is not detached when it ends, so it is not left attached. */
  if (pthread_setspecific(attachment, vm) != 0) {
    (*vm)->DetachCurrentThread(vm);
    return NULL;
  }
  return env;
}

void no_exception(JNIEnv* env) {
  if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
}

static void throw_out_of_memory(JNIEnv* env) {
  jclass type = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
  if (type != NULL) (*env)->ThrowNew(env, type, "no memory for an argument of the server's");
}

/* The exception of an error, which stays the caller's; NULL with another exception. */
jobject exception_of(JNIEnv* env, TRITONSERVER_Error* error) {
  const char* message = TRITONSERVER_ErrorMessage(error);
  jint code = (jint)TRITONSERVER_ErrorCode(error);
  jbyteArray text = bytes_out(env, message, message == NULL ? 0 : strlen(message));
  if ((*env)->ExceptionCheck(env)) return NULL;
  return (*env)->CallStaticObjectMethod(env, callbacks, error_of, code, text);
}

bool succeeded(JNIEnv* env, TRITONSERVER_Error* error) {
  if (error == NULL) return true;
  jobject exception = exception_of(env, error);
  TRITONSERVER_ErrorDelete(error);
  if (!(*env)->ExceptionCheck(env) && exception != NULL) (*env)->Throw(env, (jthrowable)exception);
  return false;
}

bool texts_in(JNIEnv* env, struct text* texts, size_t count) {
  for (size_t at = 0; at < count; ++at) {
    struct text* text = &texts[at];
    text->at = NULL;
    if (text->from == NULL) continue;
    jsize size = (*env)->GetArrayLength(env, text->from);
    text->at = (size_t)size <= sizeof text->small ? text->small : malloc((size_t)size);
    if (text->at == NULL) {
      texts_free(texts, at);
      throw_out_of_memory(env);
      return false;
    }
    (*env)->GetByteArrayRegion(env, text->from, 0, size, (jbyte*)text->at);
  }
  return true;
}

void texts_free(struct text* texts, size_t count) {
  for (size_t at = 0; at < count; ++at) {
    if (texts[at].at != texts[at].small) free(texts[at].at);
  }
}

/* Room for the elements of an array, each of 8 bytes. */
static bool room(JNIEnv* env, jarray from, struct array* array) {
  array->at = NULL;
  array->count = 0;
  if (from == NULL) return true;
  array->count = (uint32_t)(*env)->GetArrayLength(env, from);
  array->at = calloc(array->count == 0 ? 1 : array->count, 8);
  if (array->at != NULL) return true;
  throw_out_of_memory(env);
  return false;
}

bool longs_in(JNIEnv* env, jlongArray from, struct array* array) {
  if (!room(env, from, array)) return false;
  if (array->count > 0) (*env)->GetLongArrayRegion(env, from, 0, (jsize)array->count, array->at);
  return true;
}

bool doubles_in(JNIEnv* env, jdoubleArray from, struct array* array) {
  if (!room(env, from, array)) return false;
  if (array->count > 0) (*env)->GetDoubleArrayRegion(env, from, 0, (jsize)array->count, array->at);
  return true;
}

void array_free(struct array* array) { free(array->at); }

jbyteArray bytes_out(JNIEnv* env, const char* base, size_t byte_size) {
  if (base == NULL) return NULL;
  if (byte_size > INT32_MAX) {
    throw_out_of_memory(env);
    return NULL;
  }
  jbyteArray bytes = (*env)->NewByteArray(env, (jsize)byte_size);
  if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)byte_size, (const jbyte*)base);
  return bytes;
}
