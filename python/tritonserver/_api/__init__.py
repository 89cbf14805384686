"""The classes of the in-process API, over the C interface in `tritonserver._c`."""
