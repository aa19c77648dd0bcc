"""What is right: golden decoding without a cache."""
