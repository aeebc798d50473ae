"""The HTTP API: stateless, any process answers any request, never talks to an engine."""
