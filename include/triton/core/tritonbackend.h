/* What backends include; everything stands in one header. */

#include "tritonserver.h"
