"""What a training script imports to be suspended, resumed and resized."""
