"""Who may ask the dashboard for anything: hosts and origins, sessions, and the socket of a proxy."""
