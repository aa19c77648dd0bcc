from kvfence.conformance.topics import *  # noqa: F403
