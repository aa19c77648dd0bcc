"""How an engine is reached: the adapter contract, its child-process host, and the adapters."""
