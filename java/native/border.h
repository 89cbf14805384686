/* What the functions between Java and C have in common. */

#ifndef NEREID_JAVA_BORDER_H
#define NEREID_JAVA_BORDER_H

#include <jni.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonserver.h"

/* Handles are passed as numbers of 64 bits, and arrays of them as they are. */
_Static_assert(sizeof(void*) == sizeof(jlong), "a host with addresses of 64 bits");

/* The class of the methods that are called from here, and its methods. */
extern jclass callbacks;

/* The methods of a thread that may be one of the server's: it is attached once, as a daemon, and detached when it ends.
 * NULL if the JVM takes no more threads. */
JNIEnv* attached(void);

/* Whether a call succeeded. Its error becomes an exception of Java. */
bool succeeded(JNIEnv* env, TRITONSERVER_Error* error);

/* A text from Java with its NUL; NULL for null. */
struct text {
  jbyteArray from;
  char* at;
  char small[256];
};

/* Reads texts. False with an exception where there is no memory; then nothing is to be freed. */
bool texts_in(JNIEnv* env, struct text* texts, size_t count);
void texts_free(struct text* texts, size_t count);

/* Numbers from Java; no elements for null. */
struct array {
  void* at;
  uint32_t count;
};

/* False with an exception where there is no memory. The array is to be freed in any case. */
bool longs_in(JNIEnv* env, jlongArray from, struct array* array);
bool doubles_in(JNIEnv* env, jdoubleArray from, struct array* array);
void array_free(struct array* array);

/* A copy in Java; null for NULL, or with an exception. */
jbyteArray bytes_out(JNIEnv* env, const char* base, size_t byte_size);

/* Takes an exception away that no frame of Java receives. */
void no_exception(JNIEnv* env);

#endif
