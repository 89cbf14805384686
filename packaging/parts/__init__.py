"""What the scripts of packaging/ and python/build share."""
