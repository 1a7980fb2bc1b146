"""What people are told of the cluster: stories, explanations, forecasts, notices, usage. Nothing is decided here."""
