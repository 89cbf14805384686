"""The worker that runs models beside the server: the transport, the main loop, and the classes that models use."""
