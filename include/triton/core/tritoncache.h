/* What caches include; everything stands in one header. */

#include "tritonserver.h"
