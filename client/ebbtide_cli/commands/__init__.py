"""What verbs are made of: options, help and completion, and how they fail."""
