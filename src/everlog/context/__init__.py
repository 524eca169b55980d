"""What the model is sent next. Pure."""
