/* What repository agents include; everything stands in one header. */

#include "tritonserver.h"
