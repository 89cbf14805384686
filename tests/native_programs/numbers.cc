/* The numbers of the header, in C++. */

#include "numbers.h"

int main(void) {
  return 0;
}
