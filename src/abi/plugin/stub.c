/* An empty library whose soname (soname.txt) is written over with the one that a plug-in needs: libtritonserver.so, or
 * what a package renamed it to. The functions come from the program itself. */
