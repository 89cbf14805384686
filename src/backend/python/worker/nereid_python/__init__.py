"""The worker side of the Python backend: what a model's process runs between the server and model.py."""
