"""What is sent: prompts, passphrases, length edges and the models they are written for."""
