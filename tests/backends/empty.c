/* A library that exports nothing of any interface. */

int nereid_empty;
