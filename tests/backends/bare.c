/* A library that is no backend: it cannot execute. */

__attribute__((visibility("default"))) int bare_number = 1;
