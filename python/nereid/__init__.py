"""Nereid's own Python modules, beside Triton's `tritonserver`. `nereid.ray` serves models in Ray Serve."""
