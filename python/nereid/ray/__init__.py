"""Models in Ray Serve: a deployment class whose replicas each hold a server, in their process or beside it.

    from nereid.ray import application
    from ray import serve

    handle = serve.run(application(model_repository="models", num_replicas=2))
    outputs = handle.infer.remote("add", {"INPUT0": numpy.ones([1, 4], numpy.float32)}).result()
"""

from nereid.ray._deployment import HttpServer as HttpServer
from nereid.ray._deployment import InferenceServer as InferenceServer
from nereid.ray._deployment import application as application
from nereid.ray._errors import InferenceError as InferenceError
from nereid.ray._errors import ServerLost as ServerLost
from nereid.ray._scaling import QueuePolicy as QueuePolicy

__all__ = ["HttpServer", "InferenceError", "InferenceServer", "QueuePolicy", "ServerLost", "application"]
