/* An empty library that carries the soname libtritonserver.so. Plug-ins name that library as needed; their symbols
 * come from the program itself. */
